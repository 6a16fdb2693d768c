"""Totals that are sent in pieces: nothing is lost, and nothing is sent that is zero."""

import io

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.runtime.travelling import TravellingRoom


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 999), st.integers(-(2**62), 2**62)), max_size=20),
    st.binary(max_size=300),
)
def test_a_room_s_contents_arrive_in_another_room(
    numel: int, values: list[tuple[int, int]], data: bytes
) -> None:
    here, there = TravellingRoom(), TravellingRoom()
    sums, found = (room.tensor("sums", numel, torch.int64) for room in (here, there))
    rows, seen = (room.tensor("rows", numel, torch.bool) for room in (here, there))
    for place, value in values:
        if place < numel:
            sums[place], rows[place] = value, True
    with here.file("updates") as file, there.file("updates") as copy:
        file.write(data)
        for piece in here.pieces():
            there.put(piece)
        copy.seek(0)
        assert copy.read() == data
    assert torch.equal(sums, found)
    assert torch.equal(rows, seen)


def test_blocks_of_zeros_are_not_sent() -> None:
    room = TravellingRoom()
    values = room.tensor("sums", 100_000, torch.int64)
    values[:3], values[70_000] = 1, 2
    (piece,) = room.pieces()
    assert len(piece.values) == 2 * 128


def test_a_large_total_is_sent_in_several_pieces() -> None:
    room = TravellingRoom()
    room.tensor("sums", 9 << 20, torch.int64).fill_(1)
    sizes = [piece.values.nbytes for piece in room.pieces()]
    assert sum(sizes) == 72 << 20
    assert max(sizes) <= 32 << 20


def test_a_file_outlives_the_owner_of_the_total() -> None:
    room = TravellingRoom()
    file = room.file("updates")
    file.write(b"abc")
    file.close()
    assert isinstance(file, io.FileIO)
    assert [piece.values.tobytes() for piece in room.pieces()] == [b"abc"]
    assert [piece.blocks.dtype for piece in room.pieces()] == [np.int64]
