"""The notes below a table: its runs and seeds, the data, how exact its figures are, and why it is not finished."""

from collections import Counter
from collections.abc import Iterator, Sequence

from fednlp.formatting.units import DASH, human_seconds, plural
from fednlp.reproduction.curves import is_of_curves, seeds_in
from fednlp.reproduction.manifest import OF_PARTITIONS
from fednlp.reproduction.naming import group_of
from fednlp.reproduction.parts import FoundData, FoundPicture
from fednlp.reproduction.results import Finding, Results


def notes_of(results: Results, entry: Finding) -> Iterator[str]:
    """Yield what is said of a table: its runs, its data, how its ranks agree, and why it is not finished."""
    if seed_counts(entry) and not entry.runs:
        yield "Measured once by the command above: no run of an experiment is behind it."
        return
    ran, finished = results.ran(entry), len(results.finished(entry))
    what = "partition" if any(column.measure in OF_PARTITIONS for column in entry.columns) else "run"
    of = "" if finished == len(entry.runs) else f"{finished} of "
    seeds = f", {seeds_of(entry)}" if seed_counts(entry) else ""
    mixed = " (n)" if len(seed_counts(entry)) > 1 else ""
    computed = f"; CPU time {human_seconds(ran.cpu_seconds)}" if ran.cpu_seconds else ""
    measured = f"{human_seconds(ran.seconds)} (measured{computed})"
    yield f"{of}{plural(len(entry.runs), what)} done in {measured}{seeds}{mixed}."
    if len(ran.machines) > 1:
        counts = (f"{machine_name(*of)} ({plural(count, 'run')})" for of, count in ran.machines.items())
        yield f"Computed on: {'; '.join(counts)}."
    yield from map(_used, entry.data)
    unknown = sum(not results.runs[name].data for name in results.finished(entry))
    if unknown:
        yield (
            f"Data: not recorded for {unknown} of {plural(finished, what)}, so whether they were the same cannot be "
            "checked."
        )
    for column in entry.columns:
        if column.spearman is not None:
            rank = f"over {column.ranked} rows is {column.spearman:.2f}"
            yield f"{column.name}: Spearman's rank correlation with the paper {rank}."
    for column in entry.columns:
        if column.error is not None:
            yield f"{column.name}: one standard error on the test examples is at most {column.error:.1f} points."
    if entry.reason:
        yield f"Not finished: {entry.reason.replace('`', '')}."


def machine_name(processor: str, cores: int) -> str:
    """Return a processor and its cores in words."""
    return f"{processor}, {plural(cores, 'core')}"


def _used(data: FoundData) -> str:
    """Return in words how many examples of a data set were used, and how many were published."""
    own = " (split off the clients' own)" if data.own_tests else ""
    published = _examples(data.published_train, data.published_test)
    beside = f"; published: {published}" if published else ""
    return f"Data: {data.name}, {_examples(data.train, data.test) or 'size not known'}{own}{beside}."


def _examples(train: int | None, test: int | None) -> str:
    counts = [f"{count:,} {split}" for split, count in (("training", train), ("test", test)) if count]
    return f"{' and '.join(counts)} examples" if counts else ""


def seed_counts(entry: Finding) -> list[int]:
    """Return the numbers of seeds of the figures found, each once, from the fewest.

    Seeds that never reached a target count too.
    """
    found = (
        len(column.figures.get(row.name, {})) + len(column.unreached.get(row.name, []))
        for column in entry.columns
        for row in entry.rows
    )
    return sorted({*found} - {0})


def seeds_of(entry: Finding) -> str:
    """Return the number of seeds of a table in words."""
    counts = seed_counts(entry)
    if not counts or not entry.runs:
        return DASH
    least, most = counts[0], counts[-1]
    return f"{least} to {most} seeds" if least < most else "one seed" if most == 1 else f"{most} seeds"


def seeds_left_out(results: Results, entry: Finding, pictures: Sequence[FoundPicture]) -> Iterator[str]:
    """Yield what is said below pictures of learning curves of which some have fewer seeds than were run."""
    drawn = [seeds_in(picture.caption) for picture in pictures if is_of_curves(picture.name)]
    counts = Counter(map(group_of, results.finished(entry))).values()
    ran = (min(counts) + max(counts)) / 2 if counts else 0.0
    if any(seeds is not None and seeds < ran for seeds in drawn):
        yield (
            f"These curves are of fewer seeds than were run ({max(counts)}): the points of the others were not kept. "
            "In a new folder the command above draws all of them."
        )
