"""A child process of ours, and the JSON lines between it and this process."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from fednlp.errors import RunError
from fednlp.startup.quick_import import SWITCH


class ChildProcess:
    """``python -m MODULE ARGUMENT...``, which answers JSON lines with JSON lines.

    Args:
        command: The module and its arguments.
        own: Variables of its environment beside those of this process.
        what: Its name in the error that says how it died.
        advice: For one that the system killed, as it does when memory is short.
    """

    def __init__(self, command: Sequence[str], own: dict[str, str], what: str, advice: str) -> None:
        self._what, self._advice = what, advice
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={SWITCH: "1"} | os.environ | own,  # no process of the user's own
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line.

        Raises:
            RunError: The process died.
        """
        try:
            write_line(self._to, message)
        except (BrokenPipeError, ValueError):  # closed by its end, or by another thread
            raise self._death() from None

    def receive(self) -> dict[str, Any]:
        """Wait for a line.

        Raises:
            RunError: The process died.
        """
        line = self._from.readline()
        if not line:
            raise self._death()
        message: dict[str, Any] = json.loads(line)
        return message

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it has ended."""
        self._process.send_signal(number)

    def stop(self, patience: float) -> None:
        """Close its input, and kill it if it has not ended some seconds later."""
        with suppress(BrokenPipeError):
            self._to.close()
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
        self._log.close()

    def _death(self) -> RunError:
        return _death(self._what, self._process.wait(), self._log, self._advice)


def _death(what: str, code: int, log: IO[bytes], advice: str) -> RunError:
    """Return the error for a process that ended by itself with a code, the negative number of a signal.

    >>> import io
    >>> _death("a worker process", -9, io.BytesIO(b"one\\ntwo\\n"), "try fewer")
    RunError('a worker process died (signal SIGKILL: two); was memory short? try fewer')
    """
    log.seek(0)
    last = log.read().decode(errors="replace").strip().splitlines()[-1:]
    why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    hint = f"; was memory short? {advice}" if code == -signal.SIGKILL else ""
    return RunError(f"{what} died ({why}{': ' + last[0] if last else ''}){hint}")


def write_line(pipe: IO[bytes], message: Mapping[str, Any]) -> None:
    """Write a JSON line at once."""
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def answers_to_parent() -> IO[bytes]:
    """Return this child's pipe to its parent, and send whatever a library prints from here on to the log."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def function_named(name: str) -> Callable[..., Any]:
    """Return the function ``"module:function"``."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
