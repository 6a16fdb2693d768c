"""Out-of-order packets of all devices are bounded, and a device that leaves a gap open starves no other one."""

from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.links.mqtt.gaps import Gaps

NAMES = st.sampled_from([b"a", b"b", b"c"])


@given(st.lists(st.tuples(NAMES, st.integers(0, 3), st.integers(0, 9)), max_size=60), st.integers(1, 20))
def test_the_connection_whose_gap_is_oldest_ends_once_all_hold_too_much(
    looks: list[tuple[bytes, int, int]], most: int
) -> None:
    gaps, held, since = Gaps(most), dict[bytes, int](), dict[bytes, tuple[int, int]]()
    for now, (name, missing, early) in enumerate(looks):
        ended = gaps.looked_at(name, missing, early)
        held[name] = early
        if not early:
            since.pop(name, None)
        elif since.get(name, (missing, 0))[0] != missing or name not in since:
            since[name] = missing, now
        total = sum(held.values())
        assert (ended is None) is (total <= most)
        if ended is not None:
            assert ended == min(since, key=lambda one: since[one][1])
            gaps.end(ended)
            del held[ended], since[ended]


def test_devices_that_leave_gaps_open_do_not_end_the_connection_of_one_that_has_just_begun_to_wait() -> None:
    gaps = Gaps(most=100)
    for number in range(10):
        assert gaps.looked_at(b"bad %d" % number, missing=1, early=10) is None
    for number in range(10):
        assert gaps.looked_at(b"good", missing=number, early=10 * (number + 1)) == b"bad %d" % number
        gaps.end(b"bad %d" % number)
        assert gaps.looked_at(b"good", missing=number + 1, early=0) is None
