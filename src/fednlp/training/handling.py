"""How a worker answers requests: for each kind the client's half, the server's half, and the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker

Answer = TypeVar("Answer", bound=Callable[..., Any])
Work = Callable[["ClientWorker", Any], float]
"""(worker, request) -> its work, in tokens that are trained on; only the order of requests depends on it."""
Receive = Callable[["ClientWorker", Any, Any, "Vectors", Any], Any]
"""(worker, request, answer, vectors, total) -> the answer, with what was for the total in it."""


@dataclass(frozen=True)
class RequestHandler:
    """How a worker answers a kind of request.

    Attributes:
        answer: (worker, request, vectors) -> the answer: the client's half.
        work: How much work it is, predicted before it is answered.
        receive: Puts what came with an answer into the total, and returns the rest: the server's half.
    """

    answer: Callable[[ClientWorker, Any, Vectors], Any]
    work: Work
    receive: Receive


HANDLERS: dict[type[Any], RequestHandler] = {}
"""By the type of the request; :mod:`fednlp.training.requests` has them all."""


def _unknown(worker: ClientWorker, request: Any) -> float:
    return 0.0


def _unchanged(worker: ClientWorker, request: Any, answer: Any, vectors: Vectors, total: Any) -> Any:
    return answer


def handles(
    request: type[Any], *, work: Work = _unknown, receive: Receive = _unchanged
) -> Callable[[Answer], Answer]:
    """Make a function the one that answers a kind of request.

    Args:
        request: The type of the requests.
        work: How much work one is; 0 where it is not known.
        receive: The server's half; by default nothing of the answer is for the total.
    """

    def handler(answer: Answer) -> Answer:
        HANDLERS[request] = RequestHandler(answer, work, receive)
        return answer

    return handler
