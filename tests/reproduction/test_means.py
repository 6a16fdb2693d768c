"""Tables that are means over others: laws of their figures, of what is joined, and a real folder."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.catalogue import read_paper
from fednlp.reproduction.finding import found_column
from fednlp.reproduction.joining import known, unite
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import group_of, groups_of, run_name
from fednlp.reproduction.results import Finding, FoundRun, Results
from fednlp.reproduction.write import read_results
from fednlp.simulation.callback import NullCallback

from .made_up import pages_of, table_of

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

TABLES, METHODS, SEEDS = ("table1", "table2", "table3"), ("a", "b"), 3
Figures = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By table, row and seed."""


def manifest_of(*of: str, **changes: Any) -> dict[str, Any]:
    """Return a manifest of three tables with a row a method, and of the mean of some of them, or of all."""
    rows = [{"name": name.upper(), "method": name} for name in METHODS]
    tables: list[dict[str, Any]] = [
        {"id": name, "title": name.capitalize(), "runs": [name], "rows": rows, "columns": [{"name": "here"}]}
        for name in TABLES
    ]
    mean = {
        "id": "mean",
        "title": "Mean",
        "rows": [{"name": name.upper(), "published": {"paper": 1.0}} for name in METHODS],
        "columns": [{"name": "mean", "against": ["paper"], "mean_of": [*(of or TABLES)]}],
        "claims": [{"says": "A is best", "kind": "highest", "rows": ["A", "B"]}],
    } | changes
    runs = {
        name: {
            "experiment": "small",
            "set": [f"seed={n}"],
            "methods": [*METHODS],
            "seeds": SEEDS,
            "minutes": 1.0,
        }
        for n, name in enumerate(TABLES)
    }
    entries = [{"shows": "things", **entry} for entry in (*tables, mean)]
    return {"name": "mine", "title": "t", "source": "s", "runs": runs, "entry": entries}


PAPER = Paper.model_validate(manifest_of())


def name_of(table: str, row: str, seed: int) -> str:
    return run_name(PAPER.runs[table], row.lower(), seed)


def results(figures: Figures, errors: float | None = None, paper: Paper = PAPER) -> Results:
    """Return what one found who did the runs of these figures."""
    names = [name_of(*of) for of in sources(figures)]
    entries = []
    for entry in paper.entries:
        own = {row: values for row, values in figures.get(entry.id, {}).items() if values}
        every = {} if errors is None else dict.fromkeys(own, errors)
        runs = [name_of(table, row, seed) for table, row, seed in sources(figures) if table == entry.id]
        columns = [found_column(paper, entry, entry.columns[0], own, every)]
        entries.append(table_of(entry, runs, columns, state="made" if own else "not made"))
    return pages_of("mine", entries, {name: FoundRun(finished=True, seconds=1.0) for name in names})


def sources(figures: Figures) -> list[tuple[str, str, int]]:
    return [(table, row, seed) for table, rows in figures.items() for row in rows for seed in rows[row]]


def mean_of(*everyone: Results, paper: Paper = PAPER) -> Finding:
    """Return the mean of what the first found, and of what it joined."""
    here, *joined = everyone
    found = unite({"mine": paper}, here, joined).finding("mine", "mean")
    assert found is not None
    return found


def shuffled(order: Sequence[str]) -> Paper:
    return Paper.model_validate(manifest_of(*order))


VALUES = st.dictionaries(st.integers(0, SEEDS - 1), st.floats(-100, 100), max_size=SEEDS)
FIGURES = st.fixed_dictionaries(
    {t: st.fixed_dictionaries({m.upper(): VALUES for m in METHODS}) for t in TABLES}
)


@given(FIGURES)
def test_a_figure_is_the_mean_over_all_tables_of_its_row_and_seed(figures: Figures) -> None:
    mean = mean_of(results(figures))
    (column,) = mean.columns
    for row in ("A", "B"):
        every = [figures[table][row] for table in TABLES]
        seeds = [seed for seed in range(SEEDS) if all(seed in one for one in every)]
        expected = {seed: statistics.fmean(one[seed] for one in every) for seed in seeds}
        assert column.figures.get(row, {}) == expected
        assert (row in column.figures) is bool(seeds)
    assert (mean.state == "not made") is not bool(column.figures)


@given(FIGURES)
def test_what_is_left_out_has_a_reason_and_nothing_else_has(figures: Figures) -> None:
    mean = mean_of(results(figures))
    used = sum(len(values) for values in mean.columns[0].figures.values())
    whole = used * len(TABLES) == len(sources(figures)) and len(mean.columns[0].figures) == len(METHODS)
    assert (mean.state == "made") is whole
    assert bool(mean.reason) is not whole
    for table, row in itertools.product(TABLES, ("A", "B")):
        if not figures[table][row]:
            assert table.capitalize() in mean.reason


@given(FIGURES, st.sampled_from(TABLES), st.integers(0, SEEDS - 1))
def test_a_seed_that_never_reached_one_of_the_targets_never_reached_their_mean(
    figures: Figures, late: str, seed: int
) -> None:
    every = {
        table: {row: {**values, seed: 1.0} for row, values in rows.items()} for table, rows in figures.items()
    }
    found = results(every)
    (pages,) = found.papers
    entries = [_without(one, seed) if one.id == late else one for one in pages.entries]
    mean = mean_of(found.model_copy(update={"papers": [pages.model_copy(update={"entries": entries})]}))
    (column,) = mean.columns
    assert column.unreached == {"A": [seed], "B": [seed]}
    assert all(seed not in values for values in column.figures.values())
    assert mean.columns[0].figures == {
        row: {one: value for one, value in values.items() if one != seed}
        for row, values in mean_of(found).columns[0].figures.items()
        if values.keys() != {seed}
    }


def _without(table: Finding, seed: int) -> Finding:
    """Return a table in which this seed of each row never reached the target."""
    (column,) = table.columns
    left = {
        row: {one: v for one, v in values.items() if one != seed} for row, values in column.figures.items()
    }
    never = {row: [seed] for row in column.figures}
    figures = {row: values for row, values in left.items() if values}
    return table.model_copy(
        update={"columns": [column.model_copy(update={"figures": figures, "unreached": never})]}
    )


@given(FIGURES, st.permutations(TABLES))
def test_the_order_of_the_tables_does_not_matter(figures: Figures, order: list[str]) -> None:
    paper = shuffled(order)
    one, other = mean_of(results(figures)), mean_of(results(figures, paper=paper), paper=paper)
    assert one.columns == other.columns
    assert set(one.runs) == set(other.runs)


@given(FIGURES)
def test_the_mean_of_one_table_is_that_table(figures: Figures) -> None:
    paper = shuffled(["table1"])
    found = unite({"mine": paper}, results(figures, 1.5, paper), []).papers[0]
    mean, table = found.entry("mean"), found.entry("table1")
    assert mean is not None
    assert table is not None
    assert (mean.columns[0].figures, mean.columns[0].errors) == (
        table.columns[0].figures,
        table.columns[0].errors,
    )


@given(FIGURES, st.lists(st.booleans(), min_size=18, max_size=18))
def test_parts_that_are_joined_have_the_mean_of_the_whole(figures: Figures, mine: list[bool]) -> None:
    """Also if nothing was found here, and if the results of others went through their file."""

    def part(wanted: bool) -> Results:
        own = {of for of, is_mine in zip(sources(figures), mine, strict=False) if is_mine is wanted}
        return results(
            {
                table: {
                    row: {seed: value for seed, value in values.items() if (table, row, seed) in own}
                    for row, values in rows.items()
                }
                for table, rows in figures.items()
            }
        )

    whole = mean_of(results(figures))
    one, other, nothing = part(True), part(False), results({})
    assert mean_of(one, other).columns == whole.columns
    written = Results.model_validate_json(unite({"mine": PAPER}, one, [other]).to_json())
    again = mean_of(nothing, written)
    assert (again.columns, again.claims, again.state) == (whole.columns, whole.claims, whole.state)
    assert mean_of(written, written).columns == whole.columns


@given(FIGURES)
def test_its_runs_are_those_of_its_rows_each_counted_once(figures: Figures) -> None:
    found = unite({"mine": PAPER}, results(figures), [])
    (paper,) = found.papers
    mean, entry = paper.entries[-1], PAPER.entries[-1]
    assert set(mean.runs) == {name_of(*of) for of in sources(figures)}
    assert found.ran(paper).seconds == len(sources(figures))
    assert known(PAPER, entry, [found]) == set(found.finished(mean))
    assert {group_of(name) for name in mean.runs} <= groups_of(PAPER, entry)


def test_by_hand() -> None:
    """Two tables share one seed; the standard error of a mean is that of independent figures."""
    figures = {
        "table1": {"A": {0: 10.0, 1: 20.0}, "B": {0: 1.0}},
        "table2": {"A": {1: 40.0, 2: 50.0}, "B": {0: 2.0}},
        "table3": {"A": {1: 60.0}, "B": {}},
    }
    mean = mean_of(results(figures, errors=2.0))
    assert mean.columns[0].figures == {"A": {1: 40.0}}
    assert mean.columns[0].errors == pytest.approx({"A": 2.0 / math.sqrt(3)})
    assert mean.reason == "B: no figure in Table3; fewer seeds in Table1; Table2; Table3"
    assert mean.claims[0].verdict.text == "nothing to compare"
    figures["table3"]["B"] = {0: 3.0}
    mean = mean_of(results(figures, errors=2.0))
    assert (mean.columns[0].figures["B"], mean.claims[0].verdict.text) == (
        {0: 2.0},
        "agrees (no seed in common)",
    )
    assert mean_of(results(figures)).columns[0].errors == {}, "a mean of figures without an error"


def column(*of: str) -> dict[str, Any]:
    return {"columns": [{"name": "mean", "against": ["paper"], "mean_of": [*of]}]}


def test_columns_may_be_means_of_different_tables() -> None:
    """As the rows of several tables side by side; what one column lacks is no gap of another."""
    side_by_side = [{"name": name, "mean_of": [name]} for name in TABLES]
    rows = [{"name": name.upper()} for name in METHODS]
    paper = Paper.model_validate(manifest_of(columns=side_by_side, rows=rows, claims=[]))
    figures = {table: {"A": {0: float(n)}, "B": {0: -1.0, 1: 2.0}} for n, table in enumerate(TABLES)}
    figures["table2"]["A"] = {}
    mean = mean_of(results(figures, paper=paper), paper=paper)
    assert {one.name: one.figures for one in mean.columns} == {
        table: {row: values for row, values in rows.items() if values} for table, rows in figures.items()
    }
    assert (mean.state, mean.reason) == ("in part", "A: no figure in Table2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (column("table9"), "mean is a mean of table9, which is no entry with runs and columns"),
        (column("mean"), "mean is a mean of mean, which is no entry"),
        (
            {"rows": [{"name": "C", "published": {"paper": 1.0}}], "claims": []},
            "mean is a mean of table1, which does not have all of its rows",
        ),
        ({"measure": "personal"}, "whose first column shows score, not personal"),
        ({"runs": ["table1"]}, "and there are no runs or partitions"),
        ({"columns": []}, "give runs, partitions or mean_of"),
        (
            {"columns": [*column("table1")["columns"], {"name": "own", "against": ["paper"]}]},
            "where a column is a mean of other entries all are",
        ),
        ({"impossible": "a drawing"}, "give runs, partitions or mean_of"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(manifest_of(**changes)))
    with pytest.raises(ConfigError) as caught:
        read_paper(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mean_that_is_asked_for_makes_its_tables(
    document: Callable[..., dict[str, Any]], here: Path
) -> None:
    """And no others; then it follows from ``results.json`` alone."""
    (here / "quick.toml").write_text(tomli_w.dumps(document({"name": "quick", "num_rounds": 1})))
    made = manifest_of("table1", "table2")
    for number, runs in enumerate(made["runs"].values()):
        runs |= {
            "experiment": "quick.toml",
            "methods": ["fedavg", "fedopt"],
            "seeds": 1,
            "set": [f"num_rounds={number + 1}"],
        }
    for entry in made["entry"][:3]:
        entry["rows"] = [{"name": "A", "method": "fedavg"}, {"name": "B", "method": "fedopt"}]
    (here / "mine.toml").write_text(tomli_w.dumps(made))
    reproduce(Request(["mine.toml"], ["mean"]), 3600, here / "out", NullCallback())
    found = read_results(here / "out/page").papers[0]
    one, two, three, mean = found.entries
    assert [entry.state for entry in found.entries] == ["made", "made", "not made", "made"]
    assert three.reason == "not asked for"
    assert mean.command == f"fednlp reproduce {here / 'mine.toml'} --only mean"
    assert mean.columns[0].figures == {
        row: {0: statistics.fmean(part.columns[0].figures[row][0] for part in (one, two))}
        for row in ("A", "B")
    }
    page = (here / "out/page/paper-mine.md").read_text()
    assert "- 4 runs done in" in page.partition("## Mean")[2]
    again = Request(["mine.toml"], join=[here / "out"])
    reproduce(again, 0, here / "again", NullCallback())
    assert read_results(here / "again/page").papers[0].entry("mean") == mean
