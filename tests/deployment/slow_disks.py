"""A disk that takes its time: a job stops before and after each slow thing, until it is let go on or killed."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fednlp.deployment.session.objects import Partial
from fednlp.deployment.session.replies import Inbox, RunOutbox

_OWN = threading.local()
_SLOW: list[tuple[type[Any], str]] = [
    (Partial, "sync"),
    (Inbox, "write"),
    (Inbox, "clear"),
    (RunOutbox, "keep"),
]


class _Killed(BaseException):
    """The process of a job has ended."""


class Job:
    """A job in a thread of its own, which runs only while somebody waits in :meth:`step`."""

    def __init__(self, work: Callable[[], None], name: str = "") -> None:
        self.name, self.done = name, False
        self.error: BaseException | None = None
        self._killed = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        _OWN.job = self
        self._go.acquire()
        try:
            if not self._killed:
                work()
        except _Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._back.release()

    def stop(self) -> None:
        """Wait in the job's own thread until it is to go on."""
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise _Killed

    def step(self) -> None:
        """Let it go on to the next slow thing, or to its end."""
        self._go.release()
        self._back.acquire()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        while not self.done:
            self.step()
        self._thread.join()


def make_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs stop before and after each slow thing."""
    for owner, name in _SLOW:
        monkeypatch.setattr(owner, name, _slow(getattr(owner, name)))


def _slow(method: Callable[..., Any]) -> Callable[..., Any]:
    def stopping(self: Any, *arguments: Any) -> Any:
        job = getattr(_OWN, "job", None)
        if job is None:
            return method(self, *arguments)
        job.stop()
        found = method(self, *arguments)
        job.stop()
        return found

    return stopping
