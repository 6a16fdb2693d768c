"""How the examples were shared out: sizes of the clients, and the pictures of the partition."""

from collections.abc import Iterator, Sequence

import numpy as np

from fednlp.errors import PartitionError, RunError
from fednlp.partition import Partition
from fednlp.reports.document import Block, Grid, Picture
from fednlp.reports.groups import settings, without_seeds
from fednlp.reports.read import Run, read_labels
from fednlp.reports.style import drawing
from fednlp.reports.words import partition_words


def partition_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Show each different partition once, as its first run drew it."""
    different: dict[str, Run] = {}
    for run in runs:
        shared = {
            k: v for k, v in without_seeds(settings(run)).items() if k.split(".")[0] in ("data", "partition")
        }
        different.setdefault(str(sorted(shared.items())), run)
    rows = [_sizes_row(run) for run in different.values() if (run.folder / "partition.npz").is_file()]
    if rows:
        heads = ["Partition", "Clients"]
        heads += [
            f"{split}, {what}" for split in ("Training", "Test") for what in ("least", "median", "most")
        ]
        yield Grid(heads, rows, ["Examples of a client in its training and test set."])
    for number, run in enumerate(different.values()):
        yield from _pictures(run, f"partition-{number}" if len(different) > 1 else "partition")


def _sizes_row(run: Run) -> list[str]:
    cells, path = [_told(run)], run.folder / "partition.npz"
    try:
        partition = Partition.load(path)
    except PartitionError as error:
        raise RunError(f"{path} is damaged: run the experiment again") from error
    for i, offsets in enumerate((partition.train_offsets, partition.test_offsets)):
        sizes = np.diff(offsets)
        cells += [f"{len(sizes):,}"] if i == 0 else []
        cells += [f"{value:,.0f}" for value in (sizes.min(), np.median(sizes), sizes.max())]
    return cells


def _pictures(run: Run, name: str) -> Iterator[Block]:
    labels = read_labels(run) if (run.folder / "partition.npz").is_file() else None
    if labels is None:
        return
    from fednlp.partition.plots import figures, overview_of_counts

    named = len(run.clients) == len(labels.train) and any(run.clients.names)
    try:
        view = overview_of_counts(labels.train, labels.names, run.clients.names if named else None)
    except PartitionError as error:
        raise RunError(
            f"{run.folder / 'labels.json'} is damaged ({error}); run the experiment again"
        ) from error
    with drawing():
        drawn = figures(view)
    for kind, figure in drawn.items():
        yield Picture(f"{name}-{kind.replace('_', '-')}", f"{_CAPTIONS.get(kind, kind)} {_told(run)}", figure)


_CAPTIONS = {
    "divergence_matrix": "How unlike the clients' labels are: 0 is alike, 1 nothing in common.",
    "label_heatmap": "Which labels each client holds.",
    "divergence_density": "How often which divergence occurs.",
    "size_density": "How many training examples the clients hold.",
}


def _told(run: Run) -> str:
    return f"Seed {run.setting('partition.seed', run.seed)}, {partition_words(run.config)}."
