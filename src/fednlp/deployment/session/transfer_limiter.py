"""Which objects travel at the same time: few of those that are fast, so that the buffers of a cohort do not add up."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

PLACES = 8
"""Objects that may fill buffers at the same time."""
PACE = 1 << 20
"""Bytes that a transfer has to move in each :data:`SPAN` to keep its place; a slower one fills no buffer."""
SPAN = 1.0
"""Seconds."""


@dataclass
class _Place:
    """Of a transfer that was begun: since when its bytes are counted."""

    since: float
    moved: int = 0


class TransferLimiter:
    """Lets transfers begin, in the order of asking.

    A transfer has a place until it ends. One that is slow, or that stands still, loses its place to the next one and
    goes on without: so no client keeps others waiting.

    Args:
        places: How many transfers have one.
        now: Returns the time in seconds.
        patience: Seconds after which one that waits begins without a place; None for never.

    >>> begun = []
    >>> ration = TransferLimiter(places=1)
    >>> for name in "ab":
    ...     ration.ask(name, lambda name=name: begun.append(name))
    >>> begun
    ['a']
    >>> ration.end("a")
    >>> begun
    ['a', 'b']
    """

    def __init__(
        self, places: int = PLACES, now: Callable[[], float] = monotonic, patience: float | None = None
    ) -> None:
        self._places, self._now, self._patience = places, now, patience
        self._begun: dict[Hashable, _Place] = {}
        self._waiting: deque[tuple[Hashable, Callable[[], None], float]] = deque()

    def __contains__(self, transfer: Hashable) -> bool:
        return transfer in self._begun

    def ask(self, transfer: Hashable, begin: Callable[[], None]) -> None:
        """Have a transfer begin, now or when there is a place.

        Args:
            begin: Called then, once.
        """
        self._waiting.append((transfer, begin, self._now()))
        self.look()

    def moved(self, transfer: Hashable, count: int) -> None:
        """Take note of bytes of a transfer that have arrived, or are on their way."""
        if transfer in self._begun:
            self._begun[transfer].moved += count
        self.look()

    def end(self, transfer: Hashable) -> None:
        """Take note that a transfer is over, or gone."""
        self._begun.pop(transfer, None)
        if any(one[0] == transfer for one in self._waiting):
            self._waiting = deque(one for one in self._waiting if one[0] != transfer)
        self.look()

    def look(self) -> None:
        """Take their places from the slow ones, and have others begin."""
        if not self._waiting:
            return
        now = self._now()
        for transfer, place in list(self._begun.items()):
            if now - place.since >= SPAN:
                if place.moved < PACE:
                    del self._begun[transfer]
                else:
                    self._begun[transfer] = _Place(now)
        while self._waiting and len(self._begun) < self._places:
            transfer, begin, _ = self._waiting.popleft()
            self._begun[transfer] = _Place(now)
            begin()
        while self._waiting and self._patience is not None and now - self._waiting[0][2] >= self._patience:
            self._waiting.popleft()[1]()
