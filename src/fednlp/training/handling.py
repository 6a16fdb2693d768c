"""How a worker answers requests: for each kind the client's half, the server's half, and the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fednlp.runtime.engine import Vectors
from fednlp.training.local_training import LocalTraining

if TYPE_CHECKING:
    from fednlp.training.worker import ClientWorker

Function = TypeVar("Function", bound=Callable[..., Any])
Work = Callable[["ClientWorker", Any], float]
"""(worker, request) -> its work, in tokens that are trained on; only the order of requests depends on it."""
Receive = Callable[["ClientWorker", Any, Any, Vectors, Any], Any]
"""(worker, request, answer, vectors, total) -> the answer, without what was for the total."""
_STEP = 250.0
"""A training step costs as much as this many tokens more: the optimiser, and what PyTorch needs for each operation."""
_FORWARD = 1 / 3
"""A token that is only predicted costs this share of one that is trained on: the backward pass is two forward ones."""


@dataclass(frozen=True)
class RequestHandler:
    """How a worker answers a kind of request: (worker, request, vectors) -> the answer, and as in :func:`handles`."""

    answer: Callable[[ClientWorker, Any, Vectors], Any]
    work: Work
    receive: Receive


HANDLERS: dict[type[Any], RequestHandler] = {}
"""By the type of the request; :mod:`fednlp.training.requests` has them all."""


def handles(
    request: type[Any],
    *,
    work: Work = lambda worker, request: 0.0,
    receive: Receive = lambda worker, request, answer, vectors, total: answer,
) -> Callable[[Function], Function]:
    """Make a function the client's half of a kind of request.

    Args:
        request: The type of the requests.
        work: How much work one is, predicted before it is answered; 0 where it is not known.
        receive: The server's half: puts what came with an answer into the total, and returns the rest.
    """

    def handler(answer: Function) -> Function:
        HANDLERS[request] = RequestHandler(answer, work, receive)
        return answer

    return handler


def training_work(options: LocalTraining, lengths: np.ndarray) -> float:
    """Return a client's work in a round, in tokens that are trained on.

    Args:
        lengths: Tokens of each of its examples.
    """
    if not len(lengths):
        return 0.0
    steps = options.steps(len(lengths))
    seen = (
        steps * options.examples_per_step
        if options.max_steps > 0
        else options.num_train_epochs * len(lengths)
    )
    return float(lengths.mean()) * seen + _STEP * steps


def prediction_work(tokens: float) -> float:
    """Return the work of predicting texts of so many tokens, in tokens that are trained on."""
    return _FORWARD * tokens
