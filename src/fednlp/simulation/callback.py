"""Callbacks: how a run reports its progress to a terminal, a notebook or a test."""

import logging
import sys
from typing import Any, Protocol

from fednlp import plugins
from fednlp.config import Experiment
from fednlp.federated.cohort import failures
from fednlp.simulation.run_dir import RunDir

logger = logging.getLogger("fednlp")


class Callback(Protocol):
    """The methods that a run calls to report its progress."""

    def log(self, text: str) -> None:
        """Report a message, for example before a slow step."""

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds begin.

        Args:
            experiment: The run's configuration, resolved.
            rounds: Number of rounds of the run.
            done: Number of rounds that were done before.
        """

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Report that some of a round's clients (or test batches) are done.

        Args:
            what: What is counted, for example ``"clients"``.
        """

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Report that a round is done and saved.

        Args:
            line: The round's line of ``rounds.jsonl``.
            left: Estimate of the remaining time in seconds; None if unknown.
        """

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Report that all files are written; ``summary`` is the content of ``summary.json``."""


class NullCallback:
    """A callback that only logs a warning where a client is dropped or fails."""

    def log(self, text: str) -> None:
        """Do nothing."""

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Do nothing."""

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Do nothing."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Warn of clients that were dropped."""
        for dropped in failures(line):
            logger.warning(
                "round %d: client %d was dropped: %s", line["round"], dropped["client"], dropped["reason"]
            )

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Warn of clients that failed in their fine-tuning steps."""
        for failed in summary.get("finetune_failed", []):
            logger.warning(
                "client %d failed in its fine-tuning steps: %s", failed["client"], failed["reason"]
            )


def default_callback() -> Callback:
    """Return the default callback of a run: the console in a notebook, else a :class:`NullCallback`."""
    if not _in_notebook():
        return NullCallback()
    # By name, since simulation must not import cli: cli imports simulation.
    console: Callback = plugins.load("fednlp.cli.console:CellConsole", "callback")()
    return console


def _in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
