"""Cells about reaching a method's score: whose score it is."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fednlp.config import Experiment
from fednlp.partition.plot_data import overview_of_counts
from fednlp.reports.read import ClientTable, Run
from fednlp.reproduction.finding import Evidence, found_column
from fednlp.reproduction.folder import Record
from fednlp.reproduction.jobs import Job, Work
from fednlp.reproduction.joining import known, unite
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.measures import cells, errors, unreached
from fednlp.reproduction.naming import cells_of, digest, group_of_cell, name_of, partition_name
from fednlp.reproduction.outcomes import Outcomes, Partitioning
from fednlp.reproduction.results import FoundColumn, FoundRun
from fednlp.studies.compare import Planned

from .made_up import pages_of, table_of

METHODS = {"one": ["base", "quick"], "two": ["base", "quick"], "lone": ["quick"]}
PAPER = {
    "name": "mine",
    "title": "t",
    "source": "somebody",
    "runs": {
        key: {"experiment": "e", "methods": methods, "minutes": 1.0} for key, methods in METHODS.items()
    },
    "entry": [
        {
            "id": "table1",
            "title": "Table 1",
            "shows": "rounds",
            "runs": list(METHODS),
            "rows": [{"name": key, "run": key, "method": "quick"} for key in METHODS],
            "columns": [{"name": "rounds", "measure": "rounds to target", "target": "base"}],
        }
    ],
}
SCORES = {"one/base": [0.1, 0.2], "two/base": [0.3, 0.5], "one/quick": [0.2, 0.4, 0.6]}
SCORES |= {"two/quick": SCORES["one/quick"], "lone/quick": SCORES["one/quick"]}


def run_of(scores: list[float], metric: str = "accuracy") -> Run:
    """Return a finished run with these scores by round."""
    rounds = [
        {"round": number, "evaluation": {"global": {metric: score}}} for number, score in enumerate(scores, 1)
    ]
    environment, summary = {"data": {"metric": metric}}, {"evaluation": rounds[-1]["evaluation"]}
    return Run(Path(), {}, environment, tuple(rounds), summary, cast(ClientTable, None))


def work_of(paper: Paper) -> Work:
    """Return its only entry with a job for each method of its runs."""
    experiment: Any = cast(Experiment, SimpleNamespace())
    jobs = {
        key: [
            Job(name, name, 0, 1.0, Path(), Planned(method, 0, experiment, Path()))
            for method in methods
            for name in [f"{key}/{method}"]
        ]
        for key, methods in METHODS.items()
    }
    return Work(paper, paper.entries[0], jobs)


@pytest.mark.parametrize(("metric", "found"), [("accuracy", 25.0), ("pearson", 25.0), ("mse", 0.25)])
def test_shares_and_correlations_are_shown_as_papers_print_them(metric: str, found: float) -> None:
    work, outcomes = (
        work_of(Paper.model_validate(PAPER)),
        Outcomes({"lone/quick": run_of([0.25], metric)}, {}),
    )
    score = work.entry.columns[0].model_copy(update={"measure": "score"})
    assert cells(work, outcomes, score) == {"lone": {0: found}}


@pytest.mark.parametrize(
    ("measure", "scores", "found"),
    [
        ("first score", [0.25, 0.5], 25.0),
        ("score falls", [0.2, 0.4, 0.5, 0.55, 0.575], 0.0),  # it only rises, ever more slowly
        ("score falls", [0.20, 0.23, 0.20, 0.23, 0.20], 6.0),
        ("score falls", [0.5], None),
    ],
)
def test_a_curve_has_a_beginning_and_falls(measure: Any, scores: list[float], found: float | None) -> None:
    work = work_of(Paper.model_validate(PAPER))
    column = work.entry.columns[0].model_copy(update={"measure": measure})
    cell = cells(work, Outcomes({"lone/quick": run_of(scores)}, {}), column)
    assert cell == ({} if found is None else {"lone": {0: pytest.approx(found)}})


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"processor": "P"}, "P"),
        ({"processor": "P", "gpu": "G"}, "P + G"),
        ({"processor": "", "gpu": "G"}, "G"),
        ({}, ""),
    ],
)
def test_a_gpu_that_trained_is_named_beside_the_processor(environment: dict[str, str], named: str) -> None:
    job = work_of(Paper.model_validate(PAPER)).jobs["lone"][0]
    run = replace(run_of([0.5]), environment={"data": {"metric": "accuracy"}, **environment})
    assert Evidence(Outcomes({job.name: run}, {}), Record(), {}, {}).run(job).processor == named


def test_the_first_score_has_the_error_of_a_share_of_right_answers() -> None:
    work = work_of(Paper.model_validate(PAPER))
    run = run_of([0.5, 1.0])
    run = replace(run, summary={**(run.summary or {}), "data": {"test": 99}})
    column = work.entry.columns[0].model_copy(update={"measure": "first score"})
    assert errors(work, Outcomes({"lone/quick": run}, {}), column) == {"lone": pytest.approx(50 / 101**0.5)}


def test_personal_scores_are_those_after_fine_tuning_where_there_is_any() -> None:
    work = work_of(Paper.model_validate(PAPER))
    scores = {"personal": {"accuracy": 0.25}, "finetuned": {"accuracy": 0.5}}
    plain = replace(run_of([0.2]), summary={"evaluation": {"personal": scores["personal"]}})
    tuned = replace(run_of([0.2]), summary={"evaluation": scores})
    personal = work.entry.columns[0].model_copy(update={"measure": "personal"})
    found = [cells(work, Outcomes({"lone/quick": run}, {}), personal) for run in (plain, tuned)]
    assert found == [{"lone": {0: 25.0}}, {"lone": {0: 50.0}}]


def engines(measure: Any) -> Paper:
    """Return a paper with a row for each of some engines and one for the method, and a column with this measure."""
    rows = [{"name": name, "run": "lone", "method": "quick", "engine": name} for name in ("x", "y", "server")]
    rows.append({"name": "clients", "run": "lone", "method": "quick"})
    columns = [
        {"name": "own", "measure": measure},
        {"name": "on y", "client": "y", "measure": "engine on client"},
    ]
    entry = PAPER["entry"][0] | {"rows": rows, "columns": columns}
    return Paper.model_validate(PAPER | {"entry": [entry]})


def matrix_of(folder: Path) -> Run:
    """Return a run with the scores of three engines on the tests of two clients."""
    scores = [("server", [0.5, 0.25]), ("x", [0.75, 0.125]), ("y", [0.375, 0.625])]
    rows = [{"model": model, "scores": row} for model, row in scores]
    matrix = {"metric": "accuracy", "tests": ["x", "y"], "rows": rows}
    (folder / "cross_client_evaluation.json").write_text(json.dumps(matrix))
    evaluation = {"personal": {"accuracy": 0.1}, "finetuned": {"accuracy": 0.7}}
    summary = {"evaluation": evaluation, "task": "text-classification", "data": {"test": 99}}
    return replace(run_of([0.2]), folder=folder, summary=summary)


def test_an_engine_has_its_score_on_its_own_domain(tmp_path: Path) -> None:
    """Not the clients' mean, which is that of a row without an engine; the server has no domain of its own."""
    work, outcomes = work_of(engines("personal")), Outcomes({"lone/quick": matrix_of(tmp_path)}, {})
    own, on_y = work.entry.columns
    assert cells(work, outcomes, own) == {"x": {0: 75.0}, "y": {0: 62.5}, "clients": {0: 70.0}}
    assert cells(work, outcomes, on_y)["y"] == {0: 62.5}
    assert errors(work, outcomes, own).keys() == {"clients"}, "of the test examples of all"
    without = replace(matrix_of(tmp_path), folder=tmp_path / "none")
    assert cells(work, Outcomes({"lone/quick": without}, {}), own) == {"clients": {0: 70.0}}


def test_the_clients_mean_in_the_row_of_an_engine_does_not_survive() -> None:
    """Pages of earlier versions have it; other cells stay as they are."""
    paper = engines("personal")
    (entry,) = paper.entries
    now = [cells_of(paper, entry, column) for column in entry.columns]
    rows = {row.name: row for row in entry.rows}
    group = group_of_cell(paper, entry, rows["x"], entry.columns[0])
    before = [
        {name: digest([group, "", row.engine, *shows]) for name, row in rows.items()}
        for shows in (["personal", False, "", None], ["engine on client", False, "y", None])
    ]
    assert {name for name in rows if now[0][name] == before[0][name]} == {"clients"}
    assert now[1] == before[1]
    name = name_of(group, 0)
    columns = [
        FoundColumn(
            name=column.name,
            measure=column.measure or entry.measure,
            figures={row: {0: 13.2} for row in rows},
            cells=cells,
        )
        for column, cells in zip(entry.columns, before, strict=True)
    ]
    given = pages_of("mine", [table_of(entry, [name], columns)], {name: FoundRun(finished=True, seconds=1.0)})
    here = pages_of("mine", [table_of(entry, [name], [])], {})
    kept = unite({"mine": paper}, here, [given])
    assert [set(one.figures) for one in kept.papers[0].entries[0].columns] == [{"clients"}, set(rows)]
    assert known(paper, entry, [given]) == frozenset(), "the run is made again"


@pytest.mark.parametrize(
    ("metric", "task", "error"),
    [
        ("accuracy", "text-classification", 50 / 101**0.5),
        ("accuracy", "masked-language-modeling", None),
        ("mcc", "text-classification", None),
    ],
)
def test_shares_of_right_answers_have_an_error(metric: str, task: str, error: float | None) -> None:
    """Half of 99 texts are right, and of 101 with one more on each side; a share of tokens is none of texts."""
    work, run = work_of(Paper.model_validate(PAPER)), run_of([0.1, 0.5], metric)
    finished = replace(run, summary={**(run.summary or {}), "task": task, "data": {"test": 99}})
    outcomes = Outcomes({"lone/quick": finished}, {})
    column = work.entry.columns[0]
    score = column.model_copy(update={"measure": "score"})
    assert errors(work, outcomes, score) == pytest.approx({} if error is None else {"lone": error})
    assert errors(work, outcomes, column) == {}, "rounds to a target"


def test_label_shares_are_those_of_each_client_of_the_only_partition() -> None:
    """A client or a label that the partition does not have is left out; all cells are of its one job."""
    entry = {
        "id": "table1",
        "title": "Table 1",
        "shows": "shares",
        "measure": "label share",
        "partitions": {
            "P": {"dataset": "mrpc", "options": {"method": "proportions", "proportions": "mrpc-3"}}
        },
        "rows": [{"name": name} for name in ("one", "two", "nobody")],
        "columns": [{"name": name} for name in ("yes", "no", "perhaps")],
    }
    paper = Paper.model_validate(PAPER | {"runs": {}, "entry": [entry]})
    made = paper.entries[0]
    job = Job("p", "p", 0, 1.0, Path(), cast(Experiment, SimpleNamespace()))
    view = overview_of_counts([[3, 1], [0, 5]], ["yes", "no"], ["one", "two"])
    outcomes = Outcomes({}, {"p": Partitioning(0.5, view.sizes, "mrpc", 9, 3, "", view)})
    found = [cells(Work(paper, made, {"P": [job]}), outcomes, column) for column in made.columns]
    assert found == [{"one": {0: 75.0}, "two": {0: 0.0}}, {"one": {0: 25.0}, "two": {0: 100.0}}, {}]
    groups = {group_of_cell(paper, made, row, column) for row in made.rows for column in made.columns}
    assert groups == {partition_name(made.partitions["P"])}


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ("", {"one": 1, "two": 3, "lone": 1}),
        ("one/base", {"two": 3}),
        ("two/base", {"one": 1, "lone": 1}),
    ],
)
def test_a_target_is_of_the_cells_own_runs_where_they_have_the_method(
    missing: str, found: dict[str, int]
) -> None:
    """While the run that sets a target is not finished, no other run's score stands for it."""
    work = work_of(Paper.model_validate(PAPER))
    outcomes = Outcomes({name: run_of(values) for name, values in SCORES.items() if name != missing}, {})
    figures = cells(work, outcomes, work.entry.columns[0])
    assert {row: values[0] for row, values in figures.items()} == found


def test_a_target_is_that_of_the_same_seed() -> None:
    """With seed 0 the target is 0.2 and with seed 1 it is 0.6; of seed 2 there is no run that sets one."""
    work = work_of(Paper.model_validate(PAPER))
    last = {"base": [0.2, 0.6], "quick": [0.7, 0.6, 0.9]}
    jobs = {
        "one": [
            replace(job, name=f"{job.name}{seed}", seed=seed)
            for job in work.jobs["one"]
            for seed in range(len(last[job.name.split("/")[1]]))
        ]
    }
    runs = {
        f"one/{method}{seed}": replace(run_of([0.1, 0.3, score]), config={"seed": seed})
        for method, scores in last.items()
        for seed, score in enumerate(scores)
    }
    found = cells(replace(work, jobs=jobs), Outcomes(runs, {}), work.entry.columns[0])
    assert found == {"one": {0: 2.0, 1: 3.0}}


@pytest.mark.parametrize(("score", "never"), [(0.1, {}), (0.6, {}), (0.61, {"one": [0]})])
def test_who_ends_before_the_target_never_reached_it(score: float, never: dict[str, list[int]]) -> None:
    """Of the other rows there is no run, or none that sets a target."""
    work = work_of(Paper.model_validate(PAPER))
    runs = {"one/base": run_of([score]), "one/quick": run_of(SCORES["one/quick"])}
    column = work.entry.columns[0]
    assert unreached(work, Outcomes(runs, {}), column) == never
    assert unreached(work, Outcomes(runs, {}), column.model_copy(update={"measure": "score"})) == {}
    assert unreached(work, Outcomes({"one/quick": runs["one/quick"]}, {}), column) == {}


@pytest.mark.parametrize(
    ("published", "rank"),
    [
        ([{"x": 1, "y": 9}, {"x": 2, "y": 9}, {"y": 3}, {}], -0.866),
        ([{"x": 1, "y": 9}, {"x": 2, "y": 1}, {"x": 3}, {}], 1.0),
        ([{"x": 1, "y": 9}, {"x": 2, "y": 4}, {"x": 3, "y": -2}, {}], -1.0),
        ([{"x": 1}, {"x": 3}, {"y": 2}, {}], 0.5),
        ([{"x": 1}, {"y": 3}, {}, {}], None),
    ],
)
def test_ranks_are_of_the_published_columns_that_all_rows_have(
    published: list[dict[str, float]], rank: float | None
) -> None:
    """Data sets differ in how hard they are, so the means of different ones say nothing of the rows."""
    names = ["a", "b", "c", "not found"]
    rows = [
        {"name": name, "method": "quick", "published": of} for name, of in zip(names, published, strict=True)
    ]
    entry = PAPER["entry"][0] | {
        "rows": rows,
        "columns": [{"name": "here", "run": "one", "against": ["x", "y"]}],
    }
    paper = Paper.model_validate(PAPER | {"entry": [entry]})
    (table,) = paper.entries
    column = found_column(paper, table, table.columns[0], {"a": {0: 1.0}, "b": {0: 2.0}, "c": {0: 3.0}}, {})
    assert column.spearman == (rank if rank is None else pytest.approx(rank, abs=1e-3))
