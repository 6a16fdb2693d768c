"""The calls that a client has not answered yet, over all its connections."""

from collections.abc import Iterator
from dataclasses import dataclass

from fednlp.deployment.session.message_types import Call, ObjectRef
from fednlp.errors import ProtocolError

_MOST_CALLS = 256
_MOST_REQUESTS = 64 << 20
"""Bytes of the calls that are open at most."""


@dataclass
class Asked:
    """A call that is not answered yet.

    Attributes:
        call: What is asked.
        size: Bytes of its frame.
        admitted: Whether its objects may be fetched.
        ready: Whether it was handed over.
    """

    call: Call
    size: int
    admitted: bool = False
    ready: bool = False


class OpenCalls:
    """The calls that are open, in the order of asking."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._called = set[str]()  # that came in this connection: the server sends objects for these alone

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._asked

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked)

    def __getitem__(self, call_id: str) -> Asked:
        return self._asked[call_id]

    def connect(self) -> None:
        """Begin a new connection: the server asks again for what it still wants."""
        self._called.clear()

    def ask(self, call: Call, size: int) -> None:
        """Take a call; nothing changes if it was open before.

        Args:
            call: What is asked.
            size: Bytes of its frame.

        Raises:
            ProtocolError: Too many are open.
        """
        if call.id not in self._asked:
            total = sum(one.size for one in self._asked.values()) + size
            if len(self._asked) >= _MOST_CALLS or total > _MOST_REQUESTS:
                raise ProtocolError(f"{len(self._asked)} calls are open, and another one is too many")
            self._asked[call.id] = Asked(call, size)
        self._called.add(call.id)

    def end(self, call_id: str) -> Asked | None:
        """Return a call that is open no longer; None if it was not."""
        return self._asked.pop(call_id, None)

    def waiting(self) -> list[str]:
        """Return the calls of this connection that are not admitted yet."""
        return [one for one, asked in self._asked.items() if one in self._called and not asked.admitted]

    def fetching(self) -> set[ObjectRef]:
        """Return the objects of all calls that are admitted and lack some, those of earlier connections too."""
        waiting = [one.call for one in self._asked.values() if one.admitted and not one.ready]
        return {ref for call in waiting for ref in call.objects.values()}

    def needing(self, digest: str) -> list[str]:
        """Return the calls of this connection that need an object."""
        return [call_id for call_id in self._asked if digest in self._needs(call_id)]

    def needed(self) -> set[str]:
        """Return the objects that calls of this connection need."""
        return {digest for call_id in self._asked for digest in self._needs(call_id)}

    def all_needed(self) -> set[str]:
        """Return the objects that calls need, those of earlier connections too."""
        return {ref.digest for asked in self._asked.values() for ref in asked.call.objects.values()}

    def _needs(self, call_id: str) -> set[str]:
        if call_id not in self._called:
            return set()
        return {ref.digest for ref in self._asked[call_id].call.objects.values()}
