"""How many examples the runs and partitions of a table used, beside how many were published."""

from collections.abc import Iterator, Mapping
from typing import Any

from fednlp.data.catalogue import CATALOGUE
from fednlp.formatting.safe_text import clean
from fednlp.reports.hub_metadata import data_name
from fednlp.reports.read import Run
from fednlp.reproduction.jobs import Work
from fednlp.reproduction.outcomes import Outcomes
from fednlp.reproduction.parts import FoundData


def used_data(work: Work, outcomes: Outcomes) -> list[FoundData]:
    """Return the data sets of a table's finished runs and partitions, each with each of its sizes once."""
    return list(dict.fromkeys(_used(work, outcomes)))


def _dataset_of(run: Run) -> str:
    """Return the name of a run's data set."""
    return data_name(run.summary or {}, run.config)


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
                _dataset_of(run), examples_of(run, "train"), examples_of(run, "test"), own
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
