"""What a client has answered and the server has not stored: answers are offered, and their objects sent on demand."""

from pathlib import Path

from fednlp.deployment.session.message_types import ObjectRef, Reply, Resume
from fednlp.deployment.session.messages import pack
from fednlp.deployment.session.outbox import Outbox, RunOutbox
from fednlp.deployment.session.transfers import Uploading
from fednlp.errors import ProtocolError


class UnstoredAnswers:
    """The answers of one run, over all its connections.

    Args:
        outbox: Where answers lie until the server has stored them.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._uploads = outbox, Uploading()
        self._box: RunOutbox | None = None
        self._offers = dict[str, None]()  # each once, however often the server asks

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
            reply: The answer.
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
        return self._uploads.next_frame()

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
        self._uploads.begin(resume.id, path, ref, resume.offset)

    def settle(self, call_id: str) -> None:
        """Take note that the server has stored an answer."""
        if call_id in self:
            self.box.settle(call_id)

    def drop(self, call_id: str) -> None:
        """Send an answer no longer, and remove it."""
        self._uploads.stop(call_id)
        if call_id in self:
            self.box.remove(call_id)

    def disconnect(self) -> None:
        """Let go of all files: the connection is gone."""
        self._uploads.close()
        self._offers.clear()
