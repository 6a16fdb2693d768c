"""A partition that is read shares the same examples out as the one that was written, in either format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp.config import parse
from fednlp.data import load_data
from fednlp.data.fednlp_h5 import export_data
from fednlp.errors import FednlpError, PartitionError
from fednlp.partition import Partition, make_partition
from fednlp.partition.make import PartitionSpec
from fednlp.simulation.partition_file import read_partition_file
from fednlp.simulation.partitioning import partition_source

SHARED = {"method": "label", "clients": 12, "alpha": 0.5}


def settings(path: Path, partition: dict[str, Any]) -> Any:
    return parse({"data": {"path": str(path)}, "partition": partition, "clients_per_round": 1})


def same(one: Partition, other: Partition) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("train_offsets", "train_indices", "test_offsets", "test_indices")
    )


@pytest.mark.parametrize("ending", ["npz", "h5"])
def test_what_is_written_is_read_again(ending: str, texts: Path, tmp_path: Path) -> None:
    """Two hundred examples and twelve clients: keys that sort as strings would show."""
    file = tmp_path / f"part.{ending}"
    partition_source(settings(texts, SHARED), file, None, print)
    data = load_data(path=texts)
    made = make_partition(
        PartitionSpec("label", clients=12, alpha=0.5),
        data.labels("train")[data.train_numbers],
        data.labels("test")[data.test_numbers],
        num_labels=4,
        train_numbers=data.train_numbers,
        test_numbers=data.test_numbers,
    )
    wanted = settings(texts, {"method": "file", "file": str(file)}).partition
    assert same(read_partition_file(wanted, data), made)


def test_a_test_set_of_its_own_is_counted_on(
    tmp_path: Path, make_csv: Callable[..., Path], make_rows: Callable[..., Any]
) -> None:
    (tmp_path / "d").mkdir()
    make_csv(tmp_path / "d" / "train.csv", make_rows(60))
    make_csv(tmp_path / "d" / "test.csv", make_rows(30, seed=1))
    partition_source(settings(tmp_path / "d", SHARED), tmp_path / "part.h5", None, print)
    partition_source(settings(tmp_path / "d", SHARED), tmp_path / "part.npz", None, print)
    data = load_data(path=tmp_path / "d")
    wanted = settings(tmp_path / "d", {"method": "file", "file": str(tmp_path / "part.h5")}).partition
    assert same(read_partition_file(wanted, data), Partition.load(tmp_path / "part.npz"))


@pytest.mark.whole
def test_a_run_on_exchange_files_is_a_run_on_the_texts(
    texts: Path, tmp_path: Path, document: Callable[..., dict[str, Any]]
) -> None:
    """Data and partition exported and read again give the same weights."""
    assert export_data(load_data(path=texts), tmp_path / "mine_data.h5") == 200
    partition_source(settings(texts, SHARED), tmp_path / "mine_partition.h5", None, print)
    changes = {"num_rounds": 1, "partition": SHARED}
    plain = fednlp.run(parse(document(changes)), tmp_path / "plain")
    file = {"method": "file", "file": str(tmp_path / "mine_partition.h5")}
    changes |= {"data": {"path": str(tmp_path / "mine_data.h5")}, "partition": file}
    exchanged = fednlp.run(parse(document(changes)), tmp_path / "exchanged")
    one, other = ((run.model / "model.safetensors").read_bytes() for run in (plain, exchanged))
    assert one == other
    one, other = (
        json.loads((run.folder / "summary.json").read_text())["evaluation"] for run in (plain, exchanged)
    )
    assert one == other


def test_several_partitions_in_a_file(texts: Path, tmp_path: Path) -> None:
    file, data = tmp_path / "part.h5", load_data(path=texts)
    for alpha in (0.5, 5.0):
        partition_source(settings(texts, SHARED | {"alpha": alpha}), file, None, print)
    with pytest.raises(
        PartitionError, match=r"holds 2 partitions: say partition.part, of niid_label_clients=12"
    ):
        read_partition_file(settings(texts, {"method": "file", "file": str(file)}).partition, data)
    named = {"method": "file", "file": str(file), "part": "niid_label_clients=12_alpha=5.0"}
    assert read_partition_file(settings(texts, named).partition, data).num_clients == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"file": "nowhere.npz"}, "there is no partition file"),
        ({"file": "part.npz", "part": "uniform"}, "leave partition.part out"),
        ({"file": "other.npz"}, "was made for other data"),
    ],
)
def test_what_cannot_be_read(options: dict[str, str], said: str, texts: Path, here: Path) -> None:
    partition_source(settings(texts, SHARED), Path("part.npz"), None, print)
    make_partition(PartitionSpec("uniform", clients=2), [0] * 900, [0] * 9, num_labels=1).save(
        Path("other.npz")
    )
    with pytest.raises(FednlpError, match=said):
        read_partition_file(settings(texts, {"method": "file", **options}).partition, load_data(path=texts))
