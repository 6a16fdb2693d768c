"""One factor at a time: Chen et al. 2025, "Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA".

RoLoRA (arXiv:2502.01755; first Chen et al. 2024, arXiv:2409.02346). Odd rounds train and average B, even rounds A. The
other factor is then the same for all clients, and the mean of the products is exact in each round. B comes first: it
begins at zero, and then A has no gradient.
"""

from collections.abc import Mapping
from typing import ClassVar

from fednlp.federated.adapters.base import Rule
from fednlp.section import Reason


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
