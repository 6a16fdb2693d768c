"""Shared A, personal B: Guo et al. 2024, "Selective Aggregation for Low-Rank Adaptation in Federated Learning".

FedSA-LoRA (arXiv:2410.01463). A is averaged. B is trained by each client and stays there, so that it is a function of
the client's own texts and of the A that it received.
"""

from collections.abc import Mapping
from typing import ClassVar

from fednlp.federated.adapters.base import Rule
from fednlp.section import Reason


class SharedA(Rule):
    """A is averaged, and B stays with each client."""

    name: ClassVar[str] = "fedsa"
    needs: ClassVar[Mapping[str, Reason]] = {"one_model": "has each client keep its B with one model"}
    breaks: ClassVar[Mapping[str, Reason]] = {"whole_model": "keeps B with each client"}
    personal: ClassVar[str] = "b"
    pairs: ClassVar[bool] = False
    products: ClassVar[bool] = False
    by_products: ClassVar[bool] = False
    unequal: ClassVar[bool] = False
