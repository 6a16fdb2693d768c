"""One factor at a time: Chen et al. 2025, "Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA".

RoLoRA (arXiv:2502.01755; first Chen et al. 2024, arXiv:2409.02346). Odd rounds train and average B, even rounds A. The
other factor is then the same for all clients, and the mean of the products is exact in each round. B comes first: it
begins at zero, and then A has no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fednlp.federated.adapters.base import Adapters, Rule
from fednlp.federated.server import ServerUpdate
from fednlp.section import Reason

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.params import Layout
    from fednlp.federated.state import State


class Alternating(Rule):
    """Odd rounds train B, even rounds A."""

    name: ClassVar[str] = "rolora"
    needs: ClassVar[Mapping[str, Reason]] = {
        "same_tensors": "has all clients of a round send the same factor",
        "waits": "has all clients of a round train the same factor",
        "one_model": "alternates the factors of one model",
    }
    breaks: ClassVar[Mapping[str, Reason]] = {"plain_steps": "trains one factor in a round"}
    products: ClassVar[bool] = False
    by_products: ClassVar[bool] = False

    def held(self, number: int) -> str:
        """Return A in odd rounds, and B in even ones.

        >>> [Alternating().held(number) for number in (1, 2, 3)]
        ['a', 'b', 'a']
        """
        return "a" if number % 2 else "b"

    def server(self, server: ServerUpdate, adapters: Adapters) -> ServerUpdate:
        """Return a server that leaves the other factor as it is, whatever its optimiser or noise would do."""
        return _Holding(server, adapters)


@dataclass(frozen=True)
class _Holding(ServerUpdate):
    inner: ServerUpdate
    adapters: Adapters

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return the server's vectors before the first round."""
        return self.inner.init(layout)

    def step(self, state: State, update: AggregatedUpdate) -> Mapping[str, Any] | None:
        """Move everything but the factor that nobody trained."""
        model = state.layout.views(state.params)
        before = {name: model[name].clone() for name in self.adapters.held(state.round + 1)}
        told = self.inner.step(state, update)
        for name, values in before.items():
            model[name].copy_(values)
        return told
