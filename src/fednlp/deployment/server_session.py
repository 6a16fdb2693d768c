"""The server's end of one connection: a state machine that takes frames and gives frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fednlp.deployment.call_names import all_in_words, in_words
from fednlp.deployment.inbox import client_of, round_of
from fednlp.deployment.message_types import (
    Bye,
    Call,
    Finished,
    Get,
    Hello,
    ObjectChunk,
    ObjectRef,
    Refused,
    Reply,
    Resume,
    Stored,
    UploadChunk,
    Welcome,
    Withdrawn,
)
from fednlp.deployment.messages import (
    VERSION,
    VersionMismatch,
    from_client,
    pack,
    printable,
    require_in_turn,
    software,
)
from fednlp.errors import FednlpError, ProtocolError, RunError

if TYPE_CHECKING:
    from fednlp.deployment.hub import Hub
    from fednlp.deployment.links import Wake
    from fednlp.deployment.objects import Partial

_SHORT_CHUNK = 1 << 15
"""Bytes of a chunk to a client that has no place among those that fetch: its link is slow, and there may be many."""
_MOST_WAITING = 1024
"""Messages that wait to be sent at most: a client that asks and never listens is cut off."""


@dataclass(eq=False)
class _Upload:
    """A reply that was offered; ``partial`` is its object while it arrives."""

    reply: Reply
    partial: Partial | None = None


class ServerSession:
    """One connection of one client, made by :meth:`fednlp.deployment.hub.Hub.session`.

    Attributes:
        client: Its number.
        wake: Tells the driver to ask for frames again.
        welcomed: Whether it takes part.
        set_up: Whether it has said that it is set up for the run; another run is for the client to accept.
        since: When the connection began.
        heard: When something arrived last.
        bytes_in: Bytes of the frames that arrived.
        bytes_out: Bytes of the frames that were sent.
    """

    def __init__(self, hub: Hub, client: int, wake: Wake, now: Callable[[], float]) -> None:
        self.client, self.wake = client, wake
        self.welcomed = self.set_up = False
        self.since = self.heard = now()
        self.bytes_in = self.bytes_out = 0
        self._hub, self._now = hub, now
        self._said: deque[bytes] = deque()
        self._sent: dict[str, Call] = {}
        self._held: set[str] = set()  # what the client has open from earlier connections
        self._gets: dict[str, int] = {}
        self._sends = False
        self._uploads: dict[str, _Upload] = {}
        self._let_begin: deque[_Upload] = deque()
        self._stale: set[str] = (
            set()
        )  # ids and digests of what was withdrawn: frames may still be on their way
        self._closing = self._ends = False
        self._failure: FednlpError | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent or taken."""
        return self._closing and not self._said

    @property
    def doing(self) -> str:
        """What the client does, in words."""
        for call_id, upload in self._uploads.items():
            if upload.partial is not None:
                return f"sends {in_words(call_id)}: {upload.partial.length:,} of {upload.reply.size:,} bytes"
        if self._gets:
            return "fetches " + ", ".join(f"{digest[:8]} from {at:,}" for digest, at in self._gets.items())
        open_calls = [call_id for call_id in self._hub.open_calls(self.client) if call_id in self._sent]
        return f"works on {all_in_words(open_calls)}" if open_calls else "waits"

    def receive(self, data: bytes) -> None:
        """Take a frame that has arrived.

        Raises:
            ProtocolError: It is not valid; the connection has to be closed.
            RunError: It cannot be stored; the connection has to be closed, and may be tried again later.
        """
        with self._hub.lock:
            if self._closing:
                return
            self.heard = self._now()
            self.bytes_in += len(data)
            require_in_turn(data, self.welcomed)
            try:
                message, payload = from_client(data)
            except VersionMismatch as error:
                self.refuse(
                    f"the server speaks version {VERSION} of the messages (fednlp {software()}), and you speak "
                    f"version {error.version} (fednlp {error.software}): run pip install fednlp=={software()}"
                )
                return
            match message:
                case Hello():
                    self._hello(message)
                case Get():
                    self._get(message)
                case Reply():
                    self._reply(message)
                case UploadChunk():
                    self._chunk(message, payload)
                case Bye():
                    self._closing = True
            if isinstance(self._failure, ProtocolError):
                raise self._failure

    def next_frame(self) -> bytes | None:
        """Return the next frame to send, or None if there is none until something arrives or the driver is woken.

        Raises:
            ProtocolError: The client does not read what it is told; the connection has to be closed.
            RunError: The disk is full, or a file was changed; the connection has to be closed.
        """
        with self._hub.lock:
            if self._failure:
                raise self._failure
            frame = self._said.popleft() if self._said else None
            if frame is None and self.welcomed and not self._closing:
                frame = self._next_call() or self._next_resume() or self._next_chunk()
            self.bytes_out += len(frame or b"")
            if frame is not None and self._ends and not self._said:
                self._hub.told_the_end(self.client)
            return frame

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""
        with self._hub.lock:
            self._closing = True
            self._said.clear()
            self._drop_uploads()
            self._hub.downloads.end(self)
            self._hub.leave(self)

    # What the hub tells it; the hub holds the lock and wakes the driver.

    def withdraw(self, call_id: str) -> None:
        """Tell the client, if it knows of the call, that its reply is no longer wanted."""
        upload, call = self._uploads.pop(call_id, None), self._sent.pop(call_id, None)
        if upload:
            self._stale.add(call_id)
            self._drop(upload)
        if call:
            self._stale.update(ref.digest for ref in call.objects.values())
        if upload or call or call_id in self._held:
            self._held.discard(call_id)
            self._say(Withdrawn(call_id))

    def forget(self, round_number: int) -> None:
        """Tell the client which of the calls that it has open are of rounds up to this one."""
        for call_id in sorted(one for one in self._held if round_of(one) <= round_number):
            self.withdraw(call_id)

    def tell(self, call_id: str, stored: bool) -> None:
        """Tell the client that its reply is stored, or that its object has to be sent again."""
        upload = self._uploads.get(call_id)
        if stored:
            self._uploads.pop(call_id, None)
            self._sent.pop(call_id, None)
            if self.welcomed:
                self._say(Stored(call_id))
        elif upload:
            self._begin(upload)

    def finish(self, reason: str) -> None:
        """Tell the client that the run is over, and end."""
        if self.welcomed:
            self._ends = True
            self._end(Finished(reason))

    def refuse(self, reason: str) -> None:
        """Tell the client that it may not take part, and end."""
        self._end(Refused(printable(reason)))

    def fail(self, error: RunError) -> None:
        """End without a word: the client may try again later."""
        self._failure = error

    # The messages.

    def _hello(self, hello: Hello) -> None:
        removed = self._hub.removed(self.client)
        if removed is not None:
            return self.refuse(removed)
        self.welcomed = True
        self.set_up = hello.run == self._hub.run
        self._say(Welcome(VERSION, software(), self._hub.run, self.client))
        for call_id in hello.open:
            self._check_own(call_id)
            self._held.add(call_id)
            if self._hub.is_unwanted(call_id) or call_id in self._hub.inbox:
                self.withdraw(call_id)
        if self._hub.ended is not None:
            self.finish(self._hub.ended)
        return None

    def _get(self, get: Get) -> None:
        found = self._hub.object_for(self.client, get.digest, self._sent)
        if found is None:
            if get.digest in self._stale:
                return
            raise ProtocolError(f"a Get of the object {get.digest}, which no call has")
        if get.offset >= found.ref.size:
            raise ProtocolError(f"a Get at {get.offset} of an object of {found.ref.size} bytes")
        if not self._gets and not self._sends:
            self._hub.downloads.ask(self, self._may_send)
        self._gets[get.digest] = get.offset

    def _may_send(self) -> None:
        self._sends = True
        self.wake()

    def _reply(self, reply: Reply) -> None:
        self._check_own(reply.id)
        if reply.id in self._hub.inbox:
            return self._say(Stored(reply.id))
        if self._hub.is_unwanted(reply.id):
            return self._say(Withdrawn(reply.id))
        if self._hub.uses_another(reply):  # whose file is in use: this one is withdrawn with the round
            return None
        open_call = self._hub.open_calls(self.client).get(reply.id)
        if (
            open_call is None
        ):  # not asked again since the server started: the client offers it again when it is
            return None
        if reply.size > open_call.most_bytes:
            raise ProtocolError(
                f"an object of {reply.size} bytes for {reply.id}, which may have {open_call.most_bytes}"
            )
        if reply.size and reply.digest is None:
            raise ProtocolError(f"an object of {reply.size} bytes for {reply.id} without a digest")
        known = self._uploads.get(reply.id)
        if known is None:
            self._uploads[reply.id] = upload = _Upload(reply)
            if not open_call.sealing:
                self._begin(upload)
        elif known.reply.digest != reply.digest:
            raise ProtocolError(f"two replies to {reply.id}")
        return None

    def _begin(self, upload: _Upload) -> None:
        reply = upload.reply
        if reply.digest is None:
            return self._hub.store(reply, None)
        return self._hub.uploads.ask(upload, lambda: self._may_begin(upload))

    def _may_begin(self, upload: _Upload) -> None:
        self._let_begin.append(upload)
        self.wake()

    def _next_resume(self) -> bytes | None:
        while self._let_begin:
            upload = self._let_begin.popleft()
            reply = upload.reply
            if self._uploads.get(reply.id) is not upload or reply.digest is None:
                continue  # it was withdrawn meanwhile
            upload.partial = partial = self._hub.inbox.partial(reply.id, ObjectRef(reply.digest, reply.size))
            if not partial.whole:
                return pack(Resume(reply.id, partial.length))
            self._seal(upload)
        return None

    def _chunk(self, chunk: UploadChunk, payload: memoryview) -> None:
        upload = self._uploads.get(chunk.id)
        if upload is None and chunk.id in self._stale:
            return
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

    def _next_call(self) -> bytes | None:
        for call_id, one in self._hub.open_calls(self.client).items():
            if call_id not in self._sent:
                self._sent[call_id] = one.call
                return one.frame
        return None

    def _next_chunk(self) -> bytes | None:
        while self._gets and self._sends:
            digest, offset = next(iter(self._gets.items()))
            found = self._hub.object_for(self.client, digest, self._sent)
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
        if self._sends and not self._gets:  # the driver asks again once the last chunk is on its way
            self._sends = False
            self._hub.downloads.end(self)
        return None

    def _check_own(self, call_id: str) -> None:
        if client_of(call_id) != self.client:
            raise ProtocolError(f"client {self.client} speaks of {call_id}, which is another client's")

    def _say(self, message: Any) -> None:
        if len(self._said) < _MOST_WAITING:
            self._said.append(pack(message))
        else:  # the hub speaks, too, and is not to blame
            self._failure = ProtocolError(f"{_MOST_WAITING} answers wait to be read")

    def _end(self, message: Any) -> None:
        if not self._closing:
            self._closing = True
            self._said.append(pack(message))
            self._drop_uploads()

    def _drop_uploads(self) -> None:
        while self._uploads:
            self._drop(self._uploads.popitem()[1])

    def _drop(self, upload: _Upload) -> None:
        self._hub.uploads.end(upload)
        if upload.partial is not None:
            upload.partial.close()
            upload.partial = None
