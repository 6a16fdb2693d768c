"""A server that has ended stays until the sites have heard of it, and not for ever."""

from collections.abc import Callable
from pathlib import Path

from fednlp.deployment.links.streams import LONGEST_WAIT
from fednlp.deployment.server.ending import PATIENCE, await_shutdown_acks
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Finished

from .ends import drain, greeting
from .test_federation import Member


class Clock:
    """A clock that goes on when somebody sleeps, and what happens then."""

    def __init__(self, *events: tuple[float, Callable[[], object]]) -> None:
        self.now, self.events = 0.0, list(events)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()


def hear(hub: Hub, client: int) -> None:
    """Connect, hear that the run is over, and leave."""
    session = hub.session(client, lambda: None, lambda: 0.0)
    session.receive(greeting())
    assert isinstance(drain(session)[-1], Finished)
    session.close()


def ended(folder: Path) -> Hub:
    hub = Hub(folder, "run")
    hub.finish("done")
    return hub


def test_it_stays_until_the_last_site_has_come_back(tmp_path: Path) -> None:
    hub, lines = ended(tmp_path), list[str]()
    members = [Member("nord", 0), Member("west", 1), Member("old", 2, "removed"), Member("new", 3, "invited")]
    clock = Clock((0.1, lambda: hear(hub, 0)), (60.0, lambda: hear(hub, 1)))
    assert (
        await_shutdown_acks(hub, lambda: members, lines.append, now=lambda: clock.now, sleep=clock.sleep)
        == []
    )
    assert 60 <= clock.now < 61
    assert lines == [
        "the federation has ended: waiting for west to hear it, for 120 s at most; Ctrl-C ends the waiting"
    ]


def test_it_goes_after_a_while_and_says_how_to_end_the_others(tmp_path: Path) -> None:
    hub, lines, clock = ended(tmp_path), list[str](), Clock()
    members = [Member("nord", 0)]
    session = hub.session(0, lambda: None, lambda: 0.0)
    session.receive(greeting())  # it is there, and does not read
    found = await_shutdown_acks(hub, lambda: members, lines.append, now=lambda: clock.now, sleep=clock.sleep)
    assert found == ["nord"]
    assert PATIENCE <= clock.now < PATIENCE + 1
    assert "nord did not hear that the federation has ended" in lines[-1]
    assert "press Ctrl-C there, or start this server again" in lines[-1]


def test_it_goes_at_once_when_somebody_presses_ctrl_c(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    lines, clock = list[str](), Clock((3.0, interrupt))
    members = [Member("nord", 0)]
    hub = ended(tmp_path)
    assert await_shutdown_acks(
        hub, lambda: members, lines.append, now=lambda: clock.now, sleep=clock.sleep
    ) == ["nord"]
    assert clock.now < 4
    assert lines[-1].startswith("nord did not hear")


def test_it_stays_longer_than_a_site_pauses() -> None:
    assert PATIENCE > 1.5 * LONGEST_WAIT
