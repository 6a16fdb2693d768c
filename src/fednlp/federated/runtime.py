"""What a runtime is: where clients are, in this process, in several, or across a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "model"
"""The name under which the global model is published."""


class Runtime(Protocol):
    """Where clients are: in this process, in several, or across a network."""

    @property
    def total(self) -> Any:
        """What the clients' updates were added to, in the aggregator's form."""

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let the clients have a flat vector under a name, in place of the one before.

        Args:
            message: The bytes that travel to them; None where they say what ``vector`` says.
        """

    def __len__(self) -> int:
        """Return how many requests are answered side by side."""

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered; return the results in their order.

        A client that fails is no exception: its result says why, and its update is not in the total.
        ``on_progress`` is told how many are through.
        """
