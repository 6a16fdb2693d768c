"""Keeps the status of a federation up to date while its server runs."""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import TracebackType
from typing import Any, Self

from fednlp.config import Experiment
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.server.gathering import Members
from fednlp.deployment.server.status import (
    ENDED,
    Awaited,
    SiteStatus,
    Spent,
    State,
    Status,
    read_status,
    write_status,
)
from fednlp.deployment.session.call_ids import all_in_words
from fednlp.deployment.session.hub import Hub, Presence
from fednlp.errors import FednlpError, RunError
from fednlp.privacy.dp import DPMechanism
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.train import OpenRun

EVERY = 1.0
"""Seconds from one status to the next."""
WAITING, EVALUATING = "waiting for sites", "evaluating"
FINISHED, STOPPED = ENDED
IDLE = "waits"
"""What a connected client does that has nothing to do (:class:`fednlp.deployment.session.hub.Presence`)."""


def site_state(registered: str, presence: Presence | None, asked: bool) -> State:
    """Return what a site is doing, in one word.

    Args:
        registered: Its state in the register: invited, enrolled or removed.
        presence: Its connection; None without one.
        asked: Whether something is asked of it, or it is still to join.

    >>> site_state("enrolled", None, asked=True)
    'awaited'
    """
    if registered == "removed":
        return "removed"
    if presence is not None:
        return "connected" if presence.doing == IDLE else "working"
    if registered == "invited":
        return "invited"
    return "awaited" if asked else "enrolled"


@dataclass
class SiteActivity:
    """A site as it was seen, from one look to the next.

    A connection that begins and ends between two looks is not seen, nor are the last bytes of one that has ended.

    Attributes:
        since: When it came into this state, seconds since 1970.
        awaited: What the run waits for: the number of a call, or "to join"; None for nothing.
        awaited_since: Since when the run waits for this.
        heard: When something arrived from it last.
        doing: What it does, in words.
        earlier: Bytes of earlier connections, in and out.
        present: Its connection, or its last one.
    """

    state: State = "invited"
    since: float = 0.0
    awaited: str | None = None
    awaited_since: float = 0.0
    heard: float | None = None
    doing: str = ""
    earlier: tuple[int, int] = (0, 0)
    present: Presence | None = field(default=None)

    @classmethod
    def of(cls, site: SiteStatus) -> Self:
        """Go on from what an earlier server has seen."""
        return cls(site.state, site.since, earlier=(site.bytes_in, site.bytes_out))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that arrived from the site and that were sent to it."""
        if self.present is None:
            return self.earlier
        return self.earlier[0] + self.present.bytes_in, self.earlier[1] + self.present.bytes_out

    def look(
        self,
        now: float,
        registered: str,
        presence: Presence | None,
        asked: Sequence[str],
        joins: bool = False,
    ) -> None:
        """Take note of a site as it is now.

        Args:
            now: Seconds since 1970.
            registered: Its state in the register.
            presence: Its connection; None without one.
            asked: The numbers of the calls that it has not answered.
            joins: Whether the run waits for it to join.
        """
        state = site_state(registered, presence, bool(asked))
        if state != self.state or not self.since:
            self.state, self.since = state, now
        if presence is not None:
            if self.present is not None and self.present.since != presence.since:
                self.earlier = self.traffic
            self.present, self.heard = presence, presence.heard
            self.doing = "" if presence.doing == IDLE else presence.doing
        else:
            self.doing = f"has {all_in_words([*asked])} to do" if asked else ""
        awaited = asked[0] if asked else "to join" if joins else None
        if awaited != self.awaited:
            self.awaited, self.awaited_since = awaited, now

    def status(self, client: int, name: str, certificate: float | None = None) -> SiteStatus:
        """Return what the status says of the site, and until when its certificate is good, seconds since 1970."""
        bytes_in, bytes_out = self.traffic
        return SiteStatus(
            client=client,
            name=name,
            state=self.state,
            since=self.since,
            heard=self.heard,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            doing=self.doing,
            certificate=certificate,
        )


class StatusWriter:
    """Writes the status once a second, in a thread of its own, for the time of a block.

    A status that cannot be written is reported once, and never stops the run.

    Args:
        hub: Who is connected, and what is asked of whom.
        members: Returns who there is.
        log: Told when the status cannot be written.
        now: The clock, seconds since 1970.
    """

    def __init__(
        self,
        directory: RunDir,
        hub: Hub,
        members: Members,
        log: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._name = directory.folder / FOLDER, directory.folder.resolve().name
        self._experiment, self._hub, self._members = directory.experiment(), hub, members
        self._log, self._now, self._started = log, now, now()
        self._phase, self._round, self._failed = WAITING, 0, False
        old = self._last()
        self._round_ended = old.round_ended if old else None
        self._tallies = {site.client: SiteActivity.of(site) for site in (old.sites if old else ())}
        self._mechanism: DPMechanism | None = None
        self._rounds_of, self._lock = Counter[int](), threading.Lock()
        self._spent: Spent | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fednlp-status", daemon=True)

    def __enter__(self) -> Self:
        self.tick()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._phase != FINISHED:
            self.phase(STOPPED)
        self.tick()

    def phase(self, phase: str, round_number: int | None = None) -> None:
        """Take note of what the run does now; the next status says so.

        Args:
            round_number: The round under way, if it is another one.
        """
        self._phase = phase
        self._round = self._round if round_number is None else round_number

    def opened(self, run: OpenRun) -> None:
        """Take note of how a run that is about to begin protects privacy, to tell what it has spent."""
        self._mechanism = run.mechanism

    def rounds_done(self, lines: Sequence[Mapping[str, Any]], ended: float | None = None) -> None:
        """Take note of rounds that are saved.

        Args:
            lines: Their lines of ``rounds.jsonl``.
            ended: When the last of them was saved, seconds since 1970; as it was known before if left out.
        """
        with self._lock:
            for line in lines:
                self._rounds_of.update(line["cohort"])
        self._round_ended = self._round_ended if ended is None else ended

    def watched(self, callback: Callback) -> Callback:
        """Return a callback that tells this writer of the run's progress, and then the given one."""
        return _Watched(self, callback, self._now)

    def tick(self) -> None:
        """Write the status as it is now."""
        try:
            write_status(self._folder, self._status())
        except FednlpError as error:
            if not self._failed:
                self._log(f"the status of the run cannot be written, and the run goes on: {error}")
            self._failed = True

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            self.tick()

    def _last(self) -> Status | None:
        """Return the status that an earlier server wrote; a damaged one is as good as none."""
        try:
            return read_status(self._folder)
        except RunError:
            return None

    def _status(self) -> Status:
        now, phase, members, present = self._now(), self._phase, self._members(), self._hub.connected()
        with self._hub.lock:
            asked = {member.client: self._hub.open_calls(member.client) for member in members}
        for member in members:
            tally = self._tallies.setdefault(member.client, SiteActivity())
            calls = asked[member.client] if member.state != "removed" else []
            joins = phase == WAITING and member.state == "invited"
            tally.look(now, member.state, present.get(member.client), calls, joins)
        return Status(
            run=self._name,
            experiment=self._experiment.name,
            phase=phase,
            round=self._round,
            rounds=self._experiment.num_rounds,
            sites=[
                self._tallies[one.client].status(one.client, one.name, one.certificate_expires)
                for one in members
            ],
            awaited=[
                Awaited(
                    client=member.client,
                    name=member.name,
                    seconds=max(0.0, now - self._tallies[member.client].awaited_since),
                    release=release(self._experiment, member.state, phase),
                )
                for member in members
                if self._tallies[member.client].awaited is not None
            ],
            started=self._started,
            updated=now,
            round_ended=self._round_ended,
            privacy=self._privacy(),
            pid=os.getpid(),
            host=socket.gethostname(),
        )

    def _privacy(self) -> Spent | None:
        """Return what is spent so far; computed again only where it has changed."""
        if self._mechanism is None:
            return None
        with self._lock:
            rounds = max(self._rounds_of.values(), default=0)
        if self._spent is None or self._spent.rounds != rounds:
            epsilon = self._mechanism.spent(rounds)
            self._spent = Spent(
                epsilon=epsilon if isfinite(epsilon) else None,
                delta=self._mechanism.delta,
                rounds=rounds,
                where="server" if self._mechanism.central else "clients",
            )
        return self._spent


def release(experiment: Experiment, registered: str, phase: str) -> str:
    """Return what would let a run go on that waits for a site.

    Args:
        registered: The site's state in the register.

    >>> from fednlp.config import parse
    >>> release(parse({"data": {"name": "sites"}}), "invited", "waiting for sites")
    'it joins, or fednlp sites remove'
    """
    if registered == "invited":
        return "it joins, or fednlp sites remove"
    wait = experiment.rounds.wait
    if wait is None or phase == WAITING:
        return "it answers, or fednlp sites remove"
    return f"it answers, {wait:g} s are over (rounds.wait), or fednlp sites remove"


class _Watched:
    """Tells a writer of a run's progress on the way to another callback."""

    def __init__(self, writer: StatusWriter, callback: Callback, now: Callable[[], float]) -> None:
        self._writer, self._callback, self._now = writer, callback, now
        self._rounds = 0
        self.log = callback.log

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        self._rounds = rounds
        self._writer.rounds_done(run.round_lines())
        self._begin(done + 1)
        self._callback.started(run, experiment, rounds, done)

    def on_progress(self, done: int, of: int, what: str) -> None:
        if what != "clients":
            self._writer.phase(EVALUATING)
        self._callback.on_progress(done, of, what)

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        self._writer.rounds_done([line], self._now())
        self._begin(line["round"] + 1)
        self._callback.on_round(line, left)

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        self._writer.phase(FINISHED if summary["finished"] else STOPPED)
        self._callback.finished(run, summary)

    def _begin(self, number: int) -> None:
        if number <= self._rounds:
            self._writer.phase(f"round {number} of {self._rounds}", number)
        else:
            self._writer.phase(EVALUATING, self._rounds)
