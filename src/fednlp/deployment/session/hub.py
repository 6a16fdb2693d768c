"""The server's side of all connections: what is asked of clients, and what they have answered.

The round asks the hub in one thread, and a session for each connection moves the frames in the thread of a driver.
One lock is held in all of it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from fednlp.deployment.session.call_ids import all_in_words, client_of, in_words, round_of
from fednlp.deployment.session.driver import Wake
from fednlp.deployment.session.messages import (
    VERSION,
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
    VersionMismatch,
    Welcome,
    Withdrawn,
    from_client,
    pack,
    printable,
    require_in_turn,
    software,
)
from fednlp.deployment.session.objects import ObjectFile, Partial, ref_of
from fednlp.deployment.session.replies import Inbox
from fednlp.deployment.session.transfer_limiter import SPAN, TransferLimiter
from fednlp.errors import FednlpError, ProtocolError, RunError

_MOST_DAMAGED = 3
_MOST_WAITING = 1024
"""Messages that wait to be sent at most: a client that asks and never listens is cut off."""
_SHORT_CHUNK = 1 << 15
"""Bytes of a chunk to a client that has no place among those that fetch: its link is slow, and there may be many."""


@dataclass(frozen=True)
class StoredReply:
    """A reply that lies on the server's disk.

    Attributes:
        answer: JSON; None where there is none.
        path: The file of the object that belongs to it, whole and checked; None where there is none.
        size: Bytes of this file.
        error: Why the call failed; None if it did not.
    """

    id: str
    client: int
    answer: dict[str, Any] | None
    path: Path | None
    size: int
    error: str | None


@dataclass(frozen=True)
class Presence:
    """A client that is connected.

    Attributes:
        bytes_in: Bytes of the frames that arrived.
        bytes_out: Bytes of the frames that were sent.
        doing: What it does, in words.
        set_up: Whether it was set up for the run when the connection began.
    """

    since: float
    heard: float
    bytes_in: int
    bytes_out: int
    doing: str
    set_up: bool = True


@dataclass
class _OpenCall:
    """A call whose reply is not stored yet.

    Attributes:
        frame: Its bytes.
        most_bytes: Bytes of the reply's object at most.
        damaged: How many times the object arrived with wrong bytes.
        sealing: Whether a reply is on its way to the disk.
        handed_over: Whether the round may take its reply.
    """

    call: Call
    frame: bytes
    most_bytes: int
    damaged: int = 0
    sealing: bool = False
    handed_over: bool = False


@dataclass
class _KnownClient:
    """What a server knows of one client.

    Attributes:
        calls: What is asked of it and not stored yet, in the order of asking.
        withdrawn: The calls whose replies are no longer wanted.
        removed: Why it is refused; None if it is not.
        heard_the_end: Whether it was told that the run is over.
        last_call: The call that it answers before it is told so; None where there is none.
        session: Of its connection; None where there is none.
    """

    calls: dict[str, _OpenCall] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    removed: str | None = None
    heard_the_end: bool = False
    last_call: str | None = None
    session: ServerSession | None = None

    def needs(self, digest: str, calls: Container[str] | None = None) -> list[_OpenCall]:
        """Return the open calls that need an object.

        Args:
            calls: The calls to look at; all if left out.
        """
        return [
            one
            for one in self.calls.values()
            if (calls is None or one.call.id in calls)
            and any(ref.digest == digest for ref in one.call.objects.values())
        ]

    def wake(self) -> None:
        """Have the driver of its connection ask for frames again."""
        if self.session:
            self.session.wake()


def _at_once(job: Callable[[], None]) -> None:
    job()


class Hub:
    """Asks clients, stores their replies, and hands them to the round.

    Replies are durable: a hub that is opened again after a crash has all that were acknowledged, and asks for none of
    them again. Calls and objects are not: ask and add them again.

    A client hears that its reply is stored when it is on the disk. The round may have it a moment before, when it was
    checked: if the power is lost in between, the client offers it again.

    Args:
        folder: For what has to survive a crash; made if missing.
        run: A name of the run that no other run has.
        background: Has slow work on the disk done; at once, in the thread that comes to it, if left out.

    Attributes:
        lock: Held while anything here is read or changed; :meth:`take` lets go of it while it waits.
        inbox: The replies on the disk.
        eager: Whether the round may have a reply before it is on the disk.
        ended: Why the run is over; None while it is not.
        objects: The files that are offered, by digest.
        uploads: The places of those who send.
        downloads: The places of those who fetch.

    Raises:
        RunError: The folder cannot be written.
    """

    def __init__(
        self, folder: Path, run: str, background: Callable[[Callable[[], None]], object] = _at_once
    ) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.inbox = Inbox(folder / "inbox")
        self.eager = True
        self.ended: str | None = None
        self.objects: dict[str, ObjectFile] = {}
        self.uploads, self.downloads = TransferLimiter(), TransferLimiter(patience=SPAN)
        self._background = background
        self._clients: dict[int, _KnownClient] = {}
        self._times_added = Counter[str]()
        # The replies that the round may take, in the order in which they came, and those that are not on the disk yet.
        self._ready: deque[str] = deque()
        self._arrived: dict[str, Reply] = {}
        self._news = threading.Condition(self.lock)
        self._forgotten = self._removed = -1
        self._not_removed: RunError | None = None

    def _client(self, number: int) -> _KnownClient:
        return self._clients.setdefault(number, _KnownClient())

    # The round's side: what is asked.

    def add_object(self, path: Path, digest: str | None = None) -> ObjectRef:
        """Offer a file, which must not change; it is kept open, so it may be removed.

        The same bytes may be added several times. They are offered until they are dropped as often.

        Args:
            path: The file.
            digest: SHA-256 of its bytes; computed if left out.
        """
        ref = ObjectRef(digest, path.stat().st_size) if digest else ref_of(path)
        with self.lock:
            self._times_added[ref.digest] += 1
            if ref.digest not in self.objects:
                self.objects[ref.digest] = ObjectFile(path, ref)
        return ref

    def drop_object(self, digest: str) -> None:
        """Offer a file no longer, or once less if it was added several times.

        Raises:
            RunError: A call that is open needs it.
        """
        with self.lock:
            if self._times_added[digest] == 1:
                for one in (one for known in self._clients.values() for one in known.needs(digest)):
                    if not one.handed_over:
                        raise RunError(
                            f"the open call {one.call.id} needs the object {digest}: withdraw it first"
                        )
                self.objects.pop(digest).close()
            self._times_added[digest] = max(0, self._times_added[digest] - 1)

    def ask(self, client: int, call: Call, most_bytes: int = 0) -> None:
        """Ask a client, now or when it is there; its reply comes from :meth:`take`.

        Args:
            client: Its number.
            call: What is asked; its objects have to be added first.
            most_bytes: Bytes of the reply's object at most.

        Raises:
            RunError: The call names another client, a round that is forgotten, or an object that was not added.
            ProtocolError: The call is too long for a frame.
        """
        frame = pack(call)
        with self.lock:
            if client_of(call.id) != client:
                raise RunError(f"the call {call.id} is not for client {client}")
            if round_of(call.id) <= self._forgotten:
                raise RunError(f"the call {call.id} is of a round that was forgotten")
            for name, ref in call.objects.items():
                if ref.digest not in self.objects:
                    raise RunError(f"the call {call.id} needs the object {name!r}, which was not added")
            if self._is_there(call.id):
                self._offer(call.id)
                return
            known = self._client(client)
            known.withdrawn.discard(call.id)
            known.calls.setdefault(call.id, _OpenCall(call, frame, most_bytes))
            known.wake()

    def withdraw(self, call_id: str) -> None:
        """Want a reply no longer; what has arrived of it is removed."""
        with self.lock:
            known = self._client(client_of(call_id))
            known.calls.pop(call_id, None)
            known.withdrawn.add(call_id)
            self._arrived.pop(call_id, None)
            self.inbox.remove(call_id)
            if call_id in self._ready:
                self._ready.remove(call_id)
            if known.session:
                known.session.withdraw(call_id)
                known.wake()

    def give_up(self, call_id: str, error: str) -> None:
        """Store an error in place of a reply that did not come; :meth:`take` returns it as it would the reply.

        Nothing happens while the whole reply is on its way to the disk.

        Args:
            error: Why it is waited for no longer.

        Raises:
            RunError: The error cannot be stored.
        """
        with self.lock:
            known = self._client(client_of(call_id))
            open_call = known.calls.get(call_id)
            if open_call is None or open_call.sealing or call_id in self._arrived:
                return
            del known.calls[call_id]
            self.inbox.remove(call_id)
            if known.session:
                known.session.withdraw(call_id)
            self.inbox.commit(Reply(call_id, None, error=printable(error)))
            self._offer(call_id)
            known.wake()

    # The round's side: what was answered.

    def _is_there(self, call_id: str) -> bool:
        return call_id in self.inbox or call_id in self._arrived

    def _offer(self, call_id: str) -> None:
        """Let the round take a reply."""
        if call_id not in self._ready:
            self._ready.append(call_id)
            self._news.notify()

    def _read(self, call_id: str) -> StoredReply:
        reply = self._arrived.get(call_id) or self.inbox.read(call_id)
        path = None if reply.digest is None else self.inbox.body(reply.id, reply.digest)
        return StoredReply(reply.id, client_of(reply.id), reply.answer, path, reply.size, reply.error)

    def stored(self) -> list[str]:
        """Return the numbers of the calls whose replies are there."""
        with self.lock:
            return sorted({*self.inbox, *self._arrived})

    def take(self, timeout: float | None = None) -> StoredReply | None:
        """Return the next reply that is stored, of any client, or None if none came in time.

        Args:
            timeout: Seconds; None to wait for as long as it takes.
        """
        with self.lock:
            until = None if timeout is None else monotonic() + timeout
            while not self._ready:
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return None
                self.uploads.look()  # who sends or fetches nothing gives its place to others
                self.downloads.look()
                self._news.wait(SPAN if left is None else min(left, SPAN))
            return self._read(self._ready.popleft())

    def reply(self, call_id: str) -> StoredReply | None:
        """Return the reply to a call, whether it was taken or not; None if it is not stored."""
        with self.lock:
            return self._read(call_id) if self._is_there(call_id) else None

    def forget(self, round_number: int) -> None:
        """Have no reply of the rounds up to this one, and withdraw their calls: the round is saved.

        Their files are removed when the next object arrives (:meth:`partial`). At the first time they are removed at
        once: the disk may be full of those of an earlier process.

        Raises:
            RunError: The files of an earlier round could not be removed.
        """
        with self.lock:
            if self._not_removed is not None:
                raise self._not_removed
            self._forgotten = max(self._forgotten, round_number)
            for known in list(self._clients.values()):
                for call_id in [one for one in known.calls if round_of(one) <= round_number]:
                    self.withdraw(call_id)
                known.withdrawn = {one for one in known.withdrawn if round_of(one) > round_number}
                if known.session:
                    known.session.forget(round_number)
                    known.wake()
            self._ready = deque(one for one in self._ready if round_of(one) > round_number)
            self.inbox.forget(round_number)
            if self._removed < 0:
                self._remove_forgotten()

    # The round's side: who takes part.

    def connected(self) -> dict[int, Presence]:
        """Return who is connected, by number."""
        with self.lock:
            sessions = {client: known.session for client, known in sorted(self._clients.items())}
            return {
                client: Presence(one.since, one.heard, one.bytes_in, one.bytes_out, one.doing, one.set_up)
                for client, one in sessions.items()
                if one is not None and one.welcomed
            }

    def open_calls(self, client: int) -> list[str]:
        """Return what is asked of a client and not stored yet, in the order of asking."""
        with self.lock:
            return list(self._client(client).calls)

    def remove(self, client: int, reason: str) -> None:
        """Refuse a client from now on, and end its session."""
        with self.lock:
            known = self._client(client)
            known.removed = printable(reason)
            if known.session:
                known.session.refuse(known.removed)
            known.wake()

    def readmit(self, client: int) -> None:
        """Refuse a client no longer that was removed."""
        with self.lock:
            self._client(client).removed = None

    def finish(self, reason: str, last_calls: Mapping[int, str] | None = None) -> None:
        """Tell all clients, also those that come later, that the run is over.

        Args:
            last_calls: The call, already asked, that a client is to answer before it is told so, by its number.
        """
        with self.lock:
            self.ended = printable(reason)
            for client in last_calls or {}:
                self._client(client)
            for client, known in self._clients.items():
                known.last_call = (last_calls or {}).get(client)
                if known.session:
                    known.session.finish_if_over()
                known.wake()

    def last_call(self, client: int) -> str | None:
        """Return the call that a client answers before it is told that the run is over; None where there is none."""
        with self.lock:
            return self._client(client).last_call

    def heard_the_end(self) -> set[int]:
        """Return the clients that were told that the run is over."""
        with self.lock:
            return {client for client, known in self._clients.items() if known.heard_the_end}

    def session(self, client: int, wake: Wake, now: Callable[[], float]) -> ServerSession:
        """Return the session of a new connection, which replaces an older one of the same client.

        Args:
            client: Its number, of which the driver is sure.
            wake: Tells the driver to ask the session for frames again.
            now: The time in seconds, for :meth:`connected`.
        """
        with self.lock:
            known = self._client(client)
            session = ServerSession(self, client, known, wake, now)
            if known.session:
                known.session.refuse(
                    f"this site, client {client}, has joined again from another process or machine, "
                    "and this one stops: run fednlp join in one place only"
                )
                known.wake()
            known.session = session
            return session

    def close(self) -> None:
        """Let go of all files."""
        with self.lock:
            for known in list(self._clients.values()):
                if known.session:
                    known.session.close()
            while self.objects:
                self.objects.popitem()[1].close()
            self._times_added.clear()

    # The sessions' side; they hold the lock.

    def is_unwanted(self, call_id: str) -> bool:
        """Return whether the reply to a call will not be asked for again."""
        return round_of(call_id) <= self._forgotten or call_id in self._client(client_of(call_id)).withdrawn

    def uses_another(self, reply: Reply) -> bool:
        """Return whether the round has a reply to this call that is not on the disk yet, and it is another one."""
        used = self._arrived.get(reply.id)
        return used is not None and used != reply

    def partial(self, reply: Reply) -> Partial:
        """Return what is there of the object of a reply to an open call.

        Meanwhile the files of rounds that are forgotten are removed, and the object takes their memory. Memory that
        has been free for a while may be gone: a virtual machine gives it to its host, which is slow to return it.
        """
        if self._removed < self._forgotten:
            self._remove_forgotten()
        return self.inbox.partial(reply.id, ObjectRef(str(reply.digest), reply.size))

    def _remove_forgotten(self) -> None:
        self._removed = forgotten = self._forgotten
        self._background(lambda: self._clear(forgotten))

    def _clear(self, round_number: int) -> None:
        try:
            self.inbox.clear(round_number)
        except RunError as error:
            self._not_removed = error

    def store(self, reply: Reply, partial: Partial | None) -> None:
        """Put a reply on the disk, in the background, and tell the client's session of that time what came of it.

        Args:
            reply: To a call that is open.
            partial: Its object, whole and not yet checked.
        """
        known = self._client(client_of(reply.id))
        open_call = known.calls[reply.id]
        open_call.sealing = True
        self._background(lambda: self._store(known, open_call, reply, partial))

    def _store(
        self, known: _KnownClient, open_call: _OpenCall, reply: Reply, partial: Partial | None
    ) -> None:
        """Check a reply, hand it to the round, put it on the disk, and tell the client, in this order."""
        try:
            checked = self._checked(known, open_call, reply, partial)
            if checked is None:
                return
            if partial is not None and checked is reply:
                partial.sync()
            self.inbox.write(checked)
            with self.lock:
                if known.calls.get(reply.id) is not open_call:  # it was withdrawn meanwhile
                    self.inbox.remove(reply.id)
                    return
                self.inbox.add(reply.id)
                self._arrived.pop(reply.id, None)
                del known.calls[reply.id]
                self._hand_over(open_call)
                if known.session:
                    known.session.stored(reply.id)
        except RunError as error:
            with self.lock:
                if known.session:
                    known.session.fail(error)
        finally:
            with self.lock:
                open_call.sealing = False
                if partial is not None:
                    partial.close()
                known.wake()

    def _checked(
        self, known: _KnownClient, open_call: _OpenCall, reply: Reply, partial: Partial | None
    ) -> Reply | None:
        """Return the reply to be stored, which the round may have from now on; None where there is none.

        An object that arrived damaged is asked for again, and after some times an error takes the reply's place.
        """
        right = partial is None or partial.check()
        with self.lock:
            if known.calls.get(reply.id) is not open_call:
                return None
            if not right:
                open_call.damaged += 1
                if open_call.damaged >= _MOST_DAMAGED:
                    self.inbox.remove(reply.id)
                    return Reply(reply.id, None, error="its upload arrived damaged each time")
                if known.session:
                    known.session.fetch_again(reply.id)
                return None
            if partial is not None and self.eager:
                self._arrived[reply.id] = reply
                self._hand_over(open_call)
            return reply

    def _hand_over(self, open_call: _OpenCall) -> None:
        """Let the round take a reply, once."""
        if not open_call.handed_over:
            open_call.handed_over = True
            self._offer(open_call.call.id)


class ServerSession:
    """One connection of one client, made by :meth:`Hub.session`: a state machine that takes frames and gives frames.

    Attributes:
        client: Its number.
        wake: Tells the driver to ask for frames again.
        set_up: Whether it has said that it is set up for the run; another run is for the client to accept.
        bytes_in: Bytes of the frames that arrived.
        bytes_out: Bytes of the frames that were sent.
    """

    def __init__(
        self, hub: Hub, client: int, known: _KnownClient, wake: Wake, now: Callable[[], float]
    ) -> None:
        self.client, self.wake = client, wake
        self.welcomed = self.set_up = False
        self.since = self.heard = now()
        self.bytes_in = self.bytes_out = 0
        self._hub, self._known, self._now = hub, known, now
        self._said: deque[bytes] = deque()
        self._sent: dict[str, Call] = {}
        self._held: set[str] = set()  # what the client has open from earlier connections
        self._sending, self._receiving = _Sending(hub, known, self._sent, wake), _Receiving(hub, wake)
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
        open_calls = [call_id for call_id in self._known.calls if call_id in self._sent]
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
                    if not self._sending.ask(message) and message.digest not in self._stale:
                        raise ProtocolError(f"a Get of the object {message.digest}, which no call has")
                case Reply():
                    self._reply(message)
                case UploadChunk():
                    if message.id in self._receiving or message.id not in self._stale:
                        self._receiving.chunk(message, payload)
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
                frame = self._next_call() or self._receiving.next_frame() or self._sending.next_frame()
            self.bytes_out += len(frame or b"")
            if frame is not None and self._ends and not self._said:
                self._known.heard_the_end = True
            return frame

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""
        with self._hub.lock:
            self._closing = True
            self._said.clear()
            self._receiving.close()
            self._sending.close()
            if self._known.session is self:
                self._known.session = None

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

    def stored(self, call_id: str) -> None:
        """Tell the client that its reply is stored."""
        self._receiving.stored(call_id)
        self._sent.pop(call_id, None)
        if self.welcomed:
            self._say(Stored(call_id))
        self.finish_if_over()

    def fetch_again(self, call_id: str) -> None:
        """Have the object of a reply sent again: it was damaged."""
        self._receiving.again(call_id)

    def finish_if_over(self) -> None:
        """Tell the client that the run is over, and end: if it is, and if its last call is answered."""
        reason = self._hub.ended
        if reason is not None and self.welcomed and self._known.last_call not in self._known.calls:
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
        if self._known.removed is not None:
            return self.refuse(self._known.removed)
        self.welcomed = True
        self.set_up = hello.run == self._hub.run
        self._say(Welcome(VERSION, software(), self._hub.run, self.client))
        for call_id in hello.open:
            self._check_own(call_id)
            self._held.add(call_id)
            if self._hub.is_unwanted(call_id) or call_id in self._hub.inbox:
                self.withdraw(call_id)
        self.finish_if_over()
        return None

    def _reply(self, reply: Reply) -> None:
        self._check_own(reply.id)
        if reply.id in self._hub.inbox:
            return self._say(Stored(reply.id))
        if self._hub.is_unwanted(reply.id):
            return self._say(Withdrawn(reply.id))
        if self._hub.uses_another(reply):
            return None  # the other one's file is in use: this one is withdrawn with the round
        open_call = self._known.calls.get(reply.id)
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

    def _next_call(self) -> bytes | None:
        for call_id, one in self._known.calls.items():
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


class _Sending:
    """The objects that a client fetches, in the order of asking.

    Args:
        hub: Has the objects, and the places of those who fetch.
        known: Has the client's open calls.
        sent: The calls that were sent in this connection: the client may fetch the objects of these alone.
        wake: Tells the driver to ask for frames again.
    """

    def __init__(self, hub: Hub, known: _KnownClient, sent: Container[str], wake: Wake) -> None:
        self._hub, self._known, self._sent, self._wake = hub, known, sent, wake
        self._gets: dict[str, int] = {}
        self._begun = False

    @property
    def doing(self) -> str | None:
        """What the client fetches, in words; None for nothing."""
        places = [f"{digest[:8]} from {at:,}" for digest, at in self._gets.items()]
        return f"fetches {', '.join(places)}" if places else None

    def _find(self, digest: str) -> ObjectFile | None:
        return self._hub.objects.get(digest) if self._known.needs(digest, self._sent) else None

    def ask(self, get: Get) -> bool:
        """Send an object from an offset on; return whether one of the client's open calls needs it.

        Raises:
            ProtocolError: The object has no such offset.
        """
        file = self._find(get.digest)
        if file is None:
            return False
        if get.offset >= file.ref.size:
            raise ProtocolError(f"a Get at {get.offset} of an object of {file.ref.size} bytes")
        if not self._gets and not self._begun:
            self._hub.downloads.ask(self, self._begin)
        self._gets[get.digest] = get.offset
        return True

    def _begin(self) -> None:
        self._begun = True
        self._wake()

    def next_frame(self) -> bytes | None:
        """Return the next chunk; None where there is none to send.

        Raises:
            RunError: A file was changed.
        """
        while self._gets and self._begun:
            digest, offset = next(iter(self._gets.items()))
            file = self._find(digest)
            if file is None:
                del self._gets[digest]
                continue
            data = file.chunk(offset, None if self in self._hub.downloads else _SHORT_CHUNK)
            if not data:
                raise RunError(
                    f"the file of the object {digest} was changed while it was sent: start the server again"
                )
            self._gets[digest] += len(data)
            self._hub.downloads.moved(self, len(data))
            if self._gets[digest] >= file.ref.size:
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


class _Receiving:
    """The replies that a client has offered, and what has arrived of their objects.

    Args:
        hub: Stores them, and has the places of those who send.
        wake: Tells the driver to ask for frames again.
    """

    def __init__(self, hub: Hub, wake: Wake) -> None:
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
            reply: What the client has answered.
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
