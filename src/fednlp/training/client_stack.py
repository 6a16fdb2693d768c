"""Local steps of several clients at once, over one frozen base: one pass computes the texts of all of them.

What is trained, low-rank adapters or heads, lies in stacks, a slice for each client. The frozen base computes the texts
of all clients in one batch. A trained linear layer is one batched product where all clients have as many rows;
otherwise, and for trained norms, it computes the rows of one client after the other. Since no layer mixes rows, each
client's outputs and gradients are those that it has alone, but for rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fednlp.errors import ConfigError
from fednlp.seeds import torch_stream
from fednlp.tasks.base import Batch, Task
from fednlp.tasks.inputs import model_inputs
from fednlp.tasks.question_answering import QuestionAnswering
from fednlp.tasks.text_classification import TextClassification
from fednlp.tasks.text_regression import TextRegression
from fednlp.tasks.token_classification import TokenClassification
from fednlp.training.flat_tensors import Group
from fednlp.training.kernels.dropout import cheap_dropout
from fednlp.training.local import LocalTrainer
from fednlp.training.optimizers import Descent
from fednlp.training.precision import low_precision
from fednlp.training.replica import Replica

_KEY = "runtime.clients_at_once"
_TASKS = (TextClassification, TextRegression, TokenClassification, QuestionAnswering)
"""Their losses call the model once, with what :func:`fednlp.tasks.inputs.model_inputs` returns."""
_OUTPUTS = {"logits": False, "start_logits": True, "end_logits": True}
"""What tasks read of a model's output, and whether it is of tokens though it has two dimensions only."""


class ClientStack:
    """The trained weights of several clients, in one replica.

    Args:
        replica: Its model computes; its own trained weights are not used meanwhile.
        clients: How many, at most.

    Raises:
        ConfigError: More is trained than linear layers and norms, or the task reads its model more than once a batch.
    """

    def __init__(self, replica: Replica, task: Task, clients: int) -> None:
        if type(task) not in _TASKS:
            raise ConfigError(
                f"{_KEY} is for text classification, text regression, token classification and question answering, "
                f"and this is {task.name}: leave it out"
            )
        self.replica, self.task = replica, task
        self._layers = _trained_layers(replica)
        self._live = torch.zeros(
            clients, replica.layout.dense + replica.personal.numel, device=replica.device
        )
        self._gradient = torch.zeros_like(self._live)
        self._leaves: dict[str, Tensor] = {}
        self._texts: list[int] = []
        self._masks: list[Tensor] = []
        self._tokens: list[int] = []

    def __len__(self) -> int:
        """Return how many clients there is room for."""
        return len(self._live)

    def load(self, client: int, start: Tensor, own: Tensor | None) -> None:
        """Take over the weights that a client starts from.

        Args:
            client: Its number in the stack.
            start: The shared ones, flat.
            own: The personal ones, flat; None for the first ones.
        """
        layout, live = self.replica.layout, self._live[client]
        live[: layout.dense] = start
        live[layout.dense :] = self.replica.flat.first_own if own is None else own

    def groups(self, client: int) -> list[Group]:
        """Return what a client's optimiser is to train."""
        return self.replica.flat.groups_in(self._live[client], self._gradient[client])

    def weights(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's shared and personal weights, flat, copied."""
        live, dense = self._live[client].cpu(), self.replica.layout.dense
        return live[:dense].clone(), live[dense:].clone()

    @contextmanager
    def attached(self, clients: int) -> Iterator[None]:
        """Let the model compute with the weights of the first so many clients inside the ``with`` block."""
        self._leaves = {
            name: self._live[:clients, place.span].view(clients, *place.shape).detach().requires_grad_()
            for name, place in self.replica.flat.places.items()
        }
        with ExitStack() as undo:
            for path, layer in self._layers.items():
                vars(layer)["forward"] = partial(self._compute, path, layer)
                undo.callback(vars(layer).pop, "forward")
            yield
        self._leaves = {}

    def losses(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Return the mean loss of each client's batch, of the clients that are attached, in one pass."""
        inputs = [model_inputs(batch) for batch in batches]
        shapes = [one["input_ids"].shape for one in inputs]
        self._texts, self._tokens = [texts for texts, _ in shapes], []
        self._masks = [one["attention_mask"] for one in inputs]
        longest = max(length for _, length in shapes)
        padding = {"input_ids": getattr(self.task, "padding", 0)}
        joined = {
            name: torch.cat(
                [
                    F.pad(one[name], (0, longest - one[name].shape[1]), value=padding.get(name, 0))
                    for one in inputs
                ]
            )
            for name in inputs[0]
        }
        made = self.replica.model(**joined)
        outputs = {name: torch.split(made[name], self._texts) for name in _OUTPUTS if name in made}
        found = []
        for client, (batch, (_, length)) in enumerate(zip(batches, shapes, strict=True)):
            own = {name: _cut(name, parts[client], length) for name, parts in outputs.items()}
            found.append(self.task.loss(_answering(own), batch))
        return found

    def take_gradients(self, clients: int) -> list[slice]:
        """Put the gradients of a backward pass where the optimisers have them; return the spans that none reached."""
        unreached = []
        for name, leaf in self._leaves.items():
            span = self.replica.flat.places[name].span
            if leaf.grad is None:
                unreached.append(span)
                self._gradient[:clients, span] = 0
            else:
                self._gradient[:clients, span] = leaf.grad.view(clients, -1)
                leaf.grad = None
        return unreached

    @contextmanager
    def kept(self, client: int, spans: Sequence[slice]) -> Iterator[None]:
        """Keep some of a client's weights as they are, for the time of an optimiser's step: it would decay them."""
        before = [self._live[client, span].clone() for span in spans]
        yield
        for span, weights in zip(spans, before, strict=True):
            self._live[client, span] = weights

    def _compute(self, path: str, layer: nn.Module, rows: Tensor) -> Tensor:
        """Compute a layer, each client's rows with its own weights.

        Raises:
            ConfigError: The layer is called neither with a row a text nor, without padding, with one a token.
        """
        parts = self._parts(path, len(rows))
        tensors = {
            name: self._leaves.get(f"{path}.{name}", tensor)
            for name, tensor in layer.named_parameters(recurse=False)
        }
        stacked = {name for name in tensors if f"{path}.{name}" in self._leaves}
        clients = len(parts)
        weight, bias = tensors["weight"], tensors.get("bias")
        if isinstance(layer, nn.Linear) and "weight" in stacked and len({*parts}) == 1:
            laid = rows.reshape(clients, -1, rows.shape[-1])
            if bias is None:
                found = torch.bmm(laid, weight.mT)
            else:
                found = torch.baddbmm(bias.unsqueeze(-2).expand(clients, 1, -1), laid, weight.mT)
            return found.view(*rows.shape[:-1], -1)
        one = _of_one(layer)
        return torch.cat(
            [
                one(
                    part, *(tensor[client] if name in stacked else tensor for name, tensor in tensors.items())
                )
                for client, part in enumerate(torch.split(rows, parts))
            ]
        )

    def _parts(self, path: str, rows: int) -> list[int]:
        """Return how many of a layer's rows are each client's."""
        if rows == sum(self._texts):
            return self._texts
        if not self._tokens:
            self._tokens = [int(mask.sum()) for mask in self._masks]
        if rows != sum(self._tokens):
            raise ConfigError(
                f"{_KEY}: {path} does not compute each text by itself: leave clients_at_once out"
            )
        return self._tokens


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
    """One client's batches and optimiser, at its place in the stack."""

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


def _trained_layers(replica: Replica) -> dict[str, nn.Module]:
    """Return the layers that have trained parameters, by path.

    Raises:
        ConfigError: Something else than linear layers and norms is trained.
    """
    entries = (*replica.layout.entries, *replica.personal.entries)
    if replica.layout.table is not None or any(entry.kind == "buffer" for entry in entries):
        raise ConfigError(
            f"{_KEY} trains adapters or heads over a frozen base: freeze the word embedding and what has buffers with "
            "model.train, use [model.peft], or leave clients_at_once out"
        )
    found: dict[str, nn.Module] = {}
    for name in replica.flat.places:
        path = name.rpartition(".")[0]
        layer = replica.model.get_submodule(path)
        if not isinstance(layer, nn.Linear | nn.LayerNorm):
            raise ConfigError(
                f"{_KEY} is for trained linear layers and layer norms, and {name} is a part of "
                f"{type(layer).__name__}: freeze it, or leave clients_at_once out"
            )
        found[path] = layer
    return found


def _of_one(layer: nn.Module) -> Callable[..., Tensor]:
    """Return what a layer computes of rows, weight and bias."""
    if isinstance(layer, nn.LayerNorm):
        shape, eps = layer.normalized_shape, layer.eps
        return lambda rows, weight, bias=None: F.layer_norm(rows, shape, weight, bias, eps)
    return F.linear


def _cut(name: str, output: Tensor, length: int) -> Tensor:
    """Return a client's output without the padding to the longest text of the others."""
    return output[:, :length] if _OUTPUTS[name] or output.dim() == 3 else output


def _answering(outputs: dict[str, Tensor]) -> Any:
    """Return what stands for a model that has computed a batch already."""
    return lambda **inputs: SimpleNamespace(**outputs)
