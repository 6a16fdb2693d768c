"""Does several jobs at once, each in a process of its own, or one after the other in this process."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

from fednlp.errors import ConfigError
from fednlp.processor import cores
from fednlp.runtime.job_process import PATIENCE, JobProcess, shares
from fednlp.runtime.launch import rank_of

_Job = TypeVar("_Job")


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
            self._processes = [JobProcess(share) for share in shares(self.number, cores(), self._gpus())]
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
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
