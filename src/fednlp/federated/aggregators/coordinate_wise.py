"""What rules share that look at one coordinate of all clients' updates at a time, such as the median."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.federated.aggregators.kept_updates import KeptUpdates, UpdateFile, Values
from fednlp.plugins import require_takes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CoordinateWise(KeptUpdates):
    """A rule that makes each coordinate of the aggregate of the clients' values of that coordinate alone.

    It defines ``combine(values)``, or ``combine(values, shares)`` where it ``weighs``.
    """

    @abstractmethod
    def combine(self, *given: Any, **named: Any) -> Values:
        """Return the aggregate of some coordinates.

        Args:
            values: float32 (clients, coordinates), at least one client; may be overwritten.
            shares: p_i / sum p_i, float64 (clients,), for a rule that ``weighs``, and for no other.

        Returns:
            float32 (coordinates,).
        """

    def require_fits(self) -> None:
        """Check that ``combine`` takes the clients' shares where the rule weighs.

        Raises:
            ConfigError: It does not, or another method takes something else than it will be called with.
        """
        super().require_fits()
        if type(self).aggregate is not CoordinateWise.aggregate:  # it calls combine in its own way
            return
        given = ("values", "shares") if self.weighs else ("values",)
        try:
            require_takes(self.combine, f"{type(self).__name__}: combine", *given)
        except ConfigError as error:
            if len(inspect.signature(self.combine).parameters) != 3 - len(given):
                raise
            raise ConfigError(f"{error}, or say weighs = {not self.weighs}") from None

    def aggregate(
        self, total: UpdateFile, places: Sequence[int], shares: NDArray[np.float64]
    ) -> Iterator[Tensor]:
        """Yield the aggregate of every coordinate of each vector."""

        @wraps(self.combine)
        def combine(values: Values) -> Values:
            return self.combine(values, shares) if self.weighs else self.combine(values)

        for number in range(len(total.sends)):
            yield total.combined(number, places, combine)
