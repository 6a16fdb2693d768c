"""What rules share that look at one coordinate of all clients' updates at a time, such as the median."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fednlp.federated.aggregators.kept_updates import KeptUpdates, UpdateFile, Values

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CoordinateWise(KeptUpdates):
    """A rule that makes each coordinate of the aggregate of the clients' values of that coordinate alone."""

    @abstractmethod
    def combine(self, values: Values) -> Values:
        """Return the aggregate of some coordinates.

        Args:
            values: float32 (clients, coordinates), at least one client; may be overwritten.

        Returns:
            float32 (coordinates,).
        """

    def aggregate(
        self, total: UpdateFile, places: Sequence[int], shares: NDArray[np.float64]
    ) -> Iterator[Tensor]:
        """Yield the aggregate of every coordinate of each vector."""
        for number in range(len(total.sends)):
            yield total.combined(number, places, self.combine)
