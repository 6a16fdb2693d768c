"""The replies that the round may take: those on the server's disk, and those that are on their way to it."""

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from fednlp.deployment.session.calls import StoredReply
from fednlp.deployment.session.inbox import Inbox, client_of, round_of
from fednlp.deployment.session.message_types import Reply
from fednlp.deployment.session.transfer_limiter import SPAN


class ReplyQueue:
    """The replies of all clients, in the order in which they came.

    The lock is held in all of it; :meth:`take` lets go of it while it waits.

    Args:
        inbox: Those on the disk.
        lock: The server's.
    """

    def __init__(self, inbox: Inbox, lock: threading.RLock) -> None:
        self._inbox, self._news = inbox, threading.Condition(lock)
        self._ready: deque[str] = deque()
        self._arrived: dict[str, Reply] = {}

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._inbox or call_id in self._arrived

    def is_arriving(self, call_id: str) -> bool:
        """Return whether a reply that the round may have is on its way to the disk."""
        return call_id in self._arrived

    def names(self) -> list[str]:
        """Return the numbers of the calls whose replies are there."""
        return sorted({*self._inbox, *self._arrived})

    def read(self, call_id: str) -> StoredReply:
        """Return a reply that is there, whether it was taken or not."""
        reply = self._arrived.get(call_id) or self._inbox.read(call_id)
        path = None if reply.digest is None else self._inbox.body(reply.id, reply.digest)
        return StoredReply(reply.id, client_of(reply.id), reply.answer, path, reply.size, reply.error)

    def take(self, timeout: float | None, look: Callable[[], None]) -> StoredReply | None:
        """Return the next reply, of any client, or None if none came in time.

        Args:
            timeout: Seconds; None to wait for as long as it takes.
            look: Called again and again meanwhile.
        """
        until = None if timeout is None else monotonic() + timeout
        while not self._ready:
            left = None if until is None else until - monotonic()
            if left is not None and left <= 0:
                return None
            look()
            self._news.wait(SPAN if left is None else min(left, SPAN))
        return self.read(self._ready.popleft())

    def offer(self, call_id: str) -> None:
        """Let the round take a reply."""
        if call_id not in self._ready:
            self._ready.append(call_id)
            self._news.notify()

    def arrive(self, reply: Reply) -> None:
        """Have a reply before it is on the disk."""
        self._arrived[reply.id] = reply

    def settle(self, call_id: str) -> None:
        """Take note that a reply is on the disk."""
        self._inbox.add(call_id)
        self._arrived.pop(call_id, None)

    def uses_another(self, reply: Reply) -> bool:
        """Return whether the round has a reply to this call that is not on the disk yet, and it is another one."""
        used = self._arrived.get(reply.id)
        return used is not None and used != reply

    def remove(self, call_id: str) -> None:
        """Remove a reply and what has arrived of it."""
        self._arrived.pop(call_id, None)
        self._inbox.remove(call_id)
        if call_id in self._ready:
            self._ready.remove(call_id)

    def forget(self, round_number: int) -> None:
        """Have no reply of the rounds up to this one."""
        self._ready = deque(one for one in self._ready if round_of(one) > round_number)
        self._inbox.forget(round_number)
