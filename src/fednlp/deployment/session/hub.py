"""The server's side of all connections: what is asked of clients, and what they have answered.

The round asks in one thread, and the sessions answer in the thread of a driver.
"""

from collections.abc import Callable, Container
from pathlib import Path

from fednlp.deployment.session.calls import OpenCall, StoredReply
from fednlp.deployment.session.driver import Wake
from fednlp.deployment.session.inbox import Inbox, client_of, round_of
from fednlp.deployment.session.message_types import Call, ObjectRef, Reply
from fednlp.deployment.session.messages import pack, printable
from fednlp.deployment.session.objects import Partial, ref_of
from fednlp.deployment.session.offers import ObjectFile, Offers
from fednlp.deployment.session.reply_queue import ReplyQueue
from fednlp.deployment.session.roster import Roster
from fednlp.deployment.session.server_session import ServerSession
from fednlp.deployment.session.storing import Storing
from fednlp.deployment.session.transfer_limiter import SPAN, TransferLimiter
from fednlp.errors import RunError


def _at_once(job: Callable[[], None]) -> None:
    job()


class Hub(Roster):
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
        replies: What the round may take.
        storing: Puts replies on the disk.

    Raises:
        RunError: The folder cannot be written.
    """

    def __init__(
        self, folder: Path, run: str, background: Callable[[Callable[[], None]], object] = _at_once
    ) -> None:
        super().__init__()
        self.run = run
        self.inbox = Inbox(folder / "inbox")
        self.replies = ReplyQueue(self.inbox, self.lock)
        self.storing = Storing(self, self.inbox, self.replies, background)
        self.uploads, self.downloads = TransferLimiter(), TransferLimiter(patience=SPAN)
        self._background = background
        self._objects = Offers()
        self._forgotten = self._removed = -1
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
                for one in (one for client in self.clients() for one in client.needs(digest)):
                    if not one.handed_over:
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
            if call.id in self.replies:
                self.replies.offer(call.id)
                return
            known = self.client(client)
            known.withdrawn.discard(call.id)
            known.calls.setdefault(call.id, OpenCall(call, frame, client, most_bytes))
            known.wake()

    def withdraw(self, call_id: str) -> None:
        """Want a reply no longer; what has arrived of it is removed."""
        with self.lock:
            known = self.client(client_of(call_id))
            known.calls.pop(call_id, None)
            known.withdrawn.add(call_id)
            self.replies.remove(call_id)
            if known.session:
                known.session.withdraw(call_id)
                known.wake()

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
            known = self.client(client_of(call_id))
            open_call = known.calls.get(call_id)
            if open_call is None or open_call.sealing or self.replies.is_arriving(call_id):
                return
            del known.calls[call_id]
            self.inbox.remove(call_id)
            if known.session:
                known.session.withdraw(call_id)
            self.inbox.commit(Reply(call_id, None, error=printable(error)))
            self.replies.offer(call_id)
            known.wake()

    def stored(self) -> list[str]:
        """Return the numbers of the calls whose replies are there."""
        with self.lock:
            return self.replies.names()

    def take(self, timeout: float | None = None) -> StoredReply | None:
        """Return the next reply that is stored, of any client, or None if none came in time.

        Args:
            timeout: Seconds; None to wait for as long as it takes.
        """
        with self.lock:
            return self.replies.take(timeout, self._look)

    def _look(self) -> None:
        """Give the places of those who send or fetch nothing to others."""
        self.uploads.look()
        self.downloads.look()

    def reply(self, call_id: str) -> StoredReply | None:
        """Return the reply to a call, whether it was taken or not; None if it is not stored."""
        with self.lock:
            return self.replies.read(call_id) if call_id in self.replies else None

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
            for known in self.clients():
                for call_id in [one for one in known.calls if round_of(one) <= round_number]:
                    self.withdraw(call_id)
                known.withdrawn = {one for one in known.withdrawn if round_of(one) > round_number}
                if known.session:
                    known.session.forget(round_number)
                    known.session.wake()
            self.replies.forget(round_number)
            if self._removed < 0:
                self._remove_forgotten()

    def close(self) -> None:
        """Let go of all files."""
        with self.lock:
            for known in self.clients():
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
            session = ServerSession(self, client, wake, now)
            self.join(session)
            return session

    def is_unwanted(self, call_id: str) -> bool:
        """Return whether the reply to a call will not be asked for again."""
        return round_of(call_id) <= self._forgotten or call_id in self.client(client_of(call_id)).withdrawn

    def object_for(self, client: int, digest: str, calls: Container[str]) -> ObjectFile | None:
        """Return an object if one of these calls that is open for this client needs it."""
        return self._objects.find(digest) if self.client(client).needs(digest, calls) else None

    def partial(self, reply: Reply) -> Partial:
        """Return what is there of a reply's object.

        Meanwhile the files of rounds that are forgotten are removed, and the object takes their memory. Memory that
        has been free for a while may be gone: a virtual machine gives it to its host, which is slow to return it.

        Args:
            reply: To a call that is open.
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
        self.storing.store(reply, partial)
