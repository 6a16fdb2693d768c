"""Sites that come while the rounds go on: those that join late, and those that have lost what they were set up for.

Both are set up meanwhile. One that joins takes part from the next round on. The population of a round is a function of
a record on the server's disk. Who takes part from a round on is written down before the round's cohort is drawn, so
that a server that is killed draws the same cohorts again.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import Field

from fednlp.checked_json.stored import Stored, read_stored
from fednlp.config import Experiment
from fednlp.config.compatibility import settings_features
from fednlp.config.method_checks import method_problems
from fednlp.deployment.server.gathering import Gathering, Member, Members, sites_partition
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.setup import Again, Ready
from fednlp.disk import write_durably
from fednlp.federated.algorithm import Algorithm
from fednlp.partition import Partition
from fednlp.simulation.components import Log

_REMEDY = "then start it again; nothing that was acknowledged is lost"


class Since(Stored):
    """How many sites take part from a round on."""

    round: int = Field(ge=1)
    sites: int = Field(ge=1)


class Record(Stored):
    """How many sites take part, over the rounds.

    Attributes:
        begun: The last round whose population is settled.
        since: In the order of the rounds.
    """

    begun: int = Field(ge=0)
    since: list[Since] = Field(min_length=1)


class PopulationChanged(Exception):
    """More sites take part from the round on that was about to begin: its cohort is to be drawn from all of them."""


_OPEN = "open_population"


class Newcomers:
    """Sets up sites that join late, and takes them into the population.

    Sites take part in the order of their numbers: one that was invited and has not joined holds up those after it until
    it joins or is removed.

    Args:
        record: The file of the record; made with the first round.
        partition: The file of all sites' sizes.
        members: Returns who there is.
        gathering: Makes what sets sites up; called once there is one to be set up.
        fixed: Why the population cannot change; None if it can.
        log: Called with what happens.
        since: When the connection began by which a site was set up, by its number; taken further here.

    Raises:
        RunError: The record is damaged.
    """

    def __init__(
        self,
        record: Path,
        partition: Path,
        members: Members,
        gathering: Callable[[], Gathering],
        fixed: str | None,
        log: Log,
        since: dict[int, float] | None = None,
    ) -> None:
        self._since = {} if since is None else since
        self.path, self.members, self.fixed, self.log = record, members, fixed, log
        self._partition, self._make = partition, gathering
        whole = Partition.load(partition)
        self._record = read_stored(
            record, Record, "it is no record of the sites", "restore it from a backup"
        ) or Record(begun=0, since=[Since(round=1, sites=whole.num_clients)])
        self._told: set[int] = set()

    @cached_property
    def _gathering(self) -> Gathering:
        return self._make()

    @property
    def sites(self) -> int:
        """How many sites take part."""
        return self._record.since[-1].sites

    @property
    def partition(self) -> Partition:
        """The sizes of the sites that take part."""
        return self._with({}, self.sites)

    def look(self) -> None:
        """Have sites that have joined set up, or say why they cannot take part."""
        late = self._late()
        if self.fixed is None and late:
            self._gathering.look([member for member in late if member.client not in self._gathering.ready])
            self._since |= self._gathering.since
        for member in late if self.fixed is not None else ():
            if member.client not in self._told:
                self._told.add(member.client)
                self.log(f"site {member.name} takes no part in this run: {self.fixed}")

    def begin(self, round_number: int) -> None:
        """Settle the population of a round that is about to begin, with the sites that are ready by now.

        Raises:
            PopulationChanged: As :meth:`settle`.
        """
        self.look()
        self.settle(round_number)

    def settle(self, round_number: int) -> None:
        """Settle the population of a round that is about to begin; when this returns, it is on the disk.

        Raises:
            PopulationChanged: It is another one than that of the round before.
        """
        if self.fixed is not None or self._record.begun >= round_number:
            return
        before, members = self.sites, self.members()
        ready = self._gathering.ready if self._late() else {}
        number = before
        for member in members[before:]:
            if member.client in ready:
                number = member.client + 1
            elif member.state != "removed":
                break
        if number > before:
            self._with(ready, number).save(self._partition)
            self._put(
                Record(
                    begun=round_number, since=[*self._record.since, Since(round=round_number, sites=number)]
                )
            )
            names = ", ".join(member.name for member in members[before:number] if member.client in ready)
            self.log(f"from round {round_number} on {names} take part, too: {number} sites")
            raise PopulationChanged
        self._put(self._record.model_copy(update={"begun": round_number}))

    def _late(self) -> Sequence[Member]:
        return [one for one in self.members()[self.sites :] if one.state == "enrolled"]

    def _with(self, ready: dict[int, Ready], number: int) -> Partition:
        """Return the partition of so many sites: those that are in the file, and what others have answered."""
        whole, sites = Partition.load(self._partition), self.sites
        sizes = zip(np.diff(whole.train_offsets)[:sites], np.diff(whole.test_offsets)[:sites], strict=True)
        known = {
            client: Ready(train=int(train), test=int(test), hidden=whole.hidden_of(client) or None)
            for client, (train, test) in enumerate(sizes)
        }
        return sites_partition(ready | known, [member.name for member in self.members()[:number]])

    def _put(self, record: Record) -> None:
        self._record = record
        write_durably(self.path, record.model_dump_json().encode(), _REMEDY)


def fixed_population(experiment: Experiment, algorithm: Algorithm) -> str | None:
    """Return why sites cannot join an experiment once it has begun; None if they can.

    Args:
        experiment: Resolved.
    """
    features = [*settings_features(experiment), *method_problems(experiment, algorithm)[1]]
    closed = [f"{one.name} {one.breaks[_OPEN]}" for one in features if _OPEN in one.breaks]
    return f"{closed[0]}; it can take part in the next run" if closed else None


class Returning:
    """Sets sites up again that take part in a run and say that they are not set up for it.

    A site says so when its connection begins. One that was set up by this connection is left alone.

    Args:
        members: Returns who there is.
        gathering: Makes what sets sites up; called once there is one to be set up.
        sites: Returns how many sites take part.
        since: When the connection began by which a site was set up before, by its number; taken further here.
        log: Called with what happens.
    """

    def __init__(
        self,
        hub: Hub,
        members: Members,
        gathering: Callable[[], Gathering],
        sites: Callable[[], int],
        since: dict[int, float],
        log: Log,
    ) -> None:
        self.hub, self.members, self.log = hub, members, log
        self._make, self._sites, self._since = gathering, sites, since
        self._asked: set[int] = set()

    def look(self) -> None:
        """Ask the sites that have come back since the last look, and take note of what has arrived."""
        connected = self.hub.connected()
        for member in self.members()[: self._sites()]:
            here = connected.get(member.client)
            if member.state != "enrolled" or member.client in self._asked or here is None or here.set_up:
                continue
            if self._since.get(member.client) != here.since:
                self._asked.add(member.client)
                self.log(f"site {member.name} has lost what it was set up for: it is set up again")
                self._gathering.anew(member.client)
        if self._asked:
            self._gathering.look([one for one in self.members() if one.client in self._asked])
            self._since |= self._gathering.since
            self._asked -= self._gathering.ready.keys()

    @cached_property
    def _gathering(self) -> Gathering:
        return self._make()


def said_before(partition: Path, client: int, counted: Mapping[int, int]) -> Again:
    """Return what a site is told that has lost what it was set up for.

    Args:
        partition: The file of all sites' sizes.
        client: The site's number.
        counted: The last round by client in which its update counted.
    """
    whole, last = Partition.load(partition), counted.get(client, 0)
    train, test = (int(np.diff(one)[client]) for one in (whole.train_offsets, whole.test_offsets))
    if not last and (train, test) == (1, 0):  # as of a site that was removed before the first round
        return Again(counted=0)
    return Again(train=train, test=test, counted=last)
