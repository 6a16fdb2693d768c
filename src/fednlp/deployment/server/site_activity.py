"""What a server has seen of one site, over all its connections."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from fednlp.deployment.server.status import SiteStatus, State
from fednlp.deployment.session.call_ids import all_in_words
from fednlp.deployment.session.hub import Presence

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
        state: Its state.
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
