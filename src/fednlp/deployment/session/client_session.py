"""The client's end: a state machine that takes frames and gives frames, over one connection after the other."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from fednlp.deployment.session.call_names import in_words
from fednlp.deployment.session.call_preparation import CallPreparation, FailedCall, ReadyCall
from fednlp.deployment.session.driver import Wake
from fednlp.deployment.session.inbox import client_of
from fednlp.deployment.session.message_types import (
    Bye,
    Call,
    Finished,
    Hello,
    ObjectChunk,
    Refused,
    Reply,
    Resume,
    Stored,
    Welcome,
    Withdrawn,
)
from fednlp.deployment.session.messages import VERSION, from_server, pack, printable
from fednlp.deployment.session.object_cache import ObjectCache
from fednlp.deployment.session.objects import Written, ref_of
from fednlp.deployment.session.outbox import Outbox
from fednlp.deployment.session.unstored_answers import UnstoredAnswers
from fednlp.errors import ProtocolError

_MOST_WAITING = 1024
_ANOTHER_RUN = (
    "the server names another run than before, and a join token is for one run: ask who runs the server why, and for a "
    "new token (fednlp sites invite) if this site is to take part in it"
)
_NEXT_RUN = "the server has begun another run: join again to take part in it"


class ClientSession:
    """A client's part in a run: it fetches what calls need, hands them over, and sends what was answered.

    It outlives its connections: give :meth:`begin` to a driver. The callbacks come in the driver's thread.

    Args:
        outbox: Where answers lie until the server has stored them.
        objects: Where fetched objects lie.
        run: The run that it took part in last; None for the one that the server names.
        software: Version of fednlp.
        on_ready: Takes a call once its objects are there; answer it by :meth:`answer`, from any thread.
        on_withdrawn: Takes the id of a call that was handed over and is no longer wanted; its objects are removed once
            another call needs others.
        on_state: Takes a line for people.
        bound: Whether it takes part in no other run than ``run``.
        set_up: Returns whether it is set up for the run: where it is not, the server does that.
        admits: Returns whether the objects of a call may be fetched now; see
            :class:`~fednlp.deployment.session.call_preparation.CallPreparation`.
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
        self._calls = CallPreparation(objects, self._say, self._take_up, admits)
        self._answers = UnstoredAnswers(outbox)
        self._reset(lambda: None)

    def _reset(self, wake: Wake) -> None:
        self._wake = wake
        self._welcomed = False
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
                if self._welcomed and self.reason is None:
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
            return self._answers.next_frame() if self._welcomed and self.reason is None else None

    def close(self) -> None:
        """Let go of what the connection held: it is gone."""
        with self._lock:
            self._calls.close()
            self._answers.disconnect()
            self._welcomed = False

    def leave(self, reason: str) -> None:
        """Say goodbye where a server listens, and finish; the first reason counts."""
        with self._lock:
            if self.reason is None:
                self.reason = printable(reason)
                self._said.append(pack(Bye(self.reason)))
            if not self._welcomed:
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

    @property
    def connected(self) -> bool:
        """Whether the server has let this connection in, and it is not lost."""
        return self._welcomed

    def owes(self, call_id: str) -> bool:
        """Return whether an answer lies in the outbox that the server has not stored yet."""
        with self._lock:
            return call_id in self._answers

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
        self._welcomed = True
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

    def _take_up(self, call: ReadyCall | FailedCall) -> None:
        """Hand a call over, or answer it by an error where it cannot be done."""
        if isinstance(call, FailedCall):
            self._answers.put(Reply(call.id, None, error=printable(call.error)))
            self._tell(f"{in_words(call.id)} cannot be done: {call.error}")
        else:
            self._events.append(partial(self._on_ready, call))

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
