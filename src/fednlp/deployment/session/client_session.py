"""The client's end: a state machine that takes frames and gives frames, over one connection after the other."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from fednlp.deployment.session.call_ids import client_of, in_words
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
    Welcome,
    Withdrawn,
    from_server,
    pack,
    printable,
)
from fednlp.deployment.session.objects import ObjectCache, ObjectFile, Partial, Written, ref_of
from fednlp.deployment.session.replies import Outbox, RunOutbox
from fednlp.errors import ProtocolError, RunError
from fednlp.formatting.units import human_bytes

_MOST_WAITING = 1024
_MOST_CALLS = 256
_MOST_REQUESTS = 64 << 20
"""Bytes of the calls that are open at most."""
_MOST_DAMAGED = 3
_ANOTHER_RUN = (
    "the server names another run than before, and a join token is for one run: ask who runs the server why, and for a "
    "new token (fednlp sites invite) if this site is to take part in it"
)
_NEXT_RUN = "the server has begun another run: join again to take part in it"


@dataclass(frozen=True)
class ReadyCall:
    """A call whose objects are there, or that is refused.

    Attributes:
        request: JSON.
        objects: The file of each object, by name; empty where the call is refused.
        refusal: Why none of its objects was fetched; None for a call that was admitted.
    """

    id: str
    request: dict[str, Any]
    objects: dict[str, Path]
    refusal: Exception | None = None


class ClientSession:
    """A client's part in a run: it fetches what calls need, hands them over, and sends what was answered.

    It outlives its connections: give :meth:`begin` to a driver. The callbacks come in the driver's thread.

    Args:
        outbox: Where answers lie until the server has stored them.
        objects: Where fetched objects lie.
        run: The run that it took part in last; None for the one that the server names.
        on_ready: Takes a call once its objects are there; answer it by :meth:`answer`, from any thread.
        on_withdrawn: Takes the id of a call that was handed over and is no longer wanted; its objects are removed once
            another call needs others.
        on_state: Takes a line for people.
        bound: Whether it takes part in no other run than ``run``.
        set_up: Returns whether it is set up for the run: where it is not, the server does that.
        admits: Returns whether the objects of a call may be fetched now; where not, the call waits for :meth:`go_on`.
            What it raises refuses the call.
        grace: Seconds that the server has to store an answer's object before this end puts it on the disk itself.

    Attributes:
        run: The run that it takes part in, once it is known.
        client: Its number, once the server has told it.
        connected: Whether the server has let this connection in, and it is not lost.
        reason: Why the session is finished; None while it is not.
        refused: Whether it is finished because the server refuses it.
        over: Whether it is finished because the run is over.
        leaves: Whether it is finished because the server runs another run.
    """

    def __init__(
        self,
        outbox: Outbox,
        objects: ObjectCache,
        *,
        run: str | None,
        software: str,
        on_ready: Callable[[ReadyCall], None],
        on_withdrawn: Callable[[str], None] = lambda call_id: None,
        on_state: Callable[[str], None] = lambda line: None,
        bound: bool = True,
        set_up: Callable[[], bool] = lambda: True,
        admits: Callable[[Call], bool] = lambda call: True,
        grace: float = 0.0,
    ) -> None:
        self.run, self.client = run, -1
        self._bound, self._set_up, self._grace = bound, set_up, grace
        self.reason: str | None = None
        self.refused = self.over = self.leaves = False
        self._software = software
        self._on_ready, self._on_withdrawn, self._on_state = on_ready, on_withdrawn, on_state
        self._lock = threading.RLock()
        self._events: list[Callable[[], None]] = []
        self._calls = _Calls(objects, self._say, self._hand_over, self._fail, admits)
        self._answers = _Answers(outbox)
        self._reset(lambda: None)

    def _reset(self, wake: Wake) -> None:
        self._wake = wake
        self.connected = False
        self._said: deque[bytes] = deque()
        self._calls.connect()

    def begin(self, wake: Wake) -> Self:
        """Begin a new connection.

        Args:
            wake: Tells the driver to ask for frames again.
        """
        with self._lock:
            self.close()
            self._reset(wake)
            run = self.run if self._set_up() else None
            self._say(Hello(VERSION, self._software, run, list(self._calls)))
        return self

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sent or taken."""
        return self.reason is not None and not self._said

    def receive(self, data: bytes) -> None:
        """Take a frame that has arrived.

        Raises:
            ProtocolError: It is not valid; the connection has to be closed.
            RunError: It cannot be stored; the connection has to be closed, and may be tried again later.
        """
        try:
            with self._lock:
                if self.reason is None:
                    self._receive(data)
        finally:
            self._tell_events()

    def go_on(self) -> None:
        """Go on with the calls that wait to be admitted.

        Raises:
            RunError: The disk has no room for their objects.
        """
        try:
            with self._lock:
                if self.connected and self.reason is None:
                    self._calls.go_on()
                    self._wake()
        finally:
            self._tell_events()

    def _tell_events(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        for event in events:  # without the lock: it may take its time, or answer at once
            event()

    def next_frame(self) -> bytes | None:
        """Return the next frame to send, or None if there is none until something arrives or the driver is woken.

        Raises:
            RunError: A file of the outbox is damaged; the connection has to be closed.
        """
        with self._lock:
            if self._said:
                return self._said.popleft()
            return self._answers.next_frame() if self.connected and self.reason is None else None

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""
        with self._lock:
            self._calls.close()
            self._answers.disconnect()
            self.connected = False
            if self.reason is not None:  # a goodbye that nobody hears any more
                self._said.clear()

    def leave(self, reason: str) -> None:
        """Say goodbye where a server listens, and finish; the first reason counts."""
        with self._lock:
            if self.reason is None:
                self.reason = printable(reason)
                self._said.append(pack(Bye(self.reason)))
            if not self.connected:
                self._said.clear()
            self._wake()

    def answer(
        self,
        call_id: str,
        answer: dict[str, Any] | None,
        body: Path | Written | None,
        error: str | None = None,
    ) -> None:
        """Answer a call: it is offered at once, and when this returns, it is on this disk or on the server's.

        Nothing happens if the call is no longer wanted.

        Args:
            call_id: Of a call that was handed over.
            answer: JSON; None where there is none.
            body: The file of the answer's object, which is moved away; None where there is none.
            error: Why the call failed; None if it did not.

        Raises:
            RunError: The disk is full, or cannot be written.
            ProtocolError: The answer is too long.
        """
        if isinstance(body, Path):
            body = Written(body, ref_of(body))
        path, ref = (None, None) if body is None else body
        clean = None if error is None else printable(error)
        reply = Reply(call_id, answer, ref.digest if ref else None, ref.size if ref else 0, clean)
        pack(reply)
        with self._lock:
            if not self._answers.is_open or self._calls.end(call_id) is None:
                if path is not None:
                    path.unlink(missing_ok=True)
                return
            self._answers.hold(reply, path)
            self._wake()
        if path is not None:
            self._answers.box.settled_within(self._grace)
        self._answers.box.keep(call_id)

    def owes(self, call_id: str) -> bool:
        """Return whether an answer lies in the outbox that the server has not stored yet."""
        with self._lock:
            return call_id in self._answers

    # The messages.

    def _receive(self, data: bytes) -> None:
        message, payload = from_server(data)
        if self.connected == isinstance(message, Welcome) and not isinstance(message, Refused):
            raise ProtocolError(f"a {type(message).__name__} out of turn")
        match message:
            case Welcome():
                self._welcome(message)
            case Refused():
                self.refused = True
                self._finish(message.reason)
            case Finished():
                self.over = True
                self._finish(message.reason)
            case Call():
                self._call(message, len(data))
            case ObjectChunk():
                self._calls.arrived(message, payload)
            case Resume():
                self._check_own(message.id)
                self._answers.resume(message)
            case Stored():
                self._check_own(message.id)
                self._answers.settle(message.id)
                self._drop(message.id)
            case Withdrawn():
                self._check_own(message.id)
                self._drop(message.id)

    def _welcome(self, welcome: Welcome) -> None:
        if self.run not in (None, welcome.run) and (self._bound or self._answers.is_open):
            self.leaves = True
            return self._finish(_ANOTHER_RUN if self._bound else _NEXT_RUN)
        if self.client not in (-1, welcome.client):
            raise ProtocolError(f"the server calls client {self.client} by another number, {welcome.client}")
        self.run, self.client = welcome.run, welcome.client
        self._answers.open(welcome.run)
        self.connected = True
        self._tell(f"connected: client {self.client} of {self.run}")
        return None

    def _finish(self, reason: str) -> None:
        """Finish; who waits for that says why."""
        self.reason = reason
        self._said.clear()

    def _call(self, call: Call, size: int) -> None:
        self._check_own(call.id)
        if call.id in self._answers:
            self._answers.offer(call.id)
        elif call.id in self._answers.box.done:
            self._say(
                Reply(call.id, None, error="it was answered before, and the server had stored the answer")
            )
        else:
            self._calls.ask(call, size)

    def _hand_over(self, call: ReadyCall) -> None:
        self._events.append(partial(self._on_ready, call))

    def _fail(self, call_id: str, error: str) -> None:
        """Answer a call by an error: it cannot be done."""
        self._answers.put(Reply(call_id, None, error=printable(error)))
        self._tell(f"{in_words(call_id)} cannot be done: {error}")

    def _drop(self, call_id: str) -> None:
        """Forget a call and its answer."""
        self._answers.drop(call_id)
        if self._calls.end(call_id):
            self._events.append(lambda: self._on_withdrawn(call_id))

    def _check_own(self, call_id: str) -> None:
        if client_of(call_id) != self.client:
            raise ProtocolError(
                f"the server speaks to client {self.client} of {call_id}, which is another client's"
            )

    def _tell(self, line: str) -> None:
        self._events.append(lambda: self._on_state(line))

    def _say(self, message: Any) -> None:
        if len(self._said) >= _MOST_WAITING:
            raise ProtocolError(f"{_MOST_WAITING} messages wait to be read")
        self._said.append(pack(message))


@dataclass
class _OpenCall:
    """A call that is not answered yet.

    Attributes:
        size: Bytes of its frame.
        current: Whether it came in this connection: the server sends objects for such calls alone.
        admitted: Whether its objects may be fetched.
        ready: Whether it was handed over.
    """

    call: Call
    size: int
    current: bool = False
    admitted: bool = False
    ready: bool = False

    @property
    def digests(self) -> set[str]:
        """The objects that it needs."""
        return {ref.digest for ref in self.call.objects.values()}


class _Calls:
    """The calls that a client has not answered, in the order of asking, and the objects that they lack.

    Args:
        objects: Where fetched objects lie.
        say: Asks the server for an object.
        hand_over: Takes each call once, at once when it is ready or refused.
        fail: Takes the id of a call whose objects cannot be had, and why; it is open no longer.
        admits: Returns whether the objects of a call may be fetched; where not, the call waits for :meth:`go_on`.
            What it raises refuses the call.
    """

    def __init__(
        self,
        objects: ObjectCache,
        say: Callable[[Get], None],
        hand_over: Callable[[ReadyCall], None],
        fail: Callable[[str, str], None],
        admits: Callable[[Call], bool],
    ) -> None:
        self._objects, self._fetching = objects, _Fetching(objects, say)
        self._hand_over, self._fail, self._admits = hand_over, fail, admits
        self._open: dict[str, _OpenCall] = {}
        self._last: list[Mapping[str, ObjectRef]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def connect(self) -> None:
        """Begin a new connection: the server asks again for what it still wants."""
        for one in self._open.values():
            one.current = False

    def ask(self, call: Call, size: int) -> None:
        """Prepare a call; nothing changes if it was handed over before.

        Args:
            size: Bytes of its frame.

        Raises:
            ProtocolError: Too many are open.
            RunError: The disk has no room for its objects.
        """
        if call.id not in self._open:
            total = sum(one.size for one in self._open.values()) + size
            if len(self._open) >= _MOST_CALLS or total > _MOST_REQUESTS:
                raise ProtocolError(f"{len(self._open)} calls are open, and another one is too many")
            self._open[call.id] = _OpenCall(call, size)
        self._open[call.id].current = True
        self._begin(call.id)

    def go_on(self) -> None:
        """Go on with the calls that wait, as far as they are admitted now.

        Raises:
            RunError: The disk has no room for their objects.
        """
        for call_id in [name for name, one in self._open.items() if one.current and not one.admitted]:
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
        except _DamagedObject as damaged:
            error = str(damaged)
        needing = [name for name, one in self._open.items() if one.current and chunk.digest in one.digests]
        for call_id in needing:
            if error is None:
                self._advance(call_id)
            else:
                self.end(call_id)
                self._fail(call_id, error)

    def end(self, call_id: str) -> bool | None:
        """Have a call open no longer, and return whether it was handed over; None if it was not open.

        What no other call needs is fetched no longer.
        """
        ended = self._open.pop(call_id, None)
        if ended is None:
            return None
        self._fetching.keep_only(
            {digest for one in self._open.values() if one.current for digest in one.digests}
        )
        return ended.ready

    def close(self) -> None:
        """Let go of what is under way: the connection is gone."""
        self._fetching.close()

    def _begin(self, call_id: str) -> None:
        """Fetch what a call lacks, once it is admitted; one that is refused is passed on at once."""
        asked = self._open[call_id]
        if asked.ready:
            return
        try:
            self._admit(asked)
        except Exception as refusal:  # a hostile request may raise anything
            asked.admitted = asked.ready = True
            self._hand_over(ReadyCall(call_id, asked.call.request, {}, refusal))
            return
        if asked.admitted:
            self._make_room(asked.call.objects)
            self._advance(call_id)

    def _admit(self, asked: _OpenCall) -> None:
        """Note whether the objects of a call may be fetched.

        Raises:
            Exception: The call is refused.
        """
        asked.admitted = asked.admitted or self._admits(asked.call)
        total, most = sum(ref.size for ref in self._lacking()), self._objects.most_bytes
        if total > most:
            raise RunError(
                f"the server sends {human_bytes(total)} at once, and a site takes {human_bytes(most)} at most"
            )

    def _lacking(self) -> set[ObjectRef]:
        """Return the objects of all calls that are admitted and lack some, those of earlier connections too."""
        calls = [one.call for one in self._open.values() if one.admitted and not one.ready]
        return {ref for call in calls for ref in call.objects.values()}

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
        self._objects.keep_only(kept.union(*(one.digests for one in self._open.values())))
        self._objects.require_room(self._lacking())

    def _advance(self, call_id: str) -> None:
        """Pass a call on if its objects are there, or ask for what is missing."""
        asked = self._open[call_id]
        if asked.ready or not asked.admitted:
            return
        needed = asked.call.objects
        found = {name: self._fetching.find(ref) for name, ref in needed.items()}
        objects = {name: path for name, path in found.items() if path is not None}
        if len(objects) == len(needed):
            asked.ready = True
            self._hand_over(ReadyCall(call_id, asked.call.request, objects))


class _DamagedObject(RunError):
    """An object arrived with wrong bytes each time."""


class _Fetching:
    """The objects that a client fetches; what has arrived of them outlives a connection.

    Args:
        objects: Where they lie.
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
            _DamagedObject: Its object was damaged too often; it is fetched no longer.
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
        raise _DamagedObject(f"the object {digest} arrived damaged {_MOST_DAMAGED} times")

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


class _Answers:
    """The answers of one run that the server has not stored: they are offered, and their objects sent on demand.

    Args:
        outbox: Where answers lie until the server has stored them.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._box: RunOutbox | None = None
        self._offers = dict[str, None]()  # each once, however often the server asks
        self._uploads: dict[
            str, tuple[ObjectFile, int]
        ] = {}  # that the server has asked for, in the order of asking

    @property
    def is_open(self) -> bool:
        """Whether the run is known."""
        return self._box is not None

    @property
    def box(self) -> RunOutbox:
        """The run's part of the outbox; :meth:`open` comes first."""
        assert self._box is not None
        return self._box

    def open(self, run: str) -> None:
        """Offer the answers of a run to a server that has named it."""
        if self._box is None:
            self._box = self._outbox.of(run)
        self._offers |= dict.fromkeys(self._box)

    def __contains__(self, call_id: str) -> bool:
        return self._box is not None and call_id in self._box

    def offer(self, call_id: str) -> None:
        """Offer an answer, once more if it was offered."""
        self._offers[call_id] = None

    def hold(self, reply: Reply, body: Path | None) -> None:
        """Take an answer, which is offered at once, and is on the disk after :meth:`keep`.

        Args:
            body: The file of its object, which is moved away.

        Raises:
            RunError: The disk is full, or cannot be written.
        """
        self.box.hold(reply, body)
        self.offer(reply.id)

    def put(self, reply: Reply) -> None:
        """Put an answer without an object on the disk, and offer it."""
        self.box.put(reply, None)
        self.offer(reply.id)

    def next_frame(self) -> bytes | None:
        """Return the next answer or chunk of an object to send; None where there is none.

        Raises:
            RunError: A file of the outbox is damaged.
        """
        while self._offers:
            call_id = next(iter(self._offers))
            del self._offers[call_id]
            if call_id in self and call_id not in self._uploads:
                return pack(self.box.read(call_id))
        for call_id, (file, offset) in self._uploads.items():
            if offset < file.ref.size:
                data = file.chunk(offset)
                if not data:
                    raise RunError(f"the file of the answer to {call_id} was cut short")
                self._uploads[call_id] = file, offset + len(data)
                return pack(UploadChunk(call_id, offset), data)
        return None

    def resume(self, resume: Resume) -> None:
        """Send the object of an answer, from where the server wants it.

        Raises:
            ProtocolError: There is no such object, or no such place in it.
        """
        if resume.id not in self:
            raise ProtocolError(f"the server wants the object of {resume.id}, which has none")
        reply = self.box.read(resume.id)
        if reply.digest is None or resume.offset >= reply.size:
            raise ProtocolError(
                f"the server wants {resume.id} from {resume.offset}, which has {reply.size} bytes"
            )
        path, ref = self.box.body(resume.id, reply.digest), ObjectRef(reply.digest, reply.size)
        self._stop(resume.id)
        self._uploads[resume.id] = ObjectFile(path, ref), resume.offset

    def _stop(self, call_id: str) -> None:
        """Send an object no longer, if it is being sent."""
        if call_id in self._uploads:
            self._uploads.pop(call_id)[0].close()

    def settle(self, call_id: str) -> None:
        """Take note that the server has stored an answer."""
        if call_id in self:
            self.box.settle(call_id)

    def drop(self, call_id: str) -> None:
        """Send an answer no longer, and remove it."""
        self._stop(call_id)
        if call_id in self:
            self.box.remove(call_id)

    def disconnect(self) -> None:
        """Let go of all files: the connection is gone."""
        while self._uploads:
            self._uploads.popitem()[1][0].close()
        self._offers.clear()
