"""Does the runs of tables and figures, one after the other or several at once, while the budget lasts."""

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fednlp.clock import cpu_seconds
from fednlp.errors import ConfigError, FednlpError
from fednlp.formatting.units import human_seconds, plural
from fednlp.reproduction import folder
from fednlp.reproduction.folder import Record
from fednlp.reproduction.jobs import Job, Work, one_line
from fednlp.runtime.jobs import JobProcess
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.compare import Planned
from fednlp.studies.run_or_resume import jobs_of
from fednlp.studies.runs_callback import RunsCallback

Now = Callable[[], float]

_NOT_ASKED = "not asked for"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_LONGEST = 366 * 24 * 3600.0
_SLOWEST = 50.0
_CORES = 2
"""Of the machines of which the manifests have the times."""


def expected_seconds(jobs: Collection[Job], record: Record, at_once: int = 1) -> dict[str, float]:
    """Return the seconds that what is left of each job is expected to take, by name.

    Where a part of a run is done, the time of its rounds counts for each round that is left, and what it took beside
    them once: it loads its data again. Where the same run with other seeds is done, it is the mean of their times. For
    others it is the manifest's time, by the factor by which this machine was slower so far.

    Args:
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


@dataclass(frozen=True)
class Step:
    """One seed of a table or figure.

    Attributes:
        entry: The paper's name and the entry's id.
        seed: Number of the seed, from 0.
        jobs: For each of its runs that is not finished, the expected seconds; several steps may share a run.
    """

    entry: tuple[str, str]
    seed: int
    jobs: tuple[tuple[str, float], ...]


def parse_budget(text: str) -> float:
    """Return a budget in seconds.

    Raises:
        ConfigError: It is no time.

    >>> parse_budget("90m"), parse_budget("1h30m"), parse_budget("0s")
    (5400.0, 5400.0, 0.0)
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text.strip())
    whole = "".join(f"{number}{unit}" for number, unit in parts)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not whole or whole != text.strip() or seconds > _LONGEST:
        raise ConfigError(f"--budget {text}: write a time such as 90m, 2h, 1h30m or 3600s")
    return seconds


def choose(steps: Sequence[Step], seconds: float) -> list[Step]:
    """Return the steps that fit into the time left, in the order in which to take them.

    First seeds come before second ones, and then the cheapest comes first; what is alike keeps its order. A run that a
    chosen step does costs the later ones nothing.

    Args:
        steps: Steps that are not finished.
    """
    chosen: list[Step] = []
    taken: set[str] = set()
    waiting = list(enumerate(steps))
    while True:
        costs = [(step.seed, _cost(step, taken), place, step) for place, step in waiting]
        fitting = [one for one in costs if one[1] <= seconds]
        if not fitting:
            return chosen
        _, cost, place, step = min(fitting, key=lambda one: one[:3])
        chosen.append(step)
        seconds -= cost
        taken |= {name for name, _ in step.jobs}
        waiting = [one for one in waiting if one[0] != place]


def _cost(step: Step, taken: set[str]) -> float:
    return sum(seconds for name, seconds in step.jobs if name not in taken)


class _BudgetSpent(Exception):
    """The budget ended within a run, after a round that is saved."""


class _Deadline:
    """A callback that ends a run after the first saved round past a point in time; other calls go on to another."""

    def __init__(self, callback: Callback, end: float, now: Now) -> None:
        self._to, self._end, self._now = callback, end, now
        self.log, self.started, self.on_progress = callback.log, callback.started, callback.on_progress

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Pass on a round; end the run where the time is over and rounds are left."""
        self._to.on_round(line, left)
        if self._now() > self._end and left:
            raise _BudgetSpent

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Pass on the end of a run."""
        self._to.finished(run, summary)


class _SharedClock:
    """Divides the time among the jobs that are being done: their shares sum to the time in which any was.

    Args:
        now: The clock, in seconds.
    """

    def __init__(self, now: Now) -> None:
        self._now, self._since = now, now()
        self._each = 0.0
        self._doing = 0

    def begin(self) -> float:
        """Return the reading at which a job begins."""
        found = self.reading()
        self._doing += 1
        return found

    def end(self, begun: float) -> float:
        """Return the share of a job that ends.

        Args:
            begun: The reading at which it began.
        """
        found = self.reading()
        self._doing -= 1
        return found - begun

    def reading(self) -> float:
        """Return the share of a job that is done from the first moment on."""
        now = self._now()
        if self._doing:
            self._each += (now - self._since) / self._doing
        self._since = now
        return self._each


@dataclass(frozen=True)
class _Begun:
    """A job that is being done: the seconds that its share is expected to take, from which reading of the clock on."""

    expected: float
    reading: float


class Making:
    """Some tables and figures of one folder that are made while a budget lasts.

    Args:
        out: The folder.
        record: How long its jobs took: of jobs at once, each its share of the time.
        end: When the budget is spent.
        now: The clock, in seconds.
        at_once: How many jobs are done at once.

    Attributes:
        failed: A message for each job, by its name, that failed in this call or whose run was damaged before.
    """

    def __init__(
        self,
        asked: Sequence[Work],
        out: Path,
        record: folder.Record,
        callback: Callback,
        end: float,
        now: Now,
        at_once: int = 1,
    ) -> None:
        self._asked, self._out, self._record = asked, out, record
        self._callback, self._end, self._now = callback, end, now
        self._jobs = {job.name: job for work in asked for job in work.every}
        self._left = {job.name: job for work in asked for job in work.left}
        self._at_once = min(at_once, max(1, len(self._left)))
        self._told: RunsCallback | None = None
        if self._at_once > 1:
            finished = len(self._jobs) - len(self._left)
            self._told = RunsCallback(callback, len(self._jobs), finished, self._at_once)
        self._clock = _SharedClock(now)
        self._begun: dict[str, _Begun] = {}
        self._lock = threading.RLock()
        self._lasts = True
        self._ended_by = "the time was over"
        self.failed = {job.name: job.damage for job in self._jobs.values() if job.damage}
        for message in self.failed.values():
            callback.log(message)

    def make(self) -> None:
        """Carry out job after job while one fits."""
        with jobs_of([job.experiment for job in self._left.values()], self._at_once) as processes:
            if self._told:
                self._told.log_start()
            processes.each(self._take, self._carry_out)

    def _take(self) -> Job | None:
        """Return the job to begin; None where none fits, or others have to be done before."""
        with self._lock:
            left, steps = self._end - self._now(), self._steps()
            reading = self._clock.reading()
            taken = sum(max(0.0, one.expected - (reading - one.reading)) for one in self._begun.values())
            chosen = choose(steps, left - taken) if self._lasts else []
            if not chosen:
                if steps and left > 0 and self._lasts and not self._begun:
                    least = min(sum(dict(step.jobs).values()) for step in steps)
                    self._callback.log(
                        f"nothing is begun in the {human_seconds(left)} left: what takes least needs about "
                        f"{human_seconds(least)}; give a larger --budget"
                    )
                return None
            name, expected = chosen[0].jobs[0]
            ahead = sum(dict(pair for step in chosen for pair in step.jobs).values()) + taken
            done = len(self._jobs) - len({one.name for work in self._asked for one in work.left})
            (self._told or self._callback).log(
                f"{done} of {plural(len(self._jobs), 'run')} done; of the {human_seconds(left)} left, what fits takes "
                f"about {human_seconds(ahead)}; next: {self._jobs[name].shown}"
            )
            self._record.spent_at_least(name, self._jobs[name].seconds_in_rounds / self._at_once)
            self._begun[name] = _Begun(expected, self._clock.begin())
            return self._jobs[name]

    def reasons(self, works: Sequence[Work]) -> dict[tuple[str, str], str]:
        """Return why tables and figures are not finished, those that were not asked for among them."""
        expected = expected_seconds(self._jobs.values(), self._record, self._at_once)
        asked = {work.id for work in self._asked}
        found = {}
        for work in works:
            others = [job for job in work.every if job.label not in work.known]
            todo = [job for job in others if not job.done or job.name in self.failed]
            broken = [message for job in todo if (message := self.failed.get(job.name, job.damage))]
            reasons = [work.reason] if work.reason else []
            if broken:
                reasons.append(f"failed: {broken[0]}")
            elif todo and work.id not in asked:
                reasons.append(_NOT_ASKED)
            elif todo:
                needed = sum(expected[job.name] for job in todo)
                reasons.append(f"{self._ended_by}; about {human_seconds(needed)} of runs are left")
            found[work.id] = "; ".join(reasons)
        return {of: reason for of, reason in found.items() if reason}

    def _carry_out(self, job: Job, process: JobProcess | None) -> None:
        """Do one job, and write down why it failed, if it did, or that the budget did not last for it."""
        told = self._told.of(job.shown) if self._told else self._callback
        log = (self._told or self._callback).log
        computed = _cpu_seconds(process)
        try:
            job.carry_out(_Deadline(told, self._end, self._now), process)
        except _BudgetSpent:
            self._lasts = False
            log(f"{job.name} goes on in the next call: the budget is spent")
        except FednlpError as error:
            self.failed[job.name] = one_line(error)
            log(f"{job.name} failed: {self.failed[job.name]}")
        except BaseException:
            self._ended_by = "it was interrupted"
            raise
        finally:
            if self._told:
                self._told.done(job.shown)
            with self._lock:
                share = self._clock.end(self._begun.pop(job.name).reading)
                self._record.spend(job.name, share, _cpu_seconds(process) - computed)
                folder.write(self._out, self._record)

    def _steps(self) -> list[Step]:
        """Return the unfinished steps of all entries whose jobs did not fail, without the jobs that are being done."""
        expected = expected_seconds(self._jobs.values(), self._record, self._at_once)
        found = []
        for work in self._asked:
            left = {job.name for job in work.left}
            if any(job.name in self._begun for job in work.before):
                continue
            for seed in sorted({job.seed for job in work.every}):
                todo = [job for job in (*work.before, *_of_seed(work, seed)) if job.name in left]
                if any(job.name in self.failed for job in todo):
                    continue
                costs = {job.name: expected[job.name] for job in todo if job.name not in self._begun}
                if costs:
                    found.append(Step(work.id, seed, tuple(costs.items())))
        return found


def _cpu_seconds(process: JobProcess | None) -> float:
    return cpu_seconds() if process is None else process.cpu_seconds


def _of_seed(work: Work, seed: int) -> list[Job]:
    return [job for job in work.every if job.seed == seed and job not in work.before]
