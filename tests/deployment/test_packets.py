"""A stream over packets: repeated, reordered and delayed ones change nothing, and no peer makes it hold more."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.links.mqtt.packets import (
    MOST_PACKET,
    WINDOW,
    Gaps,
    Kind,
    Ordered,
    Packet,
    join,
    new_id,
    split,
)
from fednlp.errors import ProtocolError


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=60), st.integers(0, 2**32), st.floats(0, 0.9))
def test_what_is_sent_arrives_in_order(payloads: list[bytes], seed: int, again: float) -> None:
    rng, name = random.Random(seed), new_id()
    here, there = Ordered(name), Ordered(name)
    waiting, up, down, found = list(payloads), list[bytes](), list[bytes](), list[bytes]()
    while waiting or up:
        while waiting and here.room:
            up.append(here.data(waiting.pop(0)))
        assert len(up) <= 2 * WINDOW
        packet = up.pop(rng.randrange(len(up)))
        there.receive(split(packet))
        if rng.random() < again:
            there.receive(split(packet))
        found += [bytes(part) for part in there.take()]
        taken = there.taken()
        if taken is not None:
            down.append(taken)
        for packet in rng.sample(down, len(down)):
            here.receive(split(packet))
    assert found == payloads
    assert not there.incomplete


@given(st.binary(max_size=64))
def test_anything_is_a_packet_or_an_error(data: bytes) -> None:
    try:
        packet = split(data)
    except ProtocolError:
        return
    assert join(packet) == data


def test_a_missing_packet_is_known() -> None:
    here, there = Ordered(new_id()), Ordered(new_id())
    here.data(b"lost")
    there.receive(split(here.data(b"early")))
    assert there.incomplete
    assert list(there.take()) == []


@pytest.mark.parametrize(
    "packet", [Packet(bytes(16), Kind.DATA, WINDOW, b"far"), Packet(bytes(16), Kind.TAKEN, 1)]
)
def test_what_no_honest_peer_sends_is_refused(packet: Packet) -> None:
    with pytest.raises(ProtocolError):
        Ordered(bytes(16)).receive(packet)


def test_a_packet_is_bounded() -> None:
    with pytest.raises(ProtocolError, match="too long"):
        split(bytes(MOST_PACKET + 1))


# Packets that are missing, over all connections.

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
