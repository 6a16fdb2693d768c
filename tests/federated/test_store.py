"""The laws of the clients' records: what was saved is what is read, whatever happened since."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import RunError
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
