"""What a client's connection moves: objects that it fetches, and objects of its answers that it sends."""

from collections.abc import Callable, Collection
from pathlib import Path

from fednlp.deployment.session.message_types import Get, ObjectChunk, ObjectRef, UploadChunk
from fednlp.deployment.session.messages import pack
from fednlp.deployment.session.object_cache import ObjectCache
from fednlp.deployment.session.objects import Partial
from fednlp.deployment.session.offers import ObjectFile
from fednlp.errors import ProtocolError, RunError

_MOST_DAMAGED = 3


class DamagedObject(RunError):
    """An object arrived with wrong bytes each time."""


class Fetching:
    """The objects that a client fetches; what has arrived of them outlives a connection.

    Args:
        objects: Where they lie.
        say: Sends a message.
    """

    def __init__(self, objects: ObjectCache, say: Callable[[Get], None]) -> None:
        self._objects, self._say = objects, say
        self._partials: dict[str, Partial] = {}
        self._damaged: dict[str, int] = {}
        self._stale = set[str]()  # no longer fetched: chunks may still be on their way

    def find(self, ref: ObjectRef) -> Path | None:
        """Return an object's file; where it is not there or not whole, ask for the rest and return None."""
        path = self._objects.find(ref)
        if path is not None or ref.digest in self._partials:
            return path
        self._stale.discard(ref.digest)
        self._partials[ref.digest] = partial = self._objects.begin(ref)
        if partial.whole and self._objects.keep(partial):
            del self._partials[ref.digest]
            return self._objects.find(ref)
        self._say(Get(ref.digest, partial.length))
        return None

    def arrived(self, chunk: ObjectChunk, payload: memoryview) -> bool:
        """Take a chunk; return whether its object is whole now.

        Raises:
            ProtocolError: It was not asked for, or does not fit.
            DamagedObject: Its object was damaged too often; it is fetched no longer.
        """
        digest = chunk.digest
        partial = self._partials.get(digest)
        if partial is None:
            if digest in self._stale:
                return False
            raise ProtocolError(f"a chunk of the object {digest}, which was not asked for")
        partial.append(chunk.offset, payload)
        if not partial.whole:
            return False
        if self._objects.keep(partial):
            del self._partials[digest]
            self._damaged.pop(digest, None)
            return True
        self._damaged[digest] = self._damaged.get(digest, 0) + 1
        if self._damaged[digest] < _MOST_DAMAGED:
            self._say(Get(digest, 0))
            return False
        del self._damaged[digest]
        raise DamagedObject(f"the object {digest} arrived damaged {_MOST_DAMAGED} times")

    def keep_only(self, needed: Collection[str]) -> None:
        """Fetch no longer what is not needed."""
        for digest in [one for one in self._partials if one not in needed]:
            self._partials.pop(digest).close()
            self._stale.add(digest)

    def close(self) -> None:
        """Let go of what is under way: the connection is gone, and nothing is on its way any more."""
        while self._partials:
            self._partials.popitem()[1].close()
        self._stale.clear()


class Uploading:
    """The objects of answers that the server has asked for, in the order of asking."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[ObjectFile, int]] = {}

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._files

    def begin(self, call_id: str, path: Path, ref: ObjectRef, offset: int) -> None:
        """Send an object from an offset, in place of what is being sent of it."""
        self.stop(call_id)
        self._files[call_id] = ObjectFile(path, ref), offset

    def stop(self, call_id: str) -> None:
        """Send an object no longer, if it is being sent."""
        if call_id in self._files:
            self._files.pop(call_id)[0].close()

    def next_frame(self) -> bytes | None:
        """Return the next chunk; None where nothing is left to send.

        Raises:
            RunError: A file was cut short.
        """
        for call_id, (file, offset) in self._files.items():
            if offset < file.ref.size:
                data = file.chunk(offset)
                if not data:
                    raise RunError(f"the file of the answer to {call_id} was cut short")
                self._files[call_id] = file, offset + len(data)
                return pack(UploadChunk(call_id, offset), data)
        return None

    def close(self) -> None:
        """Let go of all files: the connection is gone."""
        while self._files:
            self._files.popitem()[1][0].close()
