"""Workers as MPI processes, on one machine or on many: ``mpirun -n 5 fednlp run EXPERIMENT``.

Rank 0 runs the experiment and is a worker too (:class:`Mpi`); the others answer requests (:func:`follow`). Rank 0 hands
these out, one at a time to whoever is free. The model is broadcast. Totals of updates are merged on the way back, along
a binary tree whose root is rank 0. They are exact sums, so neither the number of ranks, nor their speed, nor the shape
of the tree leaves a trace in the weights.

Messages are JSON; nothing is pickled. MPI's own waiting calls keep a core busy. So whoever waits for long asks at
intervals, and sleeps in between.
"""

import fcntl
import json
import os
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.clock import IDLE, timed
from fednlp.errors import MissingDependency, RunError, install_command
from fednlp.plugins import raised
from fednlp.runtime.engine import Worker, answered, vectors_in
from fednlp.runtime.launch import rank_of
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.schedule import scheduled
from fednlp.runtime.shared import PrivateRoom
from fednlp.runtime.travelling import Arriving, Piece, RemoteWorker, TravellingRoom, import_all

_ORDER, _NEXT, _NUMBER, _ANSWERS, _TOTAL, _BUILT = range(1, 7)
"""Tags of messages."""
_NAP, _SHORT_NAP = 2e-3, 2e-4
"""Seconds between two looks for a message: between rounds, and within one."""
_ENTRY = 3
"""Numbers in the head of a piece: how many blocks it has, how many values, and the length of its name and type."""
_within_round = threading.Event()
"""Set while other ranks are within a round."""


@contextmanager
def leading() -> Iterator[None]:
    """Let the other ranks go at the end of a block; where it ends within a round, stop them at once."""
    comm = _world()
    try:
        yield
    finally:
        if _within_round.is_set():
            end_all(comm)
        for rank in range(1, comm.Get_size()):
            _send(comm, rank, {"end": True})


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
        self._comm, self._factory, self._threads, self._size = _world(), factory, threads, size
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
                answers = _received(self._comm, rank, _ANSWERS)
            if "error" in answers:
                faults.append(answers["error"])
            else:
                by_number |= {int(number): from_json(answer) for number, answer in answers.items()}
        _merge_below(self._comm, self._arriving, self.total)
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
        built = [_received(self._comm, rank, _BUILT) for rank in ranks]
        return [one["error"] for one in built if "error" in one]

    def _order(self, order: dict[str, Any]) -> None:
        for rank in range(1, self._size):
            _send(self._comm, rank, order)

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
            if not self._comm.Iprobe(tag=_NEXT, status=status):
                time.sleep(_SHORT_NAP)
                continue
            rank = status.Get_source()
            self._comm.Recv(bytearray(1), rank, _NEXT)
            number = self.take()
            waiting -= number >= self._count
            self._comm.Send(np.array([number]), rank, _NUMBER)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._thread.join()


def follow() -> None:
    """Answer rank 0's requests until it lets this rank go: all that the other ranks do."""
    comm = _world()
    try:
        _follow(comm)
    except Exception as error:  # the others would wait for this rank for ever
        print(f"error: rank {comm.Get_rank()}: {raised(error)}", file=sys.stderr)
        end_all(comm)


def _follow(comm: Any) -> None:
    worker: RemoteWorker | None = None
    arriving: Arriving | None = None
    while True:
        order = _received(comm, 0, _ORDER, _NAP)
        if "end" in order:
            return
        if "preload" in order:
            torch.set_num_threads(order["threads"])
            with suppress(Exception):  # the factory says what it lacks
                import_all(order["preload"])
        elif "factory" in order:
            worker = arriving = None
            built = {}
            try:
                worker = RemoteWorker(order["factory"], order["arguments"], order["threads"])
                arriving = Arriving(worker.worker)
            except Exception as error:
                built = {"error": f"rank {comm.Get_rank()}: {raised(error)}"}
            _send(comm, 0, built, _BUILT)
        elif worker is not None and arriving is not None:
            _take_part(comm, order, worker, arriving)


def _take_part(comm: Any, order: dict[str, Any], worker: RemoteWorker, arriving: Arriving) -> None:
    """Answer requests of a round until none is left, then send the answers and the total."""
    requests, answers = order["requests"], dict[str, Any]()
    for name in order["changed"]:
        comm.Bcast(worker.vectors[name].numpy(), root=0)
    worker.worker.begin()
    while (number := _next_number(comm)) < len(requests):
        try:
            if "error" not in answers:
                answers[str(number)] = worker.answer(requests[number])
        except Exception as error:
            answers = {"error": f"rank {comm.Get_rank()}: {raised(error)}"}
    _send(comm, 0, answers, _ANSWERS)
    _merge_below(comm, arriving, worker.total)
    _send_up(comm, worker.hand_over())


def _world() -> Any:
    """Return the communicator of all ranks.

    Raises:
        MissingDependency: mpi4py is not installed.
    """
    try:
        from mpi4py import MPI
    except ImportError:
        raise MissingDependency(f"MPI needs mpi4py: run {install_command('mpi')}") from None
    return MPI.COMM_WORLD


def end_all(comm: Any) -> None:
    """Stop all ranks at once; what went wrong has been said, and MPI adds nothing to it."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        # A stream may be closed, or its disk full: the ranks are stopped all the same.
        with suppress(OSError, ValueError):
            stream.flush()
            _wait_for_reader(number)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    comm.Abort(1)


def _wait_for_reader(number: int) -> None:
    """Wait until a pipe has been read, 2 seconds at most: the launcher drops the rest when ranks are stopped."""
    if not stat.S_ISFIFO(os.fstat(number).st_mode):
        return
    unread, end = bytearray(4), time.monotonic() + 2
    while time.monotonic() < end:
        fcntl.ioctl(number, termios.FIONREAD, unread, True)
        if not any(unread):
            return
        time.sleep(_NAP)


def _next_number(comm: Any) -> int:
    """Ask rank 0 for the number of the next request."""
    comm.Send(bytearray(1), 0, _NEXT)
    _wait_for(comm, 0, _NUMBER, _SHORT_NAP)
    number = np.empty(1, dtype=np.int64)
    comm.Recv(number, 0, _NUMBER)
    return int(number[0])


def _send(comm: Any, rank: int, message: dict[str, Any], tag: int = _ORDER) -> None:
    """Send a message of JSON values."""
    comm.Send(bytearray(json.dumps(message).encode()), rank, tag)


def _received(comm: Any, rank: int, tag: int, nap: float = _SHORT_NAP) -> dict[str, Any]:
    """Return the next message of a rank, when it is there."""
    data = bytearray(_wait_for(comm, rank, tag, nap))
    comm.Recv(data, rank, tag)
    message: dict[str, Any] = json.loads(data)
    return message


def _wait_for(comm: Any, rank: int, tag: int, nap: float) -> int:
    """Wait for a message, asleep; return its length in bytes."""
    from mpi4py import MPI

    status = MPI.Status()
    while not comm.Iprobe(rank, tag, status):
        time.sleep(nap)
    count: int = status.Get_count(MPI.BYTE)
    return count


def _send_up(comm: Any, pieces: Iterable[Piece]) -> None:
    """Send this rank's total, in pieces, to the rank above it."""
    rank = _parent(comm.Get_rank())
    for piece in pieces:
        _send_piece(comm, rank, piece)
    _send_piece(comm, rank, None)


def _merge_below(comm: Any, arriving: Arriving, total: Any) -> None:
    """Receive the totals of the ranks below this one, and merge them into its own.

    Args:
        comm: The communicator of all ranks.
        arriving: Where totals arrive.
    """
    for rank in _children(comm.Get_rank(), comm.Get_size()):
        _receive(comm, rank, arriving.room)
        arriving.merge_into(total)


def _receive(comm: Any, rank: int, room: TravellingRoom) -> None:
    """Put a rank's total where totals arrive."""
    while True:
        head = np.empty(_ENTRY, dtype=np.int64)
        _wait_for(comm, rank, _TOTAL, _SHORT_NAP)
        comm.Recv(head, rank, _TOTAL)
        blocks, values, label = head.tolist()
        if not label:
            return
        text = bytearray(label)
        comm.Recv(text, rank, _TOTAL)
        kind, _, name = text.decode().partition(" ")
        piece = Piece(name, np.empty(blocks, dtype=np.int64), np.empty(values, dtype=np.dtype(kind)))
        comm.Recv(piece.blocks, rank, _TOTAL)
        comm.Recv(_as_bytes(piece.values), rank, _TOTAL)
        room.put(piece)


def _send_piece(comm: Any, rank: int, piece: Piece | None) -> None:
    """Send a piece of a total; None is the end of it."""
    if piece is None:
        comm.Send(np.zeros(_ENTRY, dtype=np.int64), rank, _TOTAL)
        return
    label = bytearray(f"{piece.values.dtype.str} {piece.name}".encode())
    comm.Send(np.array([len(piece.blocks), len(piece.values), len(label)]), rank, _TOTAL)
    comm.Send(label, rank, _TOTAL)
    comm.Send(piece.blocks, rank, _TOTAL)
    comm.Send(_as_bytes(piece.values), rank, _TOTAL)


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.view(np.uint8)


def _children(rank: int, size: int) -> list[int]:
    """Return the ranks whose totals a rank merges into its own, in a binary tree.

    >>> [_children(rank, 6) for rank in range(6)]
    [[1, 2, 4], [], [3], [], [5], []]
    """
    lowest = rank & -rank or size
    steps = [1 << bit for bit in range(size.bit_length()) if 1 << bit < lowest]
    return [rank + step for step in steps if rank + step < size]


def _parent(rank: int) -> int:
    """Return the rank that a rank's total goes to.

    >>> [_parent(rank) for rank in range(1, 6)]
    [0, 0, 2, 0, 4]
    """
    return rank & (rank - 1)
