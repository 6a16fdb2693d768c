"""How much work a request is, predicted before it is answered: only the order of requests depends on it."""

from typing import Any

import numpy as np

from fednlp.data.features import Features
from fednlp.federated.client import LossRequest, TrainRequest
from fednlp.partition import OneClient, Partition
from fednlp.runtime.message_json import from_json
from fednlp.runtime.messages import (
    ClientModelRequest,
    ClientSumsRequest,
    EvaluateRequest,
    LabelRequest,
    LocalOnlyRequest,
    ProbabilitiesRequest,
    TrainTogetherRequest,
)
from fednlp.training.evaluator import Evaluator
from fednlp.training.local_training import LocalTraining

_STEP = 250.0
"""A training step costs as much as this many tokens more: the optimiser, and what PyTorch needs for each operation."""
_FORWARD = 1 / 3
"""A token that is only predicted costs this share of one that is trained on: the backward pass is two forward ones."""


def training_work(options: LocalTraining, lengths: np.ndarray) -> float:
    """Return a client's work in a round, in tokens that are trained on.

    Args:
        options: Of its training.
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


def predicted_work(
    request: Any,
    options: LocalTraining,
    features: Features,
    partition: Partition | OneClient,
    evaluator: Evaluator,
) -> float:
    """Return the work of a request, in tokens that are trained on; 0 where it is not known.

    Args:
        request: One of :mod:`fednlp.runtime.messages`.
        options: Of local training.
        features: Of the training set.
        partition: Whose examples are whose.
        evaluator: Knows the batches of the test sets.
    """
    match request:
        case TrainRequest():
            given = request.examples
            examples = partition.train(request.client) if given is None else np.array(given, dtype=np.int64)
            return training_work(options, features.lengths(examples))
        case TrainTogetherRequest():
            return sum(
                predicted_work(from_json(one), options, features, partition, evaluator)
                for one in request.clients
            )
        case LossRequest():
            return _FORWARD * float(features.lengths(partition.train(request.client)).sum())
        case LocalOnlyRequest():
            changed = {"num_train_epochs": request.epochs, "max_steps": request.max_steps}
            lengths = features.lengths(partition.train(request.client))
            return training_work(options.model_copy(update=changed), lengths)
        case EvaluateRequest():
            return _FORWARD * evaluator.tokens(evaluator.test_batches()[request.batch])
        case ClientModelRequest() | ClientSumsRequest():
            steps = getattr(request, "finetune_steps", 0)
            own = _FORWARD * evaluator.tokens(evaluator.partition.test(request.client))
            if not steps:
                return own
            lengths = features.lengths(partition.train(request.client))
            return own + training_work(options.model_copy(update={"max_steps": steps}), lengths)
        case LabelRequest() | ProbabilitiesRequest():
            return _FORWARD * float(features.lengths(np.array(request.texts, dtype=np.int64)).sum())
        case _:
            return 0.0
