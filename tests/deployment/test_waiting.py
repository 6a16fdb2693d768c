"""How a server waits: as long as it takes or as long as it may, and it says for whom."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.server import waiting
from fednlp.deployment.server.waiting import LOOK, Patience
from fednlp.deployment.session.hub import StoredReply

DAY = 24 * 3600.0


class Mail:
    """Replies that arrive at certain times, and a clock that goes on with each look.

    Args:
        arrivals: (time in seconds, number of the call), in their order.
    """

    def __init__(self, *arrivals: tuple[float, str]) -> None:
        self.now, self.arrivals = 0.0, list(arrivals)

    def monotonic(self) -> float:
        return self.now

    def take(self, timeout: float | None = None) -> StoredReply | None:
        assert timeout == LOOK
        if self.arrivals and self.arrivals[0][0] <= self.now + timeout:
            at, call_id = self.arrivals.pop(0)
            self.now = max(self.now, at)
            return StoredReply(call_id, int(call_id.split(".")[1]), {}, None, 0, None)
        self.now += timeout
        return None


def replies(mail: Mail, awaited: set[str], patience: Patience) -> list[str]:
    """Return the numbers of the replies, by the clock of the mail that is waited for."""
    with patch.object(waiting, "time", mail):
        return [reply.id for reply in patience.replies(mail, awaited)]


def test_a_site_that_is_asleep_for_a_day_is_waited_for_and_named() -> None:
    said: list[tuple[list[int], float]] = []
    patience = Patience(on_waiting=lambda clients, seconds: said.append((list(clients), seconds)))
    mail = Mail((2.0, "1.0.train"), (DAY, "1.1.train"))
    assert replies(mail, {"1.0.train", "1.1.train"}, patience) == ["1.0.train", "1.1.train"]
    assert mail.now == DAY
    assert {tuple(clients) for clients, _ in said} == {(1,)}
    assert [seconds for _, seconds in said[:8]] == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 620.0, 920.0]


@given(
    st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["1.0.a", "1.1.a", "1.2.a", "9.9.b"]))),
    st.floats(1, 90),
)
def test_what_arrives_in_time_is_yielded_once_and_the_rest_is_left(
    arrivals: list[tuple[float, str]], seconds: float
) -> None:
    asked = {"1.0.a", "1.1.a", "1.2.a"}
    awaited, first = {*asked}, dict[str, float]()
    for at, call_id in sorted(arrivals):
        first.setdefault(call_id, at)
    came = replies(Mail(*sorted(arrivals)), awaited, Patience(seconds))
    assert len({*came}) == len(came)
    assert {*came} | awaited == asked
    assert not {*came} & awaited
    assert {call_id for call_id in asked if first.get(call_id, DAY) <= seconds} <= {*came}
    assert all(first[call_id] <= seconds + 2 * LOOK for call_id in came)


def test_it_ends_once_all_who_are_missing_are_gone() -> None:
    gone: set[int] = {2}
    awaited = {"1.0.train", "1.1.train"}
    patience = Patience(on_waiting=lambda clients, seconds: gone.add(1), gone=lambda: gone)
    assert replies(Mail((3.0, "1.0.train")), awaited, patience) == ["1.0.train"]
    assert awaited == {"1.1.train"}
