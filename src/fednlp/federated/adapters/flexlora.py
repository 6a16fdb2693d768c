"""The nearest factors: Bai et al. 2024, "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and
Client Resources" (FlexLoRA, arXiv:2402.11505).

The server takes the mean of the clients' products apart,

    sum p_k s_k B_k A_k = U S V^T,

and keeps the leading R singular values, R being the largest rank: s B = U S and A = V^T. A client of rank r gets the
leading r. No product of that rank is nearer to the mean (Eckart and Young), and it is the mean where that has no higher
rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fednlp.federated.adapters.base import LoraPair, Rule
from fednlp.federated.adapters.exact import Exact
from fednlp.section import Reason

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.state import State

_ROUNDING = 2.0**-23
"""Of float32, in which the mean of the products is known."""


class Nearest(Rule):
    """The factors become those of the product that is nearest to the mean of the clients' products."""

    name: ClassVar[str] = "flexlora"
    needs: ClassVar[Mapping[str, Reason]] = {
        **Exact.needs,
        "one_model": "takes the products of one model apart",
    }
    breaks: ClassVar[Mapping[str, Reason]] = {
        "fixed_base": "gives all adapters new factors after each round",
        "additive": "multiplies what clients send",
    }

    def step(self, state: State, update: AggregatedUpdate, pairs: Sequence[LoraPair]) -> dict[str, Any]:
        """Take the mean of the products apart."""
        model, found = state.layout.views(state.params), state.layout.views(update.model.delta)
        for pair in pairs:
            mean = found[pair.base].T if pair.transposed else found[pair.base]
            a, b = nearest_factors(mean, model[pair.a], pair.scaling)
            model[pair.a].copy_(a)
            model[pair.b].copy_(b)
        return {}


def nearest_factors(product: Tensor, a: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Return A (rank, inputs) and B (outputs, rank) with s B A nearest to a product, float64.

    The largest element of each row of A is positive, so that the factors are unique. A direction that the product does
    not have keeps its row of A, with a column of zeros in B.

    Args:
        product: (outputs, inputs).
        a: (rank, inputs), the rows of A where the product has a lower rank.
        scaling: s.
    """
    import torch

    rank = len(a)
    u, values, v = torch.linalg.svd(product.double(), full_matrices=False)
    there = int((values > values[0] * max(product.shape) * _ROUNDING).sum())
    kept = min(rank, there)
    new_a, new_b = a.double().clone(), torch.zeros(len(product), rank, dtype=torch.float64)
    rows = v[:kept]
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    signs = largest.sign()
    new_a[:kept] = rows * signs
    new_b[:, :kept] = u[:, :kept] * values[:kept] * signs.T / scaling
    return new_a, new_b
