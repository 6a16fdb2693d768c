"""A run in a process of its own that is killed in the middle, as by a power cut."""

import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import fednlp
from fednlp.simulation.callback import NullCallback

_WITH = (
    "fednlp",
    "fednlp.simulation.train",
    "fednlp.training.worker",
    "transformers.modeling_utils",
    __name__,
)


class _Killed(NullCallback):
    """Kills its process once so many rounds, and then so many pieces of work, are done."""

    def __init__(self, rounds: int, pieces: int) -> None:
        self.rounds, self.pieces = rounds, pieces

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        self.rounds -= 1

    def on_progress(self, done: int, of: int, what: str) -> None:
        if self.rounds <= 0:
            self.pieces -= 1
            if self.pieces <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _run(document: dict[str, Any], folder: Path, rounds: int, pieces: int) -> None:
    fednlp.run(document, folder, callback=_Killed(rounds, pieces))


def run_killed(document: dict[str, Any], folder: Path, rounds: int, pieces: int) -> None:
    """Begin a run, and have it killed within a round.

    Args:
        document: The experiment.
        folder: Of the run.
        rounds: How many are done before it.
        pieces: How many pieces of work of the next one are.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_WITH))
    process: ForkServerProcess = context.Process(target=_run, args=(document, folder, rounds, pieces))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, process.exitcode
