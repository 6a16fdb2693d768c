"""Runs that are compared have the same data, wherever the files lie; what changed in between is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fednlp
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.reproduction import Request, reproduce
from fednlp.simulation.callback import NullCallback
from fednlp.studies.same_data import SameData, digest_of, files_of

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

Make = Callable[..., Experiment]
Document = Callable[..., dict[str, Any]]


@pytest.fixture
def own(texts: Path, tmp_path: Path) -> Path:
    """A file of one's own."""
    return Path(shutil.copy(texts, tmp_path / f"own{texts.suffix}"))


def shorten(path: Path) -> bytes:
    """Leave out the last of a file's examples; return what it had."""
    before = path.read_bytes()
    path.write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    return before


def test_a_comparison_is_not_widened_on_other_data(own: Path, experiment: Make, tmp_path: Path) -> None:
    """It goes on with the files of before, and no weights were trained on the others."""
    make, out = experiment({"data.path": str(own), "num_rounds": 1}), tmp_path / "out"
    first = fednlp.compare(make, ["fedavg"], out=out)[0].folder
    before = shorten(own)
    with pytest.raises(
        RunError, match=rf"the data are not those that {first} was trained on: choose another out="
    ):
        fednlp.compare(make, ["fedavg", "fedprox"], seeds=2, out=out)
    assert [path.name for path in out.iterdir()] == [first.name]
    own.write_bytes(before)
    assert len(fednlp.compare(make, ["fedavg", "fedprox"], seeds=2, out=out)) == 4


def test_finished_runs_on_different_data_are_not_compared(
    own: Path, experiment: Make, tmp_path: Path
) -> None:
    make, out = experiment({"data.path": str(own), "num_rounds": 1}), tmp_path / "out"
    (first,) = fednlp.compare(make, ["fedavg"], out=out)
    shorten(own)
    fednlp.compare(make, ["fedprox"], out=tmp_path / "other")
    other = out / "fedprox-seed0"
    (tmp_path / "other/fedprox-seed0").rename(other)
    with pytest.raises(RunError, match=rf"{other} was trained on other data than {first.folder}"):
        fednlp.compare(make, ["fedavg", "fedprox"], out=out)


def test_trials_on_different_data_are_not_compared(own: Path, experiment: Make, tmp_path: Path) -> None:
    make, folder = experiment({"data.path": str(own), "num_rounds": 1}), tmp_path / "tuning"
    rates = {"client.learning_rate": [0.01, 0.1]}
    fednlp.tune(make, ["fedavg"], rates, folder, rounds=1)
    shorten(own)
    with pytest.raises(RunError, match="the data are not those that"):
        fednlp.tune(make, ["fedavg"], {"client.learning_rate": [0.01, 0.1, 1.0]}, folder, rounds=1, least=1)


def test_the_same_rows_are_the_same_data_wherever_they_lie_and_however_they_are_divided(
    own: Path, experiment: Make, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(own, tmp_path / f"copy{own.suffix}"))
    ways: list[dict[str, Any]] = [
        {"data.path": str(own)},
        {"data.path": str(copy)},
        {"data.path": str(own), "seed": 3, "partition.test_sets": "own-split"},
        {"data.path": str(own), "evaluation.validation_fraction": 0.2},
        {"data.path": str(own), "data.train_size": 60},
    ]
    digests = [
        digest_of(fednlp.run(experiment({"num_rounds": 1} | way), tmp_path / str(number)).folder)
        for number, way in enumerate(ways)
    ]
    assert len(digests[0]) == 8
    assert set(digests) == {digests[0]}
    environment = tmp_path / "0/environment.json"
    for older in ({}, {"data": {}}, {"data": {"content": None}}):
        environment.write_text(json.dumps(older))
        assert not digest_of(environment.parent), "of a run of before they were kept"
    shorten(copy)
    other = fednlp.run(experiment({"num_rounds": 1, "data.path": str(copy)}), tmp_path / "other")
    assert digest_of(other.folder) not in digests


def test_seeds_with_own_splits_and_methods_with_prompts_are_compared(experiment: Make) -> None:
    """The files are the same, though seeds divide them otherwise, and prompts are another task."""
    split = {"partition.test_sets": "own-split"}
    first, second = (experiment({**split, "seed": seed}).resolved() for seed in (0, 1))
    assert files_of(first) == files_of(second)
    few = {"fewshot": {"gold": 24, "pacing": "none"}}
    prompt = {"task": {"pattern": "{text} {mask}", "verbalizer": {"a": "x", "b": "y"}}}
    assert files_of(experiment(few)) == files_of(experiment(few | prompt))
    assert files_of(experiment()) != files_of(experiment({"task.name": "causal-lm"}))


def test_a_run_that_was_stopped_before_it_learnt_anything_takes_the_data_as_they_are(
    own: Path, experiment: Make, stopping: Callable[..., Any], tmp_path: Path
) -> None:
    make, out = experiment({"data.path": str(own), "num_rounds": 2}), tmp_path / "out"
    with stopping(rounds=0, pieces=1) as callback:
        fednlp.compare(make, ["fedavg"], out=out, callback=callback)
    begun = out / "fedavg-seed0"
    assert (begun / "environment.json").is_file()
    assert not digest_of(begun)
    shorten(own)
    assert len(fednlp.compare(make, ["fedavg", "fedprox"], out=out)) == 2
    with stopping(rounds=0, pieces=1) as callback:
        fednlp.compare(make, ["fedavg", "fedprox", "fedopt"], out=out, callback=callback)
    shorten(own)
    with pytest.raises(RunError, match=rf"the data are not those that {begun} was trained on"):
        fednlp.compare(make, ["fedavg", "fedprox", "fedopt"], out=out)
    assert not digest_of(out / "fedopt-seed0"), "nothing was trained on the other data"


def test_a_comparison_has_the_data_of_the_trials_that_chose_its_settings(
    own: Path, experiment: Make, tmp_path: Path
) -> None:
    """Also where the trials were done in an earlier call."""
    make, same_data = experiment({"data.path": str(own), "num_rounds": 1}), SameData()
    rates = {"client.learning_rate": [0.01, 0.1]}
    fednlp.tune(make, ["fedavg"], rates, tmp_path / "tuning", rounds=1)
    shorten(own)
    found = fednlp.tune(make, ["fedavg"], rates, tmp_path / "tuning", rounds=1, same_data=same_data)
    settings = {"fedavg": found["fedavg"].chosen}
    with pytest.raises(RunError, match=r"the data are not those that .*tuning"):
        fednlp.compare(make, ["fedavg"], out=tmp_path / "out", settings=settings, same_data=same_data)


def test_runs_on_other_files_by_their_settings_are_not_checked(
    own: Path, texts: Path, experiment: Make, tmp_path: Path
) -> None:
    """Variants may have data of their own; without any run there is nothing to compare with."""
    shorten(own)
    same, first, second = (
        SameData(),
        experiment({"num_rounds": 1, "data.path": str(texts)}).resolved(),
        experiment({"num_rounds": 1, "data.path": str(own)}).resolved(),
    )
    same.require(first)
    for name, one in (("first", first), ("second", second)):
        fednlp.run(one, tmp_path / name)
        same.add(one, tmp_path / name)
        same.require(one)
    assert digest_of(tmp_path / "first") != digest_of(tmp_path / "second")


@pytest.fixture
def manifest(own: Path, document: Document, tmp_path: Path) -> Path:
    """A paper with one table of two seeds on one's own file."""
    (tmp_path / "quick.toml").write_text(
        tomli_w.dumps(document({"name": "quick", "num_rounds": 1, "data.path": str(own)}))
    )
    paper = {
        "name": "mine",
        "title": "t",
        "source": "s",
        "runs": {"quick": {"experiment": "quick.toml", "methods": ["fedavg"], "seeds": 2, "minutes": 0.1}},
        "entry": [
            {
                "id": "table1",
                "title": "Table 1",
                "shows": "things",
                "runs": ["quick"],
                "rows": [{"name": "A", "method": "fedavg"}],
                "columns": [{"name": "here"}],
            }
        ],
    }
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(paper))
    return tmp_path / "mine.toml"


def table(out: Path) -> dict[str, Any]:
    """Return the only table of ``results.json``."""
    (paper,) = json.loads((out / "page/results.json").read_text())["papers"]
    found: dict[str, Any] = paper["entries"][0]
    return found


class Said(NullCallback):
    """A callback that keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def test_seeds_of_one_table_have_the_same_data(manifest: Path, own: Path, tmp_path: Path) -> None:
    out, request = tmp_path / "out", Request([str(manifest)])
    reproduce(Request([str(manifest)], most_seeds=1), 3600, out)
    before = shorten(own)
    reproduce(request, 3600, out)
    found = table(out)
    assert found["state"] == "in part"
    assert "failed: the data are not those that" in found["reason"]
    assert list(found["columns"][0]["figures"]["A"]) == ["0"]
    own.write_bytes(before)
    reproduce(request, 3600, out)
    assert table(out)["state"] == "made"
