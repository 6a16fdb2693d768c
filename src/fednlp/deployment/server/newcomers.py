"""Sites that join while the rounds go on: they are set up meanwhile, and take part from the next round on.

The population of a round is a function of a record on the server's disk. Who takes part from a round on is written down
before the round's cohort is drawn, so that a server that is killed draws the same cohorts again.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednlp.config import Experiment
from fednlp.deployment.server.gathering import Gathering, Member, Members, sites_partition
from fednlp.deployment.session.setup import Ready
from fednlp.disk import atomic, sync_folder, writing
from fednlp.errors import RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.partition import Partition
from fednlp.simulation.components import Log

_REMEDY = "then start it again; nothing that was acknowledged is lost"


class Since(BaseModel):
    """How many sites take part from a round on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    round: int = Field(ge=1)
    sites: int = Field(ge=1)


class Record(BaseModel):
    """How many sites take part, over the rounds.

    Attributes:
        begun: The last round whose population is settled.
        since: In the order of the rounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    begun: int = Field(ge=0)
    since: list[Since] = Field(min_length=1)


class PopulationChanged(Exception):
    """More sites take part from the round on that was about to begin: its cohort is to be drawn from all of them."""


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
        self._record = _read(record) or Record(begun=0, since=[Since(round=1, sites=whole.num_clients)])
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
        with atomic(self.path, _REMEDY) as file:
            file.write(record.model_dump_json().encode())
        with writing(self.path.parent, _REMEDY):
            sync_folder(self.path.parent)


def fixed_population(experiment: Experiment, algorithm: Algorithm) -> str | None:
    """Return why sites cannot join an experiment once it has begun; None if they can.

    Args:
        experiment: Resolved.
        algorithm: Its method.
    """
    name = experiment.algorithm.name
    if experiment.secure.protocol != "none":
        return "with [secure], every site has checked the number of sites; it can take part in the next run"
    if experiment.privacy is not None:
        return "[privacy] states its guarantee for a number of sites; it can take part in the next run"
    if experiment.fewshot is not None:
        return "[fewshot] shares its gold labels out before the first round; it can take part in the next run"
    if name == "fedbuff":
        return "fedbuff draws who trains among the sites of the beginning; it can take part in the next run"
    if algorithm.selection is not None and algorithm.selection.remembers:
        return "[cohort] remembers the sites of the beginning; it can take part in the next run"
    if algorithm.receives:
        return f"{name} keeps sums over all sites from round to round; it can take part in the next run"
    return None


def _read(path: Path) -> Record | None:
    try:
        return Record.model_validate_json(path.read_bytes()) if path.is_file() else None
    except ValidationError as error:
        raise RunError(
            f"{path} is damaged ({str(error).splitlines()[0]}): restore it from a backup"
        ) from None
