"""The baseline that trains nothing: the most frequent label of each client, and of all of them."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import fednlp
from fednlp import config
from fednlp.cli import main
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError
from fednlp.inference.model import open_trained
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.trial_plan import plan_searches

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Stopping = Callable[..., Any]
Write = Callable[..., Path]

TRAIN = {
    "north": ["economy", "arts", "economy"],
    "south": ["sports", "economy", "sports", "economy"],
    "west": ["sports", "sports", "arts", "sports", "sports"],
}
"""In the south two labels are equally frequent: the first by name is taken."""
TEST = {
    "north": ["economy", "arts", "sports", "economy", "economy"],
    "south": ["economy", "sports"],
    "west": ["sports", "sports", "arts"],
}
OWN = {"north": "economy", "south": "economy", "west": "sports"}
EVERYONE = "sports"


def rows(labels: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    return [
        (f"word{n} word{n + 1}", label, site) for site, of in labels.items() for n, label in enumerate(of)
    ]


@pytest.fixture
def sites(make_csv: Write, tmp_path: Path) -> dict[str, Any]:
    """Settings of three sites whose labels are those above."""
    return {
        "algorithm.name": "majority",
        "data.path": str(make_csv(tmp_path / "train.csv", rows(TRAIN))),
        "data.test_path": str(make_csv(tmp_path / "test.csv", rows(TEST))),
        "partition": {"method": "natural", "field": "site"},
    }


def by_hand(truth: Sequence[str], guess: Sequence[str], positive: str) -> dict[str, float]:
    """Return the metrics of scikit-learn; labels are true or predicted ones."""
    return {
        "accuracy": accuracy_score(truth, guess),
        "macro_f1": f1_score(truth, guess, average="macro", zero_division=0.0),
        "mcc": matthews_corrcoef(truth, guess),
        "f1": f1_score(truth, guess, labels=[positive], average=None, zero_division=0.0)[0],
    }


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "mcc", "f1"])
def test_scores_are_those_of_scikit_learn(
    metric: str, experiment: Make, sites: dict[str, Any], tmp_path: Path
) -> None:
    """Of the global test set and of each client, its mean, spread and worst decile."""
    assert Counter(label for of in TRAIN.values() for label in of).most_common(1)[0][0] == EVERYONE
    changes = {**sites, "task.metric": metric} | ({"task.positive_label": "sports"} if metric == "f1" else {})
    run = fednlp.run(experiment(changes), tmp_path / "run")
    (line,) = run.round_lines()
    truth = [label for of in TEST.values() for label in of]
    whole = by_hand(truth, [EVERYONE] * len(truth), "sports")
    found = line["evaluation"]["global"]
    assert found.pop("loss") is None
    assert found == pytest.approx({key: whole[key] for key in found})
    assert {*found} >= {"accuracy", "macro_f1", "mcc", metric}
    own = {site: by_hand(of, [OWN[site]] * len(of), "sports")[metric] for site, of in TEST.items()}
    with (run.folder / "clients.csv").open(newline="") as file:
        assert {row["name"]: float(row[metric]) for row in csv.DictReader(file)} == pytest.approx(
            own, abs=1e-6
        )
    scores, weights = list(own.values()), [len(of) for of in TEST.values()]
    assert line["evaluation"]["personal"] == pytest.approx(
        {
            metric: np.average(scores, weights=weights),
            f"{metric}_client_mean": np.mean(scores),
            f"{metric}_worst_decile": min(scores),
            f"{metric}_std": np.std(scores),
            "clients": 3,
        }
    )


def test_nothing_is_trained_sent_or_kept(experiment: Make, sites: dict[str, Any], tmp_path: Path) -> None:
    run = fednlp.run(experiment(sites), tmp_path / "run")
    (line,) = run.round_lines()
    counted = {"round": 1, "cohort": [], "train_loss": None, "steps": 0, "examples": 0}
    assert {key: line[key] for key in counted} == counted
    summary = run.read_json("summary.json")
    assert (summary["bytes_up"], summary["bytes_down"], summary["reference"]) == (0, 0, "majority")
    assert summary["evaluation"] == line["evaluation"]
    baseline = summary["trivial_baseline"]
    assert {key: line["evaluation"]["global"][key] for key in ("accuracy", "macro_f1", "mcc")} == {
        key: baseline[key] for key in ("accuracy", "macro_f1", "mcc")
    }
    assert not run.model.exists()
    with pytest.raises(RunError, match="holds no model: nothing was trained"):
        open_trained(run.folder)


def test_it_goes_on_where_it_was_stopped(
    experiment: Make, sites: dict[str, Any], stopping: Stopping, tmp_path: Path
) -> None:
    whole = fednlp.run(experiment(sites), tmp_path / "whole")
    callback: Callback
    with stopping(rounds=1) as callback:
        fednlp.run(experiment(sites), tmp_path / "run", callback=callback)
    fednlp.resume(tmp_path / "run")
    again = RunDir(tmp_path / "run")
    assert again.read_json("summary.json")["evaluation"] == whole.read_json("summary.json")["evaluation"]


def test_without_personal_scores(experiment: Make, sites: dict[str, Any], tmp_path: Path) -> None:
    run = fednlp.run(experiment({**sites, "evaluation.personal": False}), tmp_path / "run")
    assert [*run.round_lines()[0]["evaluation"]] == ["global"]


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("text-regression", {"text": "word1", "text_pair": "word2", "score": 2.5}),
        ("token-classification", {"words": ["word1"], "tags": ["O"]}),
        (
            "question-answering",
            {"context": "word1", "question": "word1", "answers": [{"text": "word1", "start": 0}]},
        ),
        ("text-generation", {"source": "word1", "target": "word2"}),
    ],
)
def test_tasks_without_single_labels_are_refused(
    task: str, row: dict[str, Any], experiment: Make, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps(row) + "\n") * 40)
    changes = {
        "algorithm.name": "majority",
        "data.path": str(path),
        "partition": {"method": "uniform", "clients": 4},
        "task.name": task,
        "model.max_length": 64,
        "task.max_target_length": 8 if task == "text-generation" else None,
    }
    message = (
        f"majority predicts one label for each text, .*, and the task is {task}: choose another baseline"
    )
    with pytest.raises(ConfigError, match=message):
        fednlp.run(experiment(changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"fewshot": {"gold": 8}},
            r"\[fewshot\] needs federated rounds, and majority has none: leave \[fewshot\] out",
        ),
        (
            {"client.round_schedule": "linear"},
            "client.round_schedule .* majority trains nothing: leave it out",
        ),
        ({"secure.protocol": "secagg"}, r"\[secure\] needs federated rounds, and majority has none"),
    ],
)
def test_what_it_has_no_use_for_is_refused(experiment: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment({"algorithm.name": "majority", **changes}).resolved()


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_shows_it_beside_the_methods(
    document: Callable[..., dict[str, Any]],
    sites: dict[str, Any],
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the score of each client on its own tests; with few labels a comparison leaves them out for it."""
    changes = {**sites, "algorithm.name": "fedavg", "num_rounds": 1}
    (here / "e.toml").write_text(tomli_w.dumps(document(changes)))
    words = "compare e.toml --algorithms fedavg --baselines majority --out runs/c"
    monkeypatch.setattr("sys.argv", ["fednlp", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    said = capsys.readouterr().out
    assert "Most frequent label" in said
    assert "nothing is trained" in said
    experiment = config.with_method(config.load(here / "e.toml", ["fewshot.gold=8"]), "majority", 0)
    assert experiment.fewshot is None


def test_a_search_for_settings_has_no_trials_of_it(experiment: Make, tmp_path: Path) -> None:
    grid = {"client.learning_rate": [0.1, 0.01]}
    fedavg, majority = plan_searches(experiment(), ["fedavg", "majority"], grid, tmp_path)
    assert (len(fedavg.candidates), len(majority.candidates)) == (2, 0)
    assert majority.describe() == "majority: it has none of these settings and is compared as it is"
    with pytest.raises(ConfigError, match=r"client\.learning_rate cannot be tuned: majority trains nothing"):
        plan_searches(experiment(), ["majority"], grid, tmp_path)
