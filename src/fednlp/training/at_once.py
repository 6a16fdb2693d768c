"""Local steps of several clients at once: step after step, one pass over the batches of all that have one left."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fednlp.seeds import torch_stream
from fednlp.training.client_stack import ClientStack
from fednlp.training.kernels.dropout import cheap_dropout
from fednlp.training.local import LocalTrainer
from fednlp.training.optimizers import Descent
from fednlp.training.precision import low_precision


def take_steps(stack: ClientStack, clients: Sequence[LocalTrainer]) -> None:
    """Take the local steps of some clients at once.

    A client's weights are those of its steps alone, but for rounding, and for the masks of dropout: these are a
    function of the seed, the round and all of the clients.

    Args:
        stack: Has room for as many.
        clients: Of one round, with the same global model and the same options. One without examples is left alone.
    """
    first, replica = clients[0], stack.replica
    replica.load(first.x)
    batches = [(client, client.next_batches()) for client in clients]
    batches.sort(key=lambda one: -len(one[1]))
    running = [_Steps(stack, place, *one) for place, one in enumerate(batches) if one[1]]
    replica.train(True)
    stream = torch_stream(first.seed, "dropout", first.round, *sorted(client.client for client in clients))
    with replica.caching_activations(), stream, cheap_dropout():
        done = 0
        for number in range(len(running), 0, -1):  # of those that have steps left
            until = len(running[number - 1].batches)
            if until > done:
                with stack.attached(number):
                    for step in range(done, until):
                        _step(stack, running[:number], step)
                done = until
    for one in running:
        one.finish()


class _Steps:
    """One client's batches and optimiser.

    Args:
        place: Where.
    """

    def __init__(
        self, stack: ClientStack, place: int, client: LocalTrainer, batches: list[np.ndarray]
    ) -> None:
        self.stack, self.place, self.client, self.batches = stack, place, client, batches
        init = client.init
        stack.load(place, client.x if init.shared is None else init.shared, init.personal)
        steps = len(batches), client.rate, client.memory
        self.descent = Descent(client.options, stack.groups(place), *steps)
        self.losses: list[Tensor] = []

    def step(self, number: int, loss: Tensor, unreached: Sequence[slice]) -> None:
        """Let the optimiser take a step.

        Args:
            number: Of the step, from 0.
            loss: The mean over the step's examples.
            unreached: Weights that no gradient has reached.
        """
        self.descent.prepare(number)
        with self.stack.kept(self.place, unreached):
            self.descent.move()
        self.losses.append(loss * len(self.batches[number]))

    def finish(self) -> None:
        """Give the client what its steps ended with."""
        self.client.taken(self.batches, self.losses, self.descent, *self.stack.weights(self.place))


def _step(stack: ClientStack, running: Sequence[_Steps], number: int) -> None:
    """Take one step of some clients."""
    client, device = running[0].client, stack.replica.device
    batches = [
        client.task.collate(client.features, one.batches[number], device, training=True) for one in running
    ]
    with low_precision(stack.replica.model, client.dtype):
        losses = stack.losses(batches)
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    unreached = stack.take_gradients(len(running))
    if not client.options.weight_decay:
        unreached = []
    for one, loss in zip(running, losses, strict=True):
        one.step(number, loss.detach(), unreached)
