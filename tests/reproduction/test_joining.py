"""Several reproductions joined are one: laws of the union, and real folders that share the runs of tiny experiments."""

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fednlp import config
from fednlp.cli import main
from fednlp.errors import ConfigError, DamagedError
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.agreement import Verdict
from fednlp.reproduction.elsewhere import Joined, reason_elsewhere
from fednlp.reproduction.finding import found_column, verdict
from fednlp.reproduction.jobs import Job, Preparation, Work
from fednlp.reproduction.joining import finding_of, unite
from fednlp.reproduction.known import Known, known
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.results import Finding, FoundClaim, FoundPicture, FoundRow, PaperResults, Results
from fednlp.reproduction.write import markdown_pages
from fednlp.simulation.callback import NullCallback

METHODS, SEEDS = ("a", "b", "c"), 3
SOURCES = [(method, seed) for method in METHODS for seed in range(SEEDS)]
Found = Mapping[tuple[str, int], float]


def row(name: str, method: str, published: float = 1.0) -> dict[str, Any]:
    """Return a row of a manifest."""
    return {"name": name, "method": method, "published": {"paper": published}}


def paper(made_by: Mapping[str, Any] | None = None, **changes: Any) -> Paper:
    """Return a paper with one table: a row a method, and claims about them."""
    entry = {
        "id": "table1",
        "title": "Table 1",
        "shows": "things",
        "runs": ["r"],
        "columns": [{"name": "here", "against": ["paper"]}],
        "rows": [row(name.upper(), name, float(number)) for number, name in enumerate(METHODS)],
        "claims": [
            {"says": "rises", "kind": "rises", "rows": ["A", "B", "C"]},
            {"says": "A is best", "kind": "highest", "rows": ["A", "B"]},
        ],
    }
    runs = {"r": {"experiment": "small", "methods": list(METHODS), "seeds": SEEDS, "minutes": 1.0}}
    made = {"name": "mine", "title": "t", "source": "s", "runs": made_by or runs, "entry": [entry | changes]}
    return Paper.model_validate(made)


PAPER = paper()
SETTINGS = config.load("small", [])


def results(found: Found, reason: str, error: float = 1.0, of: Paper = PAPER) -> Results:
    """Return what one found who did some runs, each with a second of time."""
    entry = of.entries[0]
    rows = {
        one.name: {seed: value for (method, seed), value in sorted(found.items()) if method == one.method}
        for one in entry.rows
    }
    figures = {name: values for name, values in rows.items() if values}
    columns = [
        found_column(entry, column, figures, dict.fromkeys(figures, error)) for column in entry.columns
    ]
    finding = Finding(
        id=entry.id,
        title=entry.title,
        shows=entry.shows,
        here="",
        command="",
        state="in part" if found and reason else "made" if found else "not made",
        reason=reason,
        runs=len(SOURCES),
        finished=len(found),
        seconds=len(found),
        cpu_seconds=len(found) or None,
        expected=1.0,
        measured=True,
        rows=[FoundRow(name=one.name, published=one.published) for one in entry.rows],
        columns=columns,
        claims=[FoundClaim(says=one.says, verdict=verdict(one, columns)) for one in entry.claims],
        pictures=[],
    )
    one = PaperResults(
        number="",
        name=of.name,
        title="t",
        source="s",
        command="",
        seconds=len(found),
        machines=[],
        libraries=[],
        entries=[finding],
    )
    return Results(seconds=len(found), papers=[one])


def part(found: Found, *sources: tuple[str, int]) -> Results:
    """Return what one found who did these runs alone."""
    own = {source: found[source] for source in sources}
    return results(own, "" if len(own) == len(SOURCES) else "the time was over")


def nothing(*others: Results) -> Results:
    """Return what one found who did nothing, and knows what others have."""
    known_here = known(PAPER, PAPER.entries[0], others)
    return results({}, "" if len(known_here.sources) == len(SOURCES) else "the time was over")


def joint(here: Results, *others: Results) -> Finding:
    """Return the only table of a union."""
    return unite({PAPER.name: PAPER}, here, others).papers[0].entries[0]


FIGURES = st.fixed_dictionaries({source: st.floats(0, 100) for source in SOURCES})
"""The figure of each run, which is the same whoever does it."""


@given(FIGURES, st.sets(st.sampled_from(SOURCES)))
def test_joined_with_itself_is_the_same_but_for_the_time(found: Found, done: set[tuple[str, int]]) -> None:
    one = part(found, *done)
    alone = one.papers[0].entries[0]
    twice = joint(one, one)
    assert twice.seconds == 2 * alone.seconds
    assert twice.model_copy(update={"seconds": alone.seconds, "cpu_seconds": alone.cpu_seconds}) == alone


@given(FIGURES, st.lists(st.integers(0, 2), min_size=len(SOURCES), max_size=len(SOURCES)))
def test_parts_joined_in_any_order_are_the_whole(found: Found, owners: list[int]) -> None:
    parts = [
        part(found, *(source for source, owner in zip(SOURCES, owners, strict=True) if owner == number))
        for number in range(3)
    ]
    whole = part(found, *SOURCES).papers[0].entries[0]
    for order in itertools.permutations(parts):
        assert joint(nothing(*order), *order) == whole
    assert joint(parts[0].model_copy(), *parts[1:]).columns == whole.columns


@given(st.lists(st.dictionaries(st.sampled_from(SOURCES), st.floats(0, 100)), min_size=1, max_size=4))
def test_a_figure_is_that_of_the_first_who_has_it(everyone: list[dict[tuple[str, int], float]]) -> None:
    here, *others = [results(found, "some are left") for found in everyone]
    expected: dict[tuple[str, int], float] = {}
    for found in everyone:
        expected = found | expected
    (column,) = joint(here, *others).columns
    assert {
        (name.lower(), seed): value
        for name, values in column.figures.items()
        for seed, value in values.items()
    } == expected
    assert joint(here, *others).finished == len(expected)


def test_a_verdict_stands_where_its_figures_are_from_one_folder() -> None:
    """Of an old file only the largest error is known: it would no longer decide what the true errors decided."""
    text = results({("a", 0): 60.0, ("b", 0): 50.0}, "time", error=0.5).to_json()
    old = text.replace('"errors": {"A": 0.5, "B": 0.5}', '"error": 9.0')
    assert old != text
    theirs = Results.model_validate_json(old)
    assert theirs.papers[0].entries[0].columns[0].errors == {"A": 9.0, "B": 9.0}
    best = joint(nothing(theirs), theirs).claims[1]
    assert best.verdict == Verdict(True, True, 1)
    ours = results({("b", 0): 50.0}, "time", error=0.5)
    assert joint(ours, theirs).claims[1].verdict == Verdict(True, True, 1), (
        "the figures are theirs all the same"
    )
    other = results({("b", 0): 50.1}, "time", error=0.5)
    assert joint(other, theirs).claims[1].verdict == Verdict(True, False, 1)


def test_what_the_manifest_no_longer_has_is_left_out() -> None:
    theirs = results(dict.fromkeys(SOURCES, 1.0), "")
    changed = paper(rows=[row("A", "a"), row("New", "b")], claims=[])
    all_of_a = frozenset(("r", "a", seed) for seed in range(SEEDS))
    assert known(changed, changed.entries[0], [theirs]) == Known(all_of_a)
    measured = paper(columns=[{"name": "here", "measure": "sent"}], claims=[])
    assert known(measured, measured.entries[0], [theirs]) == Known()
    assert known(PAPER, PAPER.entries[0], [theirs]).whole
    for of in (changed, measured):
        here = results({}, "all of it", of=of)
        (column,) = unite({of.name: of}, here, [theirs]).papers[0].entries[0].columns
        assert column.figures.keys() <= {"A"}
    (own,) = theirs.papers
    more = Results(seconds=50, papers=[own, own.model_copy(update={"name": "other", "seconds": 45.0})])
    assert unite({PAPER.name: PAPER}, results({}, ""), [more]).seconds == own.seconds
    gone = paper(id="table2")
    united = unite({gone.name: gone}, results({}, "all of it", of=gone), [theirs])
    assert [one.id for one in united.papers[0].entries] == ["table2"]


# ------------------------------------------------------------------------------------------- real folders

Document = Callable[..., dict[str, Any]]


class Said(NullCallback):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def manifest(here: Path, document: Document) -> Path:
    """The manifest of a paper with two seeds of a table, a figure of its runs, and runs that begin with their model."""
    for name, rounds in (("quick", 2), ("later", 2)):
        (here / f"{name}.toml").write_text(tomli_w.dumps(document({"name": name, "num_rounds": rounds})))
    runs = {
        "quick": {"experiment": "quick.toml", "methods": ["fedavg", "fedopt"], "seeds": 2, "minutes": 0.1},
        "later": {"experiment": "later.toml", "methods": ["fedavg"], "model_of": "quick", "minutes": 0.1},
    }
    rows = [
        {"name": "A", "method": "fedavg", "published": {"paper": 1.0}},
        {"name": "B", "method": "fedopt", "published": {"paper": 2.0}},
    ]
    columns = [
        {"name": "here", "against": ["paper"]},
        {"name": "bytes", "measure": "sent"},
        {"name": "never", "measure": "sent to target", "target": 1.01},
    ]
    claims = [
        {"says": "alike", "kind": "close", "rows": ["A", "B"], "within": 100.0},
        {"says": "B is best", "kind": "highest", "rows": ["B", "A"]},
    ]
    cell = [{"name": "C", "method": "fedavg"}]
    ag = {"dataset": "agnews", "data": "agnews", "options": {"method": "uniform", "clients": 4}}
    entries: list[dict[str, Any]] = [
        {"id": "table1", "runs": ["quick"], "rows": rows, "columns": columns, "claims": claims},
        {"id": "figure1", "runs": ["quick"], "curves": "global"},
        {"id": "table2", "runs": ["later"], "rows": cell, "columns": [{"name": "here"}]},
        {
            "id": "figure2",
            "partitions": {"even": ag},
            "rows": [{"name": "even"}],
            "columns": [{"name": "spread", "measure": "size spread"}],
            "pictures": ["size_density"],
        },
    ]
    named = [{"title": entry["id"].capitalize(), "shows": "things", **entry} for entry in entries]
    made = {"name": "mine", "title": "t", "source": "somebody", "runs": runs, "entry": named}
    path = here / "mine.toml"
    path.write_text(tomli_w.dumps(made))
    return path


def made(out: Path, entry: str) -> Finding:
    """Return a table of a folder's pages."""
    finding = finding_of(Results.model_validate_json((out / "page/results.json").read_text()), "mine", entry)
    assert finding is not None
    return finding


def runs_in(out: Path) -> set[str]:
    """Return the runs that lie in a folder."""
    return {f"{path.parent.name}/{path.name}" for path in out.glob("runs/*/*-seed*")}


def test_two_machines_share_the_seeds_of_a_table(manifest: Path, here: Path) -> None:
    """The second makes what the first has not, and its pages are those of one who made all of it."""
    first, second, whole, last = here / "first", here / "second", here / "whole", here / "last"
    reproduce(Request([str(manifest)], ["table1"], most_seeds=1), 3600, first)
    assert runs_in(first) == {"quick/fedavg-seed0", "quick/fedopt-seed0"}
    shutil.rmtree(first / "runs")
    said = Said()
    reproduce(Request([str(manifest)], ["table1"], join=[first]), 3600, second, said)
    assert runs_in(second) == {"quick/fedavg-seed1", "quick/fedopt-seed1"}
    assert (
        said.lines[0]
        == "2 of the 4 runs that are not done here are known from 1 joined folder, and are not made"
    )
    reproduce(Request([str(manifest)], ["table1"]), 3600, whole)
    found, expected = made(second, "table1"), made(whole, "table1")
    times = {"seconds": found.seconds, "cpu_seconds": found.cpu_seconds}
    assert found == expected.model_copy(update=times)
    assert expected.state == "made"
    assert found.claims[0].verdict.seeds == 2
    (curve,) = made(second, "figure1").pictures
    assert curve.caption.endswith("one seed"), "curves are of runs that lie in one folder"
    reproduce(Request([str(manifest)], join=[whole / "page", second]), 3600, last)
    assert runs_in(last) == {"quick/fedavg-seed0", "later/fedavg-seed0"}, "whose model the run begins with"
    assert made(last, "table1").model_copy(update=times) == found
    assert made(last, "figure1").pictures == made(whole, "figure1").pictures
    drawn = [one / "page/figures/mine-figure1-curves-0.png" for one in (whole, last)]
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert 'src="data:image/png;base64,' in (last / "page/paper-mine.html").read_text()
    counts = [sum(one.runs for one in united(out).machines) for out in (whole, second, last)]
    assert counts == [4, 4, 4 + 4 + 2]


def united(out: Path) -> PaperResults:
    """Return what a folder's pages say of the paper."""
    return Results.model_validate_json((out / "page/results.json").read_text()).papers[0]


def test_runs_that_begin_with_a_model_are_known_without_it(manifest: Path, here: Path) -> None:
    first, second = here / "first", here / "second"
    reproduce(Request([str(manifest)], ["table2"]), 3600, first)
    assert made(first, "table2").finished == 2
    reproduce(Request([str(manifest)], ["table2"], join=[first]), 3600, second)
    assert runs_in(second) == set(), "nothing is left to do"
    assert made(second, "table2") == made(first, "table2")


def test_data_that_lie_elsewhere_are_not_missed(manifest: Path, here: Path) -> None:
    folder, first, second = here / "ag", here / "first", here / "second"
    folder.mkdir()
    for name, count in (("train", 40), ("test", 8)):
        rows = [f'"{number % 4 + 1}","title {number}","text {number}"' for number in range(count)]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    reproduce(Request([str(manifest)], ["figure2"], {"agnews": folder}), 3600, first)
    shutil.rmtree(folder)
    reproduce(Request([str(manifest)], ["figure2"], join=[first]), 3600, second)
    assert made(second, "figure2") == made(first, "figure2")
    assert made(second, "figure2").state == "made"
    name = "page/figures/mine-figure2-size_density.png"
    assert (second / name).read_bytes() == (first / name).read_bytes()
    (first / name).unlink()
    reproduce(Request([str(manifest)]), 0, second)
    assert made(second, "figure2").pictures == [], "a page shows no picture that is not there"


def test_joined_pages_are_remembered_and_missed(manifest: Path, here: Path) -> None:
    first, second, said = here / "first", here / "second", Said()
    reproduce(Request([str(manifest)], ["table1"], most_seeds=1), 3600, first)
    reproduce(Request([str(manifest)], join=[Path("first")]), 0, second)
    reproduce(Request([str(manifest)], join=[first / "page"]), 0, second, said)
    assert json.loads((second / "reproduction.json").read_text())["join"] == [str(first / "page")]
    assert made(second, "table1").columns == made(first, "table1").columns
    assert made(second, "table1").state == "in part", "two seeds are wanted here"
    written = {path.name: path.read_text() for path in (second / "page").glob("*.md")}
    assert markdown_pages(Results.model_validate_json((second / "page/results.json").read_text())) == written
    first.rename(here / "moved")
    reproduce(Request([str(manifest)]), 0, second, said)
    assert said.lines[-1] == (
        f"{first / 'page'} has no results.json any more, so what it had is left out: give its new place with "
        f"--join DIR, and remove the old one from {second / 'reproduction.json'}"
    )
    assert made(second, "table1").state == "not made"
    reproduce(Request([str(manifest)], join=[here / "moved"]), 0, second)
    assert made(second, "table1").finished == 2


def test_what_a_run_that_is_left_needs_is_left_too(here: Path) -> None:
    """The run with whose model it begins, and in the same seed the runs by whose score it is measured."""
    runs = {
        "first": {"experiment": "small", "methods": ["fedavg"], "minutes": 1.0},
        "later": {
            "experiment": "small",
            "methods": ["fedavg", "fedopt"],
            "set": ["num_rounds=2"],
            "seeds": 2,
            "model_of": "first",
            "minutes": 1.0,
        },
    }
    column = {"name": "here", "measure": "sent to target", "target": "fedavg"}
    rows = [row("First", "fedavg") | {"run": "first"}, row("A", "fedavg") | {"run": "later"}]
    rows.append(row("B", "fedopt") | {"run": "later"})
    of = paper(runs, runs=["first", "later"], columns=[column], rows=rows, claims=[])

    def left(**found: dict[int, float]) -> set[str]:
        (given,) = results({}, "time", of=of).papers
        (table,) = given.entries
        columns = [found_column(of.entries[0], of.entries[0].columns[0], found, {})]
        there = table.model_copy(update={"columns": columns, "runs": 5, "finished": 1, "state": "in part"})
        joined = Results(seconds=1, papers=[given.model_copy(update={"entries": [there]})])
        work = Preparation(here / "out", {}, joined=[joined]).prepare(of, of.entries[0])
        assert work.known == {job.name for job in work.every} - {job.name for job in work.left}
        return {
            f"{'first' if job.folder.parent.name == 'small' else job.folder.name.split('-')[0]}{job.seed}"
            for job in work.left
        }

    base = SETTINGS.seed
    one = {base: 1.0}
    both = one | {base + 1: 1.0}
    every = {"first0", "fedavg0", "fedavg1", "fedopt0", "fedopt1"}
    assert left() == every
    assert left(First=one, A=both, B=both) == set()
    assert left(First=one, A=both, B=one) == {"first0", "fedavg1", "fedopt1"}
    assert left(First=one, A=one, B=both) == {"first0", "fedavg1"}
    assert left(A=both, B=both) == {"first0"}
    assert left(B=both) == every, "there it was not measured by a score of the others"


def test_runs_that_cannot_be_made_here_are_counted(here: Path) -> None:
    """Seeds that are not wanted here, of which the others have figures."""
    runs = {"r": {"experiment": "small", "methods": ["fedavg"], "seeds": 3, "minutes": 1.0}}
    of, base = paper(runs, rows=[row("A", "fedavg")], claims=[]), SETTINGS.seed
    theirs = results({("fedavg", base): 1.0, ("fedavg", base + 1): 2.0}, "the time was over", of=of)
    work = Preparation(here / "out", {}, most_seeds=1, joined=[theirs]).prepare(of, of.entries[0])
    assert (len(work.every), len(work.known), work.elsewhere) == (1, 1, 1)


def test_the_reason_is_that_of_the_one_who_was_to_make_it() -> None:
    def joined(reason: str, runs: int) -> Joined:
        (given,) = results({}, reason).papers
        there = given.entries[0].model_copy(update={"runs": runs})
        return Joined(Results(seconds=1, papers=[given.model_copy(update={"entries": [there]})]), {})

    job = Job("runs/x", 0, 1.0, Path("runs/x"), SETTINGS)
    work = Work(PAPER, PAPER.entries[0], {"r": [job]})
    assert reason_elsewhere(work, [joined("stopped", 1)]) == "stopped"
    assert reason_elsewhere(work, [joined("needs data", 0)]) == "", "here it can be made"
    assert reason_elsewhere(work, [joined("stopped", 1), joined("stopped later", 1)]) == ""
    assert reason_elsewhere(work, []) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-9], "is damaged (.*EOF"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"runs": 4', '"runs": "many"', 1), r"entries\.0\.runs: input should be"),
        (lambda text: text.replace('"runs": 4', '"runs": -1', 1), "greater than or equal to 0"),
        (lambda text: text.replace('"seed', '"\\ud800seed', 1) + "[" * 5000, "is damaged"),
        (lambda text: text.replace('{"0": ', '{"0": NaN, "7": ', 1), "finite number"),
        (lambda text: text.replace('{"0": ', '{"0": 1e300, "7": ', 1), "less than or equal to"),
        (lambda text: text.replace('{"0": ', f'{{"{"9" * 5000}": ', 1), "9…: unable to parse"),
        (lambda text: text.replace('"A": {"0": ', f'"{"A" * 9999}": {{"x": ', 1), "A…: input should be"),
        (
            lambda text: text.replace("mine-figure1-curves-0", "../../secret"),
            "pictures.0.name: string should",
        ),
        (lambda text: text.replace("mine-figure1-curves-0", "/etc/passwd"), "pictures.0.name: string should"),
        (lambda text: text.replace('"name": "mine"', '"name": "../mine"'), "name: string should match"),
        (lambda text: text + " " * (17 << 20), "it has more than 16 MiB"),
    ],
)
def test_a_hostile_file_is_an_error_for_people(
    change: Callable[[str], str], message: str, page: Path, here: Path, manifest: Path
) -> None:
    (here / "first").mkdir()
    text = page.read_text()
    changed = change(text)
    assert changed != text
    (here / "first/results.json").write_text(changed)
    with pytest.raises(DamagedError, match=message.replace("(.*", r"\(.*")) as error:
        reproduce(Request([str(manifest)], join=[here / "first"]), 0, here / "out")
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500
    assert not (here / "out/page").exists()
    assert not json.loads((here / "out/reproduction.json").read_text()).get("join"), "it is not remembered"


@pytest.fixture
def page(here: Path) -> Path:
    """The ``results.json`` of the manifest's table, with a picture."""
    one = results({("a", 0): 1.0}, "the time was over").papers[0]
    (entry,) = one.entries
    picture = FoundPicture(name="mine-figure1-curves-0", caption="a curve")
    entry = entry.model_copy(update={"runs": 4, "pictures": [picture]})
    path = here / "results.json"
    path.write_text(Results(seconds=1, papers=[one.model_copy(update={"entries": [entry]})]).to_json())
    return path


def test_only_pictures_are_copied(page: Path, here: Path, manifest: Path) -> None:
    """Not what a link points to, nor a pipe, nor what is no PNG."""
    (here / "first/figures").mkdir(parents=True)
    secret, stands = here / "secret", here / "first/figures/mine-figure1-curves-0.png"
    secret.write_text("a password")
    stands.symlink_to(secret)
    (here / "first/results.json").write_text(page.read_text())
    out = here / "out"
    reproduce(Request([str(manifest)], join=[here / "first"]), 0, out)
    assert made(out, "table1").pictures == []
    assert not list((out / "page/figures").iterdir())


def test_a_picture_outside_the_folder_is_not_copied(page: Path, here: Path, manifest: Path) -> None:
    """A link in a folder from somebody else could name a private picture."""
    (here / "first/figures").mkdir(parents=True)
    private, stands = here / "private.png", here / "first/figures/mine-figure1-curves-0.png"
    private.write_bytes(b"\x89PNG\r\n\x1a\nprivate")
    stands.symlink_to(private)
    (here / "first/results.json").write_text(page.read_text())
    out = here / "out"
    reproduce(Request([str(manifest)], join=[here / "first"]), 0, out)
    assert made(out, "table1").pictures == []
    stands.unlink()
    private.rename(stands)
    reproduce(Request([str(manifest)]), 0, out)
    assert [one.name for one in made(out, "table1").pictures] == ["mine-figure1-curves-0"]


def test_a_folder_that_was_moved_behind_a_link_is_joined_once(page: Path, here: Path, manifest: Path) -> None:
    (here / "first").mkdir()
    page.rename(here / "first/results.json")
    reproduce(Request([str(manifest)], join=[here / "first"]), 0, here / "out")
    seconds = made(here / "out", "table1").seconds
    assert seconds > 0
    (here / "first").rename(here / "disk")
    (here / "first").symlink_to(here / "disk")
    for join in ([], [here / "first"], [here / "disk"]):
        reproduce(Request([str(manifest)], join=join), 0, here / "out")
        assert made(here / "out", "table1").seconds == seconds


def test_a_folder_that_took_the_place_of_a_joined_one_is_not_joined_with_itself(
    page: Path, here: Path, manifest: Path
) -> None:
    """Its figures would be its own for ever, and its time would grow with each call."""
    first, second, said = here / "first", here / "second", Said()
    (first / "page").mkdir(parents=True)
    page.rename(first / "page/results.json")
    reproduce(Request([str(manifest)], join=[first]), 0, second)
    seconds = made(second, "table1").seconds
    first.rename(here / "old")
    second.rename(first)
    reproduce(Request([str(manifest)]), 0, first, said)
    assert said.lines[0].startswith(f"{first / 'page'} is the folder of this reproduction now")
    assert made(first, "table1").seconds == 0
    for _ in range(2):
        reproduce(Request([str(manifest)], join=[here / "old"]), 0, first)
        assert made(first, "table1").seconds == seconds


def test_another_paper_of_the_same_name_is_left_out(page: Path, here: Path, manifest: Path) -> None:
    """Two people may give their manifests one name; a new title alone makes no other paper."""
    (here / "first").mkdir()
    one = Results.model_validate_json(page.read_text()).papers[0]
    other, said = one.model_copy(update={"title": "another", "source": "others", "seconds": 7.0}), Said()
    for named, joined in ((one, 1), (other, 0), (one, 1)):
        more = other.model_copy(update={"name": "more"})
        text = Results(seconds=9, papers=[named, more]).to_json()
        (here / "first/results.json").write_text(text)
        reproduce(Request([str(manifest)], join=[here / "first"]), 0, here / "out", said)
        assert made(here / "out", "table1").finished == joined
        assert united(here / "out").seconds == joined
        assert any("mine has neither the title nor the source" in line for line in said.lines) != joined
        said.lines.clear()


def test_a_joined_folder_that_was_damaged_later_says_what_to_do(
    page: Path, here: Path, manifest: Path
) -> None:
    (here / "first").mkdir()
    (here / "first/results.json").write_text(page.read_text())
    reproduce(Request([str(manifest)], join=[here / "first"]), 0, here / "out")
    (here / "first/results.json").write_text("{")
    with pytest.raises(DamagedError) as error:
        reproduce(Request([str(manifest)]), 0, here / "out")
    assert str(error.value).startswith(f"{here / 'first/results.json'} is damaged (invalid JSON: EOF")
    assert str(error.value).endswith(f"or leave it out of --join and of {here / 'out/reproduction.json'}")


def test_a_reader_sees_the_old_results_or_the_new_ones(page: Path, here: Path, manifest: Path) -> None:
    reproduce(Request([str(manifest)]), 0, here / "out")
    written = here / "out/page/results.json"
    (here / "held").hardlink_to(written)
    before = written.read_text()
    (here / "first").mkdir()
    page.rename(here / "first/results.json")
    reproduce(Request([str(manifest)], join=[here / "first"]), 0, here / "out")
    assert (here / "held").read_text() == before != written.read_text()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_results_are_read_as_they_were_written(libraries: list[str]) -> None:
    """Also the characters that end a line without being a line feed."""
    (own,) = results({}, "").papers
    one = Results(seconds=0, papers=[own.model_copy(update={"libraries": ["a\u2028b\x85 c", *libraries]})])
    assert Results.model_validate_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--join", "nowhere"],
            "--join nowhere: there is no results.json in it or in its page/: give the folder",
        ),
        (["--join", "out"], "--join out is the folder of this reproduction: give that of another one"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    message: str,
    page: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "out/page").mkdir(parents=True)
    page.rename(here / "out/page/results.json")
    monkeypatch.setattr(sys, "argv", ["fednlp", "reproduce", "000", "--out", "out", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1


def test_python_has_the_same_check(here: Path) -> None:
    with pytest.raises(ConfigError, match="--join nowhere: there is no"):
        reproduce(Request(["000"], join=[Path("nowhere")]), 0, here / "out")
    assert not list(here.iterdir())
