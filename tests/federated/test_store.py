"""The laws of the clients' records: what was saved is what is read, whatever happened since."""

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.federated import store as store_module
from fednlp.federated.store import ClientStore

FIELDS = {"own": 5, "owed": 3, "none": 0}


def record(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full((size,), value) for name, size in FIELDS.items()}


def test_what_was_written_is_read_back_by_another_process_s_eyes(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "clients.bin", FIELDS)
    tensors = {name: torch.randn(size) for name, size in FIELDS.items()}
    store.write(7, 1, tensors)
    other = ClientStore(tmp_path / "clients.bin", FIELDS)
    found = other.read(7, 1)
    assert found is not None
    assert list(found) == list(FIELDS)
    for name in FIELDS:
        assert torch.equal(found[name], tensors[name])
    assert other.read(6, 1) is None
    assert other.read(8, 9) is None


attempts = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), attempts), min_size=1, max_size=6))
def test_a_round_that_was_not_saved_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[set[int], list[list[bool]]]]
) -> None:
    """A round has a cohort, is tried several times, in each of which some clients fail, and saved at last."""
    store = ClientStore(tmp_path_factory.mktemp("store") / "clients.bin", FIELDS)
    expected: dict[int, float] = {}

    def is_as_expected(saved: int) -> bool:
        found = [store.read(client, saved) for client in range(4)]
        return [r and float(r["own"][0]) for r in found] == [expected.get(client) for client in range(4)]

    value = 0.0
    for number, (cohort, tries) in enumerate(rounds, 1):
        for comes_through in tries:
            pending = {}
            for client in cohort:
                value += 1
                if comes_through[client]:
                    store.write(client, number, record(value))
                    pending[client] = value
                else:
                    store.forget(client, number)
            assert is_as_expected(number - 1)
        expected |= pending
        assert is_as_expected(number)


def test_a_file_costs_what_is_in_it(tmp_path: Path) -> None:
    """A hundred thousand clients with 100 kB each would be 20 GB; three of them are a few pages."""
    store = ClientStore(tmp_path / "clients.bin", {"own": 25_000})
    for client in (0, 50_000, 99_999):
        store.write(client, 1, {"own": torch.ones(25_000)})
    assert (tmp_path / "clients.bin").stat().st_blocks * 512 < 500_000
    found = store.read(99_999, 1)
    assert found is not None
    assert float(found["own"].sum()) == 25_000


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clients.bin"
    ClientStore(path, FIELDS).write(0, 1, record(1.0))
    data = bytearray(path.read_bytes())
    data[4096 + 16] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match="the record of client 0 is damaged"):
        ClientStore(path, FIELDS).read(0, 1)
    path.write_bytes(data[:-4])
    with pytest.raises(RunError, match="damaged"):
        ClientStore(path, FIELDS).read(0, 1)


def test_a_file_of_another_method_is_refused(tmp_path: Path) -> None:
    ClientStore(tmp_path / "clients.bin", FIELDS)
    with pytest.raises(RunError, match="of another model or method"):
        ClientStore(tmp_path / "clients.bin", {"own": 6})


def test_a_tensor_of_another_size_is_refused(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "clients.bin", {"own": 5})
    with pytest.raises(ValueError, match="has 4 values, not 5"):
        store.write(0, 1, {"own": torch.ones(4)})


def test_going_on_from_an_older_round_forgets_all_that_came_after(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "clients.bin", FIELDS)
    for number in (2, 3):
        store.write(0, number, record(float(number)))
    store.forget(0, 2, before=3)
    assert store.read(0, 2) is None
    assert store.read(0, 3) is not None
    store.forget(0, 2)
    assert store.read(0, 9) is None


class Crash(Exception):
    """The process ends here."""


SLOT = 16 + 4 * sum(FIELDS.values())
crashes = st.lists(st.integers(0, 12), max_size=3)
cohorts = st.lists(st.integers(0, 4), unique=True, max_size=4)


@pytest.mark.parametrize("few", [0, SLOT - 1, SLOT, 1 << 20], ids=["large", "above", "at", "small"])
@settings(max_examples=40, deadline=None)
@given(
    rounds=st.lists(st.tuples(cohorts, crashes), min_size=1, max_size=6),
    at_once=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_a_process_that_ends_at_any_write_leaves_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory,
    few: int,
    rounds: list[tuple[list[int], list[int]]],
    at_once: int,
    seed: int,
) -> None:
    """As a dictionary would have it; the system reads and writes a few bytes at once, and stops in the midst."""
    path, draw = tmp_path_factory.mktemp("store") / "clients.bin", torch.Generator().manual_seed(seed)
    saved: dict[int, dict[str, torch.Tensor]] = {}
    left = [0]

    def some_written(file: int, data: Any, offset: int) -> int:
        if left[0] == 0:
            raise Crash
        left[0] -= 1
        return int(pwrite(file, bytes(data[:at_once]), offset))

    def some_read(file: int, buffers: Any, offset: int) -> int:
        return int(preadv(file, [buffers[0][:at_once]], offset))

    pwrite, preadv = os.pwrite, os.preadv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "_FEW", few)
        ClientStore(path, FIELDS).close()
        patch.setattr(os, "pwrite", some_written)
        patch.setattr(os, "preadv", some_read)
        for number, (cohort, attempts) in enumerate(rounds, 1):
            for writes in (*attempts, -1):
                left[0], pending = writes, {}
                with closing(ClientStore(path, FIELDS)) as store, suppress(Crash):
                    for client in cohort:
                        tensors = {name: torch.randn(n, generator=draw) for name, n in FIELDS.items()}
                        store.write(client, number, tensors)
                        pending[client] = tensors
                with closing(ClientStore(path, FIELDS)) as store:
                    for client in range(5):
                        assert_same(store.read(client, number - 1), saved.get(client))
            saved |= pending
            with closing(ClientStore(path, FIELDS)) as store:
                for client in range(5):
                    assert_same(store.read(client, number), saved.get(client))
                    assert store.has(client, number) == (client in saved)


def assert_same(found: dict[str, torch.Tensor] | None, expected: dict[str, torch.Tensor] | None) -> None:
    assert (found is None) == (expected is None)
    for name, value in (expected or {}).items():
        assert found is not None
        assert torch.equal(found[name], value)
