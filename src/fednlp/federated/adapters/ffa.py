"""Frozen A: Sun et al. 2024, "Improving LoRA in Privacy-preserving Federated Learning" (FFA-LoRA, arXiv:2403.12313).

A keeps its first values, the same for all (:data:`fednlp.models.peft_methods.FIXED_A`). Then the mean of B alone gives
the mean of the products, and a client trains and sends about half of the numbers.
"""

from typing import ClassVar

from fednlp.federated.adapters.base import Rule


class FrozenA(Rule):
    """A keeps its first values, and B is averaged."""

    name: ClassVar[str] = "ffa"
    pairs: ClassVar[bool] = False
    products: ClassVar[bool] = False
    by_products: ClassVar[bool] = False
    unequal: ClassVar[bool] = False
