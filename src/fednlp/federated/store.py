"""The clients' states between rounds, on disk: one record a client in one sparse file.

A record is named float32 tensors: a client's personal parameters, its error-feedback residual, its optimiser
state. Each client has two slots. A round writes into the slot that the last saved round does not need, and stamps
it with the round's number; a reader states which round is saved. So a crash at any moment leaves the record of the
last saved round in place, and a round that was not saved has no effect.

A client that never took part has no record and needs no space: the file grows with the records in it, and the
process needs O(1) memory for any number of clients.
"""

import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednlp.disk import open_in_place, writing
from fednlp.errors import RunError

_MAGIC = b"fednlp clients 1\n"
_HEAD = 4096
_FEW = 1 << 20
"""A slot of at most so many bytes is read with both stamps, before it is known which slot is asked for."""
_STAMP = struct.Struct("<qQ")  # the round, from 1; the checksum of the values


class ClientStore:
    """Records of clients in a file, shared by processes: each client is written by one at a time.

    Args:
        path: The file; made if missing.
        fields: Number of float32 values by tensor name, the same for every client.

    Raises:
        RunError: The file holds records with other fields.
    """

    def __init__(self, path: Path, fields: Mapping[str, int]) -> None:
        self.path = path
        self.fields = dict(fields)
        self._slot = _STAMP.size + 4 * sum(self.fields.values())
        self._file = open_in_place(path, mode=0o644)
        head = (_MAGIC + json.dumps(self.fields).encode()).ljust(_HEAD)
        if len(head) > _HEAD:
            raise RunError(f"{path}: too many kinds of tensors for one record")
        found = os.pread(self._file, _HEAD, 0)
        if not found:
            os.pwrite(self._file, head, 0)
        elif found != head:
            raise RunError(f"{path} holds clients of another model or method: start the run again")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def read(self, client: int, saved: int) -> dict[str, Tensor] | None:
        """Return a client's tensors as the last saved round left them; None if it has none.

        Args:
            saved: Number of the last saved round; records of later rounds are ignored.

        Returns:
            Flat float32 tensors by name.

        Raises:
            RunError: The record is damaged.
        """
        stamps, first = self._begin(client)
        slot = _latest(stamps, saved)
        if slot is None:
            return None
        data = first if slot == 0 and first is not None else self._values(client, slot)
        if zlib.crc32(data) != stamps[slot][1]:
            raise RunError(f"{self.path}: the record of client {client} is damaged: start the run again")
        values = torch.from_numpy(np.frombuffer(data, dtype="<f4"))
        return dict(zip(self.fields, torch.split(values, list(self.fields.values())), strict=True))

    def _begin(self, client: int) -> tuple[list[tuple[int, int]], memoryview | None]:
        """Return a client's stamps, and the values of its first slot where these are few, by one access of the disk."""
        if self._slot > _FEW:
            return self._stamps(client), None
        data = memoryview(bytearray(self._slot + _STAMP.size))
        _read_all(self._file, data, self._place(client, 0))
        stamps = [_STAMP.unpack_from(data, place) for place in (0, self._slot)]
        return stamps, data[_STAMP.size : self._slot]

    def _values(self, client: int, slot: int) -> memoryview:
        """Return the bytes of a slot's values; zeros beyond the end of the file."""
        data = memoryview(bytearray(self._slot - _STAMP.size))
        _read_all(self._file, data, self._place(client, slot) + _STAMP.size)
        return data

    def has(self, client: int, saved: int) -> bool:
        """Return whether a client has a record of the rounds up to this one, damaged or not."""
        return _latest(self._stamps(client), saved) is not None

    def write(self, client: int, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Write a client's tensors of a round that is not saved yet.

        Args:
            round_number: Number of the round.
            tensors: Flat float32 tensors by name, of the sizes in ``fields``.

        Raises:
            RunError: The disk is full.
            ValueError: A tensor has another size.
        """
        with writing(self.path.parent, "choose another --out"):
            self._write(client, round_number, tensors)

    def _write(self, client: int, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        keep = _latest(self._stamps(client), round_number - 1)
        place = self._place(client, 1 - keep if keep is not None else 0)
        checksum, offset = 0, place + _STAMP.size
        for name, size in self.fields.items():
            values = np.ascontiguousarray(tensors[name].detach().cpu().numpy(), dtype="<f4")
            if values.size != size:
                raise ValueError(f"{name} of client {client} has {values.size} values, not {size}")
            data = values.tobytes()
            checksum = zlib.crc32(data, checksum)
            _write_all(self._file, data, offset)
            offset += 4 * size
        _write_all(self._file, _STAMP.pack(round_number, checksum), place)

    def forget(self, client: int, round_number: int, before: int | None = None) -> None:
        """Discard a client's records of rounds that came to nothing.

        Args:
            round_number: Number of the first of these rounds.
            before: Number of the first later round whose record stays; None for none.
        """
        for slot, (number, _) in enumerate(self._stamps(client)):
            if number >= round_number and (before is None or number < before):
                _write_all(self._file, _STAMP.pack(0, 0), self._place(client, slot))

    def sync(self) -> None:
        """Flush the records of all processes to the disk, before the round is saved."""
        os.fsync(self._file)

    def _place(self, client: int, slot: int) -> int:
        return _HEAD + (2 * client + slot) * self._slot

    def _stamps(self, client: int) -> list[tuple[int, int]]:
        stamps = []
        for slot in (0, 1):
            data = os.pread(self._file, _STAMP.size, self._place(client, slot))
            stamps.append(_STAMP.unpack(data) if len(data) == _STAMP.size else (0, 0))
        return stamps


def _latest(stamps: list[tuple[int, int]], saved: int) -> int | None:
    """Return the slot of the latest saved round; None if there is none."""
    there = [(number, slot) for slot, (number, _) in enumerate(stamps) if 0 < number <= saved]
    return max(there)[1] if there else None


def _read_all(file: int, into: memoryview, offset: int) -> None:
    """Read as many bytes as there is room for, or up to the end of the file: the system may give fewer at once."""
    while into and (got := os.preadv(file, [into], offset)):
        into, offset = into[got:], offset + got


def _write_all(file: int, data: bytes, offset: int) -> None:
    """Write all of the bytes: the system may take fewer at once."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
