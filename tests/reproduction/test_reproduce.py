"""A real reproduction with tiny experiments: budget, page, stopping and going on, and errors in one line."""

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fednlp.cli import main
from fednlp.errors import ConfigError, RunError
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.agreement import standard_error
from fednlp.reproduction.catalogue import find_papers
from fednlp.reproduction.folder import Record
from fednlp.reproduction.making import expected_seconds, slowness
from fednlp.reproduction.needs import expected_minutes
from fednlp.reproduction.preparation import Preparation
from fednlp.reproduction.results import Results
from fednlp.reproduction.write import markdown_pages
from fednlp.simulation.callback import NullCallback

from .made_up import Said, agnews_in, manifest_in

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

Document = Callable[..., dict[str, Any]]

REMEDY = "remove the folder, and run the command again"
QUICK = ["fedavg-seed0", "fedopt-seed0", "fedavg-seed1", "fedopt-seed1"]


@pytest.fixture
def manifest(here: Path, document: Document) -> Path:
    """The manifest of a paper with two tiny experiments, a partition, a drawing, and data that are not there."""
    for name, rounds in (("quick", 2), ("slow", 4)):
        (here / f"{name}.toml").write_text(tomli_w.dumps(document({"name": name, "num_rounds": rounds})))
    runs = {
        "quick": {"experiment": "quick.toml", "methods": ["fedavg", "fedopt"], "seeds": 2, "minutes": 0.1},
        "slow": {"experiment": "slow.toml", "methods": ["fedavg"], "minutes": 0.2, "measured": True},
        "huge": {"experiment": "slow.toml", "methods": ["fedopt"], "set": ["seed=5"], "minutes": 1e9},
        "given": {"experiment": "slow.toml", "methods": ["fedavg"], "data": "agnews", "minutes": 0.1},
        "none": {"experiment": "slow.toml", "methods": ["fedavgg"], "minutes": 0.1},
    }
    rows = [
        {"name": "A", "method": "fedavg", "published": {"paper": 1.0}},
        {"name": "B", "method": "fedopt", "published": {"paper": 2.0}},
    ]
    claims = [
        {
            "says": "A falls to itself",
            "kind": "close",
            "rows": ["A", "B"],
            "within": 100.0,
            "tried": "unused",
        },
        {"says": "A is B", "kind": "ratio", "rows": ["A", "B"], "at_least": 1e9, "tried": "more | rounds"},
    ]
    column = [
        {"name": "here", "against": ["paper"]},
        {"name": "own", "measure": "personal"},
        {"name": "bytes", "measure": "sent"},
        {"name": "bytes a round", "measure": "sent a round"},
        {"name": "loss", "measure": "training loss"},
        {"name": "rounds", "measure": "rounds to target", "target": 0.0},
        {"name": "never", "measure": "sent to target", "target": 1.01},
    ]
    ag: dict[str, Any] = {
        "dataset": "agnews",
        "data": "agnews",
        "options": {"method": "uniform", "clients": 4},
    }
    entries: list[dict[str, Any]] = [
        {"id": "table1", "runs": ["quick"], "rows": rows, "columns": column, "claims": claims},
        {"id": "figure1", "runs": ["slow"], "curves": "global"},
        {"id": "table2", "runs": ["huge"]},
        {"id": "table3", "runs": ["none"]},
        {"id": "figure2", "impossible": "a drawing"},
        {
            "id": "figure3",
            "partitions": {"even": ag},
            "rows": [{"name": "even"}],
            "columns": [{"name": "spread", "measure": "size spread"}],
            "pictures": ["size_density", "label_heatmap"],
        },
        {"id": "figure4", "runs": ["slow", "given"], "curves": "global"},
        {
            "id": "figure5",
            "partitions": {"even": ag, "other": {**ag, "data": "yahoo", "dataset": "yahoo"}},
            "rows": [{"name": "even"}, {"name": "other"}],
            "columns": [{"name": "spread", "measure": "size spread"}],
        },
    ]
    return manifest_in(here, runs, entries)


def findings(out: Path) -> dict[str, dict[str, Any]]:
    """Return ``results.json`` by entry."""
    papers = json.loads((out / "page/results.json").read_text())["papers"]
    return {one["id"]: one for paper in papers for one in paper["entries"]}


def figures(finding: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures of a finding by column, row and seed."""
    return {column["name"]: column["figures"] for column in finding["columns"]}


def test_what_fits_is_made_and_the_rest_says_why_not(manifest: Path, here: Path) -> None:
    out = here / "out"
    pages = reproduce(Request([str(manifest)]), 3600, out)
    assert [page.name for page in pages] == ["index.md", "index.html", "results.json"]
    found = findings(out)
    assert {name: one["state"] for name, one in found.items()} == {
        "table1": "made",
        "figure1": "made",
        "table2": "not made",
        "table3": "not made",
        "figure2": "impossible",
        "figure3": "not made",
        "figure4": "in part",
        "figure5": "not made",
    }
    cells = figures(found["table1"])["here"]
    assert sorted(cells["A"]) == sorted(cells["B"]) == ["0", "1"], "two seeds each"
    summary = json.loads((out / "runs/quick/fedavg-seed1/summary.json").read_text())
    assert cells["A"]["1"] == 100 * summary["evaluation"]["global"]["accuracy"]
    lines = [
        json.loads(line) for line in (out / "runs/quick/fedavg-seed1/rounds.jsonl").read_text().splitlines()
    ]
    sent = summary["bytes_up"] + summary["bytes_down"]
    others = {name: rows["A"]["1"] for name, rows in figures(found["table1"]).items() if "A" in rows}
    assert others == {
        "here": cells["A"]["1"],
        "own": 100 * summary["evaluation"]["personal"]["accuracy"],
        "bytes": sent,
        "bytes a round": sent / 2,
        "loss": lines[-1]["train_loss"],
        "rounds": next(line["round"] for line in lines if "global" in line["evaluation"]),
    }
    assert found["table1"]["claims"][0]["verdict"]["holds"] is True
    tests = summary["data"]["test"]
    largest = {
        name: 100 * max(standard_error(value / 100, tests) for value in row.values())
        for name, row in cells.items()
    }
    errors = {column["name"]: column["errors"] for column in found["table1"]["columns"]}
    assert errors["here"] == pytest.approx(largest, abs=1e-4)
    assert errors["own"].keys() == {"A", "B"}
    assert errors["bytes"] == errors["loss"] == errors["rounds"] == {}
    seconds = json.loads((out / "reproduction.json").read_text())["seconds"]
    spent = [value for name, value in seconds.items() if name.startswith("runs/quick/")]
    results = Results.model_validate_json((out / "page/results.json").read_text())
    table = results.finding("mine", "table1")
    assert table is not None
    assert results.finished(table) == table.runs == [f"quick.toml/{name}" for name in QUICK]
    assert results.ran(table).seconds == pytest.approx(sum(spent), abs=0.1)
    assert list(results.ran(table).machines.values()) == [4]
    computed = json.loads((out / "reproduction.json").read_text())["cpu_seconds"]
    spent = [value for name, value in computed.items() if name.startswith("runs/quick/")]
    assert results.ran(table).cpu_seconds == pytest.approx(sum(spent), abs=0.1)
    assert min(spent) > 0
    assert found["table1"]["command"] == f"fednlp reproduce {manifest} --only table1"
    assert found["figure3"]["command"].endswith(" --only figure3 --data agnews=DIR")
    assert found["table2"]["reason"].startswith("the time was over; about ")
    assert found["table3"]["reason"].startswith('algorithm.name: there is no algorithm "fedavgg": did you')
    assert found["figure2"]["reason"] == "a drawing"
    assert found["figure3"]["reason"] == "needs the folder of published files: `--data agnews=DIR`"
    missing = "made without agnews: no folder of published files was given (`--data agnews=DIR`)"
    assert found["figure4"]["reason"] == missing
    assert [one["caption"].split(" by ")[0] for one in found["figure4"]["pictures"]] == [
        "Figure4, here: Global test accuracy (%) of texts"
    ]
    text = (out / "page/paper-mine.md").read_text()
    assert f"Not finished: {missing.replace('`', '')}." in text
    assert "| A | 1 |" in text
    assert "; CPU time " in text
    assert f"| `fednlp reproduce {manifest} --only table2` |" in text
    overview = (out / "page/index.md").read_text()
    for page in (text, overview):
        (line,) = [one for one in page.splitlines() if "| A is B |" in one]
        counted = "disagrees; counted as agreeing: a ratio of at least 1,000,000,000 (A / B); found: "
        assert f"| A is B | {counted}" in line
        assert line.endswith(" | more \\| rounds |")
        assert "unused" not in page, "what was tried is for claims that disagree"
    html = (out / "page/paper-mine.html").read_text()
    assert f"<td><code>fednlp reproduce {manifest} --only table2</code></td>" in html
    assert "figures/mine-figure1-curves-0.png" in text
    assert (out / "page/figures/mine-figure1-curves-0.png").is_file()
    assert "(paper-mine.md)" in (out / "page/index.md").read_text()
    assert 'href="paper-mine.html"' in (out / "page/index.html").read_text()
    assert len(list((out / "runs").iterdir())) == 2, "what does not fit is not begun"


def test_a_mistake_in_the_manifest_is_said(manifest: Path, here: Path) -> None:
    said = Said()
    reproduce(Request([str(manifest)], ["table3", "figure3"]), 0, here / "out", said)
    (line,) = [line for line in said.lines if "cannot be made" in line]
    assert line.startswith("table3 cannot be made: algorithm.name: there is no algorithm")


def test_a_budget_that_is_too_small_is_said(manifest: Path, here: Path) -> None:
    said, request = Said(), Request([str(manifest)], ["figure1"])
    reproduce(request, 5, here / "out", said)
    assert re.fullmatch(
        r"nothing is begun in the [\d.]+ s left: what takes least needs about 12 s; give a larger --budget",
        said.lines.pop(),
    )
    said.lines.clear()
    reproduce(request, 0, here / "out", said)
    assert not said.lines, "the pages alone were asked for"


def test_nothing_begins_that_does_not_fit(manifest: Path, here: Path) -> None:
    out = here / "out"
    reproduce(Request([str(manifest)], ["table1", "table2"]), 5.9, out)
    assert not (out / "runs").exists()
    found = findings(out)
    assert found["figure1"]["reason"] == "not asked for"
    assert found["table1"]["reason"] == "the time was over; about 24 s of runs are left"


def test_a_second_call_goes_on(
    manifest: Path,
    here: Path,
    stopping: Callable[..., AbstractContextManager[NullCallback]],
    outcome: Callable[[Path], dict[str, Any]],
) -> None:
    """Stopped within a run, as by Ctrl-C: the page is written, the next call goes on, and the weights are the same."""
    out, whole = here / "out", here / "whole"
    request = Request([str(manifest)], ["figure1"])
    with stopping(rounds=2) as callback:
        reproduce(request, 3600, out, callback)
    left = findings(out)["figure1"]
    assert left["state"] == "not made"
    begun = json.loads((out / "page/results.json").read_text())["runs"]["slow.toml/fedavg-seed0"]
    assert begun["seconds"] > 0
    assert (begun["finished"], begun["processor"]) == (False, "")
    assert left["reason"].startswith("it was interrupted; about ")
    run = out / "runs/slow/fedavg-seed0"
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2
    before = json.loads((out / "reproduction.json").read_text())["seconds"]
    reproduce(request, 3600, out)
    after = json.loads((out / "reproduction.json").read_text())["seconds"]
    assert after["runs/slow/fedavg-seed0"] > before["runs/slow/fedavg-seed0"]
    assert findings(out)["figure1"]["state"] == "made"
    reproduce(request, 3600, whole)
    assert outcome(run) == outcome(whole / "runs/slow/fedavg-seed0")
    written = (run / "summary.json").stat().st_mtime_ns
    reproduce(request, 3600, out)
    assert (run / "summary.json").stat().st_mtime_ns == written, "a finished run is not repeated"


class Late(NullCallback):
    """A clock that stands still but for a thousand seconds a round."""

    def __init__(self) -> None:
        self.time = 0.0

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        self.time += 1000


def test_a_run_that_outlasts_the_budget_stops_after_a_round_and_goes_on(manifest: Path, here: Path) -> None:
    out, late, request = here / "out", Late(), Request([str(manifest)], ["figure1"])
    run = out / "runs/slow/fedavg-seed0"
    reproduce(request, 1500, out, late, lambda: late.time)
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2
    assert findings(out)["figure1"]["state"] == "not made"
    reproduce(request, 3600, out, late, lambda: late.time)
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 4
    assert findings(out)["figure1"]["state"] == "made"


@pytest.mark.slow
def test_a_folder_is_moved_with_its_runs_that_begin_with_a_model_in_it(
    manifest: Path, here: Path, outcome: Callable[[Path], dict[str, Any]]
) -> None:
    """One of them finished, the other stopped after two rounds; the weights are those of a folder that stays."""
    paper = tomllib.loads(manifest.read_text())
    paper["runs"] = {
        "first": {"experiment": "quick.toml", "methods": ["fedavg"], "minutes": 0.1},
        "later": {
            "experiment": "slow.toml",
            "methods": ["fedavg", "fedopt"],
            "model_of": "first",
            "minutes": 0.1,
        },
    }
    paper["entry"] = [{"id": "table1", "title": "Table 1", "shows": "things", "runs": ["later"]}]
    manifest.write_text(tomli_w.dumps(paper))
    out, moved, whole, late = here / "out", here / "elsewhere" / "moved", here / "whole", Late()
    request = Request([str(manifest)])
    reproduce(request, 7500, out, late, lambda: late.time)
    runs = json.loads((out / "page/results.json").read_text())["runs"]
    finished = [name for name, run in runs.items() if run["finished"]]
    assert finished == ["quick.toml/fedavg-seed0", "slow.toml/fedavg-seed0"]
    assert len((out / "runs/slow/fedopt-seed0/rounds.jsonl").read_text().splitlines()) == 2
    moved.parent.mkdir()
    out.rename(moved)
    reproduce(request, 1e5, moved, late, lambda: late.time)
    assert findings(moved)["table1"]["state"] == "made"
    reproduce(request, 1e5, whole)
    for run in ("runs/slow/fedavg-seed0", "runs/slow/fedopt-seed0"):
        assert str(moved) in (moved / run / "resolved.toml").read_text()
        found, expected = outcome(moved / run), outcome(whole / run)
        del found["summary"], expected["summary"]  # they name the first model by its path of that time
        assert found == expected


def test_one_failed_run_does_not_stop_the_others(manifest: Path, here: Path) -> None:
    text = manifest.read_text()
    manifest.write_text(text.replace('experiment = "quick.toml"', 'experiment = "broken.toml"'))
    broken = (here / "quick.toml").read_text().replace("clients = 8", "clients = 8000")
    (here / "broken.toml").write_text(broken)
    out = here / "out"
    reproduce(Request([str(manifest)], ["table1", "figure1"]), 3600, out)
    found = findings(out)
    assert found["figure1"]["state"] == "made"
    assert found["table1"]["reason"].startswith("failed: ")
    assert "8,000 clients" in found["table1"]["reason"]


def test_pictures_of_runs(here: Path, document: Document) -> None:
    """Learning curves over simulated time, where it is counted, and histograms of how far tensors moved."""
    changes = {"name": "quick", "num_rounds": 2, "costs": {"device": "jetson-tx2"}, "pull": {"rule": "low"}}
    (here / "quick.toml").write_text(tomli_w.dumps(document(changes)))
    runs = {"quick": {"experiment": "quick.toml", "methods": ["fedavg"], "minutes": 0.1}}
    timed = {"curves": "global", "curves_by": "simulated time"}
    entries = [
        {"id": "figure1", "runs": ["quick"], "pictures": ["update_norms"], **timed},
        {"id": "figure2", "runs": ["quick"], "curves": "global"},
    ]
    manifest_in(here, runs, entries)
    reproduce(Request(["mine.toml"]), 3600, here / "out", NullCallback())
    found = {name: one["pictures"] for name, one in findings(here / "out").items()}
    captions = [picture["caption"] for name in ("figure1", "figure2") for picture in found[name]]
    assert [caption.split(", ", 1)[1] for caption in captions] == [
        "here: Global test accuracy (%) by simulated time, one seed",
        "here: How far each tensor of each client moved since its last round; round 2, seed 0.",
        "here: Global test accuracy (%) by round, one seed",
    ]
    drawn = {path.stem for path in (here / "out/page/figures").iterdir()}
    assert drawn == {picture["name"] for pictures in found.values() for picture in pictures}


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder with made-up files of AG News."""
    return agnews_in(here / "ag")


def test_partitions_are_drawn_from_given_folders(manifest: Path, here: Path, folder: Path) -> None:
    out = here / "out"
    reproduce(Request([str(manifest)], ["partitions"], {"agnews": folder}), 3600, out)
    found = findings(out)
    assert found["figure3"]["state"] == "made"
    assert figures(found["figure3"])["spread"]["even"] == {"0": 0.0}
    assert found["figure5"]["state"] == "in part", "of two partitions, the one whose data are there"
    assert figures(found["figure5"])["spread"] == {"even": {"0": 0.0}}
    assert "(`--data yahoo=DIR`)" in found["figure5"]["reason"]
    said = "- Data: agnews, 40 training and 8 test examples; published: 120,000 training and 7,600 test examples."
    assert said in (out / "page/paper-mine.md").read_text().splitlines()
    names = {path.name for path in (out / "page/figures").iterdir()}
    assert names == {"mine-figure3-size_density.png", "mine-figure3-label_heatmap.png"}
    reproduce(Request([str(manifest)]), 0, out)
    assert findings(out)["figure3"]["state"] == "made", "the folder of the data is remembered"
    (table,) = out.rglob("label_heatmap.csv")
    table.write_text(table.read_text() + '"' + "x" * 200_000)
    reproduce(Request([str(manifest)], ["partitions"]), 3600, out)
    assert "label_heatmap.csv is damaged" in findings(out)["figure3"]["reason"]
    assert not list((out / "page/figures").iterdir()), "what earlier calls drew is gone"


def test_a_partition_is_drawn_with_several_seeds(here: Path, folder: Path) -> None:
    """Its figures are by seed, as those of runs; others have them, also if they had fewer seeds."""
    made = {"dataset": "agnews", "data": "agnews", "options": {"method": "label", "clients": 4, "alpha": 0.5}}
    entry = {
        "id": "figure1",
        "title": "Figure 1",
        "shows": "shift",
        "measure": "divergence",
        "columns": [{"name": "divergence"}],
        "rows": [{"name": "skewed"}],
    }

    def found(seeds: int, out: str, seconds: float = 3600, **others: Any) -> dict[str, Any]:
        paper = {"name": "mine", "title": "t", "source": "s"}
        paper["entry"] = [entry | {"partitions": {"skewed": made | {"seeds": seeds}}}]
        (here / "mine.toml").write_text(tomli_w.dumps(paper))
        asked = Request(["mine.toml"], data={"agnews": folder}, **others)
        reproduce(asked, seconds, here / out, NullCallback())
        return findings(here / out)["figure1"]

    first, all_three = found(1, "first"), found(3, "all")
    values = figures(all_three)["divergence"]["skewed"]
    assert set(values) == {"0", "1", "2"}
    assert len(set(values.values())) == 3
    assert figures(first)["divergence"]["skewed"] == {"0": values["0"]}
    assert all_three["runs"][0] == first["runs"][0]
    joined = found(3, "joined", 0, join=[here / "first"])
    assert (joined["state"], figures(joined)) == ("in part", figures(first))
    joined = found(3, "again", 0, join=[here / "all"])
    assert (joined["state"], figures(joined)) == ("made", figures(all_three))
    assert figures(found(3, "two", most_seeds=2))["divergence"]["skewed"] == {
        one: values[one] for one in "01"
    }


def test_earlier_papers_stay_on_the_page(manifest: Path, here: Path) -> None:
    out = here / "out"
    other = here / "other.toml"
    other.write_text(manifest.read_text().replace('name = "mine"', 'name = "other"'))
    reproduce(Request([str(manifest)], ["figure2"]), 1, out)
    reproduce(Request([str(other)], ["figure2"]), 1, out)
    names = {path.stem for path in (out / "page").glob("*.md")}
    assert names == {"index", "paper-mine", "paper-other"}


def test_a_manifest_is_found_again_from_another_folder(
    manifest: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = here / "out"
    reproduce(Request([manifest.name], ["figure1"]), 3600, out)
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    for papers in ([], [str(manifest)], [f"../{manifest.name}"]):
        reproduce(Request(papers or ["003"], ["figure1"]), 0, out)
        assert {"index", "paper-mine"} <= {path.stem for path in (out / "page").glob("*.md")}
    record = json.loads((out / "reproduction.json").read_text())
    assert record["papers"] == [str(manifest), "003"]


def test_experiments_are_found_beside_the_manifest(
    manifest: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any folder, and with the same names of runs; one that is not there is an error before anything begins."""
    request, out = Request([str(manifest)], ["figure1"]), here / "out"
    reproduce(request, 0, out)
    before = findings(out)["figure1"]
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    reproduce(request, 0, out)
    assert findings(out)["figure1"] == before
    (here / "slow.toml").rename(here / "slower.toml")
    with pytest.raises(ConfigError, match=r"there is no experiment file slow\.toml"):
        reproduce(request, 3600, here / "new")
    assert not (here / "new").exists()
    reproduce(Request([str(manifest)], ["table1"]), 0, here / "new")
    assert findings(here / "new")["table1"]["reason"].startswith("the time was over")


def test_cpu_time_is_that_of_whole_runs() -> None:
    """Where a part of a run was not counted, as by an earlier version, none is stated."""
    record = Record(seconds={"old": 5.0})
    for job in ("old", "new", "new"):
        record.spend(job, 2.0, 3.0)
    assert record.seconds == {"old": 7.0, "new": 4.0}
    assert record.cpu_seconds == {"new": 6.0}


def test_other_settings_and_other_files_are_refused(manifest: Path, here: Path) -> None:
    out = here / "out"
    reproduce(Request([str(manifest)], ["figure1"]), 3600, out)
    with pytest.raises(RunError, match=r"holds a run of other settings .*choose another --out"):
        reproduce(Request([str(manifest)], ["figure1"], overrides=["client.learning_rate=0.5"]), 3600, out)
    (here / "full").mkdir()
    (here / "full/notes.txt").write_text("x")
    with pytest.raises(RunError, match="holds files of something else: choose another folder"):
        reproduce(Request([str(manifest)]), 3600, here / "full")
    record = json.loads((out / "reproduction.json").read_text())
    for wrong in ("[]", *(json.dumps(record | {"seconds": {"a": one}}) for one in (-1.0, 1e300, "x"))):
        (out / "reproduction.json").write_text(wrong)
        with pytest.raises(RunError, match=r"reproduction\.json is damaged"):
            reproduce(Request([str(manifest)]), 3600, out)


def test_a_run_is_expected_to_take_as_long_as_it_took_here(manifest: Path, here: Path) -> None:
    """With another seed, or up to where it was stopped; others by the manifest, and by how slow the machine was."""
    (paper,) = find_papers([str(manifest)]).values()
    late, out = Late(), here / "out"
    reproduce(Request([str(manifest)], ["figure1"]), 1500, out, late, lambda: late.time)
    reproduce(Request([str(manifest)], ["table1"], most_seeds=1), 1e5, out, late, lambda: late.time)
    seconds = {f"runs/quick/{method}-seed0": time for method, time in (("fedavg", 30.0), ("fedopt", 6.0))}
    record = Record(seconds=seconds | {"runs/slow/fedavg-seed0": 50.0})
    preparation = Preparation(out, {})
    works = [
        preparation.prepare(paper, entry) for entry in paper.entries if entry.id in ("table1", "figure1")
    ]
    found = expected_seconds([job for work in works for job in work.every], record)
    assert found == pytest.approx(
        {
            "runs/quick/fedavg-seed0": 0.0,
            "runs/quick/fedopt-seed0": 0.0,
            "runs/quick/fedavg-seed1": 30.0,
            "runs/quick/fedopt-seed1": 6.0,
            "runs/slow/fedavg-seed0": 50.0,
        }
    )
    rounds = out / "runs/slow/fedavg-seed0/rounds.jsonl"
    first = json.loads(rounds.read_text().splitlines()[0])
    rounds.write_text(json.dumps(first | {"seconds": 5.0}) + "\n")
    one_done = expected_seconds([job for work in works for job in work.every], record)
    assert one_done["runs/slow/fedavg-seed0"] == 45.0 + 3 * 5.0, "the 45 s beside the round are spent once"
    slower = expected_seconds(
        [job for work in works for job in work.every], Record(seconds={"runs/quick/fedavg-seed0": 60.0})
    )
    assert slower["runs/quick/fedopt-seed1"] == 10 * 6.0
    assert slower["runs/slow/fedavg-seed0"] == 10 * 12.0 * 3 / 4


def test_a_slower_machine_is_expected_to_stay_slow() -> None:
    record = Record(seconds={"a": 30.0, "b": 10.0})
    assert slowness(record, {"a": 10.0, "b": 10.0, "c": 5.0}) == 2.0
    assert slowness(record, {}) == 1.0
    assert slowness(Record(seconds={"a": 1e9}), {"a": 1.0}) == 50.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fednl"], "there is no paper fednl: did you mean 'fednlp'?"),
        (["000", "--budget", "soon"], "--budget soon: write a time such as 90m"),
        (["000", "--only", "table9"], "--only table9: choose from tables, figures, partitions, table1"),
        (["000", "--data", "mrqa"], "--data mrqa: write NAME=DIR"),
        (["000", "--data", "mrq=x"], "--data mrq: choose from dialogsum,"),
        (["000", "--data", "mrqa=nowhere"], "--data mrqa=nowhere: there is no such folder"),
        (
            ["000", "--join", "nowhere"],
            "--join nowhere: there is no results.json in it or in its page/",
        ),
        (["000", "--seeds", "0"], "--seeds 0: at least 1 is needed"),
        ([], "which paper? say fednlp reproduce 000, or all"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["fednlp", "reproduce", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
    assert not list(here.iterdir())


def test_a_manifest_that_is_a_pipe_is_refused_at_once(here: Path) -> None:
    os.mkfifo(here / "pipe.toml")
    with pytest.raises(ConfigError, match=r"pipe\.toml cannot be read: .*a pipe or a device, no file"):
        find_papers([str(here / "pipe.toml")])


def test_the_list_shows_no_control_characters(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = tomllib.loads(manifest.read_text()) | {"title": "t\x1b[2J"}
    paper["entry"][0]["shows"] = "things\x1b[2J\nmore"
    paper["entry"][4]["impossible"] = "a drawing\x1b[2J"
    manifest.write_text(tomli_w.dumps(paper))
    monkeypatch.setattr(sys, "argv", ["fednlp", "reproduce", str(manifest), "--list"])
    with pytest.raises(SystemExit):
        main()
    assert "\x1b" not in capsys.readouterr().out


def test_the_list_has_every_entry(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["fednlp", "reproduce", str(manifest), "--list"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    lines = text.splitlines()
    begun = [line.split()[0] for line in lines[2:] if line and not line.startswith(" ")]
    ids = ["table1", "figure1", "table2", "table3", "figure2", "figure3", "figure4", "figure5"]
    assert begun == [*ids, "together"]
    assert max(map(len, lines)) <= 80
    assert "--data agnews=DIR" in text
    assert "not made: a drawing" in text
    assert "the first seeds take 1000000001; shared runs count once" in text


def test_shared_runs_are_expected_once(manifest: Path) -> None:
    paper = find_papers([str(manifest)])[str(manifest)]
    table1, figure1, figure4, figure5 = (
        [entry for entry in paper.entries if entry.id == name]
        for name in ("table1", "figure1", "figure4", "figure5")
    )
    assert expected_minutes(paper, table1) == (pytest.approx(2 * 2 * 0.1), False)
    assert expected_minutes(paper, table1, 1) == (pytest.approx(2 * 0.1), False)
    assert expected_minutes(paper, figure1) == (pytest.approx(0.2), True)
    assert expected_minutes(paper, [*figure1, *figure4]) == (pytest.approx(0.2 + 0.1), False)
    assert expected_minutes(paper, figure5) == (pytest.approx(2 * 10 / 60), True)
    assert expected_minutes(paper, [*figure5, *figure5]) == expected_minutes(paper, figure5)


def test_damaged_runs_are_named_and_what_is_whole_is_shown(manifest: Path, here: Path) -> None:
    """Also a finished run without all of its rounds: its bytes and times would be too small, unsaid."""
    out = here / "out"
    reproduce(Request([str(manifest)], ["table1", "figure1"]), 3600, out)
    run = out / "runs/quick/fedavg-seed0"
    whole = {name: (run / name).read_text() for name in ("summary.json", "resolved.toml", "rounds.jsonl")}
    summary, rounds = json.loads(whole["summary.json"]), f"{run / 'rounds.jsonl'} is damaged"
    damages: list[tuple[str, str | None, str]] = [
        *((name, f"x{text}", str(run / name)) for name, text in whole.items()),
        ("resolved.toml", None, f"{run / 'resolved.toml'} is damaged (it is missing): {REMEDY}"),
        ("rounds.jsonl", whole["rounds.jsonl"].splitlines()[0] + "\n", f"{rounds} (1 of 2 rounds)"),
        ("rounds.jsonl", None, f"{rounds} (0 of 2 rounds)"),
        *(
            ("summary.json", json.dumps(summary | {"rounds": one}), rounds)
            for one in (None, "2", {}, [2], True)
        ),
    ]
    for name, text, reason in damages:
        if text is None:
            (run / name).unlink()
        else:
            (run / name).write_text(text)
        reproduce(Request([str(manifest)]), 0, out)
        (run / name).write_text(whole[name])
        found = findings(out)
        assert found["table1"]["reason"].startswith(f"failed: {reason}")
        assert found["table1"]["state"] == "in part"
        assert {row: [*seeds] for row, seeds in figures(found["table1"])["bytes"].items()} == {
            "A": ["1"],
            "B": ["0", "1"],
        }
        assert found["figure1"]["state"] == "made"


def test_beside_a_damaged_run_the_others_are_made(manifest: Path, here: Path) -> None:
    out = here / "out"
    reproduce(Request([str(manifest)], ["table1"], most_seeds=1), 3600, out)
    (out / "runs/quick/fedavg-seed0/resolved.toml").unlink()
    summary = out / "runs/quick/fedopt-seed0/summary.json"
    summary.write_text("x" + summary.read_text())
    reproduce(Request([str(manifest)]), 3600, out)
    found = findings(out)
    assert found["table1"]["state"] == "in part"
    assert figures(found["table1"])["here"].keys() == {"A", "B"}, "of the second seed"
    assert found["figure1"]["state"] == "made"


def test_the_time_of_a_killed_run_is_counted(manifest: Path, here: Path) -> None:
    """It has rounds, but no call lived to write down how long they took."""
    out, late = here / "out", Late()
    reproduce(Request([str(manifest)], ["figure1"]), 1500, out, late, lambda: late.time)
    rounds = out / "runs/slow/fedavg-seed0/rounds.jsonl"
    lines = [json.loads(line) | {"seconds": 500.0} for line in rounds.read_text().splitlines()]
    rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = json.loads((out / "reproduction.json").read_text())
    (out / "reproduction.json").write_text(json.dumps(record | {"seconds": {}, "cpu_seconds": {}}))
    reproduce(Request([str(manifest)], ["figure1"]), 1e5, out, late, lambda: late.time)
    record = json.loads((out / "reproduction.json").read_text())
    assert len(lines) == 2
    assert record["seconds"] == {"runs/slow/fedavg-seed0": 2 * 500.0 + 2 * 1000.0}
    assert record["cpu_seconds"] == {}, "that of the first two rounds is not known"


def test_the_pages_are_those_of_their_data(manifest: Path, here: Path) -> None:
    """Markdown follows from ``results.json`` alone, and pictures are the same bytes each time."""
    out = here / "out"
    reproduce(Request([str(manifest)], ["figure1"]), 3600, out)
    text = (out / "page/results.json").read_text()
    results = Results.model_validate_json(text)
    assert results.to_json() == text
    written = {path.name: path.read_text() for path in (out / "page").glob("*.md")}
    assert markdown_pages(results) == written
    pictures = {path.name: path.read_bytes() for path in (out / "page/figures").iterdir()}
    assert pictures
    reproduce(Request([str(manifest)], ["figure1"]), 0, out)
    assert {path.name: path.read_bytes() for path in (out / "page/figures").iterdir()} == pictures
    assert (out / "page/results.json").read_text() == text
