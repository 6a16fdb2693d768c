"""The section "Where the time went" of a report: the profile of the workers, by method where there are several runs."""

from collections.abc import Iterator, Mapping, Sequence

from fednlp.clock import IDLE, PARTS
from fednlp.formatting.units import capital, plural
from fednlp.reports.document import Block, Grid
from fednlp.reports.groups import Groups
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


def time_blocks(groups: Groups) -> Iterator[Block]:
    """Yield the profile of the workers of one run; of several runs one table of what they took together."""
    known = {
        label: [workers for run in runs if (workers := profile_of(run)) is not None]
        for label, runs in groups.items()
    }
    profiles = [workers for several in known.values() for workers in several]
    waited = f"Workers waited for each other ({IDLE}) or worked; the parts sum to the total."
    if len(profiles) == 1:
        heads, rows = profile_table(profiles[0])
        yield Grid(heads[:-1], [row[:-1] for row in rows], [waited])
    elif profiles:
        heads, rows = _of_methods({label: several for label, several in known.items() if several})
        yield Grid(heads, rows, [f"Seconds of all workers, and mean over the runs of a method. {waited}"])


def _of_methods(
    profiles: Mapping[str, Sequence[Sequence[Mapping[str, float]]]],
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of one profile for each method: seconds of each part, and its share."""
    spent = {
        label: {
            part: sum(worker.get(part, 0.0) for workers in several for worker in workers) / len(several)
            for part in (*PARTS, _TOTAL)
        }
        for label, several in profiles.items()
    }
    rows = [
        [
            capital(part),
            *(
                f"{one[part]:.2f} s ({100 * one[part] / (one[_TOTAL] or 1.0):.0f} %)"
                for one in spent.values()
            ),
        ]
        for part in (*PARTS, _TOTAL)
        if any(one[part] for one in spent.values())
    ]
    return ["Part", *spent], rows
