"""A worker without texts or models, for the pool's tests; worker processes build it by name."""

import os
import signal
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fednlp.federated.aggregators.base import Room
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.params import Layout
from fednlp.runtime.placement import worker_number
from fednlp.training.requests.predict import EvaluateRequest, LabelRequest, Labels, ProbabilitiesRequest


class Counting:
    """Answers with what was asked and what is published, and adds each client's number to its total."""

    receives = ("control",)
    sends = ("model",)

    def __init__(self, here: int = 0) -> None:
        self.layout = Layout.of({"w": ((4,), "parameter")})
        self.here, self.begun = here, 0
        self.handlers: Mapping[type, Any] = {
            TrainRequest: self.train,
            LabelRequest: self.label,
            EvaluateRequest: self.die,
            ProbabilitiesRequest: self.fail,
        }

    def work(self, request: Any) -> float:
        return float(getattr(request, "client", 0))

    def begin(self) -> None:
        self.begun += 1

    def new_total(self, room: Room) -> Tensor:
        return room.tensor("sum", 1, torch.int64)

    def merge(self, total: Tensor, other: Tensor) -> None:
        total += other
        self.clear(other)

    def clear(self, total: Tensor) -> None:
        total.zero_()

    def receive(self, request: Any, answer: Any, vectors: Mapping[str, Tensor], total: Tensor) -> Any:
        if isinstance(request, TrainRequest):
            total += request.client
        return answer

    def train(self, request: TrainRequest, vectors: Mapping[str, Tensor]) -> ClientResult:
        metrics = {name: float(vector[0]) for name, vector in vectors.items()}
        return ClientResult(
            request.client,
            request.weight,
            metrics=metrics,
            facts={"process": os.getpid(), "number": worker_number()},
        )

    def label(self, request: LabelRequest, vectors: Mapping[str, Tensor]) -> Labels:
        return Labels(request.texts, [float(request.client)])

    def die(self, request: EvaluateRequest, vectors: Mapping[str, Tensor]) -> None:
        if os.getpid() != self.here:
            os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, request: ProbabilitiesRequest, vectors: Mapping[str, Tensor]) -> None:
        if os.getpid() != self.here:
            raise ValueError("out of cheese")


def build(here: int) -> Counting:
    """Build the worker of a worker process."""
    return Counting(here)
