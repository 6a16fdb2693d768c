"""What happens to a call at a client before it is handed over: the objects that it needs are fetched."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp.deployment.message_types import Call, Get, ObjectChunk, ObjectRef
from fednlp.deployment.object_cache import ObjectCache
from fednlp.deployment.open_calls import OpenCalls
from fednlp.deployment.transfers import DamagedObject, Fetching


@dataclass(frozen=True)
class ReadyCall:
    """A call whose objects are there.

    Attributes:
        id: Of the call.
        request: JSON.
        objects: The file of each object, by name.
    """

    id: str
    request: dict[str, Any]
    objects: dict[str, Path]


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
    """

    def __init__(
        self,
        objects: ObjectCache,
        say: Callable[[Get], None],
        take: Callable[[ReadyCall | FailedCall], None],
    ) -> None:
        self._objects, self._asked, self._fetching = objects, OpenCalls(), Fetching(objects, say)
        self._take = take
        self._last: list[Mapping[str, ObjectRef]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked)

    def connect(self) -> None:
        """Begin a new connection: the server asks again for what it still wants."""
        self._asked.connect()

    def ask(self, call: Call, size: int) -> None:
        """Prepare a call; see :meth:`OpenCalls.ask`.

        The objects of a call stay until another one has objects of these names, which may be the same, or until two
        calls have others: the model of an evaluation is that of the next round, and a secure sum may begin in between.
        """
        self._asked.ask(call, size)
        if call.objects:
            self._last = [one for one in self._last[-1:] if not one.keys() & call.objects.keys()]
            self._last.append(call.objects)
            kept = {ref.digest for one in self._last for ref in one.values()}
            self._objects.keep_only(kept | self._asked.all_needed())
        self._advance(call.id)

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

    def _advance(self, call_id: str) -> None:
        """Fetch what a call lacks, or pass it on: it is ready, or asks for more than this client takes."""
        asked = self._asked[call_id]
        if asked.ready:
            return
        needed, most = asked.call.objects, self._objects.most_bytes
        for name, ref in needed.items():
            if ref.size > most:
                error = f"the object {name!r} has {ref.size} bytes, and this site takes {most}"
                self._fail(call_id, error)
                return
        found = {name: self._fetching.find(ref) for name, ref in needed.items()}
        objects = {name: path for name, path in found.items() if path is not None}
        if len(objects) == len(needed):
            asked.ready = True
            self._take(ReadyCall(call_id, asked.call.request, objects))

    def _fail(self, call_id: str, error: str) -> None:
        self.end(call_id)
        self._take(FailedCall(call_id, error))
