"""How a server waits for its sites: one loop for every step of a round."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fednlp.deployment.calls import StoredReply
from fednlp.deployment.inbox import client_of

LOOK = 1.0
"""Seconds between two looks at who is missing."""
TOLD = 10 * LOOK
"""Seconds between two lines that say who is missing."""


class Mail(Protocol):
    """Where replies come from (:class:`fednlp.deployment.hub.Hub`)."""

    def take(self, timeout: float | None = None) -> StoredReply | None: ...


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

    def replies(self, mail: Mail, awaited: set[str]) -> Iterator[StoredReply]:
        """Yield the replies to some calls as they arrive.

        It ends when all are there, when the time is over, or when all who are missing are gone.

        Args:
            mail: Where they arrive.
            awaited: The numbers of the calls; one is removed before its reply is yielded, so that those that are left
                at the end are missing.
        """
        begun = told = time.monotonic()
        while awaited:
            reply = mail.take(LOOK)
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
            if now - told >= TOLD:
                told = now
                self.on_waiting(sorted(missing), now - begun)
