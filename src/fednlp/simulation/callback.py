"""Callbacks: how a run reports its progress to a terminal, a notebook or a test."""

import logging
import sys
from typing import Any, Protocol

from fednlp import plugins
from fednlp.config import Experiment
from fednlp.simulation.run_dir import RunDir

logger = logging.getLogger("fednlp")


class Callback(Protocol):
    """What a run calls while it is under way: a console, a notebook's output, or a test."""

    def log(self, text: str) -> None:
        """Report that something slow begins, or something worth knowing."""

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Report that the rounds begin; ``done`` of ``rounds`` were done before."""

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Report that some of a round's clients (or test batches) are done."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Report that a round is done and saved.

        Args:
            line: The round's line of ``rounds.jsonl``.
            left: Estimate of the remaining time in seconds; None where there is none.
        """

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Report that all files are written; ``summary`` is ``summary.json``."""


class NullCallback:
    """A callback that reports nothing, except a warning to the log where a client is dropped or fails."""

    def log(self, text: str) -> None:
        """Do nothing."""

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Do nothing."""

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Do nothing."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Warn of clients that were dropped."""
        for dropped in line.get("dropped", []):
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
    """Return the callback of a run that is given none: the console in a notebook, else a :class:`NullCallback`."""
    if not _in_notebook():
        return NullCallback()
    # By name, since simulation must not import cli: cli imports simulation.
    console: Callback = plugins.load("fednlp.cli.console:Console", "callback")()
    return console


def _in_notebook() -> bool:
    """Return whether this is the process of a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
