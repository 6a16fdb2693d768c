"""A driver without a network: frames in two queues, moved one at a time, which may be cut and replayed at any point."""

import threading
from collections import deque
from collections.abc import Callable
from random import Random

from fednlp.deployment.session.driver import Session, Wake
from fednlp.errors import FednlpError

_MOST_QUEUED = 4
_MOST_KEPT = 64


class MemoryLink:
    """Connects a client and a server, again after each cut.

    Args:
        client: Begins a connection at the client, such as ``ClientSession.begin``.
        server: Begins it at the server, as :meth:`~fednlp.deployment.session.hub.Hub.session`.

    Attributes:
        errors: What sessions raised; each one cut the connection.
        sent: Bytes of the frames that were sent, by the client and by the server.
    """

    def __init__(self, client: Callable[[Wake], Session], server: Callable[[Wake], Session]) -> None:
        self.errors: list[FednlpError] = []
        self.sent = [0, 0]
        self._begin = (client, server)
        self._event = threading.Event()
        self._ends: list[Session] = []
        self._queues: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._old: tuple[deque[bytes], deque[bytes]] = (deque(maxlen=_MOST_KEPT), deque(maxlen=_MOST_KEPT))
        self._zombie: tuple[Session, deque[bytes]] | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return bool(self._ends)

    @property
    def finished(self) -> bool:
        """Whether a session is finished, and all that it sent has arrived."""
        return self.connected and any(end.finished for end in self._ends) and not any(self._queues)

    def connect(self) -> None:
        """Begin a connection."""
        self.cut()
        self._ends = [begin(self._event.set) for begin in self._begin]

    def cut(self, half_open: bool = False) -> None:
        """End the connection; frames on their way are lost.

        Args:
            half_open: The server does not notice, and what is on its way to it arrives later.
        """
        if self._ends:
            client, server = self._ends
            client.close()
            if half_open:
                self._bury()
                self._zombie = server, deque(self._queues[0])
            else:
                server.close()
        self._ends = []
        for queue in self._queues:
            queue.clear()

    def send(self, end: int) -> bool:
        """Have an end (0 the client, 1 the server) send a frame, and return whether it had one, and room for it."""
        queue = self._queues[end]
        if len(queue) >= _MOST_QUEUED:
            return False
        try:
            frame = self._ends[end].next_frame()
        except FednlpError as error:
            self._broken(error)
            return True
        if frame is None:
            return False
        queue.append(frame)
        self._old[end].append(frame)
        self.sent[end] += len(frame)
        return True

    def deliver(self, end: int) -> bool:
        """Deliver a frame that an end sent, and return whether there was one."""
        if not self._queues[end]:
            return False
        self._give(end, self._queues[end].popleft())
        return True

    def replay(self, end: int, random: Random) -> None:
        """Deliver a frame that an end sent at some time, on whichever connection, once more."""
        if self._ends and self._old[end]:
            self._give(end, random.choice(self._old[end]))

    def haunt(self) -> None:
        """Deliver a frame to the session of a half-open connection, or end it."""
        if self._zombie is None:
            return
        session, frames = self._zombie
        try:
            if frames:
                session.receive(frames.popleft())
            elif session.next_frame() is None:
                self._bury()
        except FednlpError as error:
            self.errors.append(error)
            self._bury()

    def step(self, random: Random) -> bool:
        """Make one move, drawn among those that there are; return whether there was one.

        A connection is made if there is none.
        """
        if not self._ends:
            self.connect()
            return True
        moves = [(self.send, 0), (self.send, 1), (self.deliver, 0), (self.deliver, 1)]
        random.shuffle(moves)
        return any(self._ends and move(end) for move, end in moves)

    def run(self) -> None:
        """Move frames until a session is finished: the work of a thread, which the sessions wake."""
        random = Random(0)
        while not self.finished:
            self._event.clear()
            if not self.step(random):
                self._event.wait()
        self.cut()

    def _give(self, end: int, frame: bytes) -> None:
        try:
            self._ends[1 - end].receive(frame)
        except FednlpError as error:
            self._broken(error)

    def _broken(self, error: FednlpError) -> None:
        self.errors.append(error)
        self.cut()

    def _bury(self) -> None:
        if self._zombie is not None:
            self._zombie[0].close()
        self._zombie = None
