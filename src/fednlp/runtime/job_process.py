"""A process for jobs as the one sees it that started it: it does one job after the other, beside others."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from fednlp.errors import RunError
from fednlp.runtime.death import death
from fednlp.runtime.job_errors import as_error, as_exception
from fednlp.startup.quick_import import SWITCH

PATIENCE = 20.0
"""Seconds that a process has to end by itself."""
_T = TypeVar("_T")


class Interrupted(Exception):
    """A job was given up because the processes were to end."""


@dataclass(frozen=True)
class Share:
    """What a process may use of the machine.

    Attributes:
        cores: Numbers of the cores.
        gpus: ``CUDA_VISIBLE_DEVICES`` of it; None to leave that as it is.
    """

    cores: tuple[int, ...]
    gpus: str | None = None


class JobProcess:
    """One process; it is started by the first job.

    Args:
        share: What it may use of the machine.

    Attributes:
        cpu_seconds: What its jobs took so far, those among them that failed or were stopped.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._stopped = False
        self.cpu_seconds = 0.0

    def do(self, function: str, arguments: Mapping[str, Any], hear: Callable[[dict[str, Any]], None]) -> Any:
        """Have a function called, and return its result, a JSON value.

        Args:
            function: ``"module:function"``. It gets the arguments by name, and ``say``, which tells us something.
            arguments: JSON values.
            hear: Called with what it says, while it waits. If this raises, the function is stopped at that point.

        Raises:
            FednlpError: As the function; or a :class:`RunError` if its process died.
            Fault: The function raised another error.
            Interrupted: The process was interrupted.
        """
        process = self._running()
        self._send(process, {"function": function, "arguments": dict(arguments)})
        failed: Exception | None = None
        while True:
            line = self._receive(process)
            if "said" in line:
                try:
                    if failed is None:
                        hear(line["said"])
                except Exception as error:
                    failed = error
                self._send(process, {"go": failed is None and not self._stopped})
                continue
            self.cpu_seconds += line["cpu_seconds"]
            if failed is not None:
                raise failed
            if "error" in line:
                raise as_error(line["error"])
            if "result" in line:
                return line["result"]
            if "fault" in line:
                raise as_exception(line["fault"])
            raise Interrupted if self._stopped else RunError("a process for jobs was interrupted")

    def interrupt(self) -> None:
        """Have the process give up what it does; it is not started again."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process at once."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Let the process end, and forget it; nothing may wait for an answer."""
        self._stopped = True
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        assert self._log is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._log.close()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._stopped:
            raise Interrupted
        if self._process is None:
            cores = ",".join(map(str, self._share.cores))
            gpus = {} if self._share.gpus is None else {"CUDA_VISIBLE_DEVICES": self._share.gpus}
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fednlp.runtime.job", cores],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={SWITCH: "1"} | os.environ | gpus,
                start_new_session=True,  # Ctrl-C reaches the process that started it alone, which then stops it
            )
        return self._process

    def _send(self, process: "subprocess.Popen[bytes]", message: dict[str, Any]) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except (BrokenPipeError, ValueError):  # closed by its end, or by stop
            raise self._death(process) from None

    def _receive(self, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise self._death(process)
        message: dict[str, Any] = json.loads(line)
        return message

    def _death(self, process: "subprocess.Popen[bytes]") -> Exception:
        """Return an error for the end of the process; the next job has a new one."""
        assert self._log is not None
        code = process.wait()
        if self._stopped:
            return Interrupted()
        error = death("a process for jobs", code, self._log, "try fewer jobs")
        self.close()
        self._stopped = False
        return error


def shares(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Share]:
    """Divide the machine among jobs.

    Args:
        jobs: How many there are at once.
        cores: Numbers of the cores; where there are fewer than jobs, jobs share them.
        gpus: Names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``; with fewer than two nothing is divided.

    >>> [share.cores for share in shares(2, range(5), [])]
    [(0, 2, 4), (1, 3)]
    >>> [share.gpus for share in shares(3, range(4), ["0", "1"])]
    ['0', '1', '0']
    """
    return [
        Share(_share(number, jobs, cores), ",".join(_share(number, jobs, gpus)) if len(gpus) > 1 else None)
        for number in range(jobs)
    ]


def _share(number: int, jobs: int, things: Sequence[_T]) -> tuple[_T, ...]:
    """Return every ``jobs``-th of some things, or one of them where there are fewer."""
    if not things:
        return ()
    return tuple(things[number::jobs]) or (things[number % len(things)],)
