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
from fednlp.simulation.same_data import SameData

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
        RunError, match=rf"the data have changed since {first} was trained: choose another --out"
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
    with pytest.raises(RunError, match="the data have changed since"):
        fednlp.tune(make, ["fedavg"], {"client.learning_rate": [0.01, 0.1, 1.0]}, folder, rounds=1, least=1)


def test_the_same_files_elsewhere_are_the_same_data(own: Path, experiment: Make, tmp_path: Path) -> None:
    copy = Path(shutil.copy(own, tmp_path / f"copy{own.suffix}"))
    first, second = (experiment({"data.path": str(path), "num_rounds": 1}) for path in (own, copy))
    fingerprints = [
        fednlp.run(one, tmp_path / name).read_json("environment.json")["data"]["fingerprint"]
        for name, one in (("a", first), ("b", second))
    ]
    assert fingerprints[0] == fingerprints[1]


def test_runs_whose_settings_choose_other_examples_are_not_checked(experiment: Make, tmp_path: Path) -> None:
    """Variants may have data of their own; without any run there is nothing to compare with."""
    same, whole, sample = (
        SameData(),
        experiment({"num_rounds": 1}).resolved(),
        experiment({"num_rounds": 1, "data.train_size": 60}).resolved(),
    )
    same.require(whole)
    for name, one in (("whole", whole), ("sample", sample)):
        fednlp.run(one, tmp_path / name)
        same.add(one, tmp_path / name)
        same.require(one)
    assert len(same.known) == 2


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
    assert "failed: the data have changed since" in found["reason"]
    assert list(found["columns"][0]["figures"]["A"]) == ["0"]
    own.write_bytes(before)
    reproduce(request, 3600, out)
    assert table(out)["state"] == "made"


def test_joined_seeds_of_one_table_have_the_same_data(manifest: Path, own: Path, tmp_path: Path) -> None:
    """The seed of a folder with other data is left out, said, and made here; one without a digest stays."""
    theirs, out, said = tmp_path / "theirs", tmp_path / "out", Said()
    before = shorten(own)
    reproduce(Request([str(manifest)]), 3600, theirs)
    own.write_bytes(before)
    reproduce(Request([str(manifest)], most_seeds=1), 3600, out)
    reproduce(Request([str(manifest)], join=[theirs]), 0, out, said)
    (line,) = [line for line in said.lines if "had other data than the same experiment has here" in line]
    assert line.startswith(f"{theirs / 'page'}: 2 runs")
    assert list(table(out)["columns"][0]["figures"]["A"]) == ["0"]
    reproduce(Request([str(manifest)]), 3600, out)
    assert table(out)["state"] == "made"
    page = theirs / "page/results.json"
    results = json.loads(page.read_text())
    for run in results["runs"].values():
        assert len(run.pop("data")) == 8
    page.write_text(json.dumps(results))
    reproduce(Request([str(manifest)], most_seeds=1, join=[theirs]), 0, tmp_path / "third")
    assert list(table(tmp_path / "third")["columns"][0]["figures"]["A"]) == ["0", "1"]


def test_two_joined_folders_with_different_data_are_not_averaged(
    manifest: Path, own: Path, tmp_path: Path
) -> None:
    first, second, out, said = (tmp_path / "first", tmp_path / "second", tmp_path / "out", Said())
    reproduce(Request([str(manifest)], most_seeds=1), 3600, first)
    shorten(own)
    reproduce(Request([str(manifest)]), 3600, second)
    reproduce(Request([str(manifest)], join=[first, second]), 0, out, said)
    assert list(table(out)["columns"][0]["figures"]["A"]) == ["0"]
    assert any(line.startswith(f"{second / 'page'}: 2 runs had other data") for line in said.lines)
