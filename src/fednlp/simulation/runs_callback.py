"""How several runs report their progress to one callback: one after the other, or several at once."""

import threading
from typing import Any

from fednlp.config import Experiment
from fednlp.reports.round_line import round_text, round_warnings
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir


class RunsCallback:
    """Gives each of several runs a callback of its own, all of which call one, in one thread at a time.

    What runs log before they begin is about data and partition, and is logged once. Of runs at once, a round would not
    say to which run it belongs: it is logged with the run's name, and so is what a run logs after it has begun.

    Args:
        callback: Reports progress.
        runs: How many there are to do.
        at_once: Whether several are done at once.
    """

    def __init__(self, callback: Callback, runs: int, at_once: bool) -> None:
        self._to, self._runs, self._at_once = callback, runs, at_once
        self._lock = threading.RLock()
        self._logged: set[str] = set()
        self._done = 0

    def of(self, name: str) -> Callback:
        """Return the callback of a run.

        Args:
            name: Of the run, for people.
        """
        return _OneOfSeveral(self, name) if self._at_once else _OneAlone(self, self._to)

    def log(self, text: str) -> None:
        """Log a text."""
        with self._lock:
            self._to.log(text)

    def log_once(self, text: str) -> None:
        """Log a text, unless it was logged so before."""
        with self._lock:
            if text not in self._logged:
                self._logged.add(text)
                self._to.log(text)

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds of a run begin."""
        with self._lock:
            self._to.started(run, experiment, rounds, done)
            if self._at_once:
                self._to.on_progress(self._done, self._runs, "runs")

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Report that a run is finished."""
        with self._lock:
            self._to.finished(run, summary)

    def done(self) -> int:
        """Count a run that is done; return how many there are."""
        with self._lock:
            self._done += 1
            if self._at_once:
                self._to.on_progress(self._done, self._runs, "runs")
            return self._done


class _OneAlone:
    """The callback of a run that is done while no other is."""

    def __init__(self, runs: RunsCallback, to: Callback) -> None:
        self._runs, self._to = runs, to
        self.log = runs.log_once
        self.on_progress, self.on_round, self.finished = to.on_progress, to.on_round, to.finished

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds begin; from here on everything is logged."""
        self.log = self._runs.log
        self._to.started(run, experiment, rounds, done)


class _OneOfSeveral:
    """The callback of a run that is done while others are."""

    def __init__(self, runs: RunsCallback, name: str) -> None:
        self._runs, self._name = runs, name
        self._rounds = 0
        self._metric = ""
        self.finished = runs.finished

    def log(self, text: str) -> None:
        """Log a text, with the name of the run once it has begun."""
        if self._rounds:
            self._runs.log(f"{self._name}: {text}")
        else:
            self._runs.log_once(text)

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds begin."""
        self._rounds = rounds
        self._metric = run.read_json("environment.json")["data"].get("metric", "accuracy")
        self._runs.started(run, experiment, rounds, done)

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Say nothing: the bar is that of all runs."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Log a round, and what went wrong in it."""
        self._runs.log(f"{self._name}: {round_text(line, self._rounds, self._metric, left)}")
        for warning in round_warnings(line):
            self._runs.log(f"{self._name}: warning: {warning}")
