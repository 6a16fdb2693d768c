"""What tables and figures need: folders of data, and time."""

from collections.abc import Sequence

from fednlp.reproduction.manifest import Entry, Paper
from fednlp.reproduction.naming import partition_name

PARTITION_SECONDS = 10.0
"""Expected of a partition."""


def needed_data(paper: Paper, entry: Entry) -> list[str]:
    """Return the names of the data that have to be given by folder."""
    used = [paper.runs[key] for key in paper.runs_of(entry)]
    used += [paper.runs[runs.model_of] for runs in used if runs.model_of]
    names = [one.data for one in used] + [one.data for one in entry.partitions.values()]
    return [name for name in dict.fromkeys(names) if name]


def data_of_parts(paper: Paper, entry: Entry) -> dict[str, set[str]]:
    """Return the data that have to be given by folder, by key of the runs, or by row for partitions."""
    parts: dict[str, set[str]] = {row: {made.data} for row, made in entry.partitions.items()}
    for key in entry.runs:
        first = paper.runs[key].model_of
        parts[key] = {paper.runs[one].data for one in (key, first) if one}
    return {part: names - {""} for part, names in parts.items()}


def expected_minutes(paper: Paper, entries: Sequence[Entry], most_seeds: int = 100) -> tuple[float, bool]:
    """Return the expected minutes of entries, and whether all of them were measured.

    Args:
        entries: Some of its tables and figures; what several of them share counts once.
        most_seeds: At most so many seeds.
    """
    keys = dict.fromkeys(key for entry in entries for key in paper.runs_of(entry))
    first = dict.fromkeys(model for key in keys if (model := paper.runs[key].model_of) and model not in keys)
    used, others = ([paper.runs[key] for key in some] for some in (keys, first))
    minutes = sum(
        one.minutes * len([*one.methods, *one.baselines]) * min(one.seeds, most_seeds) for one in used
    )
    minutes += sum(one.minutes for one in others)
    made = {partition_name(one): one for entry in entries for one in entry.partitions.values()}
    minutes += sum(min(one.seeds, most_seeds) for one in made.values()) * PARTITION_SECONDS / 60
    return minutes, all(one.measured for one in (*used, *others))
