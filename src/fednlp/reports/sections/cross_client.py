"""Every model of a run on every client's test (dynamic pulling paper, Tables 3, 4 and 6)."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fednlp.checked_json import damaged
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import capital, is_share, metric_title
from fednlp.reports.document import Block, Grid
from fednlp.reports.groups import Groups
from fednlp.reports.read import Run, read_file
from fednlp.reports.render import grid
from fednlp.reports.table import ColumnKind, Stat, Table, TableColumn, TableRow

SERVER = "server"
_MEAN = "mean"
_WIDEST = 20
_LONGEST = 60
_WHOLE = "Every model on every client's test"

ScoreRow = tuple[float | None, ...]


@dataclass(frozen=True)
class CrossClientScores:
    """Scores of models (rows) on the clients' tests; None where a client has no test examples."""

    metric: str
    tests: tuple[str, ...]
    rows: tuple[tuple[str, ScoreRow], ...]

    @property
    def method(self) -> ScoreRow:
        """The row that stands for the method: the server's, or the mean of the clients' where there is none."""
        for model, scores in self.rows:
            if model == SERVER:
                return scores
        return tuple(mean_of([scores[i] for _, scores in self.rows]) for i in range(len(self.tests)))


def mean_of(scores: Sequence[float | None]) -> float | None:
    """Return the mean of the scores that there are.

    >>> mean_of([0.5, None, 0.7]), mean_of([None])
    (0.6, None)
    """
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known else None


def read_cross_client(run: Run) -> CrossClientScores | None:
    """Return the scores of all models on all clients' tests, or None where the run did not measure them.

    Raises:
        RunError: ``cross_client_evaluation.json`` is damaged.
    """
    path = run.folder / "cross_client_evaluation.json"
    data = read_file(path)
    if data is None:
        return None
    tests = tuple(data["tests"])
    rows = tuple((row["model"], tuple(map(_score, row["scores"]))) for row in data["rows"])
    if any(len(scores) != len(tests) for _, scores in rows):
        raise damaged(path, ValueError("a row is not as long as there are tests"))
    return CrossClientScores(data["metric"], tests, rows)


def cross_client_tables(groups: Groups) -> dict[str, Table]:
    """Return the tables of every model on every test, by the names of their files.

    ``cross-client-evaluation`` has a row a model; of several methods, ``cross-client-evaluation-methods`` has a row
    each. A table has the mean over the tests, one client counting like another, as its last column. Nothing is
    returned where no run has one.

    Raises:
        RunError: A ``cross_client_evaluation.json`` is damaged.
    """
    found = {label: [m for run in runs if (m := read_cross_client(run))] for label, runs in groups.items()}
    found = {label: matrices for label, matrices in found.items() if matrices}
    if not found:
        return {}
    first = next(iter(found.values()))[0]
    alike = {label: [m for m in every if _columns(m) == _columns(first)] for label, every in found.items()}
    notes = _left_out(found, alike)
    rows = [row for label, every in alike.items() for row in _model_rows(label, every, groups)]
    caption = f"{_WHOLE}: {_unit(first)} after the last round, mean ± standard deviation over seeds."
    tables = {
        "cross-client-evaluation": _table(first, rows, f"{caption} Mean: over the tests.", notes, "Model")
    }
    if len(alike) > 1:
        short = [
            _row(label, first.tests, [m.method for m in every], groups[label])
            for label, every in alike.items()
            if every
        ]
        averaged = [label for label, every in alike.items() if every and not _has_server(every)]
        notes += [f"{label}: no common model; the mean of the clients' models" for label in averaged]
        caption = f"The server's model of each method on every client's test: {_unit(first)}."
        tables["cross-client-evaluation-methods"] = _table(
            first, short, f"{caption} Mean: over the tests.", notes, "Method"
        )
    return tables


def cross_client_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the tables for a page, of several methods first; of very many clients the mean alone is shown."""
    for name, table in reversed(cross_client_tables(groups).items()):
        notes = [table.caption, *table.notes]
        if len(table.columns) > _WIDEST + 1:
            table = Table(table.columns[-1:], table.rows, table.caption, table.notes, table.head)
            notes.append(f"the scores on each of the tests are in {name}.csv")
        heads, rows = grid(table)
        if len(rows) > _LONGEST:
            notes.append(f"and {len(rows) - _LONGEST:,} more models, in {name}.csv")
        yield Grid(heads, rows[:_LONGEST], notes)


def _score(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _columns(matrix: CrossClientScores) -> tuple[str, tuple[str, ...]]:
    return matrix.metric, matrix.tests


def _unit(matrix: CrossClientScores) -> str:
    return metric_title(matrix.metric) + (" in %" if is_share(matrix.metric) else "")


def _has_server(matrices: Sequence[CrossClientScores]) -> bool:
    return any(model == SERVER for model, _ in matrices[0].rows)


def _left_out(
    found: dict[str, list[CrossClientScores]], alike: dict[str, list[CrossClientScores]]
) -> list[str]:
    gone = {label: len(every) - len(alike[label]) for label, every in found.items()}
    return [f"{label}: {count} left out, with other clients" for label, count in gone.items() if count]


def _model_rows(label: str, matrices: Sequence[CrossClientScores], groups: Groups) -> Iterator[TableRow]:
    """Yield a row for every model of a method, and where there is no common one the mean of the clients'."""
    prefix, tests = f"{label}, " if len(groups) > 1 else "", matrices[0].tests if matrices else ()
    for number, (model, _) in enumerate(matrices[0].rows if matrices else ()):
        of_seeds = [m.rows[number][1] for m in matrices if len(m.rows) > number]
        heading = f"{prefix}{model}" if model != SERVER else prefix + (SERVER if prefix else capital(SERVER))
        yield _row(heading, tests, of_seeds, groups[label])
    if matrices and not _has_server(matrices):
        heading = "mean of the clients' models"
        means = [m.method for m in matrices]
        yield _row(prefix + heading if prefix else capital(heading), tests, means, groups[label])


def _row(label: str, tests: Sequence[str], of_seeds: Sequence[ScoreRow], runs: Sequence[Run]) -> TableRow:
    """Return one model's row over the seeds, its mean over the tests last."""
    whole = [(*scores, mean_of(scores)) for scores in of_seeds]
    cells = {}
    for number, key in enumerate(_keys(tests)):
        values = tuple(value for row in whole if (value := row[number]) is not None)
        cells[key] = Stat(values) if values else None
    return TableRow(label, runs[0].baseline, len(whole), cells)


def _keys(tests: Sequence[str]) -> list[str]:
    """Return a key for each test and the mean, each another, even where two clients have one name."""
    keys = [f"test_{clean(name)}" for name in tests]
    twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else set()
    return [*(f"{key}[{i}]" if key in twice else key for i, key in enumerate(keys)), _MEAN]


def _table(
    matrix: CrossClientScores, rows: Sequence[TableRow], caption: str, notes: Sequence[str], head: str
) -> Table:
    kind: ColumnKind = "share" if is_share(matrix.metric) else "plain"
    headings = [*matrix.tests, "Mean"]
    columns = tuple(TableColumn(k, h, kind) for k, h in zip(_keys(matrix.tests), headings, strict=True))
    return Table(columns, tuple(rows), caption, tuple(notes), head)
