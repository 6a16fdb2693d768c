"""Workers on one machine: this process, and others alongside it, answering requests in turn.

Every worker takes the next request when it is free, in an order that has all workers done at about the same time
(:mod:`fednlp.runtime.schedule`). Requests
and results (:mod:`fednlp.runtime.messages`) travel as JSON lines over pipes; tensors lie in mapped files that all
workers share; nothing is pickled. Since totals do not depend on the order of adding, who answered which request leaves
no trace.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from fednlp.clock import IDLE, MESSAGES, timed
from fednlp.runtime.allocator import release_freed_memory
from fednlp.runtime.engine import Worker, vectors_in
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.schedule import scheduled
from fednlp.runtime.shared import Counter, PrivateRoom, SharedRoom, remove_scratch, scratch_folder
from fednlp.runtime.worker_process import WorkerCommand, let_go, start_worker


class Pool:
    """A worker here, and as many more in processes of their own as configured: an engine of one machine.

    Args:
        workers: How many in all, this process counted.
        factory: ``"module:function"`` that builds a worker in a worker process from arguments.
        threads: torch threads of each worker.
        preload: Modules that the factory will need.

    Worker processes start at once, if they have not been started ahead, and import these modules while the caller still
    prepares.
    """

    def __init__(self, workers: int, factory: str, threads: int = 1, preload: Sequence[str] = ()) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        commands = [WorkerCommand(number, factory, threads, tuple(preload)) for number in range(1, workers)]
        self._children = [start_worker(command) for command in commands]
        self._scratch: Path | None = None
        self._counter: Counter | None = None
        self._totals: list[Any] = []
        self.total: Any = None
        self.vectors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return 1 + len(self._children)

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        """Set the workers up.

        Args:
            worker: The one in this process.
            arguments: JSON values from which the factory builds the same worker elsewhere.

        Raises:
            RunError: There is no room for the shared tensors.
        """
        self.worker, layout = worker, worker.layout
        self.total = worker.new_total(PrivateRoom())
        if not self._children:
            self.vectors = vectors_in(worker, PrivateRoom())
            return
        shared = 4 * (1 + len(worker.receives)) * layout.numel
        each = (8 * layout.numel + layout.table_shape[0]) * len(worker.sends)
        self._scratch = scratch_folder(shared + len(self._children) * each)
        self._counter = Counter(self._scratch / "counter")
        self.vectors = vectors_in(worker, SharedRoom(self._scratch, "all"))
        for number, child in enumerate(self._children):
            self._totals.append(worker.new_total(SharedRoom(self._scratch, str(number))))
            child.send({"arguments": arguments, "scratch": str(self._scratch), "number": number})

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let all workers have a vector under a name; one that lies there already is not copied."""
        if vector is not self.vectors[name]:
            with timed(MESSAGES):
                self.vectors[name].copy_(vector)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered; return the answers in their order. Updates are in ``self.total``.

        Args:
            requests: In any order.
            on_progress: Told how many are answered.

        Raises:
            RunError: A worker process died or failed; the message says how.
        """
        self.worker.begin()
        order = scheduled(requests, self.worker.work, len(self))
        take = itertools.count().__next__ if self._counter is None else self._hand_out(requests, order)
        by_number: dict[int, Any] = {}
        while (place := take()) < len(order):
            request = requests[order[place]]
            answer = self.worker.handlers[type(request)](request, self.vectors)
            by_number[order[place]] = self.worker.receive(request, answer, self.vectors, self.total)
            on_progress(place + 1)
        self._forget_scratch()
        for child, total in zip(self._children, self._totals, strict=True):
            answers = child.receive()
            by_number |= {order[int(taken)]: from_json(answer) for taken, answer in answers.items()}
            self.worker.merge(self.total, total)
        if self._children:
            on_progress(len(requests))
        return [by_number[number] for number in range(len(requests))]

    @timed(MESSAGES)
    def _hand_out(self, requests: Sequence[Any], order: Sequence[int]) -> Callable[[], int]:
        """Send all workers the requests in their order; return what claims the place of the next."""
        assert self._counter is not None
        self._counter.reset()
        message = {"requests": [to_json(requests[number]) for number in order]}
        for child in self._children:
            child.send(message)
        return self._counter.take

    def spent(self, until: int) -> list[dict[str, int]]:
        """Return the nanoseconds of each part for each of the other workers.

        Args:
            until: The end of the measurement, by :func:`time.monotonic_ns`; they wait since their last answer.
        """
        return [
            child.spent | {IDLE: child.spent.get(IDLE, 0) + until - child.until} for child in self._children
        ]

    def _forget_scratch(self) -> None:
        """Remove the names of the shared files once every worker has them open: no crash leaves any behind."""
        if self._scratch is not None:
            for child in self._children:
                child.receive()
            remove_scratch(self._scratch)
            self._scratch = None

    def close(self) -> None:
        """Let the workers go, remove the shared files, and give torch its threads back."""
        torch.set_num_threads(self._threads_before)
        for child in self._children:
            let_go(child)
        self._children = []
        if self._counter is not None:
            self._counter.close()
            self._counter = None
        if self._scratch is not None:
            remove_scratch(self._scratch)
            self._scratch = None
        self._totals, self.total = [], None
        release_freed_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
