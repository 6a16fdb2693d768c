"""Padded factors, weighed by their products: Cho et al. 2024, "Heterogeneous LoRA for Federated Fine-tuning of
On-Device Foundation Models" (HetLoRA, arXiv:2401.06432).

Factors of a lower rank are padded with zeros, and A and B are averaged apart. A client counts the more the larger its
product is: with S_k = ||s_k B_k A_k|| over all adapters (Frobenius), its weight is p_k S_k. With equal weights p_k it
is the paper's S_k / sum S_j. A client of rank r then gets the first r rows and columns.

The paper's pruning of a client's rank in its local training is not here: ranks stay as they are dealt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from fednlp.federated.adapters.base import LoraPair, Rule
from fednlp.section import Reason

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 2.0**-20
"""A client whose product is zero counts by this, so that a round of such clients is an average too."""


class NormWeighted(Rule):
    """Padded factors are averaged, each client by the norm of its product."""

    name: ClassVar[str] = "hetlora"
    needs: ClassVar[Mapping[str, Reason]] = {
        "weighted_mean": "weighs clients by the size of their products",
        "sees_updates": "needs the product of each client's two factors",
        "same_tensors": "needs all adapters of all clients",
        "one_vector": "weighs the update alone",
        "one_model": "weighs the adapters of one model",
    }
    breaks: ClassVar[Mapping[str, Reason]] = {
        "additive": "multiplies what clients send",
        "equal_weights": "weighs clients by the size of their products",
    }
    products: ClassVar[bool] = False

    def weight(self, factors: Sequence[tuple[LoraPair, Tensor, Tensor]]) -> float:
        """Return the norm of a client's products: ||B A||^2 is the trace of B^T B A A^T."""
        squares = 0.0
        for pair, a, b in factors:
            a, b = a.double(), b.double()
            squares += pair.scaling**2 * float((b.T @ b * (a @ a.T)).sum())
        return max(_LEAST, math.sqrt(max(0.0, squares)))
