"""Several reproductions joined are one: laws of the union, and real folders that share the runs of tiny experiments."""

import itertools
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
from fednlp.errors import ConfigError
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.finding import found_column, state_of, verdict
from fednlp.reproduction.jobs import Job
from fednlp.reproduction.joining import known, unite
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import run_name
from fednlp.reproduction.parts import FoundClaim, FoundRun
from fednlp.reproduction.preparation import Preparation, settings_digest
from fednlp.reproduction.results import Finding, Results
from fednlp.simulation.callback import NullCallback

from .made_up import pages_of, table_of

pytestmark = pytest.mark.whole

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


def name_of(method: str, seed: int, of: Paper = PAPER, key: str = "r") -> str:
    """Return the name of a run."""
    return run_name(of.runs[key], method, seed)


NAMES = [name_of(*source) for source in SOURCES]


def results(
    found: Found,
    reason: str,
    of: Paper = PAPER,
    machine: str = "x",
    begun: frozenset[tuple[str, int]] = frozenset(),
) -> Results:
    """Return what one found who did some runs, each in a second of time, and began others."""
    entry = of.entries[0]
    rows = {
        one.name: {seed: value for (method, seed), value in sorted(found.items()) if method == one.method}
        for one in entry.rows
    }
    figures = {name: values for name, values in rows.items() if values}
    columns = [
        found_column(of, entry, column, figures, dict.fromkeys(figures, 1.0)) for column in entry.columns
    ]
    table = table_of(
        entry,
        list(dict.fromkeys([*NAMES, *(name_of(*source, of) for source in found)])),
        columns,
        state=state_of(bool(found), len(found) == len(SOURCES) and not reason),
        reason=reason,
        claims=[FoundClaim(says=one.says, verdict=verdict(one, columns)) for one in entry.claims],
    )
    runs = {name_of(*source, of): FoundRun(finished=False, seconds=0.5) for source in begun}
    made = FoundRun(finished=True, seconds=1.0, cpu_seconds=2.0, processor=machine, cores=2)
    return pages_of(of.name, [table], runs | {name_of(*source, of): made for source in found})


def part(found: Found, *sources: tuple[str, int], machine: str = "x") -> Results:
    """Return what one found who did these runs alone."""
    own = {source: found[source] for source in sources}
    return results(own, "" if len(own) == len(SOURCES) else "the time was over", machine=machine)


def nothing(*others: Results) -> Results:
    """Return what one found who did nothing, and knows what others have."""
    known_here = known(PAPER, PAPER.entries[0], others)
    return results({}, "" if len(known_here) == len(SOURCES) else "the time was over")


def united(here: Results, *others: Results) -> Results:
    """Return a union."""
    return unite({PAPER.name: PAPER}, here, others)


def joint(here: Results, *others: Results) -> Finding:
    """Return the only table of a union."""
    return united(here, *others).papers[0].entries[0]


FIGURES = st.fixed_dictionaries({source: st.floats(0, 100) for source in SOURCES})
"""The figure of each run, which is the same whoever does it."""


EVERYONE = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(SOURCES), st.floats(0, 100)), st.frozensets(st.sampled_from(SOURCES))
    ),
    min_size=1,
    max_size=4,
)
"""The figures that each of several has, and the runs that each has begun beside the finished ones."""


def all_of(everyone: list[tuple[Found, frozenset[tuple[str, int]]]]) -> list[Results]:
    """Return what each of several found, on machines of their own."""
    return [
        results(found, "some are left", machine=f"machine {number}", begun=begun)
        for number, (found, begun) in enumerate(everyone)
    ]


@given(EVERYONE)
def test_what_is_joined_again_changes_nothing(
    everyone: list[tuple[Found, frozenset[tuple[str, int]]]],
) -> None:
    """Neither a folder, nor pages that hold it already, nor these pages in its place."""
    here, *others = all_of(everyone)
    whole = united(here, *others)
    assert united(here, here, *others, *others) == whole
    assert united(here, *others, whole) == united(here, whole, *others) == united(here, whole) == whole
    assert united(whole, *others, here) == united(whole, whole) == united(whole) == whole
    fresh = results({}, "some are left")
    assert united(fresh, whole) == united(fresh, whole, *others, here) == whole


@given(FIGURES, st.lists(st.integers(0, 2), min_size=len(SOURCES), max_size=len(SOURCES)))
def test_parts_joined_in_any_order_are_the_whole(found: Found, owners: list[int]) -> None:
    parts = [
        part(found, *(source for source, owner in zip(SOURCES, owners, strict=True) if owner == number))
        for number in range(3)
    ]
    whole = part(found, *SOURCES)
    for order in itertools.permutations(parts):
        assert united(nothing(*order), *order) == whole
    first, *others = parts
    assert joint(first, *others).columns == whole.papers[0].entries[0].columns
    assert united(first, *others).runs == whole.runs


@given(EVERYONE)
def test_a_figure_and_a_run_are_those_of_the_first_who_has_them(
    everyone: list[tuple[Found, frozenset[tuple[str, int]]]],
) -> None:
    """Of a run that nobody finished, the time is that of the first who began it."""
    expected: dict[tuple[str, int], float] = {}
    owners: dict[str, str] = {}
    for number, (found, _) in enumerate(everyone):
        expected = {**found, **expected}
        owners = {name_of(*source): f"machine {number}" for source in found} | owners
    union = united(*all_of(everyone))
    (column,) = union.papers[0].entries[0].columns
    assert {
        (name.lower(), seed): value
        for name, values in column.figures.items()
        for seed, value in values.items()
    } == expected
    assert {name: run.processor for name, run in union.runs.items() if run.finished} == owners
    begun = {name_of(*source) for _, sources in everyone for source in sources} - owners.keys()
    ran = union.ran(*union.papers)
    assert ran.seconds == len(owners) + 0.5 * len(begun)
    assert ran.cpu_seconds == (2 * len(owners) if owners and not begun else None)
    assert sum(ran.machines.values()) == len(owners)


def test_two_papers_with_one_run_count_it_once() -> None:
    """As the two FedNLP papers do."""
    other = PAPER.model_copy(update={"name": "other"})
    one, two = (results({("a", 0): 1.0}, "time", of=of) for of in (PAPER, other))
    here = Results(runs=one.runs, papers=[*one.papers, *two.papers])
    papers = {of.name: of for of in (PAPER, other)}
    assert unite(papers, here, [here]) == here
    assert [here.ran(paper).seconds for paper in here.papers] == [1.0, 1.0]
    assert here.ran(*here.papers).seconds == 1.0
    fresh = Results(
        runs={}, papers=[one for of in papers.values() for one in results({}, "time", of=of).papers]
    )
    union = unite(papers, fresh, [one])
    assert [len(union.finished(paper.entries[0])) for paper in union.papers] == [1, 0], (
        "its figures are not known"
    )
    assert union.papers[1].entries[0].lacks == [name_of("a", 0)]
    assert known(other, other.entries[0], [union]) == frozenset()


def test_a_run_without_a_cell_is_known() -> None:
    """Such as the centralised one of a table of federated methods: no figure shows that it was made."""
    of = paper(rows=[row("A", "a"), row("B", "b")], claims=[])
    theirs = results({source: 1.0 for source in SOURCES if source != ("c", 2)}, "time", of=of)
    assert known(of, of.entries[0], [theirs]) == set(NAMES) - {name_of("c", 2)}


def test_of_each_seed_the_first_counts_who_reached_a_target_or_did_not() -> None:
    def never(of: Results, seed: int) -> Results:
        (pages,) = of.papers
        (column,) = pages.entries[0].columns
        figures = {
            name: {one: value for one, value in values.items() if (name, one) != ("A", seed)}
            for name, values in column.figures.items()
        }
        late = column.model_copy(update={"figures": figures, "unreached": {"A": [seed]}})
        table = pages.entries[0].model_copy(update={"columns": [late]})
        return of.model_copy(update={"papers": [pages.model_copy(update={"entries": [table]})]})

    figures = dict.fromkeys(SOURCES, 1.0)
    here, theirs = (never(part(figures, ("a", own), ("a", late)), late) for own, late in ((0, 2), (1, 0)))
    (column,) = joint(here, theirs).columns
    assert column.figures == {"A": {0: 1.0, 1: 1.0}}
    assert column.unreached == {"A": [2]}
    assert united(united(here, theirs), theirs) == united(here, theirs)
    (late,) = joint(never(part(figures, ("a", 0)), 0), part(figures, ("a", 0), ("a", 1))).columns
    assert (late.figures["A"], late.unreached) == ({1: 1.0}, {"A": [0]})
    negative = never(part(figures, ("a", 0)), -1)
    assert Results.model_validate_json(negative.to_json()) == negative


def test_what_the_manifest_no_longer_has_is_left_out() -> None:
    theirs = results(dict.fromkeys(SOURCES, 1.0), "")
    changed = paper(rows=[row("A", "a"), row("New", "b")], claims=[])
    not_of_b = {name for name in NAMES if "/b-" not in name}
    assert known(changed, changed.entries[0], [theirs]) == not_of_b
    measured = paper(columns=[{"name": "here", "measure": "sent"}], claims=[])
    assert known(measured, measured.entries[0], [theirs]) == frozenset()
    assert known(PAPER, PAPER.entries[0], [theirs]) == set(NAMES)
    for of, finished in ((changed, not_of_b), (measured, set())):
        here = results({}, "some of it", of=of)
        union = unite({of.name: of}, here, [theirs])
        (table,) = union.papers[0].entries
        (column,) = table.columns
        assert column.figures.keys() <= {"A"}
        assert table.state == ("in part" if column.figures else "not made")
        assert set(union.finished(table)) == finished
        assert union.ran(table).seconds == len(NAMES), (
            "the runs were made, also those of which it lacks a figure"
        )
        assert unite({of.name: of}, here, [union, theirs]) == union
        assert known(of, of.entries[0], [union]) == finished
    fewer = paper(
        {"r": {"experiment": "small", "methods": ["a", "b"], "seeds": SEEDS, "minutes": 1.0}},
        claims=[],
        rows=[row("A", "a")],
    )
    here = Results(runs={}, papers=[results({}, "", of=fewer).papers[0]])
    assert [name for name in unite({fewer.name: fewer}, here, [theirs]).runs if "/c-" in name] == []
    (own,) = theirs.papers
    stranger = own.model_copy(update={"name": "other"})
    first = own.model_copy(update={"entries": [own.entries[0].model_copy(update={"runs": NAMES[:1]})]})
    more = Results(runs=theirs.runs, papers=[first, stranger])
    assert list(united(results({}, ""), more).runs) == NAMES[:1], "the others are runs of another paper alone"
    gone = paper(id="table2")
    union = unite({gone.name: gone}, results({}, "all of it", of=gone), [theirs])
    assert [one.id for one in union.papers[0].entries] == ["table2"]


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


def read(out: Path) -> Results:
    """Return what a folder's pages say."""
    return Results.model_validate_json((out / "page/results.json").read_text())


def place_of(out: Path, processor: str) -> None:
    """Let a folder's pages say that its runs were made on another processor."""
    results = read(out)
    runs = {name: run.model_copy(update={"processor": processor}) for name, run in results.runs.items()}
    changed = results.model_copy(update={"runs": runs})
    (out / "page/results.json").write_text(changed.model_dump_json())


def seconds_of(out: Path, entry: str) -> float:
    """Return the time of a table of a folder's pages."""
    return read(out).ran(made(out, entry)).seconds


def finished_in(out: Path, entry: str) -> int:
    """Return the number of finished runs of a table of a folder's pages."""
    return len(read(out).finished(made(out, entry)))


def made(out: Path, entry: str) -> Finding:
    """Return a table of a folder's pages."""
    finding = read(out).finding("mine", entry)
    assert finding is not None
    return finding


def runs_in(out: Path) -> set[str]:
    """Return the runs that lie in a folder."""
    return {f"{path.parent.name}/{path.name}" for path in out.glob("runs/*/*-seed*")}


@pytest.mark.slow
def test_two_machines_share_the_seeds_of_a_table(manifest: Path, here: Path) -> None:
    """The second makes what the first has not, and its pages are those of one who made all of it."""
    first, second, whole, last = here / "first", here / "second", here / "whole", here / "last"
    reproduce(Request([str(manifest)], ["table1"], most_seeds=1), 3600, first)
    assert runs_in(first) == {"quick/fedavg-seed0", "quick/fedopt-seed0"}
    shutil.rmtree(first / "runs")
    said = Said()
    reproduce(Request([str(manifest)], ["table1"], join=[first]), 3600, second, said)
    assert runs_in(second) == {"quick/fedavg-seed1", "quick/fedopt-seed1"}
    assert said.lines[0] == "2 of the 4 runs that are not done here are known, and not made"
    reproduce(Request([str(manifest)], ["table1"]), 3600, whole)
    found, expected = made(second, "table1"), made(whole, "table1")
    assert found == expected
    assert expected.state == "made"
    assert found.claims[0].verdict.seeds == 2
    assert made(second, "figure1") == made(whole, "figure1"), "curves too are of all seeds"
    (curve,) = made(second, "figure1").pictures
    assert curve.caption.endswith("mean and standard deviation over 2 seeds")
    place_of(whole, "elsewhere")
    reproduce(Request([str(manifest)], join=[whole / "page", second]), 3600, last)
    assert runs_in(last) == {"quick/fedavg-seed0", "later/fedavg-seed0"}, "whose model the run begins with"
    assert made(last, "table1") == found
    assert made(last, "figure1").pictures == made(whole, "figure1").pictures
    drawn = [(one / "page/figures/mine-figure1-curves-0.png").read_bytes() for one in (second, whole, last)]
    assert drawn[0] == drawn[1] == drawn[2]
    every = [(read(out), read(out).ran(*read(out).papers)) for out in (whole, second, last)]
    assert [sum(ran.machines.values()) for _, ran in every] == [4, 4, 4 + 1], "a run counts once"
    processors = {name: run.processor for name, run in read(last).runs.items()}
    assert processors.pop("quick.toml/fedavg-seed0") != "elsewhere", "it was made here too"
    assert processors["quick.toml/fedopt-seed0"] == "elsewhere"
    texts = (last / "page/results.json").read_text()
    reproduce(Request([str(manifest)], join=[first]), 0, last)
    assert (last / "page/results.json").read_text() == texts, "the first is a part of the second"
    reproduce(Request([str(manifest)], join=[last]), 0, second)
    assert made(second, "table2") == made(last, "table2")
    reproduce(Request([str(manifest)]), 0, last)
    assert (last / "page/results.json").read_text() == texts, "they join each other"
    again = Said()
    reproduce(Request([str(manifest)], ["table1"], join=[last]), 0, whole, again)
    assert not any("are known" in line for line in again.lines), "nothing is left to be known"


def test_runs_that_begin_with_a_model_are_known_without_it(manifest: Path, here: Path) -> None:
    first, second = here / "first", here / "second"
    reproduce(Request([str(manifest)], ["table2"]), 3600, first)
    assert finished_in(first, "table2") == 2
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


def test_what_a_run_that_is_left_needs_is_left_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        columns = [found_column(of, of.entries[0], of.entries[0].columns[0], found, {})]
        source = {"First": ("fedavg", "first"), "A": ("fedavg", "later"), "B": ("fedopt", "later")}
        names = [
            name_of(source[name][0], seed, of, source[name][1])
            for name, seeds in found.items()
            for seed in seeds
        ]
        there = table.model_copy(update={"columns": columns, "runs": names, "state": "in part"})
        runs = dict.fromkeys(names, FoundRun(finished=True, seconds=1.0))
        joined = Results(runs=runs, papers=[given.model_copy(update={"entries": [there]})])
        work = Preparation(here / "out", {}).prepare(of, of.entries[0], [joined])
        assert work.known == {job.label for job in work.every if not job.done and job not in work.left}
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
    monkeypatch.setattr(Job, "done", property(lambda job: job.folder.name == f"fedopt-seed{base + 1}"))
    assert left(First=one, A=both, B=one) == {"first0", "fedavg1"}, (
        "without it, a cell would stay empty for ever"
    )


def test_runs_that_cannot_be_made_here_are_counted(here: Path) -> None:
    """Seeds that are not wanted here, of which the others have figures."""
    runs = {"r": {"experiment": "small", "methods": ["fedavg"], "seeds": 3, "minutes": 1.0}}
    of, base = paper(runs, rows=[row("A", "fedavg")], claims=[]), SETTINGS.seed
    theirs = results({("fedavg", base): 1.0, ("fedavg", base + 1): 2.0}, "the time was over", of=of)
    work = Preparation(here / "out", {}, most_seeds=1).prepare(of, of.entries[0], [theirs])
    assert [job.label for job in work.every] == [*work.known] == [name_of("fedavg", base, of)]
    (given,) = results({}, "", of=of).papers
    (table,) = given.entries
    own = given.model_copy(update={"entries": [table.model_copy(update={"runs": [*work.known]})]})
    union = unite({of.name: of}, Results(runs={}, papers=[own]), [theirs])
    assert union.finished(union.papers[0].entries[0]) == [
        name_of("fedavg", base + seed, of) for seed in (0, 1)
    ]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_results_are_read_as_they_were_written(libraries: list[str]) -> None:
    """Also the characters that end a line without being a line feed."""
    (own,) = results({}, "").papers
    one = Results(runs={}, papers=[own.model_copy(update={"libraries": ["a\u2028b\x85 c", *libraries]})])
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
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "out/page").mkdir(parents=True)
    (here / "out/page/results.json").write_text(results({}, "").to_json())
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


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("client.learning_rate=0.5", True),
        ("num_rounds=3", True),
        ("seed=7", True),
        ("partition.alpha=0.25", True),
        ("evaluation.every=7", True),
        ("runtime.workers=3", False),
        ("runtime.threads=3", False),
        ('data.path="/elsewhere/data"', False),
        ('name="other"', False),
    ],
)
def test_what_decides_a_result_counts(setting: str, counts: bool) -> None:
    digests = [
        settings_digest(config.load("small", settings).resolved())
        for settings in (['data.path="/some/data"'], ['data.path="/some/data"', setting])
    ]
    assert (digests[0] != digests[1]) == counts


def test_the_place_of_a_model_does_not_count_but_what_it_was_trained_with() -> None:
    one, two, three = (
        config.load("small", [f'model.name_or_path="{place}"']).resolved()
        for place in ("/here/model", "/there/model", "/there/other")
    )
    assert settings_digest(one) == settings_digest(two) != settings_digest(three)
    assert settings_digest(one, "00000000") != settings_digest(one, "11111111")


def test_a_changed_experiment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: Callable[..., dict[str, Any]]
) -> None:
    """Also runs that begin with the model of a changed one; those whose settings are the same are not made."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, **changes: Any) -> None:
        changes = {"num_rounds": 1, "variants": {"x": {}, "y": {"client": {"learning_rate": 0.2}}}} | changes
        Path(f"{name}.toml").write_text(tomli_w.dumps(document({"name": name, **changes})))

    write("first")
    write("later")
    runs = {
        "first": {"experiment": "first.toml", "methods": ["x", "y"], "minutes": 0.1},
        "later": {"experiment": "later.toml", "methods": ["x"], "model_of": "first", "minutes": 0.1},
    }
    rows = [{"name": "X", "method": "x"}]
    tables = [
        {"id": f"of-{key}", "title": key, "shows": "things", "runs": [key], "rows": rows}
        | {"columns": [{"name": "here"}]}
        for key in runs
    ]
    made = {"name": "mine", "title": "t", "source": "somebody", "runs": runs, "entry": tables}
    Path("mine.toml").write_text(tomli_w.dumps(made))
    ask = Request(["mine.toml"], join=[Path("old")])
    reproduce(Request(["mine.toml"]), 3600, Path("old"))
    said = Said()
    reproduce(ask, 3600, Path("same"), said)
    assert not any("other settings" in line for line in said.lines)
    assert not Path("same/runs").exists()

    write(
        "first", variants={"x": {"client": {"learning_rate": 0.3}}, "y": {"client": {"learning_rate": 0.2}}}
    )
    reproduce(Request(["mine.toml"]), 3600, Path("alone"))
    reproduce(ask, 3600, Path("new"), said)
    (line,) = [line for line in said.lines if "other settings" in line]
    assert line.startswith(f"{Path('old/page').resolve()}: 2 runs had other settings than here")
    assert {path.parent.name + "/" + path.name for path in Path("new/runs").glob("*/*")} == {
        "first/x-seed0",
        "later/x-seed0",
    }
    new, alone = (
        Results.model_validate_json(Path(out, "page/results.json").read_text()) for out in ("new", "alone")
    )
    assert [paper.entries for paper in new.papers] == [paper.entries for paper in alone.papers]
