"""A stream over packets: repeated, reordered and delayed ones change nothing, and no peer makes it hold more."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.links.mqtt.packets import (
    MOST_PACKET,
    WINDOW,
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
