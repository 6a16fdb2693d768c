"""How several runs report their progress to one callback: one after the other, or several at once."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from fednlp.config import Experiment
from fednlp.formatting.units import human_seconds
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir


@dataclass
class _Progress:
    """How far a run is.

    Attributes:
        before: Rounds that were done when it began.
        done: Rounds that are done.
        left: Seconds that it takes to its end, by its own estimate; None if unknown.
    """

    rounds: int
    before: int
    done: int
    left: float | None = None


class RunsCallback:
    """Gives each of several runs a callback of its own, all of which call one, in one thread at a time.

    What runs log before they begin is about data and partition, and is logged once. A callback with a method
    ``of_run(name)`` gives one of its own for each run. Then, and of runs at once, what a run logs later has its name,
    and progress is how many are done.

    Args:
        total: How many runs there are.
        done: How many of them were done before.
        at_once: How many are done at once.
        what: What they are called.
    """

    def __init__(self, callback: Callback, total: int, done: int, at_once: int, what: str = "runs") -> None:
        self._to, self._total, self._done, self._at_once, self._what = callback, total, done, at_once, what
        self._before = done
        self._own = getattr(callback, "of_run", None)
        self._lock = threading.RLock()
        self._logged: set[str] = set()
        self._begun: dict[str, _Progress] = {}
        self._since = time.monotonic()

    def of(self, name: str) -> Callback:
        """Return the callback of a run.

        Args:
            name: Of the run, for people.
        """
        to = self._to if self._own is None else self._own(name)
        return _OneRun(self, to, name, f"{name}: " if self._counts else "")

    @property
    def _counts(self) -> bool:
        return self._at_once > 1 or self._own is not None

    def log_start(self) -> None:
        """Log that processes are started, which takes some seconds."""
        if self._at_once > 1:
            self.log(f"starting {self._at_once} processes")

    def log(self, text: str) -> None:
        """Log a text."""
        self.call(self._to, "log", text)

    def log_once(self, text: str) -> None:
        """Log a text, unless it was logged so before."""
        with self._lock:
            if text not in self._logged:
                self._logged.add(text)
                self._to.log(text)

    def call(self, callback: Callback, name: str, *arguments: Any) -> None:
        """Call a method of a callback, while no other run does."""
        with self._lock:
            getattr(callback, name)(*arguments)

    def began(self, name: str, rounds: int, done: int) -> None:
        """Note that the rounds of a run begin."""
        with self._lock:
            if not self._begun:
                self._since = time.monotonic()
            self._begun[name] = _Progress(rounds, done, done)
            self._show()

    def went_on(self, name: str, rounds: int, left: float | None) -> None:
        """Note that a run has done so many rounds."""
        with self._lock:
            self._begun[name].done, self._begun[name].left = rounds, left

    def done(self, name: str) -> None:
        """Count a run that is done."""
        with self._lock:
            self._done += 1
            if name in self._begun:
                self._begun[name].done, self._begun[name].left = self._begun[name].rounds, 0.0
            self._show()

    def log_what_is_left(self) -> None:
        """Log how many runs are done, and how long the others will take."""
        with self._lock:
            if self._done < self._total:
                left = self._left()
                rest = "" if left is None else f"; about {human_seconds(left)} left"
                self._to.log(f"{self._done} of {self._total:,} {self._what} done{rest}")

    def _show(self) -> None:
        if self._counts:
            self._to.on_progress(self._done, self._total, self._what)

    def _left(self) -> float | None:
        """Return the seconds that all runs take, as those that have begun took so far; None if unknown."""
        did = sum((one.done - one.before) / one.rounds for one in self._begun.values() if one.rounds)
        if not did:
            return None
        todo = self._total - self._before - len(self._begun)
        todo_in_parts = sum(1 - one.done / one.rounds for one in self._begun.values() if one.rounds)
        estimate = (time.monotonic() - self._since) / did * (max(0, todo) + todo_in_parts)
        return max([estimate, *(one.left or 0.0 for one in self._begun.values())])


class _OneRun:
    """The callback of one of several runs.

    Args:
        to: What is called.
        prefix: What is put before that which it logs after it has begun.
    """

    def __init__(self, runs: RunsCallback, to: Callback, name: str, prefix: str) -> None:
        self._runs, self._to, self._name, self._prefix = runs, to, name, prefix
        self._begun = False

    def log(self, text: str) -> None:
        """Log a text: of a run that has not begun yet, unless another has logged it."""
        if self._begun:
            self._runs.log(f"{self._prefix}{text}")
        else:
            self._runs.log_once(text)

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds begin."""
        self._begun = True
        self._runs.call(self._to, "started", run, experiment, rounds, done)
        self._runs.began(self._name, rounds, done)

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Report how far a round is, unless how many runs are done is reported."""
        if not self._prefix:
            self._to.on_progress(done, of, what)

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Report a round."""
        self._runs.went_on(self._name, line["round"], left)
        self._runs.call(self._to, "on_round", line, left)

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Report that the run is finished."""
        self._runs.call(self._to, "finished", run, summary)
