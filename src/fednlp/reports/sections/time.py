"""The section "Where the time went" of a report: the profile of each run's workers."""

from collections.abc import Iterator, Mapping, Sequence

from fednlp.clock import IDLE, PARTS
from fednlp.formatting.units import capital, plural
from fednlp.reports.document import Block, Grid
from fednlp.reports.read import Run, read_file

_MOST_COLUMNS = 4
"""More workers than these are shown by the first, which also does the server's work, and the mean of the others."""
_TOTAL = "total"


def profile_of(run: Run) -> list[Mapping[str, float]] | None:
    """Return the seconds of each part for each worker; None where the run did not write them."""
    found = read_file(run.folder / "profile.json")
    workers = [] if found is None else list(found["workers"])
    return workers or None


def profile_table(workers: Sequence[Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of a profile: seconds of each part by worker, and its share of all workers' time.

    Args:
        workers: Seconds by part, with their ``total``.

    >>> heads, rows = profile_table([{"disk": 1.0, "idle": 1.0, "total": 2.0}, {"idle": 2.0, "total": 2.0}])
    >>> heads
    ['Part', 'Worker 1', 'Worker 2', 'Share', 'What it is']
    >>> rows[0]
    ['Disk', '1.00 s', '', '25.0 %', "clients' records, round lines, checkpoints"]
    """
    columns = {f"Worker {number}": worker for number, worker in enumerate(workers, 1)}
    if len(workers) > _MOST_COLUMNS:
        others = workers[1:]
        mean = {
            part: sum(worker.get(part, 0.0) for worker in others) / len(others) for part in (*PARTS, _TOTAL)
        }
        columns = {"Worker 1": workers[0], f"Mean of {plural(len(others), 'other')}": mean}
    spent = {part: sum(worker.get(part, 0.0) for worker in workers) for part in (*PARTS, _TOTAL)}
    rows = [
        [
            capital(part),
            *(f"{one[part]:.2f} s" if one.get(part) else "" for one in columns.values()),
            f"{100 * spent[part] / (spent[_TOTAL] or 1.0):.1f} %",
            PARTS.get(part, "since the start of the worker's process"),
        ]
        for part in (*PARTS, _TOTAL)
        if spent[part]
    ]
    return ["Part", *columns, "Share", "What it is"], rows


def time_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield a table for each run that has a profile."""
    for run in runs:
        workers = profile_of(run)
        if workers is None:
            continue
        heads, rows = profile_table(workers)
        named = [f"Run {run.folder.name}."] if len(runs) > 1 else []
        waited = f"Workers waited for each other ({IDLE}) or worked; the parts sum to the total."
        yield Grid(heads[:-1], [row[:-1] for row in rows], [*named, waited])
