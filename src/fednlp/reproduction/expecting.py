"""How long jobs are expected to take: as long as they took in this folder, or else as the manifest expects."""

from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import fmean

from fednlp.reproduction.folder import Record
from fednlp.reproduction.jobs import Job
from fednlp.studies.compare import Planned

_SLOWEST = 50.0
_CORES = 2
"""Of the machines of which the manifests have the times."""


def expected_seconds(jobs: Collection[Job], record: Record, at_once: int = 1) -> dict[str, float]:
    """Return the seconds that what is left of each job is expected to take, by name.

    Where a part of a run is done, the time of its rounds counts for each round that is left, and what it took beside
    them once: it loads its data again. Where the same run with other seeds is done, it is the mean of their times. For
    others it is the manifest's time, by the factor by which this machine was slower so far.

    Args:
        jobs: The jobs.
        record: How long those of this folder took.
        at_once: How many are done at once. The time of each is its share of the clock.
    """
    kinds = {job.kind for job in jobs}
    slower = {
        kind: slowness(
            record, {job.name: job.expected for job in jobs if job.done and job.kind == kind}, at_once
        )
        for kind in kinds
    }
    seeds: dict[tuple[Path, str], list[float]] = {}
    for job in {job.name: job for job in jobs if job.done and job.name in record.seconds}.values():
        seeds.setdefault(_without_seed(job), []).append(record.seconds[job.name])
    return {job.name: _expected(job, record, seeds, slower[job.kind], at_once) for job in jobs}


def slowness(record: Record, expected: Mapping[str, float], at_once: int = 1) -> float:
    """Return how many times longer than expected the finished jobs took.

    Before the first it is 1, since the manifests' times are of two cores; with more than two jobs at once, each is
    taken to have a core.

    Args:
        record: The record.
        expected: Expected seconds of the finished jobs.
        at_once: How many are done at once.
    """
    known = [name for name in expected if name in record.seconds]
    if not known:
        return _CORES / max(_CORES, at_once)
    taken = float(sum(record.seconds[name] for name in known))
    return min(max(taken / sum(expected[name] for name in known), 1 / _SLOWEST), _SLOWEST)


def _expected(
    job: Job, record: Record, seeds: Mapping[tuple[Path, str], list[float]], slower: float, at_once: int
) -> float:
    left = job.left
    if 0 < left < 1 and job.name in record.seconds:
        taken = float(record.seconds[job.name])
        in_rounds = min(job.seconds_in_rounds / at_once, taken)
        return taken - in_rounds + in_rounds * left / (1 - left)
    same = seeds.get(_without_seed(job))
    return left * (fmean(same) if same else slower * job.expected)


def _without_seed(job: Job) -> tuple[Path, str]:
    """Return what the same run has in common with every seed; a partition is a job of its own."""
    if isinstance(job.work, Planned):
        return job.folder.parent, job.work.method
    return job.folder, ""
