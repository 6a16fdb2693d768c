"""Does the runs of tables and figures one after the other, while the budget lasts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fednlp.errors import FednlpError
from fednlp.formatting.units import human_seconds, plural
from fednlp.reproduction import folder
from fednlp.reproduction.budget import Step, choose
from fednlp.reproduction.expecting import expected_seconds
from fednlp.reproduction.jobs import Job, Work, one_line
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir

Now = Callable[[], float]

_NOT_ASKED = "not asked for"


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


class Making:
    """Some tables and figures of one folder that are made while a budget lasts.

    Args:
        asked: The tables and figures.
        out: The folder.
        record: How long its jobs took.
        callback: Reports progress.
        end: When the budget is spent.
        now: The clock, in seconds.

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
    ) -> None:
        self._asked, self._out, self._record = asked, out, record
        self._callback, self._end, self._now = callback, end, now
        self._jobs = {job.name: job for work in asked for job in work.every}
        self._ended_by = "the time was over"
        self.failed = {job.name: job.damage for job in self._jobs.values() if job.damage}
        for message in self.failed.values():
            callback.log(message)

    def make(self) -> None:
        """Carry out job after job while one fits."""
        lasts = True
        while lasts:
            left, steps = self._end - self._now(), self._steps()
            chosen = choose(steps, left)
            if not chosen:
                if steps and left > 0:
                    least = min(sum(dict(step.jobs).values()) for step in steps)
                    self._callback.log(
                        f"nothing is begun in the {human_seconds(left)} left: what takes least needs about "
                        f"{human_seconds(least)}; give a larger --budget"
                    )
                return
            job = self._jobs[chosen[0].jobs[0][0]]
            ahead = sum(dict(pair for step in chosen for pair in step.jobs).values())
            done = len(self._jobs) - len({one.name for work in self._asked for one in work.left})
            self._callback.log(
                f"{done} of {plural(len(self._jobs), 'run')} done; next {job.name}; what fits takes about "
                f"{human_seconds(ahead)} of the {human_seconds(left)} left"
            )
            lasts = self._carry_out(job)

    def reasons(self, works: Sequence[Work]) -> dict[tuple[str, str], str]:
        """Return why tables and figures are not finished, those that were not asked for among them."""
        expected = expected_seconds(self._jobs.values(), self._record)
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

    def _carry_out(self, job: Job) -> bool:
        """Do one job, and write down why it failed, if it did; return whether the budget lasted for it."""
        self._record.spent_at_least(job.name, job.seconds_in_rounds)
        begun, computed = self._now(), _cpu_seconds()
        try:
            job.carry_out(_Deadline(self._callback, self._end, self._now))
        except _BudgetSpent:
            self._callback.log(f"{job.name} goes on in the next call: the budget is spent")
            return False
        except FednlpError as error:
            self.failed[job.name] = one_line(error)
            self._callback.log(f"{job.name} failed: {self.failed[job.name]}")
        except BaseException:
            self._ended_by = "it was interrupted"
            raise
        finally:
            self._record.spend(job.name, self._now() - begun, _cpu_seconds() - computed)
            folder.write(self._out, self._record)
        return True

    def _steps(self) -> list[Step]:
        """Return the unfinished steps of all entries whose jobs did not fail."""
        expected = expected_seconds(self._jobs.values(), self._record)
        found = []
        for work in self._asked:
            left = {job.name for job in work.left}
            for seed in sorted({job.seed for job in work.every}):
                todo = [job for job in (*work.before, *_of_seed(work, seed)) if job.name in left]
                if todo and not any(job.name in self.failed for job in todo):
                    costs = {job.name: expected[job.name] for job in todo}
                    found.append(Step(work.id, seed, tuple(costs.items())))
        return found


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, and of its workers that have ended, as those of a run have after it."""
    return sum(os.times()[:4])


def _of_seed(work: Work, seed: int) -> list[Job]:
    return [job for job in work.every if job.seed == seed and job not in work.before]
