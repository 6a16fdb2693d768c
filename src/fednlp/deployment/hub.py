"""The server's side of all connections: what is asked of clients, and what they have answered.

The round asks in one thread, and the sessions answer in the thread of a driver.
"""

import threading
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from fednlp.deployment.calls import OpenCall, Presence, StoredReply
from fednlp.deployment.inbox import Inbox, client_of, round_of
from fednlp.deployment.links import Wake
from fednlp.deployment.message_types import Call, ObjectRef, Reply
from fednlp.deployment.messages import pack, printable
from fednlp.deployment.objects import ObjectFile, Offers, Partial, ref_of
from fednlp.deployment.ration import SPAN, Ration
from fednlp.deployment.server_session import ServerSession
from fednlp.errors import RunError

_MOST_DAMAGED = 3


@dataclass
class _Client:
    """What a hub knows of one client."""

    calls: dict[str, OpenCall] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    removed: str | None = None
    heard_the_end: bool = False
    session: ServerSession | None = None


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
        eager: Whether the round may have a reply before it is on the disk.

    Raises:
        RunError: The folder cannot be written.
    """

    def __init__(
        self, folder: Path, run: str, background: Callable[[Callable[[], None]], object] = _at_once
    ) -> None:
        self.run = run
        self.inbox = Inbox(folder / "inbox")
        self.lock = threading.RLock()
        self.uploads, self.downloads = Ration(), Ration(patience=SPAN)
        self.ended: str | None = None
        self.eager = True
        self._news = threading.Condition(self.lock)
        self._background = background
        self._clients: dict[int, _Client] = {}
        self._objects = Offers()
        self._ready: deque[str] = deque()
        self._arrived: dict[str, Reply] = {}
        self._forgotten = -1
        self._not_removed: RunError | None = None

    # The round's side.

    def add_object(self, path: Path, digest: str | None = None) -> ObjectRef:
        """Offer a file, which must not change; it is kept open, so it may be removed.

        The same bytes may be added several times. They are offered until they are dropped as often.

        Args:
            path: The file.
            digest: SHA-256 of its bytes; computed if left out.
        """
        ref = ObjectRef(digest, path.stat().st_size) if digest else ref_of(path)
        with self.lock:
            self._objects.add(path, ref)
        return ref

    def drop_object(self, digest: str) -> None:
        """Offer a file no longer, or once less if it was added several times.

        Raises:
            RunError: A call that is open needs it.
        """
        with self.lock:
            if self._objects.is_last(digest):
                for client in self._clients.values():
                    for one in client.calls.values():
                        needed = any(ref.digest == digest for ref in one.call.objects.values())
                        if needed and not one.handed_over:
                            raise RunError(
                                f"the open call {one.call.id} needs the object {digest}: withdraw it first"
                            )
            self._objects.drop(digest)

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
                if ref.digest not in self._objects:
                    raise RunError(f"the call {call.id} needs the object {name!r}, which was not added")
            if call.id in self.inbox or call.id in self._arrived:
                self._take_later(call.id)
                return
            known = self._client(client)
            known.withdrawn.discard(call.id)
            known.calls.setdefault(call.id, OpenCall(call, frame, client, most_bytes))
            self._wake(known)

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
                self._wake(known)

    def give_up(self, call_id: str, error: str) -> None:
        """Store an error in place of a reply that did not come; :meth:`take` returns it as it would the reply.

        Nothing happens while the whole reply is on its way to the disk.

        Args:
            call_id: Of an open call.
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
            self._take_later(call_id)
            self._wake(known)

    def stored(self) -> list[str]:
        """Return the numbers of the calls whose replies are there."""
        with self.lock:
            return sorted({*self.inbox, *self._arrived})

    def take(self, timeout: float | None = None) -> StoredReply | None:
        """Return the next reply that is stored, of any client, or None if none came in time.

        Args:
            timeout: Seconds; None to wait for as long as it takes.
        """
        until = None if timeout is None else monotonic() + timeout
        with self._news:
            while not self._ready:
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return None
                self.uploads.look()
                self.downloads.look()
                self._news.wait(SPAN if left is None else min(left, SPAN))
            return self._stored(self._ready.popleft())

    def reply(self, call_id: str) -> StoredReply | None:
        """Return the reply to a call, whether it was taken or not; None if it is not stored."""
        with self.lock:
            return self._stored(call_id) if call_id in self.inbox or call_id in self._arrived else None

    def _stored(self, call_id: str) -> StoredReply:
        reply = self._arrived.get(call_id) or self.inbox.read(call_id)
        path = None if reply.digest is None else self.inbox.body(reply.id, reply.digest)
        return StoredReply(reply.id, client_of(reply.id), reply.answer, path, reply.size, reply.error)

    def forget(self, round_number: int) -> None:
        """Remove the replies of the rounds up to this one, and withdraw their calls: the round is saved.

        Raises:
            RunError: The files of an earlier round could not be removed.
        """
        with self.lock:
            if self._not_removed is not None:
                raise self._not_removed
            self._forgotten = max(self._forgotten, round_number)
            for known in self._clients.values():
                for call_id in [one for one in known.calls if round_of(one) <= round_number]:
                    self.withdraw(call_id)
                known.withdrawn = {one for one in known.withdrawn if round_of(one) > round_number}
                if known.session:
                    known.session.forget(round_number)
                    known.session.wake()
            self._ready = deque(one for one in self._ready if round_of(one) > round_number)
            self.inbox.forget(round_number)
        self._background(lambda: self._clear(round_number))

    def _clear(self, round_number: int) -> None:
        try:
            self.inbox.clear(round_number)
        except RunError as error:
            self._not_removed = error

    def connected(self) -> dict[int, Presence]:
        """Return who is connected, by number."""
        with self.lock:
            sessions = {client: known.session for client, known in sorted(self._clients.items())}
            return {
                client: Presence(one.since, one.heard, one.bytes_in, one.bytes_out, one.doing, one.set_up)
                for client, one in sessions.items()
                if one is not None and one.welcomed
            }

    def finish(self, reason: str) -> None:
        """Tell all clients, also those that come later, that the run is over."""
        with self.lock:
            self.ended = printable(reason)
            for known in self._clients.values():
                if known.session:
                    known.session.finish(self.ended)
                self._wake(known)

    def heard_the_end(self) -> set[int]:
        """Return the clients that were told that the run is over."""
        with self.lock:
            return {client for client, known in self._clients.items() if known.heard_the_end}

    def remove(self, client: int, reason: str) -> None:
        """Refuse a client from now on, and end its session."""
        with self.lock:
            known = self._client(client)
            known.removed = printable(reason)
            if known.session:
                known.session.refuse(known.removed)
            self._wake(known)

    def readmit(self, client: int) -> None:
        """Refuse a client no longer that was removed."""
        with self.lock:
            self._client(client).removed = None

    def close(self) -> None:
        """Let go of all files."""
        with self.lock:
            for known in self._clients.values():
                if known.session:
                    known.session.close()
            self._objects.close()

    # The sessions' side; they hold the lock.

    def session(self, client: int, wake: Wake, now: Callable[[], float]) -> ServerSession:
        """Return the session of a new connection, which replaces an older one of the same client.

        Args:
            client: Its number, of which the driver is sure.
            wake: Tells the driver to ask the session for frames again.
            now: The time in seconds, for :meth:`connected`.
        """
        with self.lock:
            known = self._client(client)
            if known.session:
                known.session.refuse(
                    f"this site, client {client}, has joined again from another process or machine, "
                    "and this one stops: run fednlp join in one place only"
                )
                known.session.wake()
            known.session = ServerSession(self, client, wake, now)
            return known.session

    def leave(self, session: ServerSession) -> None:
        """Take note that the connection of a session is gone."""
        known = self._client(session.client)
        if known.session is session:
            known.session = None

    def told_the_end(self, client: int) -> None:
        """Take note that a client was told that the run is over."""
        self._client(client).heard_the_end = True

    def removed(self, client: int) -> str | None:
        """Return why a client is refused, or None if it is not."""
        return self._client(client).removed

    def open_calls(self, client: int) -> dict[str, OpenCall]:
        """Return what is asked of a client and not stored yet, in the order of asking."""
        return self._client(client).calls

    def is_unwanted(self, call_id: str) -> bool:
        """Return whether the reply to a call will not be asked for again."""
        return round_of(call_id) <= self._forgotten or call_id in self._client(client_of(call_id)).withdrawn

    def uses_another(self, reply: Reply) -> bool:
        """Return whether the round has a reply to this call that is not on the disk yet, and it is another one."""
        used = self._arrived.get(reply.id)
        return used is not None and used != reply

    def object_for(self, client: int, digest: str, calls: Container[str]) -> ObjectFile | None:
        """Return an object if one of these calls that is open for this client needs it."""
        for one in self._client(client).calls.values():
            if one.call.id in calls and any(ref.digest == digest for ref in one.call.objects.values()):
                return self._objects.find(digest)
        return None

    def store(self, reply: Reply, partial: Partial | None) -> None:
        """Put a reply on the disk, in the background, and tell the client's session of that time what came of it.

        Args:
            reply: To a call that is open.
            partial: Its object, whole and not yet checked.
        """
        open_call = self.open_calls(client_of(reply.id))[reply.id]
        open_call.sealing = True
        self._background(lambda: self._store(open_call, reply, partial))

    def _store(self, open_call: OpenCall, reply: Reply, partial: Partial | None) -> None:
        """Check a reply, hand it to the round, put it on the disk, and tell the client, in this order."""
        known = self._client(open_call.client)
        try:
            checked = self._checked(open_call, reply, partial)
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
                    known.session.tell(reply.id, stored=True)
        except RunError as error:
            with self.lock:
                if known.session:
                    known.session.fail(error)
        finally:
            with self.lock:
                open_call.sealing = False
                if partial is not None:
                    partial.close()
                self._wake(known)

    def _checked(self, open_call: OpenCall, reply: Reply, partial: Partial | None) -> Reply | None:
        """Return the reply to be stored, which the round may have from now on; None where there is none.

        An object that arrived damaged is asked for again, and after some times an error takes the reply's place.
        """
        right = partial is None or partial.check()
        with self.lock:
            known = self._client(open_call.client)
            if known.calls.get(reply.id) is not open_call:
                return None
            if not right:
                open_call.damaged += 1
                if open_call.damaged >= _MOST_DAMAGED:
                    self.inbox.remove(reply.id)
                    return Reply(reply.id, None, error="its upload arrived damaged each time")
                if known.session:
                    known.session.tell(reply.id, stored=False)
                return None
            if partial is not None and self.eager:
                self._arrived[reply.id] = reply
                self._hand_over(open_call)
            return reply

    def _hand_over(self, open_call: OpenCall) -> None:
        """Let the round take a reply, once."""
        if not open_call.handed_over:
            open_call.handed_over = True
            self._take_later(open_call.call.id)

    def _take_later(self, call_id: str) -> None:
        if call_id not in self._ready:
            self._ready.append(call_id)
            self._news.notify()

    def _client(self, client: int) -> _Client:
        return self._clients.setdefault(client, _Client())

    def _wake(self, known: _Client) -> None:
        if known.session:
            known.session.wake()
