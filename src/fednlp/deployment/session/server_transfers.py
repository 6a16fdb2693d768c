"""What a server's connection moves: objects that the client fetches, and objects of its replies that arrive.

The hub's lock is held in all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fednlp.deployment.session.call_names import in_words
from fednlp.deployment.session.message_types import Get, ObjectChunk, Reply, Resume, UploadChunk
from fednlp.deployment.session.messages import pack
from fednlp.errors import ProtocolError, RunError

if TYPE_CHECKING:
    from fednlp.deployment.session.hub import Hub
    from fednlp.deployment.session.objects import Partial

_SHORT_CHUNK = 1 << 15
"""Bytes of a chunk to a client that has no place among those that fetch: its link is slow, and there may be many."""


class Sending:
    """The objects that a client fetches, in the order of asking.

    Args:
        hub: Has the objects, and the places of those who fetch.
        client: Its number.
        wake: Tells the driver to ask for frames again.
    """

    def __init__(self, hub: Hub, client: int, wake: Callable[[], None]) -> None:
        self._hub, self._client, self._wake = hub, client, wake
        self._gets: dict[str, int] = {}
        self._begun = False

    @property
    def doing(self) -> str | None:
        """What the client fetches, in words; None for nothing."""
        places = [f"{digest[:8]} from {at:,}" for digest, at in self._gets.items()]
        return f"fetches {', '.join(places)}" if places else None

    def ask(self, get: Get, calls: Container[str]) -> bool:
        """Send an object from an offset on; return whether one of the client's open calls needs it.

        Args:
            get: What the client asks for.
            calls: That were sent to it.

        Raises:
            ProtocolError: The object has no such offset.
        """
        found = self._hub.object_for(self._client, get.digest, calls)
        if found is None:
            return False
        if get.offset >= found.ref.size:
            raise ProtocolError(f"a Get at {get.offset} of an object of {found.ref.size} bytes")
        if not self._gets and not self._begun:
            self._hub.downloads.ask(self, self._begin)
        self._gets[get.digest] = get.offset
        return True

    def _begin(self) -> None:
        self._begun = True
        self._wake()

    def next_frame(self, calls: Container[str]) -> bytes | None:
        """Return the next chunk; None where there is none to send.

        Args:
            calls: That were sent to the client.

        Raises:
            RunError: A file was changed.
        """
        while self._gets and self._begun:
            digest, offset = next(iter(self._gets.items()))
            found = self._hub.object_for(self._client, digest, calls)
            if found is None:
                del self._gets[digest]
                continue
            data = found.chunk(offset, None if self in self._hub.downloads else _SHORT_CHUNK)
            if not data:
                raise RunError(
                    f"the file of the object {digest} was changed while it was sent: start the server again"
                )
            self._gets[digest] += len(data)
            self._hub.downloads.moved(self, len(data))
            if self._gets[digest] >= found.ref.size:
                del self._gets[digest]
            return pack(ObjectChunk(digest, offset), data)
        if self._begun and not self._gets:  # the driver asks again once the last chunk is on its way
            self._begun = False
            self._hub.downloads.end(self)
        return None

    def close(self) -> None:
        """Send nothing more: the connection is gone."""
        self._hub.downloads.end(self)


@dataclass(eq=False)
class _Upload:
    """A reply that was offered; ``partial`` is its object while it arrives."""

    reply: Reply
    partial: Partial | None = None


class Receiving:
    """The replies that a client has offered, and what has arrived of their objects.

    Args:
        hub: Stores them, and has the places of those who send.
        wake: Tells the driver to ask for frames again.
    """

    def __init__(self, hub: Hub, wake: Callable[[], None]) -> None:
        self._hub, self._wake = hub, wake
        self._uploads: dict[str, _Upload] = {}
        self._let_begin: deque[_Upload] = deque()

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._uploads

    @property
    def doing(self) -> str | None:
        """What the client sends, in words; None for nothing."""
        for call_id, upload in self._uploads.items():
            if upload.partial is not None:
                return f"sends {in_words(call_id)}: {upload.partial.length:,} of {upload.reply.size:,} bytes"
        return None

    def offer(self, reply: Reply, sealing: bool) -> None:
        """Take a reply to a call that is open, and fetch its object.

        Args:
            reply: It.
            sealing: Whether the object of an earlier connection is being stored.

        Raises:
            ProtocolError: It is another one than before.
        """
        known = self._uploads.get(reply.id)
        if known is None:
            self._uploads[reply.id] = upload = _Upload(reply)
            if not sealing:
                self._begin(upload)
        elif known.reply.digest != reply.digest:
            raise ProtocolError(f"two replies to {reply.id}")

    def again(self, call_id: str) -> None:
        """Fetch the object of a reply again: it was damaged."""
        upload = self._uploads.get(call_id)
        if upload is not None:
            self._begin(upload)

    def stored(self, call_id: str) -> None:
        """Forget a reply that is stored."""
        self._uploads.pop(call_id, None)

    def _begin(self, upload: _Upload) -> None:
        if upload.reply.digest is None:
            self._hub.store(upload.reply, None)
        else:
            self._hub.uploads.ask(upload, lambda: self._may_begin(upload))

    def _may_begin(self, upload: _Upload) -> None:
        self._let_begin.append(upload)
        self._wake()

    def next_frame(self) -> bytes | None:
        """Return the next message that lets the client send an object; None where there is none."""
        while self._let_begin:
            upload = self._let_begin.popleft()
            reply = upload.reply
            if self._uploads.get(reply.id) is not upload or reply.digest is None:
                continue  # it was withdrawn meanwhile
            upload.partial = partial = self._hub.partial(reply)
            if not partial.whole:
                return pack(Resume(reply.id, partial.length))
            self._seal(upload)
        return None

    def chunk(self, chunk: UploadChunk, payload: memoryview) -> None:
        """Take a chunk.

        Raises:
            ProtocolError: It was not asked for, or does not fit.
            RunError: The disk is full, or cannot be written.
        """
        upload = self._uploads.get(chunk.id)
        if upload is None or upload.partial is None:
            raise ProtocolError(f"a chunk for {chunk.id}, which was not asked for")
        upload.partial.append(chunk.offset, payload)
        self._hub.uploads.moved(upload, len(payload))
        if upload.partial.whole:
            self._seal(upload)

    def _seal(self, upload: _Upload) -> None:
        partial, upload.partial = upload.partial, None
        self._hub.uploads.end(upload)
        self._hub.store(upload.reply, partial)

    def drop(self, call_id: str) -> bool:
        """Receive a reply no longer; return whether it was offered."""
        upload = self._uploads.pop(call_id, None)
        if upload is None:
            return False
        self._hub.uploads.end(upload)
        if upload.partial is not None:
            upload.partial.close()
            upload.partial = None
        return True

    def close(self) -> None:
        """Receive nothing more: the connection is over."""
        for call_id in list(self._uploads):
            self.drop(call_id)
