"""Sites that come back in the middle of a run without what they were set up for: they are set up again."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fednlp.deployment.server.gathering import Gathering, Members
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.setup import Again
from fednlp.partition import Partition
from fednlp.simulation.components import Log


class Returning:
    """Sets sites up again that take part in a run and say that they are not set up for it.

    A site says so when its connection begins. One that was set up by this connection is left alone.

    Args:
        hub: Who is connected.
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
        self._gathering: Gathering | None = None
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
                self._gatherer.anew(member.client)
        if self._asked:
            self._gatherer.look([one for one in self.members() if one.client in self._asked])
            self._since |= self._gatherer.since
            self._asked -= self._gatherer.ready.keys()

    @property
    def _gatherer(self) -> Gathering:
        if self._gathering is None:
            self._gathering = self._make()
        return self._gathering


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
