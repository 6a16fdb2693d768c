"""What is said of a process that ended by itself."""

import signal
from typing import IO

from fednlp.errors import RunError


def death(what: str, code: int, log: IO[bytes], advice: str) -> RunError:
    """Return the error for a process that died.

    Args:
        what: What it was.
        code: What it ended with; the negative number of a signal.
        log: What it wrote to standard error, of which the last line is quoted.
        advice: For one that the system killed, as it does when memory is short.

    >>> import io
    >>> death("a worker process", -9, io.BytesIO(b"one\\ntwo\\n"), "try fewer")
    RunError('a worker process died (signal SIGKILL: two); was memory short? try fewer')
    """
    log.seek(0)
    last = log.read().decode(errors="replace").strip().splitlines()[-1:]
    why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    hint = f"; was memory short? {advice}" if code == -signal.SIGKILL else ""
    return RunError(f"{what} died ({why}{': ' + last[0] if last else ''}){hint}")
