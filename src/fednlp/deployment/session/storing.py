"""How a reply gets to the server's disk: it is checked, handed to the round, written, and acknowledged."""

from collections.abc import Callable

from fednlp.deployment.session.calls import OpenCall
from fednlp.deployment.session.inbox import Inbox, client_of
from fednlp.deployment.session.message_types import Reply
from fednlp.deployment.session.objects import Partial
from fednlp.deployment.session.reply_queue import ReplyQueue
from fednlp.deployment.session.roster import Roster
from fednlp.errors import RunError

_MOST_DAMAGED = 3


class Storing:
    """Puts replies on the disk, in the background.

    Args:
        roster: The clients, and the lock.
        inbox: Where replies are written.
        replies: Those that the round may take.
        background: Has the work done; at once, or in a thread of its own.

    Attributes:
        eager: Whether the round may have a reply before it is on the disk.
    """

    def __init__(
        self,
        roster: Roster,
        inbox: Inbox,
        replies: ReplyQueue,
        background: Callable[[Callable[[], None]], object],
    ) -> None:
        self.eager = True
        self._roster, self._inbox, self._replies, self._background = roster, inbox, replies, background

    def store(self, reply: Reply, partial: Partial | None) -> None:
        """Put a reply on the disk, and tell the client's session of that time what came of it; the lock is held.

        Args:
            reply: To a call that is open.
            partial: Its object, whole and not yet checked.
        """
        open_call = self._roster.open_calls(client_of(reply.id))[reply.id]
        open_call.sealing = True
        self._background(lambda: self._store(open_call, reply, partial))

    def _store(self, open_call: OpenCall, reply: Reply, partial: Partial | None) -> None:
        """Check a reply, hand it to the round, put it on the disk, and tell the client, in this order."""
        lock, known = self._roster.lock, self._roster.client(open_call.client)
        try:
            checked = self._checked(open_call, reply, partial)
            if checked is None:
                return
            if partial is not None and checked is reply:
                partial.sync()
            self._inbox.write(checked)
            with lock:
                if known.calls.get(reply.id) is not open_call:  # it was withdrawn meanwhile
                    self._inbox.remove(reply.id)
                    return
                self._replies.settle(reply.id)
                del known.calls[reply.id]
                self._hand_over(open_call)
                if known.session:
                    known.session.tell(reply.id, stored=True)
        except RunError as error:
            with lock:
                if known.session:
                    known.session.fail(error)
        finally:
            with lock:
                open_call.sealing = False
                if partial is not None:
                    partial.close()
                known.wake()

    def _checked(self, open_call: OpenCall, reply: Reply, partial: Partial | None) -> Reply | None:
        """Return the reply to be stored, which the round may have from now on; None where there is none.

        An object that arrived damaged is asked for again, and after some times an error takes the reply's place.
        """
        right = partial is None or partial.check()
        with self._roster.lock:
            known = self._roster.client(open_call.client)
            if known.calls.get(reply.id) is not open_call:
                return None
            if not right:
                open_call.damaged += 1
                if open_call.damaged >= _MOST_DAMAGED:
                    self._inbox.remove(reply.id)
                    return Reply(reply.id, None, error="its upload arrived damaged each time")
                if known.session:
                    known.session.tell(reply.id, stored=False)
                return None
            if partial is not None and self.eager:
                self._replies.arrive(reply)
                self._hand_over(open_call)
            return reply

    def _hand_over(self, open_call: OpenCall) -> None:
        """Let the round take a reply, once."""
        if not open_call.handed_over:
            open_call.handed_over = True
            self._replies.offer(open_call.call.id)
