"""What an engine is: it has requests answered, in this process, in several, or on other machines.

``[runtime] engine`` names one of :data:`fednlp.runtime.ENGINES`, or a class of the user's own, ``"module:Class"``,
which is called as :class:`fednlp.runtime.pool.Pool` is.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fednlp.federated.aggregators.base import Room
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL, Runtime

Vectors = Mapping[str, Tensor]
"""What is published: the global model, and the server's vectors that travel with it, by name."""
Handler = Callable[[Any, Vectors], Any]
"""(request, what is published) -> the answer."""


@runtime_checkable
class Measured(Protocol):
    """An engine that knows where the time of its other workers goes."""

    def spent(self, until: int) -> list[dict[str, int]]:
        """Return the nanoseconds of each part for each of its other workers.

        Args:
            until: The end of the measurement, by :func:`time.monotonic_ns`.
        """


class Worker(Protocol):
    """What answers requests: the clients whose texts lie on this machine, and the server's own work.

    Attributes:
        layout: Of the flat vectors.
        receives: Names of the vectors that are published besides the model.
        sends: Names of the vectors that updates consist of.
        handlers: What answers each type of request.
    """

    layout: Layout
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    handlers: Mapping[type, Handler]

    def work(self, request: Any) -> float:
        """Return how long a request will take, in a unit of the worker's own; 0 where it does not know."""

    def begin(self) -> None:
        """Prepare for more requests: others may have written to what is shared."""

    def new_total(self, room: Room) -> Any:
        """Return an empty total of updates."""

    def receive(self, request: Any, answer: Any, vectors: Vectors, total: Any) -> Any:
        """Put the part of an answer that is for the total into it, and return the rest: the server's half."""

    def merge(self, total: Any, other: Any) -> None:
        """Add another worker's total to one, and empty the other."""

    def clear(self, total: Any) -> None:
        """Empty a total."""


def answered(worker: Worker, request: Any, vectors: Vectors, total: Any) -> Any:
    """Have a worker answer a request, both halves: what is for the total is in it, and the rest is returned."""
    answer = worker.handlers[type(request)](request, vectors)
    return worker.receive(request, answer, vectors, total)


def vectors_in(worker: Worker, room: Room) -> dict[str, Tensor]:
    """Return the tensors in which published vectors lie."""
    return {name: room.tensor(name, worker.layout.numel, torch.float32) for name in (MODEL, *worker.receives)}


class Engine(Runtime, Protocol):
    """A runtime with a beginning and an end.

    Attributes:
        vectors: What is published: the global model lies here while it is trained.
    """

    vectors: dict[str, Tensor]

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        """Begin to answer requests.

        Args:
            worker: The one in this process.
            arguments: JSON values from which the factory builds the same worker elsewhere.

        Raises:
            RunError: There is no room for what is shared.
        """

    def close(self) -> None:
        """End all workers, and remove what was shared."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
