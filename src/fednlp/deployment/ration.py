"""Which uploads send at the same time: few of those that are fast, so that a cohort's buffers do not add up."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

PLACES = 8
"""Uploads that may fill buffers at the same time."""
PACE = 1 << 20
"""Bytes that an upload has to bring in each :data:`SPAN` to keep its place; a slower one fills no buffer."""
SPAN = 1.0
"""Seconds."""


@dataclass
class _Place:
    """Of an upload that was begun: since when its bytes are counted."""

    since: float
    brought: int = 0


class Ration:
    """Lets uploads begin, in the order of asking.

    An upload has a place until it ends. One that is slow, or that stands still, loses its place to the next one and
    goes on without: so no client keeps others waiting.

    Args:
        places: How many uploads have one.
        now: Returns the time in seconds.

    >>> begun = []
    >>> ration = Ration(places=1)
    >>> for name in "ab":
    ...     ration.ask(name, lambda name=name: begun.append(name))
    >>> begun
    ['a']
    >>> ration.end("a")
    >>> begun
    ['a', 'b']
    """

    def __init__(self, places: int = PLACES, now: Callable[[], float] = monotonic) -> None:
        self._places, self._now = places, now
        self._begun: dict[Hashable, _Place] = {}
        self._waiting: deque[tuple[Hashable, Callable[[], None]]] = deque()

    def ask(self, upload: Hashable, begin: Callable[[], None]) -> None:
        """Have an upload begin, now or when there is a place.

        Args:
            upload: Names it.
            begin: Called then, once.
        """
        self._waiting.append((upload, begin))
        self.look()

    def brought(self, upload: Hashable, count: int) -> None:
        """Take note of bytes of an upload that have arrived."""
        if upload in self._begun:
            self._begun[upload].brought += count
        self.look()

    def end(self, upload: Hashable) -> None:
        """Take note that an upload is whole, or gone."""
        self._begun.pop(upload, None)
        self._waiting = deque(one for one in self._waiting if one[0] != upload)
        self.look()

    def look(self) -> None:
        """Take their places from the slow ones, and have others begin."""
        if not self._waiting:
            return
        now = self._now()
        for upload, place in list(self._begun.items()):
            if now - place.since >= SPAN:
                if place.brought < PACE:
                    del self._begun[upload]
                else:
                    self._begun[upload] = _Place(now)
        while self._waiting and len(self._begun) < self._places:
            upload, begin = self._waiting.popleft()
            self._begun[upload] = _Place(now)
            begin()
