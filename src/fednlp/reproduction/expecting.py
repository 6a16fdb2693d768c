"""How long jobs are expected to take: as long as they took in this folder, or else as the manifest expects."""

from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import fmean

from fednlp.reproduction.folder import Record
from fednlp.reproduction.jobs import Job
from fednlp.simulation.compare import Planned

_SLOWEST = 50.0


def expected_seconds(jobs: Collection[Job], record: Record) -> dict[str, float]:
    """Return the seconds that what is left of each job is expected to take, by name.

    Where a part of a run is done, the time of its rounds counts for each round that is left, and what it took beside
    them once: it loads its data again. Where the same run with other seeds is done, it is the mean of their times. For
    others it is the manifest's time, by the factor by which this machine was slower so far.

    Args:
        jobs: The jobs.
        record: How long those of this folder took.
    """
    kinds = {job.kind for job in jobs}
    slower = {
        kind: slowness(record, {job.name: job.expected for job in jobs if job.done and job.kind == kind})
        for kind in kinds
    }
    seeds: dict[tuple[Path, str], list[float]] = {}
    for job in {job.name: job for job in jobs if job.done and job.name in record.seconds}.values():
        seeds.setdefault(_without_seed(job), []).append(record.seconds[job.name])
    return {job.name: _expected(job, record, seeds, slower[job.kind]) for job in jobs}


def slowness(record: Record, expected: Mapping[str, float]) -> float:
    """Return how many times longer than expected the finished jobs took; 1 before the first.

    Args:
        record: The record.
        expected: Expected seconds of the finished jobs.
    """
    known = [name for name in expected if name in record.seconds]
    if not known:
        return 1.0
    taken = float(sum(record.seconds[name] for name in known))
    return min(max(taken / sum(expected[name] for name in known), 1 / _SLOWEST), _SLOWEST)


def _expected(
    job: Job, record: Record, seeds: Mapping[tuple[Path, str], list[float]], slower: float
) -> float:
    left = job.left
    if 0 < left < 1 and job.name in record.seconds:
        taken = float(record.seconds[job.name])
        in_rounds = min(job.seconds_in_rounds, taken)
        return taken - in_rounds + in_rounds * left / (1 - left)
    same = seeds.get(_without_seed(job))
    return left * (fmean(same) if same else slower * job.expected)


def _without_seed(job: Job) -> tuple[Path, str]:
    """Return what the same run has in common with every seed; a partition is a job of its own."""
    if isinstance(job.work, Planned):
        return job.folder.parent, job.work.method
    return job.folder, ""
