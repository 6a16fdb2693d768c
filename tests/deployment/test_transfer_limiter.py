"""Few fast transfers at the same time, whatever the cohort; a slow one keeps nobody waiting."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.session.hub import Hub, ServerSession
from fednlp.deployment.session.messages import (
    CHUNK,
    Call,
    Get,
    ObjectRef,
    Reply,
    Resume,
    Stored,
    UploadChunk,
    Withdrawn,
    from_server,
    pack,
)
from fednlp.deployment.session.objects import ref_of
from fednlp.deployment.session.transfer_limiter import PACE, PLACES, SPAN, TransferLimiter

from .ends import drain, greeting

COHORT = 3 * PLACES


@given(st.lists(st.integers(0, 9), max_size=60))
def test_all_places_are_taken_and_no_more_in_the_order_of_asking(moves: list[int]) -> None:
    """A move ends one of the first uploads that are open, or has another one ask."""
    begun: list[int] = []
    ration, asked, never, open_ones = TransferLimiter(3, lambda: 0.0), 0, set[int](), list[int]()
    for move in moves:
        if move < len(open_ones) and move < 5:
            gone = open_ones.pop(move)
            never |= {gone} - set(begun)
            ration.end(gone)
        else:
            open_ones.append(asked)
            ration.ask(asked, lambda name=asked: begun.append(name))
            asked += 1
        assert open_ones[:3] == [one for one in begun if one in open_ones]
    assert begun == [one for one in range(asked) if one not in never][: len(begun)]


def test_a_slow_upload_loses_its_place_and_a_fast_one_keeps_it() -> None:
    now, begun = [0.0], list[str]()
    ration = TransferLimiter(2, lambda: now[0])
    for name in ("fast", "slow", "third", "fourth"):
        ration.ask(name, lambda name=name: begun.append(name))
    assert begun == ["fast", "slow"]
    ration.moved("fast", PACE)
    now[0] = SPAN
    ration.look()
    assert begun == ["fast", "slow", "third"]
    ration.end("slow")
    assert begun == ["fast", "slow", "third"], "its place was given away before"
    ration.end("third")
    assert begun == ["fast", "slow", "third", "fourth"]


def replied(hub: Hub, client: int, ref: ObjectRef) -> ServerSession:
    """Return the session of a client that has offered its reply."""
    hub.ask(client, Call(f"1.{client}.train", {}), ref.size)
    session = hub.session(client, lambda: None, lambda: 0.0)
    session.receive(greeting())
    drain(session)
    session.receive(pack(Reply(f"1.{client}.train", {}, ref.digest, ref.size)))
    return session


def test_a_cohort_uploads_a_few_at_a_time_and_all_of_it_is_stored(tmp_path: Path) -> None:
    hub, data = Hub(tmp_path / "hub", "run"), os.urandom(1000)
    hub.uploads = TransferLimiter(now=lambda: 0.0)
    (tmp_path / "update").write_bytes(data)
    sessions = {client: replied(hub, client, ref_of(tmp_path / "update")) for client in range(COHORT)}
    stored = set[int]()
    while len(stored) < COHORT:
        sending = {
            client for client, one in sessions.items() if drain(one) == [Resume(f"1.{client}.train", 0)]
        }
        assert 0 < len(sending) <= PLACES
        for client in sending:
            sessions[client].receive(pack(UploadChunk(f"1.{client}.train", 0), data))
            assert drain(sessions[client])[-1:] == [Stored(f"1.{client}.train")]
        stored |= sending
    assert len(hub.stored()) == COHORT


def test_whoever_leaves_or_is_withdrawn_makes_room(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub", "run")
    hub.uploads = TransferLimiter(1, lambda: 0.0)
    (tmp_path / "update").write_bytes(b"update")
    ref = ref_of(tmp_path / "update")
    first, second, third, fourth = (replied(hub, client, ref) for client in range(4))
    assert [drain(one) for one in (first, second)] == [[Resume("1.0.train", 0)], []]
    first.close()
    assert drain(second) == [Resume("1.1.train", 0)]
    hub.withdraw("1.2.train")
    hub.withdraw("1.1.train")
    assert drain(third) == [Withdrawn("1.2.train")]
    assert drain(fourth) == [Resume("1.3.train", 0)]


def test_a_transfer_that_has_waited_for_long_begins_without_a_place() -> None:
    now, begun = [0.0], list[str]()
    ration = TransferLimiter(1, lambda: now[0], patience=SPAN)
    for name in ("first", "second", "third"):
        ration.ask(name, lambda name=name: begun.append(name))
        now[0] += SPAN / 4
    ration.moved("first", PACE)
    now[0] = 1.25 * SPAN
    ration.look()
    assert begun == ["first", "second"]
    assert "first" in ration
    assert "second" not in ration
    now[0] = 1.5 * SPAN
    ration.look()
    assert begun == ["first", "second", "third"]


def fetching(hub: Hub, client: int, ref: ObjectRef) -> ServerSession:
    """Return the session of a client that has asked for an object."""
    hub.ask(client, Call(f"1.{client}.train", {}, {"model": ref}))
    session = hub.session(client, lambda: None, lambda: 0.0)
    session.receive(greeting())
    drain(session)
    session.receive(pack(Get(ref.digest, 0)))
    return session


def test_few_clients_fetch_by_large_chunks_at_one_time_and_slow_ones_by_small_ones(tmp_path: Path) -> None:
    """So the buffers of a cohort that fetches a model at the same moment do not add up."""
    now, hub = [0.0], Hub(tmp_path / "hub", "run")
    hub.downloads = TransferLimiter(1, lambda: now[0], patience=SPAN)
    data = os.urandom(3 * CHUNK)
    (tmp_path / "model").write_bytes(data)
    ref = hub.add_object(tmp_path / "model")
    first, second, third = (fetching(hub, client, ref) for client in range(3))

    def chunk(session: ServerSession) -> int:
        frame = session.next_frame()
        return 0 if frame is None else len(from_server(frame)[1])

    assert [chunk(first), chunk(second), chunk(third)] == [CHUNK, 0, 0]
    now[0] = SPAN
    hub.downloads.look()
    assert 0 < chunk(second) < CHUNK / 8, "it has waited, and begins"
    assert chunk(first) == CHUNK, "it was fast, and keeps its place"
    assert chunk(first) == CHUNK
    third.close()
    found = b""
    while frame := second.next_frame():
        found += from_server(frame)[1]
    assert len(found) > 2 * CHUNK
    assert data.endswith(found)
