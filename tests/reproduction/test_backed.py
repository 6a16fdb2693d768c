"""A figure that others show counts if the run of its cell, as the manifest here has it, is finished there."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.reproduction.backed import with_backed_figures, with_runs_of
from fednlp.reproduction.finding import found_column
from fednlp.reproduction.joining import unite
from fednlp.reproduction.known import known
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import partition_name, run_name
from fednlp.reproduction.parts import FoundData, FoundPicture, FoundRow, FoundRun
from fednlp.reproduction.results import Results

from .made_up import pages_of, table_of

SEEDS = (0, 1)
SOURCES = [(method, seed) for method in "ab" for seed in SEEDS]


def paper(
    column: dict[str, Any] | None = None, methods: tuple[str, str] = ("a", "b"), rounds: int = 2
) -> Paper:
    """Return a paper with a table of two rows."""
    runs = {"experiment": "small", "methods": ["a", "b"], "seeds": 2, "minutes": 1.0}
    entry = {
        "id": "table1",
        "title": "Table 1",
        "shows": "things",
        "runs": ["r"],
        "rows": [{"name": name, "method": method} for name, method in zip("AB", methods, strict=True)],
        "columns": [{"name": "here"} | (column or {})],
    }
    made = {"name": "mine", "title": "t", "source": "s", "entry": [entry]}
    return Paper.model_validate(made | {"runs": {"r": runs | {"set": [f"num_rounds={rounds}"]}}})


PAPER = paper()


def found(of: Paper, finished: set[tuple[str, int]], names: dict[tuple[str, int], str]) -> Results:
    """Return pages that show figures of all runs of a table, of which only some are finished."""
    (entry,) = of.entries
    figures = {row.name: {seed: 10.0 * "ab".index(row.method) + seed for seed in SEEDS} for row in entry.rows}
    columns = [found_column(of, entry, entry.columns[0], figures, {"A": 1.0, "B": 1.0})]
    pictures = [FoundPicture(name="mine-table1-curves", caption="c")]
    runs = {name: FoundRun(finished=of in finished, seconds=1.0) for of, name in names.items()}
    return pages_of("mine", [table_of(entry, list(names.values()), columns, pictures=pictures)], runs)


def names_of(of: Paper) -> dict[tuple[str, int], str]:
    """Return the names of a paper's runs by method and seed."""
    return {(method, seed): run_name(of.runs["r"], method, seed) for method, seed in SOURCES}


@given(st.sets(st.sampled_from(SOURCES)))
def test_a_figure_stays_if_its_run_is_finished_there(finished: set[tuple[str, int]]) -> None:
    given = found(PAPER, finished, names_of(PAPER))
    kept, tables = with_backed_figures(given, {"mine": PAPER})
    (table,) = kept.papers[0].entries
    left = {
        name: {seed: 10.0 * number + seed for seed in SEEDS if (name.lower(), seed) in finished}
        for number, name in enumerate("AB")
    }
    assert table.columns[0].figures == {name: values for name, values in left.items() if values}
    assert table.columns[0].errors.keys() == table.columns[0].figures.keys()
    assert tables == ([] if len(finished) == len(SOURCES) else ["mine table1"])
    assert bool(table.pictures) == (not tables)
    assert with_backed_figures(kept, {"mine": PAPER})[0].papers[0].entries[0].columns == table.columns


@pytest.mark.parametrize(
    ("now", "left"),
    [
        (paper(rounds=1), set()),
        (paper(methods=("a", "a")), {"A"}),
        (paper({"measure": "sent to target", "target": "b"}), set()),
        (PAPER, {"A", "B"}),
    ],
    ids=["other settings", "another method in a row", "another measure", "the same"],
)
def test_what_a_manifest_had_before_is_no_figure_of_now(now: Paper, left: set[str]) -> None:
    """Its runs are made again, and what is handed on says so too."""
    given = found(PAPER, set(SOURCES), names_of(PAPER))
    kept, _ = with_backed_figures(given, {"mine": now})
    here = found(now, set(), names_of(now))
    (none,) = here.papers
    empty = [column.model_copy(update={"figures": {}, "errors": {}}) for column in none.entries[0].columns]
    table = none.entries[0].model_copy(
        update={"columns": empty, "pictures": [], "reason": "the time was over"}
    )
    here = here.model_copy(update={"runs": {}, "papers": [none.model_copy(update={"entries": [table]})]})
    united = unite({"mine": now}, here, [kept])
    (column,) = united.papers[0].entries[0].columns
    assert column.figures.keys() == left
    again = known(now, now.entries[0], [united])
    assert again == known(now, now.entries[0], [kept])
    assert (len(again) == len(SOURCES)) == (left == {"A", "B"})


def test_a_table_of_which_nothing_is_finished_shows_nothing_of_others() -> None:
    """A learning curve has no cells, so its picture and its data go with its runs."""
    given = found(PAPER, set(), names_of(PAPER))
    (of,) = given.papers
    data = [FoundData(name="theirs", train=1)]
    table = of.entries[0].model_copy(update={"columns": [], "data": data})
    curve = PAPER.model_copy(update={"entries": [PAPER.entries[0].model_copy(update={"columns": []})]})
    begun = given.model_copy(update={"papers": [of.model_copy(update={"entries": [table]})]})
    kept, tables = with_backed_figures(begun, {"mine": curve})
    assert (kept.papers[0].entries[0].pictures, kept.papers[0].entries[0].data) == ([], [])
    assert tables == ["mine table1"]
    done = found(PAPER, set(SOURCES), names_of(PAPER)).runs
    whole = begun.model_copy(update={"runs": done})
    assert with_backed_figures(whole, {"mine": curve}) == (whole, [])


@given(st.sets(st.integers(0, 10**6), max_size=5))
def test_further_seeds_are_left_out(seeds: set[int]) -> None:
    names = names_of(PAPER)
    more = names | {("a", seed): run_name(PAPER.runs["r"], "a", seed) for seed in seeds}
    given = found(PAPER, set(more), more)
    kept = with_runs_of(given, names.values())
    assert kept.runs.keys() == set(names.values())
    assert set(kept.papers[0].entries[0].runs) == set(names.values())
    assert with_runs_of(given, []) == given


def test_a_run_of_which_no_figure_is_there_is_made() -> None:
    given = found(PAPER, set(SOURCES), names_of(PAPER))
    (of,) = given.papers
    (column,) = of.entries[0].columns
    left = column.model_copy(update={"figures": {"A": {1: 3.0}}, "errors": {}})
    table = of.entries[0].model_copy(update={"columns": [left]})
    some = given.model_copy(update={"papers": [of.model_copy(update={"entries": [table]})]})
    assert known(PAPER, PAPER.entries[0], [some]) == {names_of(PAPER)["a", 1]}


@given(st.sets(st.sampled_from(SOURCES)))
def test_what_is_measured_by_another_run_needs_that_run(finished: set[tuple[str, int]]) -> None:
    of = paper({"measure": "sent to target", "target": "b"})
    kept, _ = with_backed_figures(found(of, finished, names_of(of)), {"mine": of})
    left = kept.papers[0].entries[0].columns[0].figures
    for number, name in enumerate("AB"):
        both = {seed for seed in SEEDS if {("ab"[number], seed), ("b", seed)} <= finished}
        assert left.get(name, {}).keys() == both


@given(st.sets(st.sampled_from(SOURCES)))
def test_that_a_target_was_not_reached_is_tied_to_its_runs_as_a_figure_is(
    finished: set[tuple[str, int]],
) -> None:
    of = paper({"measure": "sent to target", "target": "b"})
    given = found(of, finished, names_of(of))
    (column,) = given.papers[0].entries[0].columns
    never = {name: list(values) for name, values in column.figures.items()}
    turned = column.model_copy(update={"figures": {}, "errors": {}, "unreached": never})
    table = given.papers[0].entries[0].model_copy(update={"columns": [turned]})
    pages = given.papers[0].model_copy(update={"entries": [table]})
    kept, _ = with_backed_figures(given.model_copy(update={"papers": [pages]}), {"mine": of})
    left, _ = with_backed_figures(given, {"mine": of})
    figures = left.papers[0].entries[0].columns[0].figures
    assert kept.papers[0].entries[0].columns[0].unreached == {n: list(v) for n, v in figures.items()}


@pytest.mark.parametrize("target", [0.8, 0.9])
def test_a_target_is_part_of_what_a_cell_shows(target: float) -> None:
    before = paper({"measure": "sent to target", "target": 0.8})
    now = paper({"measure": "sent to target", "target": target})
    given = found(before, set(SOURCES), names_of(before))
    kept, tables = with_backed_figures(given, {"mine": now})
    assert (kept == given) == (tables == []) == (target == 0.8)
    assert len(known(now, now.entries[0], [given])) == (len(SOURCES) if target == 0.8 else 0)


@given(st.booleans())
def test_pages_that_do_not_say_what_their_cells_are_of_are_taken_by_the_names_of_runs(moved: bool) -> None:
    now = paper(methods=("a", "a")) if moved else PAPER
    given = found(PAPER, set(SOURCES), names_of(PAPER))
    (of,) = given.papers
    columns = [column.model_copy(update={"cells": {}}) for column in of.entries[0].columns]
    table = of.entries[0].model_copy(update={"columns": columns})
    old = given.model_copy(update={"papers": [of.model_copy(update={"entries": [table]})]})
    assert with_backed_figures(old, {"mine": now}) == (old, [])


@pytest.mark.parametrize("finished", [True, False])
def test_a_partition_counts_as_a_run_does(finished: bool) -> None:
    ag = {"dataset": "agnews", "options": {"method": "uniform", "clients": 4}, "seeds": 2}
    entry = {"id": "figure1", "title": "t", "shows": "s", "partitions": {"even": ag}, "measure": "divergence"}
    entry |= {"rows": [{"name": "even"}], "columns": [{"name": "here"}]}
    of = Paper.model_validate({"name": "mine", "title": "t", "source": "s", "runs": {}, "entry": [entry]})
    (figure,) = of.entries
    names = [partition_name(figure.partitions["even"], seed) for seed in SEEDS]
    given = found(PAPER, set(), {})
    (own,) = given.papers
    columns = [found_column(of, figure, figure.columns[0], {"even": {0: 1.0, 1: 2.0}}, {})]
    changes = {
        "id": "figure1",
        "runs": names,
        "columns": columns,
        "rows": [FoundRow(name="even", published={})],
    }
    one = own.model_copy(update={"entries": [own.entries[0].model_copy(update=changes)]})
    runs = {
        names[0]: FoundRun(finished=True, seconds=1.0),
        names[1]: FoundRun(finished=finished, seconds=1.0),
    }
    kept, _ = with_backed_figures(Results(runs=runs, papers=[one]), {"mine": of})
    assert kept.papers[0].entries[0].columns[0].figures == {"even": {0: 1.0} | ({1: 2.0} if finished else {})}
