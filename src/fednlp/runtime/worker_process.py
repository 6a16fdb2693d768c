"""A worker process as the pool sees it: started, spoken to in JSON lines, and stopped.

A process takes seconds to import PyTorch. So a command can start its workers ahead (:func:`started_ahead`), before it
imports PyTorch itself, and the pool that it opens later takes them; and several runs can have the same workers, one run
after the other (:func:`kept_workers`). This module needs no PyTorch.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any

from fednlp.clock import IDLE, timed
from fednlp.errors import RunError
from fednlp.runtime.death import death
from fednlp.runtime.placement import WORKER
from fednlp.startup.quick_import import SWITCH


@dataclass(frozen=True)
class WorkerCommand:
    """What a worker process is started with.

    Attributes:
        number: Of the worker, from 1.
        factory: ``"module:function"`` that builds the worker.
        threads: Its torch threads.
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
        own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, WORKER: str(command.number)}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fednlp.runtime.worker", command.factory, threads, *command.preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={SWITCH: "1"} | os.environ | own,  # no process of the user's own
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the workers
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
        return self._process.poll() is None

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
        assert self._process.stdin is not None
        self._asked = True
        self._unread += 1
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> dict[str, Any]:
        """Wait for an answer, and return its results.

        Raises:
            RunError: The process died or failed.
        """
        assert self._process.stdout is not None
        with timed(IDLE):
            line = self._process.stdout.readline()
        if not line:
            raise self._death()
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise RunError(f"a worker process failed: {message['error']}")
        self._unread -= 1
        if "spent" in message:
            self.spent, self.until = message["spent"], message["until"]
        results: dict[str, Any] = message["results"]
        return results

    def _death(self) -> RunError:
        code = self._process.wait()
        return death("a worker process", code, self._log, "try a smaller runtime.workers")

    def stop(self) -> None:
        """End the process: one that was asked for something gets half a second to end by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=0.5 if self._asked else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


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
