"""How a server waits for its sites: one loop for every step of a round."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fednlp.deployment.session.call_ids import client_of
from fednlp.deployment.session.hub import Hub, StoredReply

LOOK = 1.0
"""Seconds between two looks at who is missing."""
TOLD = 10 * LOOK
"""Seconds until a line says who is missing; each later one comes after twice the time."""
_MOST_BETWEEN = 300 * LOOK
"""Seconds between two such lines at most."""


class Reminders:
    """When to say again who is missing: after 10, 20, 40 s and so on, and then every five minutes.

    Args:
        begun: When the waiting began, seconds.
    """

    def __init__(self, begun: float) -> None:
        self._begun, self._next = begun, TOLD

    def due(self, now: float) -> bool:
        """Return whether it is time to say so; then it is not until the next time.

        >>> reminders = Reminders(0.0)
        >>> [second for second in range(1000) if reminders.due(second)]
        [10, 20, 40, 80, 160, 320, 620, 920]
        """
        if (waited := now - self._begun) < self._next:
            return False
        while self._next <= waited:
            self._next += min(self._next, _MOST_BETWEEN)
        return True


@dataclass(frozen=True)
class Patience:
    """For whom a server waits, how long, and whom it tells.

    Attributes:
        seconds: How long a step waits for who is missing; None for as long as it takes.
        on_waiting: Told the clients that are awaited, now and then, and since when, in seconds.
        gone: Returns the clients that no longer take part; asked at each look.
    """

    seconds: float | None = None
    on_waiting: Callable[[Sequence[int], float], None] = lambda clients, seconds: None
    gone: Callable[[], Collection[int]] = frozenset

    def replies(self, hub: Hub, awaited: set[str]) -> Iterator[StoredReply]:
        """Yield the replies to some calls as they arrive.

        It ends when all are there, when the time is over, or when all who are missing are gone.

        Args:
            awaited: The numbers of the calls; one is removed before its reply is yielded, so that those that are left
                at the end are missing.
        """
        begun = time.monotonic()
        reminders = Reminders(begun)
        while awaited:
            reply = hub.take(LOOK)
            now, gone = time.monotonic(), self.gone()
            if reply is not None:
                if reply.id in awaited:
                    awaited.remove(reply.id)
                    yield reply
                continue
            late = self.seconds is not None and now - begun > self.seconds
            missing = {client_of(call_id) for call_id in awaited}
            if late or missing <= {*gone}:
                return
            if reminders.due(now):
                self.on_waiting(sorted(missing), now - begun)
