"""Every task formulation through the public API: run, evaluate, predict; one worker and two alike."""

import json
import random
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import parse
from fednlp.errors import ConfigError, DataError, RunError
from fednlp.inference.inputs import rows_of_file, rows_of_texts
from fednlp.inference.model import open_trained
from fednlp.inference.predict import predict_texts, predictions, write_predictions
from fednlp.inference.score import evaluate_run
from fednlp.simulation.run_dir import RunDir

NAMES = ("anna", "berlin", "carla", "delhi")
WORDS = [f"word{i}" for i in range(30)]


def sentence(rng: random.Random) -> list[str]:
    return [rng.choice(WORDS) if rng.random() < 0.7 else rng.choice(NAMES) for _ in range(rng.randint(3, 9))]


def tagged(rng: random.Random) -> dict[str, Any]:
    words = sentence(rng)
    return {"words": words, "tags": ["B-NAME" if word in NAMES else "O" for word in words]}


def asked(rng: random.Random) -> dict[str, Any]:
    words = [*sentence(rng), "anna"]
    rng.shuffle(words)
    context = " ".join(words)
    return {
        "context": context,
        "question": "who word1",
        "answers": [{"text": "anna", "start": context.index("anna")}],
    }


def scored(rng: random.Random) -> dict[str, Any]:
    one, other = sentence(rng), sentence(rng)
    return {
        "text": " ".join(one),
        "text_pair": " ".join(other),
        "score": 5 * len(set(one) & set(other)) / len(set(one)),
    }


def paired(rng: random.Random) -> dict[str, Any]:
    one = sentence(rng)
    same = rng.random() < 0.5
    other = one[::-1] if same else sentence(rng)
    return {"text": " ".join(one), "text_pair": " ".join(other), "label": "same" if same else "other"}


def copied(rng: random.Random) -> dict[str, Any]:
    words = sentence(rng)
    return {
        "source": " ".join(words),
        "target": " ".join(words[:3]),
        "references": [" ".join(words[:3]), "word1"],
    }


def spoken(rng: random.Random) -> dict[str, Any]:
    return {"text": " ".join(sentence(rng)), "speaker": rng.choice(NAMES)}


@dataclass(frozen=True)
class Case:
    """A task, rows of it, and what an experiment on it says beside them."""

    task: str
    row: Callable[[random.Random], dict[str, Any]]
    metric: str
    ask: str
    beside: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
SUMMED = {"evaluation": {"federated": True}}

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers")]
CASES = {
    "tagging": Case("token-classification", tagged, "f1", "anna word1 berlin"),
    "answering": Case("question-answering", asked, "f1", "who word1", {"context": "word1 anna word2"}),
    "regression": Case("text-regression", scored, "pearson", "word1 anna", {"text_pair": "anna word1"}),
    "pairs": Case("text-classification", paired, "accuracy", "word1 anna", {"text_pair": "anna word1"}),
    "generation": Case(
        "sequence-to-sequence",
        copied,
        "rouge_l",
        "anna word1 word2",
        settings={
            "model": {
                "name_or_path": "transformer",
                "vocabulary_size": 320,
                "max_length": 24,
                "config": SMALL,
            },
            "task": {"max_target_length": 8},
        },
    ),
    "writing": Case(
        "text-generation",
        copied,
        "rouge_l",
        "anna word1 word2",
        settings={"task": {"name": "text-generation", "max_target_length": 8, "template": "{source} word0"}},
    ),
    "language": Case(
        "causal-lm",
        spoken,
        "accuracy",
        "anna word1",
        settings={
            "model": {
                "name_or_path": "lstm",
                "vocabulary_size": 320,
                "max_length": 16,
                "config": {"hidden_size": 16, "embedding_size": 16},
            },
            "partition": {"method": "natural", "field": "speaker"},
        },
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Callable[[str], Path]:
    """Write the file of a case once."""
    folder = tmp_path_factory.mktemp("rows")

    def write(name: str) -> Path:
        path = folder / f"{name}.jsonl"
        if not path.exists():
            rng = random.Random(name)
            rows = [CASES[name].row(rng) for _ in range(120)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def settings_of(name: str, path: Path, model: Path, **more: Any) -> dict[str, Any]:
    document = {
        "name": name,
        "num_rounds": 2,
        "clients_per_round": 3,
        "data": {"path": str(path)},
        "partition": {"method": "uniform", "clients": 4},
        "model": {"name_or_path": str(model), "max_length": 32},
        "client": {"learning_rate": 0.01},
        "runtime": {"workers": 1},
    }
    return document | CASES[name].settings | more


@pytest.fixture(scope="module")
def run_of(
    made: Callable[[str], Path], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], RunDir]:
    """Run a case once."""
    runs: dict[str, RunDir] = {}

    def run(name: str) -> RunDir:
        if name not in runs:
            settings = settings_of(name, made(name), tiny_model, **SUMMED)
            experiment = parse(settings)
            runs[name] = fednlp.run(experiment, tmp_path_factory.mktemp(name) / "run")
        return runs[name]

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_task_is_found_by_its_columns_and_runs(name: str, run_of: Callable[[str], RunDir]) -> None:
    run, case = run_of(name), CASES[name]
    summary = run.read_json("summary.json")
    assert (summary["task"], summary["metric"]) == (case.task, case.metric)
    assert case.metric in summary["evaluation"]["global"]
    assert f"{case.metric}_worst_decile" in summary["evaluation"]["personal"]
    assert case.metric in summary["trivial_baseline"]
    assert summary["evaluation"]["global"]["loss"] > 0
    lines = run.round_lines()
    assert lines[1]["train_loss"] < lines[0]["train_loss"]
    assert (run.folder / "labels.json").exists() is (name == "pairs")


@pytest.mark.parametrize("name", CASES)
def test_the_card_says_how_to_ask(
    name: str,
    run_of: Callable[[str], RunDir],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its code runs with transformers alone; what makes texts makes those that the run was scored with."""
    run, case = run_of(name), CASES[name]
    code = (run.model / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace("path/to/this/folder", str(run.model)).replace("Some text", case.ask), {})
    said = capsys.readouterr().out.strip()
    if name in ("generation", "writing"):
        assert [said] == predict_texts(run.folder, [case.ask], case.beside)


@pytest.mark.parametrize("name", CASES)
def test_the_model_names_no_folder_of_the_machine(name: str, run_of: Callable[[str], RunDir]) -> None:
    run = run_of(name)
    for path in filter(Path.is_file, run.model.rglob("*")):
        for folder in (run.folder.parent.parent, Path.home(), Path.cwd()):
            assert str(folder).encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", CASES)
def test_sums_over_the_clients_give_the_same_scores(name: str, run_of: Callable[[str], RunDir]) -> None:
    """Every test example belongs to a client."""
    for line in run_of(name).round_lines():
        whole, summed = (line["evaluation"][part] for part in ("global", "federated"))
        assert {*whole} - {*summed} == ({"spearman"} if name == "regression" else set())
        assert (summed["clients"] > 1, summed["examples"] > 20) == (True, True)
        for metric in {*whole} & {*summed}:
            assert summed[metric] == pytest.approx(whole[metric], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_model_that_is_written_scores_as_the_run_did(
    name: str, run_of: Callable[[str], RunDir], tmp_path: Path
) -> None:
    run = run_of(name)
    scores = evaluate_run(run.folder, out=tmp_path / "predictions.jsonl")
    assert scores.metrics == pytest.approx(run.read_json("summary.json")["evaluation"]["global"], abs=1e-6)
    assert (scores.labels is not None) is (name in ("tagging", "pairs"))
    assert (run.folder / "by_label.json").exists() is (scores.labels is not None)
    if scores.labels is not None:
        assert asdict(scores.labels) == run.read_json("by_label.json")
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == run.read_json("environment.json")["data"]["test"]
    assert all({"example", "prediction"} <= set(line) for line in lines)
    assert all(("probability" in line) is (name == "pairs") for line in lines)
    if name == "tagging":
        assert [[one["word"] for one in line["prediction"]] for line in lines] == [
            line["words"] for line in lines
        ]


def test_a_missing_score_is_said_and_nothing_fails(
    made: Callable[[str], Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores that are all the same have no correlation with anything; here all of the test set."""
    from rich.console import Console as RichConsole

    from fednlp.cli.console import Console
    from fednlp.reports import write_report

    rows = [json.loads(line) | {"score": 2.5} for line in made("regression").read_text().splitlines()[:20]]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = settings_of("regression", made("regression"), tiny_model)
    document["data"] |= {"test_path": str(tmp_path / "test.jsonl")}
    run = fednlp.run(parse(document), tmp_path / "run", callback=Console(output=RichConsole(width=120)))
    assert "test Pearson" in (said := capsys.readouterr().out)
    assert "not defined" in said
    summary = run.read_json("summary.json")
    assert (
        summary["evaluation"]["global"]["pearson"]
        is summary["trivial_baseline"]["pearson"]
        is summary["best"]
        is None
    )
    assert summary["evaluation"]["personal"] == dict.fromkeys(summary["evaluation"]["personal"]) | {
        "clients": 0
    }
    write_report([run.folder], tmp_path / "report")
    assert evaluate_run(run.folder).metrics["pearson"] is None


def test_a_masked_language_model_scores_as_the_run_did(
    made: Callable[[str], Path], tiny_model: Path, tmp_path: Path
) -> None:
    """The held-out texts have other numbers in the run than by themselves, and the same tokens are hidden."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    AutoModelForMaskedLM.from_pretrained(tiny_model).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_model, mask_token="poison").save_pretrained(tmp_path / "model")
    task = {"name": "masked-lm", "mlm_probability": 0.3}
    document = settings_of("language", made("language"), tmp_path / "model")
    document |= {"task": task, "model": {"name_or_path": str(tmp_path / "model"), "max_length": 16}}
    run = fednlp.run(parse(document), tmp_path / "run")
    found = run.read_json("summary.json")["evaluation"]["global"]
    assert evaluate_run(run.folder).metrics == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("name", ["pairs", "tagging"])
def test_a_model_of_a_federation_is_scored_on_the_test_set_of_its_server(
    name: str, run_of: Callable[[str], RunDir], made: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its training examples are at the sites; without a test set the message says what to type."""
    folder = tmp_path / "run"
    shutil.copytree(run_of(name).folder, folder)
    settings = tomllib.loads((folder / "resolved.toml").read_text())
    whole = evaluate_run(folder, made(name)).metrics
    settings["data"] |= {"name": "sites", "test_path": str(made(name))}
    del settings["data"]["path"]
    (folder / "resolved.toml").write_text(tomli_w.dumps(settings))
    assert evaluate_run(folder).metrics == whole
    del settings["data"]["test_path"]
    (folder / "resolved.toml").write_text(tomli_w.dumps(settings))
    with pytest.raises(DataError, match="at its sites: name a file of your own with --data FILE"):
        evaluate_run(folder)


@pytest.mark.parametrize("name", CASES)
def test_it_is_scored_on_a_file_whole(
    name: str, run_of: Callable[[str], RunDir], made: Callable[[str], Path], tmp_path: Path
) -> None:
    evaluate_run(run_of(name).folder, made(name), tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["example"] for line in lines] == list(range(120))


@pytest.mark.parametrize("name", CASES)
def test_it_answers(name: str, run_of: Callable[[str], RunDir]) -> None:
    case = CASES[name]
    answers = predict_texts(run_of(name).folder, [case.ask, case.ask], case.beside)
    assert len(answers) == 2
    assert answers[0] == answers[1]
    if name == "tagging":
        assert [word.rsplit("/", 1)[0] for word in answers[0].split()] == case.ask.split()
    if name == "answering":
        assert answers[0] in case.beside["context"]


@pytest.mark.parametrize("name", [name for name in CASES if name != "pairs"])
def test_probabilities_are_of_labels_alone(name: str, run_of: Callable[[str], RunDir]) -> None:
    case, trained = CASES[name], open_trained(run_of(name).folder)
    asked = rows_of_texts(trained, [case.ask], case.beside)
    with pytest.raises(RunError, match=f"{case.task} gives no probabilities"):
        next(predictions(trained, asked, probabilities=True))


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_predicted_with_its_own_columns(
    name: str, run_of: Callable[[str], RunDir], made: Callable[[str], Path], tmp_path: Path
) -> None:
    """JSON lines keep every value as it is; the predictions are those of evaluate."""
    trained = open_trained(run_of(name).folder)
    count = write_predictions(tmp_path / "out.jsonl", trained, rows_of_file(trained, made(name)))
    lines, rows = (
        [json.loads(line) for line in p.read_text().splitlines()]
        for p in (tmp_path / "out.jsonl", made(name))
    )
    assert count == len(rows) == 120
    found = [line.pop("prediction") for line in lines]
    assert lines == rows
    evaluate_run(run_of(name).folder, made(name), tmp_path / "all.jsonl")
    expected = [json.loads(line)["prediction"] for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    if name in ("regression", "language"):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    else:
        assert found == expected


@pytest.mark.parametrize("name", ["tagging", "generation", "writing", "language"])
@pytest.mark.slow
def test_two_workers_give_what_one_gives(
    name: str, run_of: Callable[[str], RunDir], made: Callable[[str], Path], tiny_model: Path, tmp_path: Path
) -> None:
    settings = settings_of(name, made(name), tiny_model, runtime={"workers": 2}, **SUMMED)
    run = fednlp.run(parse(settings), tmp_path / "run")
    one, two = (
        (folder / "model" / "model.safetensors").read_bytes() for folder in (run_of(name).folder, run.folder)
    )
    assert one == two
    assert run.read_json("summary.json")["evaluation"] == run_of(name).read_json("summary.json")["evaluation"]


@pytest.mark.parametrize("method", ["centralised", "local"])
def test_references_of_another_task(
    method: str, made: Callable[[str], Path], tiny_model: Path, tmp_path: Path
) -> None:
    settings = settings_of("tagging", made("tagging"), tiny_model, algorithm={"name": method})
    summary = fednlp.run(parse(settings), tmp_path / "run").read_json("summary.json")
    assert 0 <= summary["evaluation"]["personal"]["f1"] <= 1
    assert summary["reference"] == method


def test_label_shift_needs_labels(made: Callable[[str], Path], tiny_model: Path, tmp_path: Path) -> None:
    partition = {"method": "label", "clients": 4, "alpha": 1.0}
    settings = settings_of("answering", made("answering"), tiny_model, partition=partition)
    with pytest.raises(fednlp.FednlpError, match="label shift needs labels"):
        fednlp.run(parse(settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_option_of_another_task(made: Callable[[str], Path], tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_of("tagging", made("tagging"), tiny_model, task={"doc_stride": 3})
    with pytest.raises(
        ConfigError, match=r"task.doc_stride is not supported by token-classification.*takes scheme"
    ):
        fednlp.run(parse(settings), tmp_path / "run")


@pytest.mark.parametrize("options", [{"colour": "red"}, {"scheme": 3}])
def test_an_option_that_ones_own_task_does_not_take(
    options: dict[str, Any], made: Callable[[str], Path], tiny_model: Path, tmp_path: Path
) -> None:
    place = "fednlp.tasks.token_classification:TokenClassification"
    task = {"name": place, "options": options}
    settings = settings_of("tagging", made("tagging"), tiny_model, task=task)
    with pytest.raises(ConfigError, match=rf"\[task.options\].*{next(iter(options))}"):
        fednlp.run(parse(settings), tmp_path / "run")


@pytest.mark.parametrize(
    ("beside", "said"),
    [({}, "add --with context=TEXT"), ({"context": "a", "colour": "red"}, "no such column")],
)
def test_what_a_question_lacks(beside: dict[str, str], said: str, run_of: Callable[[str], RunDir]) -> None:
    with pytest.raises(DataError, match=said):
        predict_texts(run_of("answering").folder, ["who"], beside)


def test_adapters_alone_travel(made: Callable[[str], Path], tiny_model: Path, tmp_path: Path) -> None:
    """LoRA through the whole run: few bytes, the base as it was, the same with two workers."""
    from safetensors.numpy import load_file

    pytest.importorskip("peft")
    model = {"name_or_path": str(tiny_model), "max_length": 32}
    adapted = model | {"peft": {"method": "lora", "r": 2, "target_modules": ["query", "value"]}}
    settings = settings_of("pairs", made("pairs"), tiny_model) | {"model": adapted}
    one = fednlp.run(parse(settings), tmp_path / "one")
    two = fednlp.run(parse(settings | {"runtime": {"workers": 2}}), tmp_path / "two")
    whole = fednlp.run(parse(settings | {"model": model}), tmp_path / "whole")
    sent, everything = (run.read_json("summary.json")["bytes_up"] for run in (one, whole))
    assert 0 < sent < everything / 5
    weights = [load_file(run.model / "model.safetensors") for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    base = load_file(tiny_model / "model.safetensors")
    changed = [name for name in base if (weights[0][f"bert.{name}"] != base[name]).any()]
    assert changed
    assert all("query.weight" in name or "value.weight" in name for name in changed), changed
    assert (one.model / "adapter" / "adapter_config.json").is_file()
    scores = evaluate_run(one.folder)
    assert scores.metrics == pytest.approx(one.read_json("summary.json")["evaluation"]["global"], abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_step_in_passes_is_the_step_of_a_larger_batch(
    name: str, made: Callable[[str], Path], tiny_model: Path, tmp_path: Path
) -> None:
    """Each pass counts by what it predicts: examples, words, tokens or windows."""
    weights = []
    for size, passes in ((12, 1), (3, 4)):
        client = {"optimizer": "sgd", "learning_rate": 0.1}
        client |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": passes}
        settings = settings_of(name, made(name), tiny_model, client=client, num_rounds=1)
        without = {"dropout": 0.0} if "config" in settings["model"] else WITHOUT_DROPOUT
        settings["model"] = settings["model"] | {"config": settings["model"].get("config", {}) | without}
        run = fednlp.run(parse(settings), tmp_path / str(passes))
        weights.append(load_file(run.model / "model.safetensors"))
    for key, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][key], rtol=0, atol=1e-5, msg=key)
