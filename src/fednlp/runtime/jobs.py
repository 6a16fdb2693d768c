"""Jobs in processes of their own, several at once, or one after the other in this process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from fednlp.errors import ConfigError, RunError
from fednlp.processor import cores
from fednlp.runtime.child import ChildProcess
from fednlp.runtime.job import as_error, as_exception
from fednlp.runtime.launch import rank_of

_PATIENCE = 20.0
"""Seconds that a process has to end by itself."""
_T = TypeVar("_T")
_Job = TypeVar("_Job")


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
        self._child: ChildProcess | None = None
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
        child = self._running()
        message: dict[str, Any] = {"function": function, "arguments": dict(arguments)}
        failed: Exception | None = None
        while "said" in (line := self._exchange(child, message)):
            try:
                if failed is None:
                    hear(line["said"])
            except Exception as error:
                failed = error
            message = {"go": failed is None and not self._stopped}
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
        self._end_by(signal.SIGINT)

    def kill(self) -> None:
        """End the process at once."""
        self._end_by(signal.SIGKILL)

    def _end_by(self, number: signal.Signals) -> None:
        self._stopped = True
        child = self._child
        if child is not None:
            child.send_signal(number)

    def close(self) -> None:
        """Let the process end, and forget it; nothing may wait for an answer."""
        self._stopped = True
        child, self._child = self._child, None
        if child is not None:
            child.stop(_PATIENCE)

    def _running(self) -> ChildProcess:
        if self._stopped:
            raise Interrupted
        if self._child is None:
            self._child = ChildProcess(
                ["fednlp.runtime.job", ",".join(map(str, self._share.cores))],
                {} if self._share.gpus is None else {"CUDA_VISIBLE_DEVICES": self._share.gpus},
                "a process for jobs",
                "try fewer jobs",
            )
        return self._child

    def _exchange(self, child: ChildProcess, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a line, and return the next; a process that dies is forgotten, and the next job has a new one."""
        try:
            child.send(message)
            return child.receive()
        except RunError:
            if self._stopped:
                raise Interrupted from None
            self.close()
            self._stopped = False
            raise


class Jobs:
    """As a context, the processes for jobs; they are started when they are needed, and end with the block.

    Args:
        number: Jobs at once. One is done in this process, and its children may have the whole machine; of several each
            has its share of the cores, and of the GPUs if ``on_gpus``.
        on_gpus: Whether the GPUs, where there are several, are divided.

    Raises:
        ConfigError: It is less than 1, or several and ``mpirun`` started this process.
    """

    def __init__(self, number: int, *, on_gpus: bool = True) -> None:
        if number < 1:
            raise ConfigError(f"--jobs {number}: at least 1 is needed")
        if number > 1 and rank_of()[1] > 1:
            raise ConfigError(
                f"--jobs {number}: the ranks of mpirun work for one run at a time; start the command without mpirun, "
                "or leave --jobs out"
            )
        self.number = number
        self._on_gpus = on_gpus
        self._processes: list[JobProcess] = []

    def each(self, take: Callable[[], _Job | None], do: Callable[[_Job, JobProcess | None], None]) -> None:
        """Do jobs until there are none; the first error, or an interrupt, stops all of them.

        Args:
            take: Gives the next job; None if there is none as yet. It is asked again after a job is done, and ends the
                work if it gives none while nothing is done. It is called in one thread at a time.
            do: Does a job, in a process of those for jobs, or in this one if that is None. Several threads call it.
        """
        if self.number == 1:
            while (job := take()) is not None:
                do(job, None)
            return
        if not self._processes:
            self._processes = [JobProcess(share) for share in _shares(self.number, cores(), self._gpus())]
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        work = _Work(take, do)

        def serve(process: JobProcess) -> None:
            try:
                while (job := work.next()) is not None:
                    work.carry_out(job, process)
            except BaseException as error:  # it is raised again in the thread that waits
                work.end()
                ended.put(error)
            else:
                ended.put(None)

        threads = [
            threading.Thread(target=serve, args=(process,), daemon=True) for process in self._processes
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                error = ended.get()
                if error is not None:
                    raise error
            for thread in threads:
                thread.join()
        except BaseException:
            work.end()
            self._interrupt([thread for thread in threads if thread.ident is not None])
            raise

    def _interrupt(self, threads: Sequence[threading.Thread]) -> None:
        """Stop what is being done; a process that goes on is killed, and all are if it is interrupted itself."""
        try:
            for process in self._processes:
                process.interrupt()
            _join(threads)
        finally:
            for process in self._processes:
                process.kill()
        _join(threads)

    def _gpus(self) -> list[str]:
        """Return the names of the GPUs that are to be divided."""
        import torch

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        count = torch.cuda.device_count() if self._on_gpus else 0
        return visible.split(",")[:count] if visible else [str(number) for number in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()


class _Work(Generic[_Job]):
    """Jobs that several threads take and do."""

    def __init__(
        self, take: Callable[[], _Job | None], do: Callable[[_Job, JobProcess | None], None]
    ) -> None:
        self._take, self._do = take, do
        self._changed = threading.Condition()
        self._doing = 0
        self._over = False

    def next(self) -> _Job | None:
        """Return the next job, for which it waits while others are done; None if there is none."""
        with self._changed:
            while not self._over:
                job = self._take()
                if job is not None:
                    self._doing += 1
                    return job
                if not self._doing:
                    break
                self._changed.wait()
            return None

    def carry_out(self, job: _Job, process: JobProcess) -> None:
        """Do a job, and let others know."""
        try:
            self._do(job, process)
        finally:
            with self._changed:
                self._doing -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Give out no further jobs."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


def _join(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads, but not for long: one may be loading data."""
    end = time.monotonic() + _PATIENCE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def _shares(jobs: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Share]:
    """Divide the machine among jobs.

    Args:
        jobs: How many there are at once.
        cores: Numbers of the cores; where there are fewer than jobs, jobs share them.
        gpus: Names of the GPUs, as in ``CUDA_VISIBLE_DEVICES``; with fewer than two nothing is divided.

    >>> [share.cores for share in _shares(2, range(5), [])]
    [(0, 2, 4), (1, 3)]
    >>> [share.gpus for share in _shares(3, range(4), ["0", "1"])]
    ['0', '1', '0']
    """
    return [
        Share(_every(number, jobs, cores), ",".join(_every(number, jobs, gpus)) if len(gpus) > 1 else None)
        for number in range(jobs)
    ]


def _every(number: int, jobs: int, things: Sequence[_T]) -> tuple[_T, ...]:
    """Return every ``jobs``-th of some things, or one of them where there are fewer."""
    if not things:
        return ()
    return tuple(things[number::jobs]) or (things[number % len(things)],)
