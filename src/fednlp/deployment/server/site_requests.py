"""What goes to sites: how its calls are numbered, what a site is told, and what stands for an answer that fails."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fednlp.deployment.session.request_checks import LOSS, SiteRequest
from fednlp.deployment.session.secure_messages import TESTS
from fednlp.errors import RunError
from fednlp.federated.client import ClientLoss, ClientResult, LossRequest, TrainRequest, failed
from fednlp.runtime.messages import (
    ClientModelRequest,
    ClientModelResult,
    ClientSums,
    ClientSumsRequest,
    KeepLabelsRequest,
    LabelsKept,
)

KINDS: Mapping[type, str] = {
    TrainRequest: "train",
    LossRequest: LOSS,
    ClientModelRequest: "evaluate",
    KeepLabelsRequest: "label",
    ClientSumsRequest: TESTS,
}
"""What goes to sites, and what it is called in the numbers of calls."""
ANSWERS: Mapping[type, Any] = {
    TrainRequest: ClientResult,
    LossRequest: ClientLoss,
    ClientModelRequest: ClientModelResult,
    KeepLabelsRequest: LabelsKept,
    ClientSumsRequest: ClientSums,
}


def call_id(request: SiteRequest) -> str:
    """Return the number of the call that carries a request.

    >>> call_id(TrainRequest(client=3, round=12, weight=1.0))
    '12.3.train'
    """
    name = KINDS[type(request)]
    if isinstance(request, TrainRequest):
        return f"{request.began}.{request.client}.{name}"
    if isinstance(request, ClientModelRequest) and request.finetune_steps:
        name = "finetune"
    return f"{request.round}.{request.client}.{name}"


def told(request: Any) -> Any:
    """Return a request as its site gets it.

    A site is told the round in which it begins, and no weight. The server weighs an update when it adds it: how late
    the update is, and how much others weigh, may not be known before.

    >>> request = told(TrainRequest(client=3, round=12, weight=0.25, staleness=2))
    >>> request.round, request.weight, request.staleness
    (10, 1.0, 0)
    """
    if not isinstance(request, TrainRequest):
        return request
    return replace(request, round=request.began, staleness=0, weight=1.0)


def trains(request: Any) -> bool:
    """Return whether a request is to train."""
    return isinstance(request, TrainRequest)


def unanswered(request: Any, reason: str, bytes_down: int | None = 0, tensors_down: int | None = 0) -> Any:
    """Return the result of a request to which a site gave no answer that counts.

    Args:
        request: What was asked.
        reason: Why.
        bytes_down: Length of the message that the site got to train on.
        tensors_down: Tensors in it.
    """
    if isinstance(request, TrainRequest):
        return failed(request, RunError(reason), bytes_down, tensors_down)
    return ANSWERS[type(request)](request.client, error=reason)
