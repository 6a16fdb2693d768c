"""What rules share that look at how the clients' updates lie to each other, such as Krum.

All that they ask of the updates are inner products: lengths, distances and angles follow from these. The products are
summed over blocks of coordinates, so that memory is O(block + clients^2) beside the result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fednlp.federated.aggregators.kept_updates import KeptUpdates, UpdateFile, Values, require_floats

if TYPE_CHECKING:
    from torch import Tensor

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class WholeUpdates(KeptUpdates):
    """A rule that weighs whole updates by their inner products; its aggregate is their weighted sum.

    The weights follow from the models' updates. Further vectors of a method are summed with the same weights.
    """

    @abstractmethod
    def weights(self, products: Numbers, shares: Numbers) -> Numbers:
        """Return the weight of each client's update, float64 (clients,); an update of weight 0 is left out.

        Args:
            products: The inner products of the updates, float64 (clients, clients), in the order of their ids.
            shares: p_i / sum p_i, float64 (clients,), for a rule that ``weighs``.
        """

    def aggregate(self, total: UpdateFile, places: Sequence[int], shares: Numbers) -> Iterator[Tensor]:
        """Yield the weighted sum of the updates, for each vector."""
        weights = self.weights(inner_products(total, places), shares)
        require_floats(weights, np.ndarray, (len(places),), self.weights)
        some = [place for place, weight in zip(places, weights, strict=True) if weight]
        factors = weights[weights != 0]

        def combine(values: Values) -> Values:
            return np.asarray(factors @ values, dtype=np.float32)

        for number in range(len(total.sends)):
            yield total.combined(number, some, combine)


def inner_products(total: UpdateFile, places: Sequence[int]) -> Numbers:
    """Return the inner products of some clients' model updates, float64 (clients, clients).

    Args:
        places: Where in the file they begin.
    """
    products = np.zeros((len(places), len(places)))
    for _, values in total.blocks(total.sends.index("model"), places):
        exact = values.astype(np.float64)
        products += exact @ exact.T
    return products


def squared_distances(products: Numbers) -> Numbers:
    """Return the squared distances of vectors, (vectors, vectors), by their inner products.

    >>> squared_distances(np.array([[9.0, 12.0], [12.0, 16.0]])).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    lengths = products.diagonal()
    return np.maximum(lengths[:, None] + lengths[None, :] - 2 * products, 0.0)
