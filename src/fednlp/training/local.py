"""One client's local training, and a batch of evaluation: plain loops over a task's batches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fednlp.data.features import Features
from fednlp.seeds import generator, torch_stream
from fednlp.tasks.base import Task
from fednlp.training.batches import local_batches
from fednlp.training.optimizers import (
    LocalTraining,
    make_optimizer,
    make_schedule,
    remember,
    restore,
    set_rate,
)
from fednlp.training.replica import Replica


@dataclass(frozen=True)
class Trained:
    """What one client's training amounted to; ``loss`` is summed over examples.

    ``memory`` is the optimiser's, at the end.
    """

    steps: int
    examples: int
    loss: float
    memory: dict[str, Tensor]


@dataclass(frozen=True)
class Begin:
    """What a client begins from, beside the global model.

    Attributes:
        own: Its personal tensors, flat; None for the first ones.
        shared: Its own version of the shared tensors, flat; None for the global model.
        memory: Of its optimiser.
    """

    own: Tensor | None = None
    shared: Tensor | None = None
    memory: Mapping[str, Tensor] = field(default_factory=dict)


def train_client(
    replica: Replica,
    task: Task,
    features: Features,
    examples: np.ndarray,
    options: LocalTraining,
    x: Tensor,
    seed: int,
    round_number: int,
    client: int,
    all_words: bool = False,
    begin: Begin | None = None,
) -> Trained:
    """Load the global model into the replica and take one client's local steps from it.

    Args:
        replica: Trained in place; its update is read by ``replica.add_update``.
        task: Makes batches and losses.
        features: The training set's features, by example number.
        examples: The client's example numbers.
        options: Optimiser, schedule, steps.
        x: The global model, flat.
        seed: The experiment's seed; with round and client it decides order and dropout.
        round_number: From 1.
        client: Its id.
        all_words: Load the whole word embedding, so that the trained model can be evaluated as it stands.
        begin: What the client has of its own.
    """
    words = features.words(examples) if replica.by_rows and not all_words else None
    begin = begin or Begin()
    replica.load(x, words, begin.own, begin.shared)
    optimizer = make_optimizer(options, replica.groups)
    restore(optimizer, begin.memory)
    steps = options.steps(len(examples))
    rate = make_schedule(options, steps)
    order = generator(seed, "batches", round_number, client)
    batches = local_batches(
        examples, features.lengths(examples), options.batch_size, steps, order, options.by_length
    )
    losses: list[Tensor] = []
    seen = 0
    replica.train(True)
    with replica.caching_activations(), torch_stream(seed, "dropout", round_number, client):
        for step, numbers in enumerate(batches):
            batch = task.collate(features, numbers, replica.device, training=True)
            loss = task.loss(replica.model, batch)
            replica.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if options.mu:
                replica.pull_back(options.mu)
            if options.max_grad_norm:
                torch.nn.utils.clip_grad_norm_([g.parameter for g in replica.groups], options.max_grad_norm)
            if rate is not None:
                set_rate(optimizer, rate(step))
            replica.step(optimizer)
            losses.append(loss.detach() * len(numbers))
            seen += len(numbers)
    memory = remember(optimizer) if options.keep_memory else {}
    return Trained(steps, seen, float(torch.stack(losses).double().sum()), memory)
