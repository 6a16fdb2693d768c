"""Exact averaging: the server's weights W take up what averaging A and B apart leaves out.

Singhal et al. 2024, "FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of Foundation Models"
(arXiv:2410.09432). The model that stands for the clients is the mean of theirs,

    mean(W + s B_i A_i) = W + s mean(B_i A_i),

but averaging A and B apart gives W + s mean(B_i) mean(A_i). With p_i the clients' shares, the two differ by

    s (sum p_i B_i A_i - B A) = s sum p_i (B_i - B)(A_i - A),        B = sum p_i B_i, A = sum p_i A_i,

which has rank (clients - 1) r at most, since the p_i (B_i - B) sum to zero. It is added to W, the same for all clients.

Two clients with one adapter of one number each, B A = 1 * 1 and 3 * 3:

>>> import torch
>>> b, a = torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0])
>>> exact, plain = (b * a).mean(), b.mean() * a.mean()
>>> exact.item(), plain.item(), ((b - b.mean()) * (a - a.mean())).mean().item()
(5.0, 4.0, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fednlp.federated.adapters.base import LoraPair, Plain, Rule
from fednlp.section import Reason

if TYPE_CHECKING:
    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.state import State

GAP = "averaging_gap"
"""In a round's line: ||sum p_i s B_i A_i - s B A|| over ||sum p_i s B_i A_i||, of all adapters together."""


class Exact(Rule):
    """A and B are averaged apart, and the difference to the mean of their products is added to W."""

    name: ClassVar[str] = "exact"
    needs: ClassVar[Mapping[str, Reason]] = {
        "averages": "averages the products of the clients' two factors",
        "sees_updates": "needs the product of each client's two factors",
        "same_tensors": "needs all adapters of all clients",
        "one_model": "moves the base weights of one model",
    }
    breaks: ClassVar[Mapping[str, Reason]] = {
        "fixed_base": "moves the base weights under the adapters",
        "additive": "multiplies what clients send",
    }
    moves_base: ClassVar[bool] = True
    unequal: ClassVar[bool] = False

    def step(self, state: State, update: AggregatedUpdate, pairs: Sequence[LoraPair]) -> dict[str, Any]:
        """Set the base weights to W + mean(s B_i A_i) - s B A, and say how large the difference is."""
        model, found = state.layout.views(state.params), state.layout.views(update.model.delta)
        told = _gap(state, update, pairs)
        for pair in pairs:
            weights = model[pair.base].double() + found[pair.base].double()
            model[pair.base].copy_(weights - pair.product(model[pair.a], model[pair.b]))
        return told

    def change_rank(self, ranks: Sequence[int], lossy: bool) -> int:
        """Return (clients - 1) r, or (clients + 1) r where the clients began with rounded factors.

        The mean of theirs is then not the server's, and their products differ from its product by up to 2 r ranks more.

        >>> [Exact().change_rank([2] * clients, False) for clients in (0, 1, 2, 9)], Exact().change_rank([2], True)
        ([0, 0, 2, 16], 4)
        """
        return (len(ranks) - 1 + 2 * lossy) * ranks[0] if ranks else 0


class MeasuredPlain(Plain):
    """Plain averaging, which says how far its product is from the mean of the clients' products."""

    needs: ClassVar[Mapping[str, Reason]] = Exact.needs
    breaks: ClassVar[Mapping[str, Reason]] = {"additive": "multiplies what clients send"}
    remedy: ClassVar[str] = "leave averaging_gap out"
    pairs = products = True
    unequal: ClassVar[bool] = False

    def step(self, state: State, update: AggregatedUpdate, pairs: Sequence[LoraPair]) -> dict[str, Any]:
        """Say how large the difference is."""
        return _gap(state, update, pairs)


def _gap(state: State, update: AggregatedUpdate, pairs: Sequence[LoraPair]) -> dict[str, Any]:
    """Return the gap; nothing where the clients' products are zero."""
    model, found = state.layout.views(state.params), state.layout.views(update.model.delta)
    gap = whole = 0.0
    for pair in pairs:
        mean = found[pair.base].double()
        rest = mean - pair.product(model[pair.a], model[pair.b])
        gap, whole = gap + float(rest.square().sum()), whole + float(mean.square().sum())
    return {GAP: math.sqrt(gap / whole)} if whole else {}
