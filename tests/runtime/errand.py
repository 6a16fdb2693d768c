"""Functions for processes for jobs, as a user's own module that they import."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from fednlp import errors
from fednlp.runtime.job import Say


def add(a: float, b: float, say: Say) -> float:
    """Return a sum."""
    return a + b


def count(upto: int, say: Say) -> int:
    """Say each number, and return how many there were."""
    for number in range(upto):
        say({"number": number})
    return upto


def fail(kind: str, problems: list[str], say: Say) -> None:
    """Raise an error of fednlp, or another."""
    error: Any = getattr(errors, kind, ValueError)
    if kind == "ConfigError":
        raise error("that is wrong", problems)
    raised = error("that is wrong")
    if kind == "DamagedError":
        raised.what = "a file is cut short"
    raise raised


def compute(seconds: float, say: Say) -> None:
    """Take some CPU seconds."""
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


def die(say: Say) -> None:
    """End the process as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def shown(text: str, say: Say) -> str:
    """Print, as a library may."""
    print(text)
    os.write(1, text.encode())
    return text


def own_cores(say: Say) -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def variable(name: str, say: Say) -> str | None:
    """Return a variable of the environment."""
    return os.environ.get(name)


def process(say: Say) -> int:
    """Return the number of this process."""
    return os.getpid()


def wait(file: str, say: Say) -> None:
    """Write a file, and then wait for long; the file says how it ended."""
    Path(file).write_text("begun")
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        Path(file).write_text("interrupted")
        raise


def stubborn(file: str, say: Say) -> None:
    """Write a file, and then wait for long, whatever is asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path(file).write_text("begun")
    time.sleep(600)
