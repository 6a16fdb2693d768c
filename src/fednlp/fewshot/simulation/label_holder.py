"""Who holds the labels of a run with few labels: the server of a simulation, or each site of a deployment its own."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.pacing import LabelQuota

Numbers = NDArray[np.int64]


class LabelHolder(Protocol):
    """The gold and pseudo labels of all clients: how many there are, and what has clients use them.

    Attributes:
        known: The labels that the server knows; none of a client's where they are at the sites.
    """

    known: GoldLabels

    @property
    def gold(self) -> Numbers:
        """Number of gold labels of each client that are used, int64 (clients,)."""

    @property
    def pseudo(self) -> Numbers:
        """Number of pseudo labels of each client, int64 (clients,)."""

    @property
    def candidates(self) -> Numbers:
        """Number of texts of each client that may be given a pseudo label, int64 (clients,)."""

    def facts(self) -> dict[str, Any]:
        """Return the figures for the run's summary."""

    def trust_all_but(self, flagged: Sequence[int]) -> None:
        """Use the gold labels of all clients except flagged ones, whose gold texts count as unlabelled."""

    def with_labels(self, request: Any) -> Any:
        """Return a request by which a client trains, to do so on the labels that it has now."""

    def label_request(self, client: int, round_number: int, quota: LabelQuota) -> Any:
        """Return the request by which a client labels in a round."""

    def keep(self, request: Any, quota: LabelQuota, answer: Any) -> str | None:
        """Replace the pseudo labels of a client that has labelled; return why it failed, None if it did not."""

    def truth(self) -> dict[str, Any]:
        """Return how right the pseudo labels of this round are, for its line; nothing where no true label is known."""


OpenLabels = Callable[[Any], LabelHolder]
"""Returns who holds the labels of a run, of its :class:`fednlp.simulation.context.RunContext`."""
