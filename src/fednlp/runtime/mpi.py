"""Workers as MPI processes, on one machine or on many: ``mpirun -n 5 fednlp run EXPERIMENT``.

Rank 0 runs the experiment and is a worker too; the others answer requests (:mod:`fednlp.runtime.mpi_follower`). Rank 0
hands these out, one at a time to whoever is free. The model is broadcast, and the totals of updates are merged on the
way back (:mod:`fednlp.runtime.mpi_totals`). Neither the number of ranks nor their speed leaves a trace in the weights.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fednlp.clock import IDLE, timed
from fednlp.errors import RunError
from fednlp.runtime.engine import Worker, answered, vectors_in
from fednlp.runtime.launch import rank_of
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.mpi_messages import (
    ANSWERS,
    BUILT,
    NEXT,
    NUMBER,
    SHORT_NAP,
    end_all,
    received,
    send,
    world,
)
from fednlp.runtime.mpi_totals import merge_below
from fednlp.runtime.schedule import scheduled
from fednlp.runtime.shared import PrivateRoom
from fednlp.runtime.travelling import Arriving

_within_round = threading.Event()
"""Set while other ranks are within a round."""


@contextmanager
def leading() -> Iterator[None]:
    """Let the other ranks go at the end of a block; where it ends within a round, stop them at once."""
    comm = world()
    try:
        yield
    finally:
        if _within_round.is_set():
            end_all(comm)
        for rank in range(1, comm.Get_size()):
            send(comm, rank, {"end": True})


class Mpi:
    """The engine of rank 0.

    Args:
        workers: Not needed: as many as there are ranks.
        factory: ``"module:function"`` that builds a worker in another rank from arguments.
        threads: torch threads of each worker.
        preload: Modules that the factory will need.

    Raises:
        RunError: There is no launcher, or this is not rank 0.
    """

    def __init__(self, workers: int, factory: str, threads: int = 1, preload: Sequence[str] = ()) -> None:
        rank, size = rank_of()
        if rank:
            raise RunError("only rank 0 runs an experiment: start it as mpirun -n N fednlp run EXPERIMENT")
        self._comm, self._factory, self._threads, self._size = world(), factory, threads, size
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        self.vectors: dict[str, Tensor] = {}
        self.total: Any = None
        self._changed: dict[str, None] = {}
        self._building = 0
        self._order({"preload": list(preload), "threads": threads})

    def __len__(self) -> int:
        return self._size

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        """Have the other ranks build their workers.

        Args:
            worker: The one in this process.
            arguments: JSON values from which the factory builds the same worker elsewhere.
        """
        self.worker = worker
        self.vectors = vectors_in(worker, PrivateRoom())
        self.total = worker.new_total(PrivateRoom())
        self._arriving = Arriving(worker)
        self._order({"factory": self._factory, "arguments": arguments, "threads": self._threads})
        self._building = self._size - 1

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let all ranks have a vector under a name; it is sent with the next requests."""
        if vector is not self.vectors[name]:
            self.vectors[name].copy_(vector)
        self._changed[name] = None

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered by all ranks; return the answers in their order. Updates are in ``self.total``.

        Args:
            requests: In any order.
            on_progress: Told how many are answered.

        Raises:
            RunError: A rank failed; the message says how.
        """
        faults = self._built()
        if faults:
            raise RunError(f"a worker failed: {faults[0]}")
        order = scheduled(requests, self.worker.work, self._size)
        requests = [requests[number] for number in order]
        _within_round.set()
        self._order({"requests": [to_json(request) for request in requests], "changed": list(self._changed)})
        for name in self._changed:
            self._comm.Bcast(self.vectors[name].numpy(), root=0)
        self._changed.clear()
        with _HandingOut(self._comm, len(requests)) as numbers:
            by_number = self._own(requests, numbers.take, on_progress)
        for rank in range(1, self._size):
            with timed(IDLE):
                answers = received(self._comm, rank, ANSWERS)
            if "error" in answers:
                faults.append(answers["error"])
            else:
                by_number |= {int(number): from_json(answer) for number, answer in answers.items()}
        merge_below(self._comm, self._arriving, self.total)
        _within_round.clear()  # also where one has failed: all wait for the next order
        if faults:
            raise RunError(f"a worker failed: {faults[0]}")
        on_progress(len(requests))
        in_order = {number: by_number[place] for place, number in enumerate(order)}
        return [in_order[number] for number in range(len(requests))]

    def _own(
        self, requests: Sequence[Any], take: Callable[[], int], on_progress: Callable[[int], None]
    ) -> dict[int, Any]:
        """Answer requests here until none is left."""
        by_number: dict[int, Any] = {}
        self.worker.begin()
        while (number := take()) < len(requests):
            request = requests[number]
            by_number[number] = answered(self.worker, request, self.vectors, self.total)
            on_progress(number + 1)
        return by_number

    def _built(self) -> list[str]:
        """Wait until the other ranks have built their workers; return the errors of those that could not."""
        ranks = range(self._size - self._building, self._size)
        self._building = 0
        built = [received(self._comm, rank, BUILT) for rank in ranks]
        return [one["error"] for one in built if "error" in one]

    def _order(self, order: dict[str, Any]) -> None:
        for rank in range(1, self._size):
            send(self._comm, rank, order)

    def close(self) -> None:
        """Give torch its threads back; the ranks wait for the next run."""
        self._built()
        torch.set_num_threads(self._threads_before)
        self.total = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _HandingOut:
    """Gives out the numbers of requests, to this process and, in a thread, to the other ranks."""

    def __init__(self, comm: Any, count: int) -> None:
        self._comm, self._count, self._given = comm, count, 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def take(self) -> int:
        """Return the number of the next request."""
        with self._lock:
            self._given += 1
            return self._given - 1

    def _serve(self) -> None:
        from mpi4py import MPI

        waiting, status = self._comm.Get_size() - 1, MPI.Status()
        while waiting:
            if not self._comm.Iprobe(tag=NEXT, status=status):
                time.sleep(SHORT_NAP)
                continue
            rank = status.Get_source()
            self._comm.Recv(bytearray(1), rank, NEXT)
            number = self.take()
            waiting -= number >= self._count
            self._comm.Send(np.array([number]), rank, NUMBER)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._thread.join()
