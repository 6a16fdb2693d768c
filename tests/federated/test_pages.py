"""Memory that is given back: the numbers are those of a sum that keeps it."""

import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.message import pack
from fednlp.federated.pages import DiskRoom, LeanRoom, give_back, huge_zeros, lazy_zeros, set_aside
from fednlp.federated.params import Layout
from fednlp.federated.sums import ExactSum, NonFiniteUpdate
from fednlp.federated.upload import StoredUpdate, flat_of

LAYOUT = Layout.of(
    {"table": ((900, 3), "parameter"), "bias": ((1500,), "parameter"), "mean": ((7,), "buffer")}, "table"
)


def resident(tensor: Tensor) -> int:
    """Return the bytes of a tensor that are in memory, as the kernel has them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in (head := line.split(maxsplit=1)[0]) and ":" not in head:
            first, last = (int(number, 16) for number in head.split("-"))
            inside = first <= tensor.data_ptr() < last
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("there is no such memory")


def stored(update: Tensor, folder: Path) -> StoredUpdate:
    path = folder / "update"
    path.write_bytes(pack(LAYOUT.views(update)))
    with path.open("rb") as file:
        return StoredUpdate(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)), LAYOUT)


def test_huge_zeros_are_in_memory_at_once() -> None:
    zeros = huge_zeros(8 << 20)
    assert zeros.dtype is torch.float32
    assert not zeros.any()
    assert resident(zeros) >= 32 << 20


def test_zeros_take_memory_where_they_are_written_and_until_they_are_given_back() -> None:
    zeros = lazy_zeros(8 << 20)
    before = resident(zeros)  # of its neighbours, too, which the kernel counts as one
    zeros[: 4 << 20] = 1.0
    written = resident(zeros)
    assert before + (14 << 20) < written < before + (20 << 20)
    give_back(zeros[: 2 << 20])
    assert resident(zeros) < written - (7 << 20)
    assert not zeros[: 2 << 20].any()
    assert zeros[2 << 20 : 4 << 20].all()
    assert lazy_zeros(0).numel() == 0


def test_a_vector_on_the_disk_is_there_again_when_it_is_looked_at(tmp_path: Path) -> None:
    vector = DiskRoom(tmp_path).tensor("model", 4 << 20, torch.float32)
    assert not vector.any()
    vector[:] = torch.arange(4 << 20)
    set_aside(vector)
    assert resident(vector) < 1 << 20
    assert torch.equal(vector, torch.arange(4 << 20).float())
    assert list(tmp_path.iterdir()) == []
    other = torch.ones(1 << 20)
    set_aside(other)
    assert other.all()


def test_a_disk_without_room_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(RunError, match="no space left on the disk"):
        DiskRoom(tmp_path).tensor("model", 1000, torch.float32)


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=4), st.floats(0.1, 1.0))
def test_a_lean_sum_is_the_sum(seeds: list[int], factor: float) -> None:
    """Over two rounds, of updates of all rows and of some."""
    room = LeanRoom()
    rows = LAYOUT.table_shape[0]
    sums = [
        ExactSum(LAYOUT),
        ExactSum(
            LAYOUT,
            room.tensor("sum", LAYOUT.numel, torch.int64),
            room.tensor("rows", rows, torch.bool),
            lean=True,
        ),
    ]
    for _ in range(2):
        for seed in seeds:
            rng = torch.Generator().manual_seed(seed)
            flat = torch.randn(LAYOUT.numel, generator=rng)
            some = torch.randperm(rows, generator=rng)[: 1 + seed % rows].sort().values
            for one in sums:
                one.add(factor, flat[: LAYOUT.dense], some, LAYOUT.rows(flat)[some])
        plain, lean = (one.mean(factor * len(seeds)) for one in sums)
        assert torch.equal(plain[0], lean[0])
        assert torch.equal(plain[1], lean[1])
        for one in sums:
            one.clear()
        assert not sums[1].storage.any()


@given(changed=st.floats(0, 1), seed=st.integers(0, 1000))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stored_update_is_added_as_the_one_in_memory(tmp_path: Path, changed: float, seed: int) -> None:
    """Rows that are zero are passed over."""
    rng = torch.Generator().manual_seed(seed)
    flat = torch.randn(LAYOUT.numel, generator=rng)
    rows = torch.rand(LAYOUT.table_shape[0], generator=rng) < changed
    LAYOUT.rows(flat)[~rows] = 0.0
    sums = ExactSum(LAYOUT), ExactSum(LAYOUT)
    sums[0].add(0.3, flat[: LAYOUT.dense], None, LAYOUT.rows(flat))
    update = stored(flat, tmp_path)
    update.check_finite()
    update.add_to(sums[1], 0.3)
    assert torch.equal(sums[0].storage, sums[1].storage)
    assert torch.equal(sums[1].touched_rows, rows)
    assert torch.equal(sums[0].mean(0.3)[0], sums[1].mean(0.3)[0])
    assert torch.equal(update.flat(LAYOUT), flat)
    assert torch.equal(flat_of(pack(LAYOUT.views(flat)), LAYOUT), flat)


def test_nothing_is_added_of_a_stored_update_with_a_huge_number(tmp_path: Path) -> None:
    flat = torch.zeros(LAYOUT.numel)
    flat[-1] = 2.0**21
    total = ExactSum(LAYOUT)
    with pytest.raises(NonFiniteUpdate):
        stored(flat, tmp_path).add_to(total, 0.5)
    assert not total.storage.any()


def test_a_stored_update_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "update"
    path.write_bytes(pack({"table": torch.zeros(3)}))
    with path.open("rb") as file, pytest.raises(RunError, match="lacks"):
        StoredUpdate(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)), LAYOUT)
