"""The client's end: a state machine that takes frames and gives frames, over one connection after the other."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fednlp.deployment.call_names import in_words
from fednlp.deployment.inbox import client_of
from fednlp.deployment.links import Wake
from fednlp.deployment.message_types import (
    Bye,
    Call,
    Finished,
    Hello,
    ObjectChunk,
    ObjectRef,
    Refused,
    Reply,
    Resume,
    Stored,
    Welcome,
    Withdrawn,
)
from fednlp.deployment.messages import VERSION, from_server, pack, printable
from fednlp.deployment.object_cache import ObjectCache
from fednlp.deployment.objects import Written, ref_of
from fednlp.deployment.open_calls import OpenCalls
from fednlp.deployment.outbox import Outbox, RunOutbox
from fednlp.deployment.transfers import DamagedObject, Fetching, Uploading
from fednlp.errors import ProtocolError

_MOST_WAITING = 1024
_ANOTHER_RUN = (
    "the server names another run than before, and a join token is for one run: ask who runs the server why, and for a "
    "new token (fednlp sites invite) if this site is to take part in it"
)
_NEXT_RUN = "the server has begun another run: join again to take part in it"


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


class ClientSession:
    """A client's part in a run: it fetches what calls need, hands them over, and sends what was answered.

    It outlives its connections: give :meth:`begin` to a driver. The callbacks come in the driver's thread.

    Args:
        outbox: Where answers lie until the server has stored them.
        objects: Where fetched objects lie.
        run: The run that it took part in last; None for the one that the server names.
        software: Version of fednlp.
        on_ready: Takes a call once its objects are there; answer it by :meth:`answer`, from any thread.
        on_withdrawn: Takes the id of a call that was handed over and is no longer wanted.
        on_state: Takes a line for people.
        bound: Whether it takes part in no other run than ``run``.
        set_up: Returns whether it is set up for the run: where it is not, the server does that.
        grace: Seconds that the server has to store an answer's object before this end puts it on the disk itself.

    Attributes:
        run: The run that it takes part in, once it is known.
        client: Its number, once the server has told it.
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
        grace: float = 0.0,
    ) -> None:
        self.run, self.client = run, -1
        self._bound, self._set_up, self._grace = bound, set_up, grace
        self.reason: str | None = None
        self.refused = self.over = self.leaves = False
        self._software, self._objects, self._outbox = software, objects, outbox
        self._on_ready, self._on_withdrawn, self._on_state = on_ready, on_withdrawn, on_state
        self._lock = threading.RLock()
        self._box: RunOutbox | None = None
        self._asked = OpenCalls()
        self._events: list[Callable[[], None]] = []
        self._fetching, self._uploads = Fetching(objects, self._say), Uploading()
        self._reset(lambda: None)

    def _reset(self, wake: Wake) -> None:
        self._wake = wake
        self._welcomed = False
        self._said: deque[bytes] = deque()
        self._offers: deque[str] = deque()
        self._asked.connect()

    def begin(self, wake: Wake) -> Self:
        """Begin a new connection.

        Args:
            wake: Tells the driver to ask for frames again.
        """
        with self._lock:
            self.close()
            self._reset(wake)
            run = self.run if self._set_up() else None
            self._say(Hello(VERSION, self._software, run, list(self._asked)))
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
            if self._box is None or not self._welcomed or self.reason is not None:
                return None
            while self._offers:
                call_id = self._offers.popleft()
                if call_id in self._box and call_id not in self._uploads:
                    return pack(self._box.read(call_id))
            return self._uploads.next_frame()

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""
        with self._lock:
            self._fetching.close()
            self._uploads.close()
            self._welcomed = False

    def leave(self, reason: str) -> None:
        """Say goodbye, and finish."""
        with self._lock:
            if self.reason is None:
                self.reason = printable(reason)
                if self._welcomed:
                    self._said.append(pack(Bye(self.reason)))
                else:
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
            box = self._box
            if box is None or self._asked.end(call_id) is None:
                if path is not None:
                    path.unlink(missing_ok=True)
                return
            box.hold(reply, path)
            self._offers.append(call_id)
            self._wake()
        if path is not None:
            box.settled_within(self._grace)
        box.keep(call_id)

    def owes(self, call_id: str) -> bool:
        """Return whether an answer lies in the outbox that the server has not stored yet."""
        with self._lock:
            return self._box is not None and call_id in self._box

    # The messages.

    def _receive(self, data: bytes) -> None:
        message, payload = from_server(data)
        if self._welcomed == isinstance(message, Welcome) and not isinstance(message, Refused):
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
                self._chunk(message, payload)
            case Resume():
                self._resume(message)
            case Stored():
                self._stored(message.id)
            case Withdrawn():
                self._drop(message.id)

    def _welcome(self, welcome: Welcome) -> None:
        if self.run not in (None, welcome.run) and (self._bound or self._box is not None):
            self.leaves = True
            return self._finish(_ANOTHER_RUN if self._bound else _NEXT_RUN)
        if self.client not in (-1, welcome.client):
            raise ProtocolError(f"the server calls client {self.client} by another number, {welcome.client}")
        self.run, self.client = welcome.run, welcome.client
        if self._box is None:
            self._box = self._outbox.of(welcome.run)
        self._welcomed = True
        self._offers.extend(self._box)
        self._tell(f"connected: client {self.client} of {self.run}")
        return None

    def _finish(self, reason: str) -> None:
        """Finish; who waits for that says why."""
        self.reason = reason
        self._said.clear()

    def _call(self, call: Call, size: int) -> None:
        assert self._box is not None
        self._check_own(call.id)
        if call.id in self._box:
            self._offers.append(call.id)
        elif call.id in self._box.done:
            self._say(
                Reply(call.id, None, error="it was answered before, and the server had stored the answer")
            )
        else:
            self._asked.ask(call, size)
            self._advance(call.id)

    def _advance(self, call_id: str) -> None:
        """Fetch what a call lacks, or hand it over."""
        asked = self._asked[call_id]
        if asked.ready:
            return None
        for name, ref in asked.call.objects.items():
            if ref.size > self._objects.most_bytes:
                most = self._objects.most_bytes
                return self._fail(
                    call_id, f"the object {name!r} has {ref.size} bytes, and this site takes {most}"
                )
        objects: dict[str, Path] = {}
        for name, ref in asked.call.objects.items():
            path = self._fetching.find(ref)
            if path is not None:
                objects[name] = path
        if call_id in self._asked and len(objects) == len(asked.call.objects):
            asked.ready = True
            ready = ReadyCall(call_id, asked.call.request, objects)
            self._events.append(lambda: self._on_ready(ready))
        return None

    def _chunk(self, chunk: ObjectChunk, payload: memoryview) -> None:
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

    def _resume(self, resume: Resume) -> None:
        assert self._box is not None
        self._check_own(resume.id)
        if resume.id not in self._box:
            raise ProtocolError(f"the server wants the object of {resume.id}, which has none")
        reply = self._box.read(resume.id)
        if reply.digest is None or resume.offset >= reply.size:
            raise ProtocolError(
                f"the server wants {resume.id} from {resume.offset}, which has {reply.size} bytes"
            )
        path, ref = self._box.body(resume.id, reply.digest), ObjectRef(reply.digest, reply.size)
        self._uploads.begin(resume.id, path, ref, resume.offset)

    def _stored(self, call_id: str) -> None:
        assert self._box is not None
        self._check_own(call_id)
        if call_id in self._box:
            self._box.settle(call_id)
        self._drop(call_id)

    def _drop(self, call_id: str) -> None:
        """Forget a call and its answer."""
        assert self._box is not None
        self._check_own(call_id)
        self._uploads.stop(call_id)
        if call_id in self._box:
            self._box.remove(call_id)
        asked = self._asked.end(call_id)
        if asked is None:
            return
        if asked.ready:
            self._events.append(lambda: self._on_withdrawn(call_id))
        self._stop_fetching()

    def _fail(self, call_id: str, error: str) -> None:
        """Answer a call by an error without handing it over."""
        assert self._box is not None
        self._asked.end(call_id)
        self._stop_fetching()
        self._box.put(Reply(call_id, None, error=printable(error)), None)
        self._offers.append(call_id)
        self._tell(f"{in_words(call_id)} cannot be done: {error}")

    def _stop_fetching(self) -> None:
        """Stop fetching what no call needs any longer."""
        self._fetching.keep_only(self._asked.needed())

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
