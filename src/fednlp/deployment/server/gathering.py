"""Before the first round: every site is told what the experiment is, and says how many examples it has."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fednlp.deployment.server.waiting import LOOK, Reminders
from fednlp.deployment.session.call_ids import attempt_name
from fednlp.deployment.session.hub import Hub, StoredReply
from fednlp.deployment.session.messages import Call, ObjectRef
from fednlp.deployment.session.setup import Again, Ready, Setup, read_ready, setup_attempt
from fednlp.errors import RunError
from fednlp.partition import Partition
from fednlp.simulation.components import Log

_MOST_SETUPS = 1000
"""Of one site: it is asked no more after them, so that what its refusals leave behind is bounded."""


class Member(Protocol):
    """A site as the register of sites has it (:class:`fednlp.deployment.identity.site_registry.Site`)."""

    @property
    def name(self) -> str: ...

    @property
    def client(self) -> int: ...

    @property
    def state(self) -> str: ...

    @property
    def certificate_expires(self) -> float | None: ...


Members = Callable[[], Sequence[Member]]
"""Returns all sites that were ever invited, in the order of their numbers from 0, removed ones among them."""


class Gathering:
    """Sets sites up until all who were invited and not removed are ready.

    A site that refuses is asked again, by a call of another name, once it is back: its owner may mend its file and
    start it again. The refusals lie in the hub's inbox, so that a server that is started again goes on with the next
    call.

    Args:
        hub: What is asked of whom, and what arrived.
        members: Returns who there is.
        setup: What every site is told, but for its own number and how many there are.
        files: The files of the starting model, by the names of their objects.
        removal: The command that removes a site, without its name.
        log: Called with what happens.
        number: Of the round, in the numbers of the calls: replies of the rounds before the one under way are forgotten.
        again: Returns what a site is told that has lost what it was set up for.
        clients: Returns how many sites there are; all that were ever invited if left out.

    Attributes:
        ready: What each site has answered, by its number.
        since: When the connection began by which it was, by its number.
    """

    def __init__(
        self,
        hub: Hub,
        members: Members,
        setup: Setup,
        files: Mapping[str, Path],
        removal: str,
        log: Log,
        number: int = 0,
        again: Callable[[int], Again | None] = lambda client: None,
        clients: Callable[[], int] | None = None,
    ) -> None:
        self.hub, self.members, self.setup, self.removal, self.log = hub, members, setup, removal, log
        self.ready: dict[int, Ready] = {}
        self.since: dict[int, float] = {}
        self._number, self._again = number, again
        self._clients = clients or (lambda: len(members()))
        self._objects: dict[str, ObjectRef] = {name: hub.add_object(path) for name, path in files.items()}
        self._asked: dict[int, int] = {}
        self._refused: set[int] = set()

    def partition(self, on_look: Callable[[], object]) -> Partition:
        """Return how many examples each site has, once all are ready.

        Args:
            on_look: Called about once a second; an error that it raises ends the waiting.
        """
        reminders = Reminders(time.monotonic())
        while True:
            on_look()
            members = [member for member in self.members() if member.state != "removed"]
            self._ask_of_another_number(members)
            missing = [member for member in members if member.client not in self.ready]
            if members and not missing:
                return sites_partition(self.ready, [member.name for member in self.members()])
            self.look(missing, f" ({{}} of {len(members)})")
            if self.hub.take(LOOK) is None and reminders.due(time.monotonic()):
                self._say_awaited(missing)

    def look(self, missing: Sequence[Member], so_far: str = "") -> None:
        """Ask sites that were not asked yet, and take note of what has arrived.

        Args:
            missing: The sites that are not ready.
            so_far: What is said of a site that is ready, with how many are.
        """
        for member in missing:
            if member.state != "enrolled":
                continue
            if member.client not in self._asked:
                self._ask(member.client, max(1, self._answered(member.client)))
            reply = self.hub.reply(self._call_id(member.client, self._asked[member.client]))
            if reply is not None:
                self._take(member, reply, so_far)

    def anew(self, client: int) -> None:
        """Ask a site whatever it has answered before: it has lost what it was set up for."""
        self.ready.pop(client, None)
        self._asked.setdefault(client, self._answered(client))
        self._ask_again(client)

    def _ask(self, client: int, attempt: int) -> None:
        self._asked[client] = attempt
        told = {"client": client, "clients": self._clients(), "again": self._again(client)}
        own = self.setup.model_copy(update=told)
        self.hub.ask(client, Call(self._call_id(client, attempt), own.model_dump(), self._objects))

    def _ask_of_another_number(self, members: Sequence[Member]) -> None:
        """Ask sites again that were told another number of sites: one was invited after them."""
        number = len(self.members())
        for client in [member.client for member in members if member.client in self.ready]:
            if self.ready[client].clients != number:
                del self.ready[client]
                self._ask_again(client)

    def _ask_again(self, client: int) -> bool:
        """Ask a site once more by a call of another name, and return whether it was not asked too often."""
        attempt = self._asked[client]
        if attempt < _MOST_SETUPS:
            self._ask(client, attempt + 1)
            if attempt > 1:
                self.hub.withdraw(self._call_id(client, attempt - 1))
        return attempt < _MOST_SETUPS

    def _answered(self, client: int) -> int:
        """Return the number of the last setup that a site has answered; 0 where it has answered none."""
        own = f"{self._number}.{client}."
        names = (call_id.removeprefix(own) for call_id in self.hub.stored() if call_id.startswith(own))
        return max((setup_attempt(name) or 1 for name in names), default=0)

    def _call_id(self, client: int, attempt: int) -> str:
        return f"{self._number}.{client}.{attempt_name('setup', attempt)}"

    def _take(self, member: Member, reply: StoredReply, so_far: str) -> None:
        try:
            if reply.error is not None:
                raise RunError(reply.error)
            self.ready[member.client] = read_ready(reply.answer)
        except RunError as error:
            self._refuse(member.client, member.name, str(error))
        else:
            self._refused.discard(member.client)
            if member.client in (connected := self.hub.connected()):
                self.since[member.client] = connected[member.client].since
            self.log(f"site {member.name} is ready{so_far.format(len(self.ready))}")

    def _refuse(self, client: int, name: str, reason: str) -> None:
        """Ask a site that refuses again: it hears that as soon as it is back."""
        self._refused.add(client)
        remedy = f"it may mend its file and join again, or: {self.removal} {name}"
        if not self._ask_again(client):
            remedy = f"it was asked {_MOST_SETUPS:,} times, and is asked no more: {self.removal} {name}"
        self.log(f"site {name} does not take part: {reason}; {remedy}")

    def _say_awaited(self, missing: Sequence[Member]) -> None:
        """Say who is missing and not at work, and what would let the run begin."""
        connected = self.hub.connected()
        names = []
        for member in missing:
            if member.state != "enrolled":
                state = "invited, and has not joined"
            elif member.client in self._refused:
                state = "has refused"
            else:
                if member.client in connected:
                    continue
                state = "not connected"
            names.append(f"{member.name} ({state})")
        if names:
            self.log(
                f"waiting for {', '.join(names)}: join there, or go on without a site by: {self.removal} NAME"
            )


def sites_partition(ready: Mapping[int, Ready], names: Sequence[str]) -> Partition:
    """Return the partition that the sites make: how many examples each has, and no example of theirs.

    Args:
        ready: What each site answered, by its number; a site that was removed before has no answer.
        names: Of all sites, in the order of their numbers.
    """
    unknown = Ready(train=1, test=0, hidden=["train", "test"])
    answers = [ready.get(client, unknown) for client in range(len(names))]
    train, test = (
        np.concatenate([[0], np.cumsum([getattr(answer, part) for answer in answers])]).astype(np.int64)
        for part in ("train", "test")
    )
    indices = np.arange(train[-1]), np.arange(test[-1])
    hidden = np.array([[part in (answer.hidden or ()) for part in ("train", "test")] for answer in answers])
    return Partition(train, indices[0], test, indices[1], np.arange(len(names)), tuple(names), hidden)
