"""Stacked factors: Wang et al. 2024, "FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
Adaptations" (arXiv:2409.05976).

The weighted B_k, side by side, times the A_k, one under the other, is the mean of the clients' products for any ranks:

    W <- W + sum p_k s_k B_k A_k

Then the clients begin with factors anew, A drawn as LoRA draws it and B = 0. What a client receives of a round is the
stack, whose rank is the sum of the cohort's ranks, or W where that is shorter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fednlp.federated.adapters.base import LoraPair, Rule
from fednlp.federated.adapters.exact import Exact
from fednlp.section import Reason
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.state import State


class Stacked(Rule):
    """The mean of the products is added to W, and the factors begin anew."""

    name: ClassVar[str] = "flora"
    needs: ClassVar[Mapping[str, Reason]] = Exact.needs
    breaks: ClassVar[Mapping[str, Reason]] = Exact.breaks
    moves_base: ClassVar[bool] = True

    def step(self, state: State, update: AggregatedUpdate, pairs: Sequence[LoraPair]) -> dict[str, Any]:
        """Add the mean of the products to W, and draw the factors."""
        model, found = state.layout.views(state.params), state.layout.views(update.model.delta)
        for number, pair in enumerate(pairs):
            model[pair.base].copy_(model[pair.base].double() + found[pair.base].double())
            model[pair.a].copy_(_drawn(model[pair.a], update.plan.population.seed, state.round + 1, number))
            model[pair.b].zero_()
        return {}

    def change_rank(self, ranks: Sequence[int], lossy: bool) -> int:
        """Return the sum of the ranks.

        >>> Stacked().change_rank([4, 8, 16], False)
        28
        """
        return sum(ranks)


def _drawn(a: Tensor, *numbers: int) -> Tensor:
    """Return new values of A, uniform within 1 / sqrt(inputs): Kaiming's of a linear layer, as PEFT begins with it.

    Args:
        numbers: Seed, round and adapter.
    """
    import torch

    seed, number, adapter = numbers
    most = 1 / math.sqrt(a.shape[1])
    return torch.from_numpy(generator(seed, "adapters", number, adapter).uniform(-most, most, tuple(a.shape)))
