"""What finished runs and partitions left in their folders, each read once, and how many examples they used."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fednlp.checked_json import damaged, parse_json
from fednlp.checked_json.shapes import Count, Number, Shape
from fednlp.data.catalogue import CATALOGUE
from fednlp.disk import regular
from fednlp.errors import FednlpError
from fednlp.formatting.safe_text import clean, text_of_csv
from fednlp.partition import Partition
from fednlp.partition.plot_data import Overview, overview_of_counts
from fednlp.reports.hub_metadata import data_name
from fednlp.reports.read import Run, read_run
from fednlp.reports.sections.cross_client import read_cross_client
from fednlp.reproduction.jobs import FIGURES, Job, Work, one_line
from fednlp.reproduction.results import FoundData
from fednlp.studies.same_data import DIGITS


@dataclass(frozen=True)
class Partitioning:
    """A partition as it was found.

    Attributes:
        divergence: The clients' mean Jensen-Shannon divergence from the prior.
        sizes: Training examples of each client.
        dataset: Name of the data set.
        train: Its training examples.
        test: Its test examples.
        content: A digest of the content of its data, as of a run; empty where it is not known.
    """

    divergence: float
    sizes: NDArray[np.int64]
    dataset: str
    train: int | None
    test: int | None
    content: str
    view: Overview


@dataclass(frozen=True)
class Outcomes:
    """Finished jobs by name."""

    runs: Mapping[str, Run]
    partitions: Mapping[str, Partitioning]

    def __contains__(self, job: Job) -> bool:
        return job.name in self.runs or job.name in self.partitions


class _Figures(Shape):
    """``figures.json`` of a partition."""

    data: str = ""
    content: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    mean_divergence: Number = 0.0
    train_examples: Count | None = None
    test_examples: Count | None = None


def read_outcomes(jobs: Iterable[Job], failed: dict[str, str]) -> Outcomes:
    """Read what finished jobs left.

    Args:
        jobs: Jobs; those that are not finished or have failed are left out.
        failed: Messages by name; what turns out to be damaged is added.
    """
    runs: dict[str, Run] = {}
    partitions: dict[str, Partitioning] = {}
    for job in {job.name: job for job in jobs}.values():
        if job.name in failed or not job.done:
            continue
        try:
            if job.kind == "run":
                runs[job.name] = _read_run(job.folder)
            else:
                partitions[job.name] = _read_partition(job.folder)
        except FednlpError as error:
            failed[job.name] = one_line(error)
    return Outcomes(runs, partitions)


def _read_run(folder: Path) -> Run:
    """Read a run with all that its measures need, so that damage is found here."""
    run = read_run(folder)
    read_cross_client(run)
    told = (run.summary or {}).get("rounds", 0)
    if type(told) is not int or len(run.rounds) < told:
        missing = ValueError(f"{len(run.rounds)} of {told} rounds")
        raise damaged(folder / "rounds.jsonl", missing)
    return run


def _read_partition(folder: Path) -> Partitioning:
    """Read a partition, its figures, and the table of its label map."""
    path, table = folder / FIGURES, folder / "label_heatmap.csv"
    try:
        figures = _Figures.model_validate(parse_json(regular(path).read_bytes(), _Figures))
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    try:
        with table.open(encoding="utf-8", newline="") as file:
            (_, *labels), *rows = csv.reader(file)
        counts = np.array([[int(cell) for cell in row[1:]] for row in rows], dtype=np.int64)
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(table, error) from error
    names = [text_of_csv(row[0]) for row in rows]
    view = overview_of_counts(counts, [text_of_csv(label) for label in labels], names)
    sizes = np.diff(Partition.load(folder / "partition.npz").train_offsets)
    counts_read = figures.train_examples, figures.test_examples
    content = figures.content[:DIGITS]
    return Partitioning(float(figures.mean_divergence), sizes, figures.data, *counts_read, content, view)


def used_data(work: Work, outcomes: Outcomes) -> list[FoundData]:
    """Return the data sets of a table's finished runs and partitions, each with each of its sizes once."""
    return list(dict.fromkeys(_used(work, outcomes)))


def examples_of(run: Run, split: str) -> int | None:
    """Return the number of a run's ``"train"`` or ``"test"`` examples, over all clients."""
    facts: Mapping[str, Any] = (run.summary or {}).get("data") or {}
    count = facts.get(split)
    return count if isinstance(count, int) else None


def _used(work: Work, outcomes: Outcomes) -> Iterator[FoundData]:
    for job in work.every:
        if run := outcomes.runs.get(job.name):
            own = run.setting("partition.test_sets") == "own-split"
            yield _beside_published(
                data_name(run.summary or {}, run.config),
                examples_of(run, "train"),
                examples_of(run, "test"),
                own,
            )
        elif made := outcomes.partitions.get(job.name):
            yield _beside_published(made.dataset, made.train, made.test, own=False)


def _beside_published(name: str, train: int | None, test: int | None, own: bool) -> FoundData:
    known = CATALOGUE.get(name)
    return FoundData(
        name=clean(name),
        train=train,
        test=test,
        own_tests=own,
        published_train=known.train if known else None,
        published_test=known.test if known else None,
    )
