"""The server's end of one connection: a state machine that takes frames and gives frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fednlp.deployment.session.call_names import all_in_words
from fednlp.deployment.session.inbox import client_of, round_of
from fednlp.deployment.session.message_types import (
    Bye,
    Call,
    Finished,
    Get,
    Hello,
    Refused,
    Reply,
    Stored,
    UploadChunk,
    Welcome,
    Withdrawn,
)
from fednlp.deployment.session.messages import (
    VERSION,
    VersionMismatch,
    from_client,
    pack,
    printable,
    require_in_turn,
    software,
)
from fednlp.deployment.session.server_transfers import Receiving, Sending
from fednlp.errors import FednlpError, ProtocolError, RunError

if TYPE_CHECKING:
    from fednlp.deployment.session.driver import Wake
    from fednlp.deployment.session.hub import Hub

_MOST_WAITING = 1024
"""Messages that wait to be sent at most: a client that asks and never listens is cut off."""


class ServerSession:
    """One connection of one client, made by :meth:`fednlp.deployment.session.hub.Hub.session`.

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
        self._sending, self._receiving = Sending(hub, client, wake), Receiving(hub, wake)
        # Ids and digests of what was withdrawn: frames may still be on their way.
        self._stale = set[str]()
        self._closing = self._ends = False
        self._failure: FednlpError | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent or taken."""
        return self._closing and not self._said

    @property
    def doing(self) -> str:
        """What the client does, in words."""
        moving = self._receiving.doing or self._sending.doing
        if moving:
            return moving
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
                    f"version {error.version} (fednlp {error.software}): install the server's version"
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
                frame = (
                    self._next_call() or self._receiving.next_frame() or self._sending.next_frame(self._sent)
                )
            self.bytes_out += len(frame or b"")
            if frame is not None and self._ends and not self._said:
                self._hub.told_the_end(self.client)
            return frame

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""
        with self._hub.lock:
            self._closing = True
            self._said.clear()
            self._receiving.close()
            self._sending.close()
            self._hub.leave(self)

    # What the hub tells it; the hub holds the lock and wakes the driver.

    def withdraw(self, call_id: str) -> None:
        """Tell the client, if it knows of the call, that its reply is no longer wanted."""
        offered, call = self._receiving.drop(call_id), self._sent.pop(call_id, None)
        if offered:
            self._stale.add(call_id)
        if call:
            self._stale.update(ref.digest for ref in call.objects.values())
        if offered or call or call_id in self._held:
            self._held.discard(call_id)
            self._say(Withdrawn(call_id))

    def forget(self, round_number: int) -> None:
        """Tell the client which of the calls that it has open are of rounds up to this one."""
        for call_id in sorted(one for one in self._held if round_of(one) <= round_number):
            self.withdraw(call_id)

    def tell(self, call_id: str, stored: bool) -> None:
        """Tell the client that its reply is stored, or that its object has to be sent again."""
        if stored:
            self._receiving.stored(call_id)
            self._sent.pop(call_id, None)
            if self.welcomed:
                self._say(Stored(call_id))
            self._finish_if_over()
        else:
            self._receiving.again(call_id)

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
        self._finish_if_over()
        return None

    def _finish_if_over(self) -> None:
        if self._hub.ended is not None and self._hub.hears_the_end(self.client):
            self.finish(self._hub.ended)

    def _get(self, get: Get) -> None:
        if not self._sending.ask(get, self._sent) and get.digest not in self._stale:
            raise ProtocolError(f"a Get of the object {get.digest}, which no call has")

    def _reply(self, reply: Reply) -> None:
        self._check_own(reply.id)
        if reply.id in self._hub.inbox:
            return self._say(Stored(reply.id))
        if self._hub.is_unwanted(reply.id):
            return self._say(Withdrawn(reply.id))
        if self._hub.replies.uses_another(reply):
            return None  # the other one's file is in use: this one is withdrawn with the round
        open_call = self._hub.open_calls(self.client).get(reply.id)
        if open_call is None:
            return None  # not asked again since the server started: the client offers it again when it is
        if reply.size > open_call.most_bytes:
            raise ProtocolError(
                f"an object of {reply.size} bytes for {reply.id}, which may have {open_call.most_bytes}"
            )
        if reply.size and reply.digest is None:
            raise ProtocolError(f"an object of {reply.size} bytes for {reply.id} without a digest")
        self._receiving.offer(reply, open_call.sealing)
        return None

    def _chunk(self, chunk: UploadChunk, payload: memoryview) -> None:
        if chunk.id in self._receiving or chunk.id not in self._stale:
            self._receiving.chunk(chunk, payload)

    def _next_call(self) -> bytes | None:
        for call_id, one in self._hub.open_calls(self.client).items():
            if call_id not in self._sent:
                self._sent[call_id] = one.call
                return one.frame
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
            self._receiving.close()
