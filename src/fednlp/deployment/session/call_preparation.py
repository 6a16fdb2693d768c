"""What happens to a call at a client before it is handed over: it is admitted, and what it needs is fetched."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp.deployment.session.message_types import Call, Get, ObjectChunk, ObjectRef
from fednlp.deployment.session.object_cache import ObjectCache
from fednlp.deployment.session.open_calls import Asked, OpenCalls
from fednlp.deployment.session.transfers import DamagedObject, Fetching
from fednlp.errors import RunError
from fednlp.formatting.units import human_bytes


@dataclass(frozen=True)
class ReadyCall:
    """A call whose objects are there, or that is refused.

    Attributes:
        id: Of the call.
        request: JSON.
        objects: The file of each object, by name; empty where the call is refused.
        refusal: Why none of its objects was fetched; None for a call that was admitted.
    """

    id: str
    request: dict[str, Any]
    objects: dict[str, Path]
    refusal: Exception | None = None


@dataclass(frozen=True)
class FailedCall:
    """A call whose objects cannot be had; it is open no longer.

    Attributes:
        id: Of the call.
        error: Why.
    """

    id: str
    error: str


class CallPreparation:
    """The calls that a client has not answered, and the objects that they lack.

    Args:
        objects: Where fetched objects lie.
        say: Asks the server for an object.
        take: Takes each call once, at once when it is ready or cannot be any more.
        admits: Returns whether the objects of a call may be fetched; where not, the call waits for :meth:`go_on`.
            What it raises refuses the call.
    """

    def __init__(
        self,
        objects: ObjectCache,
        say: Callable[[Get], None],
        take: Callable[[ReadyCall | FailedCall], None],
        admits: Callable[[Call], bool] = lambda call: True,
    ) -> None:
        self._objects, self._asked, self._fetching = objects, OpenCalls(), Fetching(objects, say)
        self._take, self._admits = take, admits
        self._last: list[Mapping[str, ObjectRef]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked)

    def connect(self) -> None:
        """Begin a new connection: the server asks again for what it still wants."""
        self._asked.connect()

    def ask(self, call: Call, size: int) -> None:
        """Prepare a call; see :meth:`OpenCalls.ask`.

        Raises:
            RunError: The disk has no room for its objects.
        """
        self._asked.ask(call, size)
        self._begin(call.id)

    def go_on(self) -> None:
        """Go on with the calls that wait, as far as they are admitted now.

        Raises:
            RunError: The disk has no room for their objects.
        """
        for call_id in self._asked.waiting():
            self._begin(call_id)

    def arrived(self, chunk: ObjectChunk, payload: memoryview) -> None:
        """Add a chunk to its object; once this is whole, the calls that need it go on.

        Raises:
            ProtocolError: It was not asked for, or does not fit.
        """
        try:
            if not self._fetching.arrived(chunk, payload):
                return
            error = None
        except DamagedObject as damaged:
            error = str(damaged)
        for call_id in self._asked.needing(chunk.digest):
            if error is None:
                self._advance(call_id)
            else:
                self._fail(call_id, error)

    def end(self, call_id: str) -> bool | None:
        """Have a call open no longer, and return whether it was handed over; None if it was not open.

        What no other call needs is fetched no longer.
        """
        asked = self._asked.end(call_id)
        if asked is None:
            return None
        self._fetching.keep_only(self._asked.needed())
        return asked.ready

    def close(self) -> None:
        """Let go of what is under way: the connection is gone."""
        self._fetching.close()

    def _begin(self, call_id: str) -> None:
        """Fetch what a call lacks, once it is admitted; one that is refused is passed on at once."""
        asked = self._asked[call_id]
        if asked.ready:
            return
        try:
            self._admit(asked)
        except Exception as refusal:  # a hostile request may raise anything
            asked.admitted = asked.ready = True
            self._take(ReadyCall(call_id, asked.call.request, {}, refusal))
            return
        if asked.admitted:
            self._make_room(asked.call.objects)
            self._advance(call_id)

    def _admit(self, asked: Asked) -> None:
        """Note whether the objects of a call may be fetched.

        Raises:
            Exception: The call is refused.
        """
        asked.admitted = asked.admitted or self._admits(asked.call)
        total, most = sum(ref.size for ref in self._asked.fetching()), self._objects.most_bytes
        if total > most:
            raise RunError(
                f"the server sends {human_bytes(total)} at once, and a site takes {human_bytes(most)} at most"
            )

    def _make_room(self, needed: Mapping[str, ObjectRef]) -> None:
        """Remove the objects that are not needed any more, and check that what is missing of the others has room.

        The objects of a call stay until another one has objects of these names, which may be the same, or until two
        calls have others: the model of an evaluation is that of the next round, and a secure sum may begin in between.

        Raises:
            RunError: They cannot be removed, or there is no room.
        """
        if not needed:
            return
        self._last = [one for one in self._last[-1:] if not one.keys() & needed.keys()]
        self._last.append(needed)
        kept = {ref.digest for one in self._last for ref in one.values()}
        self._objects.keep_only(kept | self._asked.all_needed())
        self._objects.require_room(self._asked.fetching())

    def _advance(self, call_id: str) -> None:
        """Pass a call on if its objects are there, or ask for what is missing."""
        asked = self._asked[call_id]
        if asked.ready or not asked.admitted:
            return
        needed = asked.call.objects
        found = {name: self._fetching.find(ref) for name, ref in needed.items()}
        objects = {name: path for name, path in found.items() if path is not None}
        if len(objects) == len(needed):
            asked.ready = True
            self._take(ReadyCall(call_id, asked.call.request, objects))

    def _fail(self, call_id: str, error: str) -> None:
        self.end(call_id)
        self._take(FailedCall(call_id, error))
