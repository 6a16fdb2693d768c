"""The weights that local steps end with, and their change from the global model, computed when it is sent."""

from torch import Tensor

from fednlp.federated.update import Update
from fednlp.training.replica import Replica


class TrainedWeights:
    """The weights that local steps ended with: they lie in the replica until it is loaded anew.

    Args:
        x: The global model that the client got, flat.
        flat: The weights, where the replica does not hold them.
    """

    def __init__(self, replica: Replica, x: Tensor, flat: Tensor | None = None) -> None:
        self._replica, self.x, self._flat = replica, x, flat

    def detach(self) -> None:
        """Copy the weights out of the replica, which is about to be used for others."""
        if self._flat is None:
            self._flat = self._replica.weights(self.x)

    def flat(self) -> Tensor:
        """Return the weights as a flat vector of their own."""
        return self._replica.weights(self.x) if self._flat is None else self._flat

    def take(self) -> Update:
        """Return the change from the global model, in place where the weights are still in the replica."""
        if self._flat is None:
            return self._replica.take_update()
        return Update.of(self._flat - self.x, self._replica.layout)

    def change(self) -> Tensor:
        """Return the change from the global model, flat."""
        return self._replica.update() if self._flat is None else self._flat - self.x

    def __sub__(self, other: Tensor) -> "WeightsChange":
        if other is not self.x:
            raise TypeError("y - x is for the global model x: for another vector say y.flat() - vector")
        return WeightsChange(self)

    def __rsub__(self, other: Tensor) -> Tensor:
        return -self.change() if other is self.x else other - self.flat()


class WeightsChange:
    """``y - x``, computed when it is sent (:class:`fednlp.federated.client.Change`).

    Args:
        divisor: What the change is divided by.
    """

    def __init__(self, weights: TrainedWeights, divisor: float = 1.0) -> None:
        self._weights, self._divisor = weights, divisor

    def take(self) -> Update:
        """Return the update; the trained weights are used up."""
        update = self._weights.take()
        if self._divisor != 1.0:
            update.dense.div_(self._divisor)
            if update.table is not None:
                update.table.div_(self._divisor)
        return update

    def flat(self) -> Tensor:
        """Return the update as a flat vector of its own."""
        change = self._weights.change()
        return change if self._divisor == 1.0 else change / self._divisor

    def __truediv__(self, number: float) -> "WeightsChange":
        return WeightsChange(self._weights, self._divisor * number)
