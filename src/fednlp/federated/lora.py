"""Averaging of low-rank adapters: a mean of products of two matrices is not the product of the means.

An adapted weight is W + s B A. The model that stands for the clients is the mean of theirs,

    mean(W + s B_i A_i) = W + s mean(B_i A_i),

but averaging A and B apart gives W + s mean(B_i) mean(A_i). With p_i the clients' shares, the two differ by

    s (sum p_i B_i A_i - B A) = s sum p_i (B_i - B)(A_i - A),        B = sum p_i B_i, A = sum p_i A_i,

which has rank (clients - 1) r at most, since the p_i (B_i - B) sum to zero. There are three options:

* plain: the difference is ignored;
* ffa: A keeps its initial values, the same for all. Then A_i - A is 0. Sun et al. 2024, "Improving LoRA in
  Privacy-preserving Federated Learning" (FFA-LoRA);
* exact: the difference is added to W, the same for all clients. Singhal et al. 2024, "FedEx-LoRA: Exact
  Aggregation for Federated and Efficient Fine-Tuning of Foundation Models".

For *exact* the layout holds the base weights W too. Clients neither train nor send them: the update of W is
what :func:`lora_products` computes from the updates of A and B, and :func:`exact_step` computes the new W from it.

Two clients with one adapter of one number each, B A = 1 * 1 and 3 * 3:

>>> b, a = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0])
>>> exact, plain = (b * a).mean(), b.mean() * a.mean()
>>> exact.item(), plain.item(), ((b - b.mean()) * (a - a.mean())).mean().item()
(5.0, 4.0, 1.0)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import AggregatedUpdate
from fednlp.federated.message import Shapes
from fednlp.federated.params import Layout
from fednlp.federated.server import ServerUpdate
from fednlp.federated.state import State


@dataclass(frozen=True)
class LoraPair:
    """One adapter: the names of its two matrices and of the weight that it is added to.

    Attributes:
        a: Name of A, (r, inputs).
        b: Name of B, (outputs, r).
        base: Name of W, (outputs, inputs); (inputs, outputs) where ``transposed``, as in GPT-2.
        scaling: s, LoRA's alpha / r.
        transposed: True if the product is transposed before it is added.
    """

    a: str
    b: str
    base: str
    scaling: float
    transposed: bool = False

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return s B A in the shape of the base weight, float64.

        >>> pair = LoraPair("a", "b", "w", scaling=2.0)
        >>> pair.product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])).tolist()
        [[6.0, 12.0], [8.0, 16.0]]
        """
        made = b.double() @ a.double() * self.scaling
        return made.T if self.transposed else made


def check_exact(layout: Layout, pairs: Sequence[LoraPair]) -> None:
    """Check that exact averaging is possible.

    Args:
        layout: The layout of the shared tensors.
        pairs: All adapters of the model.

    Raises:
        ConfigError: There are no adapters, or some of them are not shared.
    """
    if not pairs:
        raise ConfigError(
            '[model.peft] averaging = "exact" is for method = "lora", and there are no adapters'
        )
    there = {entry.name for entry in layout.entries}
    lacking = [name for pair in pairs for name in (pair.a, pair.b, pair.base) if name not in there]
    if lacking:
        raise ConfigError(
            f'[model.peft] averaging = "exact" needs every adapter shared, and {lacking[0]} is not: '
            'leave [model] train out, or say averaging = "plain"'
        )


def _named(layout: Layout, flat: Tensor) -> dict[str, Tensor]:
    """Return the named tensors of a flat buffer, as views; the buffer may end before the table."""
    return {e.name: flat[e.start : e.stop].view(e.shape) for e in layout.entries if e.stop <= flat.numel()}


@torch.no_grad()
def lora_products(layout: Layout, x: Tensor, update: Tensor, pairs: Sequence[LoraPair]) -> None:
    """Write s B_i A_i into a client's update, at the positions of the base weights.

    The value is the product itself, not its change. It is computed from the update as the server adds it, after
    compression, so that the two agree.

    Args:
        layout: The layout of the shared tensors.
        x: float32, the server's model that the client began with, flat, with or without the table.
        update: float32, the client's update of it, flat, with or without the table; changed in place.
    """
    began, moved = _named(layout, x), _named(layout, update)
    for pair in pairs:
        a, b = (began[name].double() + moved[name].double() for name in (pair.a, pair.b))
        moved[pair.base].copy_(pair.product(a, b))


@torch.no_grad()
def exact_step(layout: Layout, x: Tensor, mean: Tensor, pairs: Sequence[LoraPair]) -> None:
    """Set the base weights so that the model is the mean of the clients' models: W + mean(s B_i A_i) - s B A.

    Args:
        layout: The layout of the shared tensors.
        x: float32, the model after the server's step, flat, with the averaged A and B and the old W, which is changed
            in place.
        mean: float32, the mean update, flat, with the mean products in place of W (:func:`lora_products`).
    """
    model, found = _named(layout, x), _named(layout, mean)
    for pair in pairs:
        own = pair.product(model[pair.a], model[pair.b])
        model[pair.base].copy_(model[pair.base].double() + found[pair.base].double() - own)


@dataclass(frozen=True)
class ExactAveraging(ServerUpdate):
    """A server that averages, and then sets the base weights so that the model is the mean of the clients' models."""

    server: ServerUpdate
    pairs: tuple[LoraPair, ...]

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return the server's vectors before the first round."""
        return self.server.init(layout)

    def step(self, state: State, update: AggregatedUpdate) -> None:
        """Update the model, then set the base weights."""
        self.server.step(state, update)
        exact_step(state.layout, state.params, update.model.delta, self.pairs)


def change_ranks(clients: int, lossy: bool = False) -> int:
    """Return the maximum rank of a round's change of the base weights, as a multiple of r.

    Args:
        clients: Number of averaged clients; 0 for a round without a step.
        lossy: True if ``exchange.down`` had rounded the clients' A and B. The mean of theirs is then not the
            server's, and their products differ from its product by up to 2 r ranks more.

    >>> [change_ranks(clients) for clients in (0, 1, 2, 9)], change_ranks(1, lossy=True)
    ([0, 0, 1, 8], 2)
    """
    return clients - 1 + 2 * lossy if clients else 0


def change_shapes(layout: Layout, pairs: Sequence[LoraPair], ranks: int) -> Shapes:
    """Return the shapes of the message of the base weights' change: two factors, or W itself where that is shorter.

    Args:
        layout: The layout of the shared tensors.
        ranks: Sum of :func:`change_ranks` over the rounds since the client received its last model.

    >>> shapes = {"a": ((1, 9), "parameter"), "b": ((9, 1), "parameter"), "w": ((9, 9), "derived")}
    >>> [list(change_shapes(Layout.of(shapes), [LoraPair("a", "b", "w", 1.0)], ranks)) for ranks in (0, 1, 8)]
    [[], ['w.B', 'w.A'], ['w']]
    """
    shapes = {entry.name: entry.shape for entry in layout.entries}
    sent: dict[str, tuple[int, ...]] = {}
    for pair in pairs if ranks else ():
        rank, whole = ranks * shapes[pair.a][0], shapes[pair.base]
        factors = {f"{pair.base}.B": (shapes[pair.b][0], rank), f"{pair.base}.A": (rank, shapes[pair.a][1])}
        cheaper = sum(map(math.prod, factors.values())) < math.prod(whole)
        sent |= factors if cheaper else {pair.base: whole}
    return {name: (shape, torch.float32) for name, shape in sent.items()}
