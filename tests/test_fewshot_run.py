"""Laws of whole runs with few labels."""

import csv
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fednlp
from fednlp.config import Experiment
from fednlp.config.identity import canonical, differences
from fednlp.errors import ConfigError, DataError, ModelError
from fednlp.federated.client import TrainRequest
from fednlp.fewshot.simulation import pace_trials
from fednlp.fewshot.simulation.central_labels import READS_HIDDEN_LABELS
from fednlp.fewshot.simulation.gold_labels import gold_labels_of
from fednlp.fewshot.simulation.label_judge import LabelJudge
from fednlp.partition import Partition
from fednlp.partition.draws import largest_remainder
from fednlp.reports import write_report
from fednlp.runtime.pool import Pool
from fednlp.simulation.callback import Callback, NullCallback
from fednlp.simulation.components import open_data
from fednlp.simulation.run_dir import RunDir

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers", "undrawn")]

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]
FEW: dict[str, Any] = {"gold": 24, "gamma": 1.0, "f": 1, "n": 3, "k": 20.0}
METHODS: dict[str, dict[str, Any]] = {
    "gold alone": {"fewshot": FEW | {"pacing": "none"}},
    "static": {"fewshot": FEW | {"pacing": "static", "f": 2, "per_client": 5}, "algorithm.name": "fedprox"},
    "curriculum": {"fewshot": FEW, "algorithm.name": "fedopt"},
    "labels from round 3 on": {"fewshot": FEW | {"f": 2, "first_labelling": 3}},
    "wrong labels": {"fewshot": FEW | {"noisy_client_fraction": 0.3, "detect_label_noise": True}},
    "search by gold labels": {
        "fewshot": FEW | {"pacing": "search", "trial_rounds": 2, "gold": 60, "gamma": 100.0},
        "partition.clients": 40,
        "num_rounds": 6,
        "algorithm.name": "fedopt",
    },
    "trials in waves": {
        "fewshot": FEW
        | {
            "pacing": "search",
            "trial_rounds": 2,
            "validation": 20,
            "candidates": 2,
            "window": 1,
            "threshold": 9.0,
        },
        "num_rounds": 18,
        "evaluation.every": 9,
        "algorithm.name": "fedopt",
    },
    "search": {
        "fewshot": FEW
        | {"pacing": "search", "trials": "sequential", "trial_rounds": 2, "validation": 20, "candidates": 2}
        | {"window": 2, "max_searches": 1},
        "num_rounds": 16,
        "evaluation.every": 8,
        "algorithm.name": "fedopt",
    },
    "adapters": {
        "fewshot": FEW | {"class_balanced": True},
        "model.peft": {"method": "lora", "r": 2},
        "exchange": {"up": ["float16"], "down": []},
    },
    "all at once": {
        "fewshot": FEW,
        "model.train": {"frozen": ["embeddings", "layer.0"]},
        "exchange": {"up": [], "down": ["bfloat16"]},
        "secure.protocol": "secagg+",
        "algorithm.name": "fedadam",
    },
}


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_stopped_and_resumed_with_two_workers(
    method: str, experiment: Make, outcome: Outcome, stopping: Stopping, tmp_path: Path
) -> None:
    changes = METHODS[method]
    whole = fednlp.run(experiment(changes), tmp_path / "whole")
    with stopping(rounds=3, pieces=1) as callback:
        fednlp.run(experiment(changes), tmp_path / "run", callback=callback)
    assert outcome(fednlp.resume(tmp_path / "run", workers=2)) == outcome(whole)


def write(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def permuted(rows: list[dict[str, str]], seen: set[int]) -> list[dict[str, str]]:
    """Return rows with the labels of all but the gold ones exchanged among these."""
    hidden = [number for number in range(len(rows)) if number not in seen]
    labels = [rows[number]["label"] for number in hidden]
    exchanged = np.random.default_rng(7).permutation(labels).tolist()
    assert exchanged != labels
    changed = [dict(row) for row in rows]
    for number, label in zip(hidden, exchanged, strict=True):
        changed[number]["label"] = label
    return changed


@pytest.mark.parametrize("method", ["gold alone", "static", "curriculum", "search"])
def test_hidden_labels_change_nothing(
    method: str,
    experiment: Make,
    outcome: Outcome,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit: whatever the labels are that nobody has, the run is the same, but for how right it says they are."""
    seen: set[int] = set()

    def spied(course: Any) -> Any:
        found = gold_labels_of(course)
        seen.update([*found.examples.tolist(), *found.validation[0].tolist()])
        return found

    monkeypatch.setattr("fednlp.fewshot.simulation.central_labels.gold_labels_of", spied)
    with texts.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    test = write(tmp_path / "test.csv", rows[160:])
    changes = METHODS[method] | {"data": {"path": write(tmp_path / "one.csv", rows[:160]), "test_path": test}}
    first = fednlp.run(experiment(changes), tmp_path / "first")
    # Who has which text is given here; a partition by labels would follow them.
    changes["partition"] = {"method": "file", "file": str(first.partition)}
    changes["data"] = {
        "path": write(tmp_path / "two.csv", permuted(rows[:160], seen)),
        "test_path": test,
    }
    second = fednlp.run(experiment(changes), tmp_path / "second")
    one, two = outcome(first), outcome(second)
    for found in (one, two):
        found["summary"].pop("data")
    compared = [[line.pop("hidden_truth", None) for line in found["rounds"]] for found in (one, two)]
    assert one == two
    assert (compared[0] == compared[1]) == (method == "gold alone")


def test_who_trains_has_labels_and_who_labels_gives_the_surest(experiment: Make, tmp_path: Path) -> None:
    """Labels of a round are trained on from the next one; a client gives ever more of its texts."""
    run = fednlp.run(experiment({"fewshot": FEW, "num_rounds": 5}), tmp_path / "run")
    lines, partition = lines_of(run), Partition.load(run.partition)
    summary = json.loads((run.folder / "summary.json").read_text())["fewshot"]
    sizes = np.diff(partition.train_offsets)
    assert summary["gold"] == 24
    assert summary["candidates"] == sizes.sum() - 24
    assert lines[0]["labels"]["gold"] == 24
    had = 0
    for number, line in enumerate(lines, start=1):
        assert len(line["labelling"]) == 3
        assert line["labels"]["pseudo"] >= had or number > 1
        had = line["labels"]["pseudo"]
        # At most the n clients of each labelling so far, each a share of g k percent, rounded up.
        assert (
            0
            < had
            <= sum(
                np.ceil(0.2 * number * sizes[c]) for c in {c for x in lines[:number] for c in x["labelling"]}
            )
        )
    # In the first round only gold labels are there.
    assert lines[0]["examples"] <= 24 * 1


@pytest.mark.parametrize("label", ["", None])
def test_a_simulation_needs_the_labels_that_it_hides(
    label: str | None, experiment: Make, tmp_path: Path
) -> None:
    """To leave such rows out would lose the texts without labels, so that nothing says it."""
    path = tmp_path / "few.jsonl"
    rows = [{"text": "one", "label": "x"}, {"text": "two", "label": label}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"data": {"path": str(path)}, "partition": {"method": "uniform", "clients": 2}}
    for few, said in (({"fewshot": FEW}, "needs the true labels of all texts"), ({}, "leave such rows out")):
        with pytest.raises(DataError, match=rf"few\.jsonl:2: .*label.* missing: .*{said}") as caught:
            open_data(experiment(own | few))
        assert ("on_invalid_row" in str(caught.value)) == (not few)


def test_more_gold_labels_than_examples_are_refused(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="10000 gold labels"):
        fednlp.run(experiment({"fewshot": FEW | {"gold": 10_000}}), tmp_path / "run")


def test_nothing_left_to_label_is_refused(experiment: Make, tmp_path: Path) -> None:
    few = FEW | {"pacing": "search", "validation": 500}
    with pytest.raises(ConfigError, match=r"fewshot.validation = 500 leave none of \d+ texts to label"):
        fednlp.run(experiment({"fewshot": few, "num_rounds": 20}), tmp_path / "run")


def test_texts_with_numbers_for_labels_are_refused(
    experiment: Make, make_csv: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_csv(tmp_path / "scores.csv", [(f"text {n}", n / 9) for n in range(90)], ("text", "score"))
    with pytest.raises(ConfigError, match="text-regression has none: leave it out"):
        fednlp.run(
            experiment({"fewshot": FEW, "data": {"path": str(path)}, "partition": {"clients": 8}}),
            tmp_path / "run",
        )


def test_a_class_without_a_gold_label_is_said(experiment: Make, tmp_path: Path) -> None:
    said: list[str] = []

    class Listen(NullCallback):
        def log(self, text: str) -> None:
            said.append(text)

    run = fednlp.run(
        experiment({"fewshot": FEW | {"gold": 2}, "num_rounds": 1}), tmp_path / "run", callback=Listen()
    )
    missing = json.loads((run.folder / "summary.json").read_text())["fewshot"]["classes_without_gold"]
    assert len(missing) >= 2
    assert all(any(name in text for text in said) for name in missing)


def test_a_search_tries_every_pace_from_the_same_model_and_keeps_the_best(
    experiment: Make, tmp_path: Path
) -> None:
    run = fednlp.run(experiment(METHODS["search"]), tmp_path / "run")
    lines = lines_of(run)
    trials = [line for line in lines if line["pacing"]["phase"] == "trial"]
    tried = {tuple(line["pacing"]["pace"]) for line in trials}
    assert len(tried) == 6
    assert len([line for line in lines if "chosen" in line["pacing"]]) >= 1
    by_iteration: dict[int, set[tuple[int, ...]]] = {}
    for line in trials[:12]:
        by_iteration.setdefault(line["pacing"]["iteration"], set()).add(tuple(line["cohort"]))
    assert len(by_iteration[0]) == 1  # all trials begin with the same cohort


def test_fewer_clients_with_labels_than_a_secure_sum_is_for_make_no_sum(
    experiment: Make, tmp_path: Path
) -> None:
    """Such a round is noted, the model stays, and the run goes on until enough clients have labels."""
    few = FEW | {"gold": 2, "gamma": 0.001, "n": 8}
    changes = {"fewshot": few, "secure.protocol": "secagg", "num_rounds": 3}
    lines = lines_of(fednlp.run(experiment(changes), tmp_path / "run"))
    assert "clients were drawn" in lines[0]["aborted"]
    assert all(one["reason"] == lines[0]["aborted"] for one in lines[0]["dropped"])
    assert lines[0]["labels"]["pseudo"] > 0
    assert "aborted" not in lines[1]


def test_a_client_that_trains_and_labels_is_one_client(experiment: Make, tmp_path: Path) -> None:
    """It gets the model once, as it comes down, and computes for both, one after the other."""
    changes = {
        "partition": {"method": "uniform", "clients": 1},
        "clients_per_round": 1,
        "fewshot": FEW | {"n": 1, "gold": 9},
        "exchange": {"up": [], "down": ["bfloat16"]},
        "costs": {"device": "jetson-tx2", "bandwidth_down": 1.0},
        "num_rounds": 1,
    }
    both = lines_of(fednlp.run(experiment(changes), tmp_path / "both"))[0]
    changes["fewshot"] |= {"pacing": "none"}
    alone = lines_of(fednlp.run(experiment(changes), tmp_path / "alone"))[0]
    assert both["labelled"] > 100
    assert both["bytes_down"] == alone["bytes_down"] > 0
    assert both["tensors_down"] == alone["tensors_down"]
    assert both["simulated_seconds"] > alone["simulated_seconds"]


@pytest.mark.slow
def test_clients_label_with_their_own_head(experiment: Make, tmp_path: Path) -> None:
    """By round 24 their models are right on most texts of four labels; a head that nobody trained is not."""
    changes = {
        "fewshot": FEW | {"gold": 100, "n": 8, "f": 24},
        "model.train": {"personal": ["head"]},
        "num_rounds": 25,
        "clients_per_round": 8,
        "client": {"optimizer": "adamw", "learning_rate": 0.02, "num_train_epochs": 2},
        "evaluation.every": 25,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    state = load_file(run.state)
    pseudo = state[next(name for name in state if name.endswith("fewshot.pseudo"))]
    given = pseudo >= 0
    assert given.sum() >= 16
    right: float = (pseudo == open_data(run.experiment()).labels("train"))[given].mean()
    assert right > 0.6


def test_gold_labels_that_are_not_trusted_are_not_counted(experiment: Make, tmp_path: Path) -> None:
    few = FEW | {"gold": 100, "noisy_client_fraction": 0.4, "detect_label_noise": True}
    run = fednlp.run(experiment({"fewshot": few, "num_rounds": 9, "evaluation.every": 9}), tmp_path / "run")
    lines = lines_of(run)
    flagged = {client for line in lines for client in line.get("flagged", [])}
    assert flagged
    assert lines[-1]["labels"]["gold"] < 100


def test_every_trial_of_a_search_begins_with_the_same_trusted_clients(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, stopping: Stopping
) -> None:
    """What a trial flags is put back with the model; here each check flags the first client that is left."""
    monkeypatch.setattr(
        "fednlp.fewshot.simulation.label_judge.find_noisy_clients", lambda clients, *rest: clients[:1]
    )
    few = METHODS["search"]["fewshot"] | {"detect_label_noise": True, "gold": 40}
    changes = METHODS["search"] | {"fewshot": few, "num_rounds": 13, "evaluation.every": 13}
    whole = fednlp.run(experiment(changes), tmp_path / "whole")
    begun: dict[str, list[tuple[list[int] | None, int]]] = {}
    for line in lines_of(whole):
        if line["pacing"]["phase"] == "trial":
            found = line.get("flagged"), line["labels"]["gold"]
            begun.setdefault(str(line["pacing"]["pace"]), []).append(found)
    first, *others = [trial[0] for trial in begun.values()]
    assert first[0]
    assert others == [first] * len(others)
    assert len(others) >= 1
    with stopping(rounds=3, pieces=1) as callback:
        fednlp.run(experiment(changes), tmp_path / "run", callback=callback)
    assert outcome(fednlp.resume(tmp_path / "run")) == outcome(whole)


def test_gold_labels_cannot_be_checked_by_layers_that_nobody_shares(experiment: Make, tmp_path: Path) -> None:
    changes = {"fewshot": FEW | {"detect_label_noise": True}, "model.train": {"personal": "head"}}
    with pytest.raises(ConfigError, match=r"leave fewshot\.detect_label_noise out"):
        fednlp.run(experiment(changes), tmp_path / "run")


def prompted(tiny_model: Path, folder: Path, kind: str) -> dict[str, Any]:
    """Return changes that ask a tiny BERT with a kind of head for one word a label."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig.from_pretrained(tiny_model, vocab_size=len(tokenizer))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(transformers, kind)(config).save_pretrained(folder)
    words = {label: f"{label}0" for label in ("arts", "economy", "science", "sports")}
    return {
        "model": {"name_or_path": str(folder), "max_length": 32},
        "task": {"name": "prompt-classification", "pattern": "{mask} {text}", "verbalizer": words},
    }


def test_without_any_gold_label_what_the_model_says_is_the_beginning(
    experiment: Make, outcome: Outcome, stopping: Stopping, tiny_model: Path, tmp_path: Path
) -> None:
    """The first round labels and moves nothing; the second trains on that."""
    changes = prompted(tiny_model, tmp_path / "model", "BertForMaskedLM")
    changes |= {
        "fewshot": FEW | {"gold": 0, "class_balanced": True, "detect_label_noise": True},
        "num_rounds": 2,
    }
    whole = fednlp.run(experiment(changes), tmp_path / "whole")
    first, second = lines_of(whole)
    assert (first["cohort"], first["examples"], first["labels"]["gold"]) == ([], 0, 0)
    assert "no client has a label yet" in first["aborted"]
    assert len(first["labelling"]) == FEW["n"]
    assert set(second["cohort"]) == set(first["labelling"])
    assert second["examples"] == first["labels"]["pseudo"] > 0
    with stopping(rounds=1, pieces=0) as callback:
        fednlp.run(experiment(changes), tmp_path / "run", callback=callback)
    assert outcome(fednlp.resume(tmp_path / "run", workers=2)) == outcome(whole)


def test_a_round_without_a_step_has_no_change_of_base_weights_to_send(
    experiment: Make, tiny_model: Path, tmp_path: Path
) -> None:
    changes = prompted(tiny_model, tmp_path / "model", "BertForMaskedLM")
    changes |= {
        "fewshot": FEW | {"gold": 0, "n": 2},
        "model": changes["model"] | {"peft": {"method": "lora", "r": 2, "averaging": "exact"}},
        "num_rounds": 2,
    }
    first, second = lines_of(fednlp.run(experiment(changes), tmp_path / "run"))
    assert "aborted" in first
    message = first["bytes_down"] / len(first["labelling"])
    assert second["bytes_down"] == message * len({*second["cohort"], *second["labelling"]})


def test_a_prompt_asks_only_what_a_head_has_learnt(
    experiment: Make, tiny_model: Path, tmp_path: Path
) -> None:
    changes = prompted(tiny_model, tmp_path / "headless", "BertModel")
    with pytest.raises(ModelError, match="has no masked-LM head"):
        fednlp.run(experiment(changes), tmp_path / "run")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"fewshot": FEW | {"gold": 0}}, "say gold = 64"),
    "nothing to come": (
        {"fewshot": FEW | {"gold": 0, "pacing": "none"}, "task": {"prompt": "bbc"}},
        "give task.prompt and a fewshot.pacing",
    ),
    "too short": (
        {"fewshot": FEW | {"pacing": "search", "trial_rounds": 4}, "num_rounds": 4},
        "trial_rounds = 4: a search for a pace takes so many rounds at least, and the run has 4",
    ),
    "begun without labels": (
        {"fewshot": FEW | {"pacing": "none", "first_labelling": 2}},
        "first_labelling = 2: no client labels with",
    ),
    "begun by a search": (
        {"fewshot": FEW | {"pacing": "search", "first_labelling": 2}},
        "the search says when clients label",
    ),
    "begun without gold": (
        {"fewshot": FEW | {"gold": 0, "first_labelling": 2}, "task": {"prompt": "bbc"}},
        "nothing to train on before",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_starts(case: str, experiment: Make) -> None:
    changes, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        experiment(changes).resolved()


@pytest.mark.parametrize("method", ["search by gold labels", "trials in waves"])
def test_trials_at_once_have_disjoint_clients_and_leave_nothing_behind(
    method: str, experiment: Make, tmp_path: Path
) -> None:
    run = fednlp.run(experiment(METHODS[method]), tmp_path / "run")
    lines, clients = lines_of(run), Partition.load(run.partition).num_clients
    trials = [line for line in lines if line["pacing"]["phase"] == "trial"]
    assert trials
    for line in trials:
        groups = line["pacing"]["groups"]
        assert sorted(client for group in groups for client in group) == list(range(clients))
        assert len(groups) == len(line["pacing"]["paces"]) + 1
        control, *trying = (set(group) for group in groups)
        assert control & set(line["cohort"])
        assert not control & set(line["labelling"])
        for group, (_, n, _) in zip(trying, line["pacing"]["paces"], strict=True):
            assert len(group & set(line["labelling"])) <= n
        assert len(set(line["cohort"])) == len(line["cohort"])
    assert any("chosen" in line["pacing"] for line in trials)
    steps = [line["steps"] for line in lines]
    assert min(steps) > 0
    assert not [name for name in load_file(run.state) if "fewshot.trial" in name]


@pytest.mark.slow
def test_after_trials_a_run_is_where_it_had_been_without_them(
    experiment: Make, stopping: Stopping, tmp_path: Path
) -> None:
    """Trials have idle clients: model and labels are, to the bit, those of a run that has trained on gold labels."""
    few = FEW | {"gold": 12, "gamma": 0.1}
    searched = few | {"pacing": "search", "trial_rounds": 2, "validation": 20}
    changes = {"clients_per_round": 6, "num_rounds": 30, "algorithm.name": "fedopt"}
    tried = tmp_path / "tried"
    whole = fednlp.run(experiment(changes | {"fewshot": searched}), tmp_path / "whole")
    rounds = 1 + next(n for n, line in enumerate(lines_of(whole)) if "chosen" in line["pacing"])
    assert lines_of(whole)[rounds - 1]["labels"]["pseudo"] > 0
    with stopping(rounds=rounds) as callback:
        fednlp.run(experiment(changes | {"fewshot": searched}), tried, callback=callback)
    with stopping(rounds=rounds) as callback:
        plain = experiment(changes | {"fewshot": few | {"pacing": "none"}})
        fednlp.run(plain, tmp_path / "plain", callback=callback)
    states = [load_file(run / "checkpoint" / "state.safetensors") for run in (tried, tmp_path / "plain")]
    assert states[0].keys() == states[1].keys()
    assert not [name for name in states[0] if (states[0][name] != states[1][name]).any()]


def test_no_client_trains_on_a_gold_label_that_judges_a_pace(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[int, set[int]] = {}
    judged: dict[int, set[int]] = {}
    do, score = Pool.do, LabelJudge.score

    def spied(pool: Any, requests: Any, *rest: Any) -> Any:
        for request in requests:
            if isinstance(request, TrainRequest):
                trained.setdefault(request.round, set()).update(request.examples or ())
        return do(pool, requests, *rest)

    def judging(judge: Any, params: Any, numbers: Any, classes: Any) -> Any:
        judged.setdefault(judge.context.state.round, set()).update(numbers.tolist())
        return score(judge, params, numbers, classes)

    monkeypatch.setattr(Pool, "do", spied)
    monkeypatch.setattr(LabelJudge, "score", judging)
    run = fednlp.run(experiment(METHODS["search by gold labels"]), tmp_path / "run")
    lines = lines_of(run)
    last = max(line["round"] for line in lines if line["pacing"]["phase"] == "trial")
    held = set.union(*judged.values())
    assert 0 < len(held) <= lines[0]["labels"]["gold"] // 2
    assert all(trained[number] for number in range(1, last + 1))
    assert not any(trained[number] & held for number in range(1, last + 1))
    assert set.union(*(trained[number] for number in range(last + 1, len(lines) + 1))) & held
    assert max(judged) == last


@pytest.mark.parametrize("trial_score", ["probability", "accuracy"])
@pytest.mark.parametrize("method", ["search by gold labels", "trials in waves"])
@pytest.mark.variants(1)
def test_a_search_judges_by_the_probability_of_the_true_labels_or_by_their_number(
    method: str, trial_score: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: list[float] = []
    score = LabelJudge.score

    def judging(judge: LabelJudge, params: Any, numbers: Any, labels: Any) -> float:
        found = score(judge, params, numbers, labels)
        rows = judge.probabilities(numbers)
        pairs = list(zip(rows, labels, strict=True))
        right = [float(row[label]) for row, label in pairs]
        if trial_score == "accuracy":
            right = [float(int(row.argmax()) == label) for row, label in pairs]
        assert found == pytest.approx(sum(right) / len(labels), abs=1e-12)
        scores.append(found)
        return found

    monkeypatch.setattr(LabelJudge, "score", judging)
    changes = METHODS[method] | {"fewshot": METHODS[method]["fewshot"] | {"trial_score": trial_score}}
    lines = lines_of(fednlp.run(experiment(changes), tmp_path / "run"))
    wave = next(line["pacing"] for line in lines if "gains" in line["pacing"])
    rounds = METHODS[method]["fewshot"]["trial_rounds"]
    told = scores[1 : 1 + len(wave["gains"])]
    assert wave["gains"] == [(one - scores[0]) / rounds for one in told]


@pytest.mark.slow
def test_a_search_counts_what_a_round_costs_without_labels(experiment: Make, tmp_path: Path) -> None:
    """The gain over AUG-E is the cost: with and without the round, it differs by a plain round's simulated time."""
    method = METHODS["search by gold labels"]
    changes = method | {
        "costs": {"device": "jetson-tx2", "bandwidth_up": 0.01, "bandwidth_down": 0.02},
        "client.per_device_train_batch_size": 1,
        "client.max_steps": 4,  # all clients do the same work
    }
    plain = changes | {"fewshot": method["fewshot"] | {"pacing": "none"}, "num_rounds": 1}
    expected = lines_of(fednlp.run(experiment(plain), tmp_path / "plain"))[0]["simulated_seconds"]
    told = {}
    for kind in ("labels", "round"):
        few = {"fewshot": method["fewshot"] | {"trial_cost": kind}}
        lines = lines_of(fednlp.run(experiment(changes | few), tmp_path / kind))
        told[kind] = next(line["pacing"] for line in lines if "gains" in line["pacing"])
    control, *gains = told["round"]["gains"]
    assert told["labels"]["gains"] == [control, *gains]
    costs = {
        kind: [(gain - control) / one for gain, one in zip(gains, pacing["aug_e"], strict=True) if one]
        for kind, pacing in told.items()
    }
    assert len(costs["round"]) > 1
    added = [whole - labels for whole, labels in zip(costs["round"], costs["labels"], strict=True)]
    assert added == pytest.approx([expected] * len(added), rel=1e-6)


TX2 = {"device": "jetson-tx2"}
HEAD: dict[str, Any] = {"model.train": {"shared": ["head"], "rest": "frozen"}}


@pytest.mark.parametrize(
    ("costs", "plan", "kind", "expected"),
    [
        (TX2, {}, "round", "seconds"),
        ({}, {}, "round", "units"),
        ({"bandwidth_up": 0.01, "bandwidth_down": 0.02}, {}, "round", "units"),
        (TX2, HEAD, "round", "units"),
        (TX2 | {"bandwidth_up": 0.01, "bandwidth_down": 0.02}, HEAD, "round", "messages"),
        (TX2 | {"bandwidth_up": 0.01, "bandwidth_down": 0.02}, HEAD, "labels", "nothing"),
    ],
)
@pytest.mark.variants(2)
def test_the_cost_of_a_round_by_hand(
    experiment: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    costs: Any,
    plan: Any,
    kind: str,
    expected: str,
) -> None:
    """A round and its labels are both in seconds, or both in units; with the head alone, each text runs once."""
    told: list[tuple[float, tuple[float, float]]] = []
    golds: list[Any] = []

    def spied(context: Any, fewshot: Any, holder: Any, costs: Any) -> Any:
        rules = search_rules(context, fewshot, holder, costs)
        told.append((rules.round_seconds, costs.units))
        golds.append(holder.gold)
        return rules

    search_rules = pace_trials.search_rules
    monkeypatch.setattr(pace_trials, "search_rules", spied)
    method = METHODS["search by gold labels"]
    few = method["fewshot"] | {"trial_cost": kind, "gamma": 1.0}  # clients have unlike numbers of gold labels
    epochs = {"client.max_steps": -1, "client.num_train_epochs": 2, "client.per_device_train_batch_size": 1}
    plain = method | plan | epochs | {"costs": costs, "fewshot": few}
    fednlp.run(experiment(plain), tmp_path / "run")
    (whole, (training, labelling)), gold = told[0], golds[0]
    steps = 2 * gold[gold > 0].mean()
    assert gold[gold > 0].std() > 0
    if expected in ("units", "nothing"):
        assert (training, labelling) == (3.0, 1.0)
        assert whole == (pytest.approx(3 * steps) if expected == "units" else 0)
    elif expected == "seconds":
        assert training > labelling > 0
        assert whole == pytest.approx(training * steps)
    else:
        assert training == labelling == 0
        once = plain | {"fewshot": few | {"pacing": "none"}, "num_rounds": 1}
        line = lines_of(fednlp.run(experiment(once), tmp_path / "plain"))[0]
        assert whole == pytest.approx(line["seconds_sending"])


def test_the_names_of_runs_depend_on_how_a_search_judges_only_where_there_is_one(experiment: Make) -> None:
    few = FEW | {"pacing": "static"}
    assert not {"trial_score", "trial_cost"} & {*canonical(experiment({"fewshot": few}))["fewshot"]}
    search = FEW | {"pacing": "search"}
    paper = search | {"trial_score": "accuracy", "trial_cost": "labels"}
    assert differences(experiment({"fewshot": paper}), experiment({"fewshot": search})) == [
        "fewshot.trial_cost: labels -> round",
        "fewshot.trial_score: accuracy -> probability",
    ]


def test_one_gold_label_cannot_train_and_judge(experiment: Make, tmp_path: Path) -> None:
    changes = {"fewshot": FEW | {"gold": 1, "pacing": "search"}, "num_rounds": 90}
    with pytest.raises(ConfigError, match="half of each class's gold labels judge the paces"):
        fednlp.run(experiment(changes), tmp_path / "run")


def test_static_pacing_adds_labels_at_each_labelling_of_a_client(experiment: Make, tmp_path: Path) -> None:
    """FeS, section 4.1: "adding 100 pseudo labels per selected client per round"."""
    few = FEW | {"pacing": "static", "per_client": 3, "n": 2}
    lines = lines_of(fednlp.run(experiment({"fewshot": few, "num_rounds": 6}), tmp_path / "run"))
    times: dict[int, int] = {}
    for line in lines:
        for client in line["labelling"]:
            times[client] = times.get(client, 0) + 1
        assert line["labels"]["pseudo"] == 3 * sum(times.values())
    assert max(times.values()) > 1


def test_a_random_filter_keeps_as_many_texts_and_others(experiment: Make, tmp_path: Path) -> None:
    few = FEW | {"filter_ratio": 0.2, "filter": "random"}
    run = fednlp.run(experiment({"fewshot": few, "num_rounds": 1}), tmp_path / "run")
    facts = json.loads((run.folder / "summary.json").read_text())["fewshot"]
    sizes = np.diff(Partition.load(run.partition).train_offsets)
    assert facts["candidates"] <= np.ceil(0.2 * sizes).sum()
    assert facts["candidates"] >= 0.2 * (sizes.sum() - FEW["gold"])


def test_frozen_layers_and_embeddings_are_charged_once(experiment: Make, tmp_path: Path) -> None:
    """By hand from a profile: the first labelling of a client costs more than its next ones."""
    changes = {
        "partition": {"method": "uniform", "clients": 1},
        "clients_per_round": 1,
        "fewshot": FEW | {"n": 1, "gold": 9},
        "model.train": {"frozen": ["embeddings", "layer.0"]},
        "costs": {"device": "jetson-tx2"},
        "num_rounds": 2,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    first, second = lines_of(run)
    assert first["labelled"] == second["labelled"]
    once, again = first["seconds_labelling"], second["seconds_labelling"]
    assert once == pytest.approx(2 * again, rel=0.01)  # one layer of two is frozen, and its output is cached


def test_a_line_says_how_right_pseudo_labels_are(experiment: Make, tmp_path: Path) -> None:
    """Recounted from the labels of the data and the pseudo labels of the last checkpoint."""
    run = fednlp.run(experiment({"fewshot": FEW, "num_rounds": 3}), tmp_path / "run")
    lines = lines_of(run)
    data = open_data(run.experiment())
    true, pseudo = data.labels("train"), load_file(run.state)["vector.fewshot.pseudo"]
    given = np.flatnonzero(pseudo >= 0)
    right = given[pseudo[given] == true[given]]
    truth = lines[-1]["hidden_truth"]
    classes = len(data.label_names)
    assert truth["given"] == np.bincount(pseudo[given], minlength=classes).tolist()
    assert truth["right"] == np.bincount(pseudo[right], minlength=classes).tolist()
    assert truth["precision"] == pytest.approx(len(right) / len(given), abs=1e-6)
    for line in lines:
        assert sum(line["hidden_truth"]["given"]) == line["labels"]["pseudo"]
        assert line["hidden_truth"]["candidates"][0] == line["labelled"]
        assert 0 < line["hidden_truth"]["new"][0] <= line["hidden_truth"]["candidates"][0]


@pytest.mark.parametrize("pacing", ["static", "curriculum", "search"])
@pytest.mark.variants(1)
def test_who_reads_hidden_labels_says_so_and_goes_on_where_it_stopped(
    pacing: str, experiment: Make, outcome: Outcome, stopping: Stopping, tmp_path: Path
) -> None:
    few = METHODS["search" if pacing == "search" else "static"]["fewshot"] | {
        "pacing": pacing,
        "label_counts": "truth",
    }
    made = experiment({"fewshot": few, "num_rounds": 16 if pacing == "search" else 4})
    said: list[str] = []

    class Listening(NullCallback):
        def log(self, text: str) -> None:
            said.append(text)

    run = fednlp.run(made, tmp_path / "run", callback=Listening())
    assert READS_HIDDEN_LABELS in said
    assert run.read_json("summary.json")["note"] == READS_HIDDEN_LABELS
    assert "reads hidden labels" in (run.folder / "model" / "README.md").read_text()
    with stopping(rounds=2, pieces=1) as callback:
        fednlp.run(made, tmp_path / "stopped", callback=callback)
    assert outcome(fednlp.resume(tmp_path / "stopped")) == outcome(run)


@pytest.mark.parametrize("pacing", ["static", "curriculum"])
def test_no_client_gives_a_class_more_than_its_share(
    pacing: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients label once; the shares are those of the true labels of the texts that they label."""
    usable: list[Any] = []

    def spied(course: Any) -> Any:
        found = gold_labels_of(course)
        usable.append(found.usable)
        return found

    monkeypatch.setattr("fednlp.fewshot.simulation.central_labels.gold_labels_of", spied)
    few = FEW | {"pacing": pacing, "per_client": 6, "n": 1000, "k": 50.0, "label_counts": "truth"}
    run = fednlp.run(experiment({"fewshot": few, "num_rounds": 1}), tmp_path / "run")
    data, pseudo = open_data(run.experiment()), load_file(run.state)["vector.fewshot.pseudo"]
    true, classes, partition = data.labels("train"), len(data.label_names), Partition.load(run.partition)
    given = np.zeros(classes, dtype=np.int64)
    for client in range(partition.num_clients):
        own = partition.train(client)
        own = own[usable[0][own]]
        count = min(6, len(own)) if pacing == "static" else -(-len(own) // 2)
        shares = largest_remainder(np.bincount(true[own], minlength=classes), count)
        found = np.bincount(pseudo[own][pseudo[own] >= 0], minlength=classes)
        assert (found <= shares).all()
        given += found
    assert given.any()


def test_true_label_counts_say_so_in_the_report(experiment: Make, tmp_path: Path) -> None:
    few = FEW | {"pacing": "static", "per_client": 5, "label_counts": "truth"}
    run = fednlp.run(experiment({"fewshot": few, "num_rounds": 1}), tmp_path / "run")
    pages = write_report([run.folder], tmp_path / "report")
    texts = [path.read_text(encoding="utf-8") for path in pages if path.suffix in (".md", ".html")]
    assert len(texts) > 1
    assert all("reads hidden labels: an upper bound" in text for text in texts)


def test_without_pseudo_labels_no_hidden_label_is_read(experiment: Make, tmp_path: Path) -> None:
    few = FEW | {"pacing": "none", "label_counts": "truth"}
    run = fednlp.run(experiment({"fewshot": few, "num_rounds": 1}), tmp_path / "run")
    assert run.read_json("summary.json")["note"] is None


def test_label_counts_of_the_model_are_the_run_without_the_key(experiment: Make) -> None:
    plain, said, true = (
        experiment({"fewshot": FEW | more})
        for more in ({}, *({"label_counts": o} for o in ("model", "truth")))
    )
    assert canonical(plain) == canonical(said)
    assert "label_counts" not in canonical(plain)["fewshot"]
    assert differences(plain, true) == ["fewshot.label_counts: None -> truth"]


@pytest.mark.parametrize("pacing", ["static", "curriculum"])
def test_before_the_first_labelling_gold_labels_alone_train(
    pacing: str, experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    few = FEW | {"pacing": pacing, "per_client": 5, "f": 2}
    short = {"num_rounds": 2, "fewshot": few | {"pacing": "none"}}
    gold = fednlp.run(experiment(short), tmp_path / "gold")
    run = fednlp.run(experiment({"num_rounds": 6, "fewshot": few | {"first_labelling": 3}}), tmp_path / "run")
    lines = lines_of(run)
    assert [bool(line.get("labelling")) for line in lines] == [False, False, True, False, True, False]
    assert [line["train_loss"] for line in lines[:2]] == [line["train_loss"] for line in lines_of(gold)]
    assert [line["labels"]["pseudo"] > 0 for line in lines] == [False, False, True, True, True, True]
    if pacing == "static":
        assert lines[2]["labels"]["pseudo"] == 3 * 5, "the first labelling of the pace, by three clients"


def test_labels_from_the_first_round_on_are_the_run_without_the_key(experiment: Make) -> None:
    plain, said = (experiment({"fewshot": FEW | more}) for more in ({}, {"first_labelling": 1}))
    assert canonical(plain) == canonical(said)
    assert "first_labelling" not in canonical(plain)["fewshot"]


def test_true_label_counts_and_class_balance_contradict(experiment: Make) -> None:
    few = FEW | {"label_counts": "truth", "class_balanced": True}
    with pytest.raises(ConfigError, match="two rules for the number of pseudo labels"):
        experiment({"fewshot": few}).resolved()


@pytest.mark.parametrize("round_number", [1, 2])
def test_a_client_that_only_judges_is_sent_nothing_but_what_it_judges(
    round_number: int, experiment: Make, tmp_path: Path
) -> None:
    """Before a wave the model of the run, after its last round the model of each group; who trains has one more."""
    changes = METHODS["search by gold labels"] | {"algorithm.name": "fedavg"}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    lines = lines_of(run)
    line = lines[round_number - 1]
    message = lines[-1]["bytes_down"] // len({*lines[-1]["cohort"], *lines[-1]["labelling"]})
    owners = judging_clients(run)
    at_work = {*line["cohort"], *line["labelling"]}
    if round_number == 1:
        assert line["bytes_down"] == message * len(at_work | owners)
    else:
        groups = len(line["pacing"]["groups"])
        assert "chosen" in line["pacing"]
        assert line["bytes_down"] == message * (len(at_work) + groups * len(owners))


def test_the_model_of_a_run_is_judged_once_between_two_waves(experiment: Make, tmp_path: Path) -> None:
    """The control's model is judged after a wave, and the next one begins with it."""
    changes = METHODS["search by gold labels"] | {"algorithm.name": "fedavg"}
    run = fednlp.run(experiment(changes | {"partition.clients": 24, "num_rounds": 9}), tmp_path / "run")
    lines = lines_of(run)
    message = lines[-1]["bytes_down"] // len({*lines[-1]["cohort"], *lines[-1]["labelling"]})
    after, first = next(
        (before, line)
        for before, line in pairwise(lines)
        if "gains" in before["pacing"] and line["pacing"]["phase"] == "trial"
    )
    assert "chosen" not in after["pacing"]
    assert judging_clients(run) - {*first["cohort"], *first["labelling"]}
    assert first["bytes_down"] == message * len({*first["cohort"], *first["labelling"]})


def judging_clients(run: RunDir) -> set[int]:
    """Return the clients whose gold labels judge paces."""
    from fednlp.fewshot.gold import every_second
    from fednlp.fewshot.simulation.gold_labels import drawn_gold_labels

    made = run.experiment()
    data = open_data(made)
    gold = drawn_gold_labels(
        made, data.labels("train"), tuple(data.label_names), Partition.load(run.partition)
    )
    return set(gold.owners[every_second(gold.owners, gold.labels)].tolist())
