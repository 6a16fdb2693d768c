"""A worker process as the pool sees it: started, spoken to in JSON lines, and stopped.

A process takes seconds to import PyTorch. So a command can start its workers ahead (:func:`started_ahead`), before it
imports PyTorch itself, and the pool that it opens later takes them; and several runs can have the same workers, one run
after the other (:func:`kept_workers`). This module needs no PyTorch.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fednlp.clock import IDLE, timed
from fednlp.errors import RunError
from fednlp.runtime.child import ChildProcess
from fednlp.runtime.placement import WORKER


@dataclass(frozen=True)
class WorkerCommand:
    """What a worker process is started with.

    Attributes:
        number: Of the worker, from 1.
        factory: ``"module:function"`` that builds the worker.
        preload: Modules that the factory will need.
    """

    number: int
    factory: str
    threads: int
    preload: tuple[str, ...]


class WorkerProcess:
    """One worker process.

    Attributes:
        command: What it was started with.
        spent: The nanoseconds of each part, as of its last answer.
        until: The moment of that answer, by :func:`time.monotonic_ns`.
    """

    def __init__(self, command: WorkerCommand) -> None:
        threads = str(command.threads)
        self._child = ChildProcess(
            ["fednlp.runtime.worker", command.factory, threads, *command.preload],
            {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, WORKER: str(command.number)},
            "a worker process",
            "try a smaller runtime.workers",
        )
        self.command = command
        self._asked = False
        self._unread = 0
        self.begin()

    def begin(self) -> None:
        """Measure its time from here on: a run begins."""
        self.spent: dict[str, int] = {}
        self.until = time.monotonic_ns()

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._child.alive

    def end_run(self) -> bool:
        """Have the worker forget its run and wait for another; return whether it can."""
        if self._unread or not self.alive:
            return False
        if self._asked:
            try:
                self.send({"over": True})
            except RunError:  # it has just died
                return False
            self._asked, self._unread = False, 0
        return True

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            RunError: The process died.
        """
        self._asked = True
        self._unread += 1
        self._child.send(message)

    def receive(self) -> dict[str, Any]:
        """Wait for an answer, and return its results.

        Raises:
            RunError: The process died or failed.
        """
        with timed(IDLE):
            message = self._child.receive()
        if "error" in message:
            raise RunError(f"a worker process failed: {message['error']}")
        self._unread -= 1
        if "spent" in message:
            self.spent, self.until = message["spent"], message["until"]
        results: dict[str, Any] = message["results"]
        return results

    def stop(self) -> None:
        """End the process: one that was asked for something gets half a second to end by itself."""
        self._child.stop(0.5 if self._asked else 0)


_ahead: ContextVar[list[WorkerProcess] | None] = ContextVar("ahead", default=None)


@contextmanager
def started_ahead(commands: Iterable[WorkerCommand]) -> Iterator[None]:
    """Start worker processes for the pool that the block will open, and stop those that it has not taken."""
    processes: list[WorkerProcess] = []
    token = _ahead.set(processes)
    try:
        for command in commands:
            processes.append(WorkerProcess(command))
        yield
    finally:
        _ahead.reset(token)
        for process in processes:
            process.stop()


_kept: ContextVar[list[WorkerProcess] | None] = ContextVar("kept", default=None)


@contextmanager
def kept_workers() -> Iterator[None]:
    """Have the pools of the block, one after the other, take the same worker processes; they are stopped at its end."""
    if _kept.get() is not None:  # until the end of the block around this one
        yield
        return
    processes: list[WorkerProcess] = []
    token = _kept.set(processes)
    try:
        yield
    finally:
        _kept.reset(token)
        for process in processes:
            process.stop()


def start_worker(command: WorkerCommand) -> WorkerProcess:
    """Return a worker process: one that was started ahead by the same command or was kept, or else a new one."""
    for processes in (_ahead.get() or [], _kept.get() or []):
        for process in processes:
            if process.command == command and process.alive:
                processes.remove(process)
                process.begin()
                return process
    return WorkerProcess(command)


def let_go(process: WorkerProcess) -> None:
    """Take a worker process back from a pool: keep it if its like are kept, or else stop it."""
    kept = _kept.get()
    if kept is not None and process.end_run():
        kept.append(process)
    else:
        process.stop()
