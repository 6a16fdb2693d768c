"""fednlp inspect: the parts of an experiment's model, what becomes of them, and what that costs in bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import fednlp
from fednlp import config
from fednlp.cli.inspect import inspect
from fednlp.hubs.checksums import BERT_TINY, NEWSGROUPS
from fednlp.hubs.package_index import fetch

Document = Callable[..., dict[str, Any]]
Type = Callable[..., Result]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Type the command's words."""
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(inspect)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def toml(here: Path, document: Document) -> Path:
    """An experiment on the tiny model, as a file in the working directory."""
    (here / "tiny.toml").write_text(config.dump(config.parse(document())))
    return here / "tiny.toml"


def lines_of(result: Result) -> dict[str, list[str]]:
    assert result.exit_code == 0, result
    return {line.split()[0]: line.split()[1:] for line in result.output.splitlines()}


def test_everything_is_shared(typed: Type, toml: Path) -> None:
    """A line a part, a total, and the sums; the layers are those of a BERT of width 16."""
    lines = lines_of(typed(toml))
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 32 + 32 + 16 + 4 * 16
    assert list(lines) == [
        *("part", "embeddings", "layer.0", "layer.1", "head", "total"),
        *("tunable", "shared", "personal", "frozen", "message"),
    ]
    assert (layer, lines["layer.0"], lines["layer.1"]) == (2224, *2 * [["2,224", "shared", "8.90", "kB"]])
    assert lines["tunable"] == lines["shared"] == lines["total"][:1]
    assert lines["personal"] == lines["frozen"] == ["0"]


def test_a_split_model(typed: Type, toml: Path) -> None:
    lines = lines_of(typed(toml, "--set", 'model.train={critical_layer=1, embeddings="shared"}'))
    states = {part: lines[part][1] for part in ("embeddings", "layer.0", "layer.1", "head")}
    assert states == {"embeddings": "shared", "layer.0": "shared", "layer.1": "personal", "head": "personal"}
    assert lines["layer.1"][2:] == ["–"]


def test_a_part_with_several_states(typed: Type, toml: Path) -> None:
    lines = lines_of(typed(toml, "--set", 'model.train=["bias", "head"]'))
    assert lines["layer.0"][1:5] == ["shared", "144,", "frozen", "2,080"]


def test_the_message_is_that_of_a_round(typed: Type, toml: Path, tmp_path: Path) -> None:
    """A run of the same experiment sends as many bytes for each client."""
    said = json.loads(typed(toml, "--json").output)
    run = fednlp.run(config.load(toml, ["num_rounds=1", "client.max_steps=1"]), tmp_path / "run")
    line = json.loads((run.folder / "rounds.jsonl").read_text().splitlines()[0])
    assert line["bytes_up"] == len(line["cohort"]) * said["message_bytes"]
    assert said["parameters"] == json.loads((run.folder / "summary.json").read_text())["parameters"]


def test_json(typed: Type, toml: Path) -> None:
    said = json.loads(typed(toml, "--json", "--set", 'model.train={rest="personal"}').output)
    assert [group["group"] for group in said["groups"]] == ["embeddings", "layer.0", "layer.1", "head"]
    assert said["personal"] == said["tunable"] == said["parameters"] > 0
    assert said["shared"] == said["frozen"] == said["bytes"] == said["message_bytes"] == 0
    for key in ("parameters", "shared", "personal", "frozen", "bytes"):
        assert said[key] == sum(group[key] for group in said["groups"])


def test_a_model_that_is_built(typed: Type, toml: Path) -> None:
    """The vocabulary of an LSTM is made of the texts, as in a run; JSON stays JSON."""
    said = json.loads(typed(toml, "--model", "bilstm", "--set", "model.vocabulary_size=300", "--json").output)
    assert [group["group"] for group in said["groups"]] == ["embeddings", "layer.0", "head"]


def test_mistakes(typed: Type, toml: Path) -> None:
    for words, says in (
        (["--set", "model.train=layer.2"], 'model.train: "layer.2": the model has no layer.2; there are'),
        (["--set", "model.train=layrs"], '"layrs" is no part of a model'),
        (["--set", "model.max_length=x"], "model.max_length"),
    ):
        result = typed(toml, *words)
        assert isinstance(result.exception, fednlp.FednlpError), result
        assert says in str(result.exception)


def test_an_experiment_that_comes_with_fednlp(typed: Type) -> None:
    for source in (BERT_TINY, NEWSGROUPS):
        try:
            fetch(source, progress=False)
        except fednlp.FednlpError as error:
            pytest.skip(f"{source.what} cannot be had: {error}")
    said = json.loads(typed("quickstart", "--json", "--set", 'model.train={frozen="embeddings"}').output)
    assert (said["parameters"], said["frozen"]) == (4_388_500, 3_972_864)
