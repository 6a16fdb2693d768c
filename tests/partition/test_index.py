"""The index: valid or refused, saved whole, and nothing in a file trusted."""

import contextlib
import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import FednlpError, PartitionError
from fednlp.partition import Partition, from_owners, npz

GOOD = {
    "train_offsets": [0, 2, 3],
    "train_indices": [4, 0, 1],
    "test_offsets": [0, 0, 1],
    "test_indices": [7],
    "client_ids": [0, 1],
}


def arrays_of(partition):
    return [getattr(partition, name) for name in GOOD]


@given(
    owners=st.lists(st.integers(0, 4), min_size=5, max_size=40),
    test=st.lists(st.integers(-1, 4), max_size=20),
    first=st.integers(0, 2**40),
)
def test_owners_and_index_say_the_same(owners, test, first):
    owners[:5] = range(5)
    part = from_owners(np.array(owners), np.array(test, dtype=int), 5, np.arange(len(owners)) * 3 + first)
    for client in range(5):
        assert part.train(client).tolist() == [first + 3 * i for i, o in enumerate(owners) if o == client]
        assert part.test(client).tolist() == [i for i, o in enumerate(test) if o == client]


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), named=st.booleans())
def test_a_saved_partition_comes_back(tmp_path_factory, sizes, named):
    path = tmp_path_factory.mktemp("saved") / "part.npz"
    owners = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple(f"Straße {i}\n" for i in range(len(sizes))) if named else None
    part = from_owners(owners, owners[::-1], len(sizes), client_names=names)
    part.save(path)
    back = Partition.load(path)
    assert back.client_names == names
    assert all(np.array_equal(a, b) for a, b in zip(arrays_of(part), arrays_of(back), strict=True))
    first = path.read_bytes()
    back.save(path)
    assert path.read_bytes() == first


def test_the_file_holds_the_published_arrays(tmp_path):
    Partition(**GOOD).save(tmp_path / "part")
    with np.load(tmp_path / "part", allow_pickle=False) as found:
        assert sorted(found) == sorted(GOOD)
        assert all(found[name].dtype == np.int64 and found[name].tolist() == GOOD[name] for name in GOOD)


def test_the_arrays_cannot_be_written_and_the_callers_can():
    mine = np.array(GOOD["train_indices"])
    part = Partition(**GOOD | {"train_indices": mine})
    with pytest.raises(ValueError, match="read-only"):
        part.train(0)[0] = 9
    mine[0] = 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"train_offsets": [0, 2, 4]}, "train_offsets must run from 0 to 3"),
        ({"train_offsets": [1, 2, 3]}, "train_offsets must run from 0 to 3"),
        ({"train_offsets": [0, 4, 3]}, "client 1 has falling offsets"),
        ({"train_offsets": [0, 3, 3]}, "client 1 holds no training example"),
        ({"train_offsets": [0, 3]}, "must hold 3 numbers for 2 clients"),
        ({"train_indices": [4, 0, 4]}, "example 4 stands twice in train_indices"),
        ({"train_indices": [4, 0, -1]}, "train_indices must be 0 or more"),
        ({"train_indices": [4.0, 0.0, 1.0]}, "whole numbers"),
        ({"train_indices": [[4, 0, 1]]}, "flat array"),
        ({"train_indices": np.array([4, 0, 2**63], dtype=np.uint64)}, "beyond int64"),
        ({"test_offsets": [0, 2, 1]}, "client 1 has falling offsets"),
        ({"test_offsets": [0, 1, 2]}, "test_offsets must run from 0 to 1"),
        ({"test_offsets": [0, -(2**63), 1]}, "client 0 has falling offsets"),
        ({"test_offsets": [0, 1, 2], "test_indices": [7, 7]}, "example 7 stands twice in test_indices"),
        ({"client_ids": [1, 0]}, "numbers from 0"),
        ({"client_ids": []}, "at least one"),
        ({"client_names": ("a",)}, "1 name for 2 clients"),
        ({"client_names": ("a", "a")}, "differ"),
        ({"client_names": ("a", "")}, "not be empty"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(wrong, said):
    with pytest.raises(PartitionError, match=said):
        Partition(**GOOD | wrong)


@pytest.mark.parametrize("client", [-1, 2])
def test_there_are_no_other_clients(client):
    with pytest.raises(PartitionError, match="numbered 0 to 1"):
        Partition(**GOOD).train(client)


def written(path, **changes):
    arrays = {name: np.array(values, dtype=np.int64) for name, values in GOOD.items()} | changes
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path


def lying(path, shape, descr="<i8"):
    """Write a file whose train_indices claim another shape than they have."""
    written(path, train_indices=None)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("train_indices.npy", header.getvalue() + bytes(24))
    return path


def bomb(path):
    np.savez_compressed(
        path, **{name: np.zeros(9_000_000 if name == "test_offsets" else 1, int) for name in GOOD}
    )
    return path


def bombs(path):
    """Write a file of which no array alone is too large, and whose lengths fit together."""
    clients = 3_000_000
    long = dict.fromkeys(GOOD, clients) | {"train_offsets": clients + 1, "test_offsets": clients + 1}
    np.savez_compressed(path, **{name: np.zeros(length, int) for name, length in long.items()})
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: written(p, train_indices=None), "holds no train_indices"),
        (lambda p: written(p, train_indices=np.array([4.0, 0.0, 1.0])), "flat array"),
        (lambda p: written(p, train_indices=np.array([{}, {}, {}])), "flat array"),
        (lambda p: written(p, client_names=np.array([b"a", b"b"])), "flat array"),
        (lambda p: written(p, client_ids=np.array([[0, 1]])), "flat array"),
        (lambda p: written(p, train_offsets=np.array([0, 3, 3])), "holds no training example"),
        (lambda p: lying(p, (2**50,)), "does not have the length"),
        (lambda p: lying(p, (2**62 + 3,)), "does not have the length"),
        (lambda p: lying(p, (-1,)), "does not have the length"),
        (bomb, "unpacks to far more than it holds"),
        (bombs, "unpacks to far more than it holds"),
        (lambda p: written(p, test_offsets=np.zeros(9, int)), "test_offsets must hold 3 numbers"),
        (lambda p: written(p, client_ids=np.zeros(9, int)), "train_offsets must hold 10 numbers"),
        (lambda p: written(p, client_names=np.array(["a"] * 9)), "client_names holds 9 names for 2 clients"),
        (lambda p: p.write_bytes(b"not a zip file"), "damaged"),
        (lambda p: p.write_bytes(b""), "damaged"),
        (lambda p: p.write_bytes(written(p).read_bytes()[:-40]), "damaged"),
        (lambda p: p.mkdir(), "damaged"),
        (lambda p: None, "there is no partition file"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, make, said):
    path = tmp_path / "part.npz"
    make(path)
    with pytest.raises(PartitionError, match=said) as caught:
        Partition.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_array_is_read_before_all_lengths_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "_read", lambda *entry: pytest.fail("an array is read"))
    for name in GOOD:
        with pytest.raises(PartitionError, match=r"must hold|flat array"):
            Partition.load(
                written(tmp_path / "part.npz", **{name: np.zeros((1, 1) if "test_i" in name else 1, int)})
            )


def test_a_million_clients_fit(tmp_path):
    clients = 1_000_000
    ids, none = np.arange(clients), np.zeros(0, int)
    part = Partition(np.arange(clients + 1), ids[::-1], np.zeros(clients + 1, int), none, ids)
    np.savez_compressed(tmp_path / "part.npz", **dict(zip(GOOD, arrays_of(part), strict=True)))
    assert Partition.load(tmp_path / "part.npz").num_clients == clients


def test_an_entry_that_stands_twice_is_refused(tmp_path):
    path = written(tmp_path / "part.npz")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("client_ids.npy", archive.read("client_ids.npy"))
    with pytest.raises(PartitionError, match="client_ids twice"):
        Partition.load(path)


@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_a_partition(tmp_path_factory, data):
    path = written(tmp_path_factory.mktemp("damaged") / "part.npz")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        part = Partition.load(path)
    except PartitionError:
        return
    assert [array.tolist() for array in arrays_of(part)] == list(GOOD.values())


def repacked(path, members, packings=None):
    """Write a zip file of these members, stored unless said otherwise."""
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content, (packings or {}).get(member, zipfile.ZIP_STORED))


def members_of(path):
    with zipfile.ZipFile(written(path)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


@pytest.mark.parametrize("damage", [0, 4, 20])
@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_member_that_numpy_did_not_pack_is_refused(tmp_path, packing, damage):
    path, member = tmp_path / "part.npz", "train_indices.npy"
    repacked(path, members_of(path), {member: packing})
    content = bytearray(path.read_bytes())
    if damage:
        content[content.index(member.encode()) + len(member) + damage] ^= 255
    path.write_bytes(content)
    with pytest.raises(PartitionError, match="packed in a way"):
        Partition.load(path)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("header", ["{'descr': (", "{", "((((", "{'shape': (3,), 'x': \"", "\0", "9" * 5000])
def test_a_header_that_is_not_closed_is_refused(tmp_path, version, header):
    path = tmp_path / "part.npz"
    members = members_of(path)
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    members["train_indices.npy"] = b"\x93NUMPY" + bytes([version, 0]) + length + header.encode()
    repacked(path, members)
    with pytest.raises(PartitionError, match="damaged"):
        Partition.load(path)


@given(data=st.data())
def test_a_damaged_directory_of_members_is_refused_or_as_it_was(tmp_path_factory, data):
    """The directory at the end of a zip file says how members are packed, encrypted, and how long they are."""
    path = written(tmp_path_factory.mktemp("flipped") / "part.npz")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(content.index(b"PK\x01\x02"), len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with contextlib.suppress(PartitionError):
        Partition.load(path)


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "part.npz"
    Partition(**GOOD).save(path)
    before = path.read_bytes()

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(FednlpError, match="no space left"):
        Partition(**GOOD).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.whole
def test_the_package_needs_numpy_alone():
    heavy = ["torch", "sklearn", "scipy", "matplotlib", "pyarrow", "transformers", "threadpoolctl"]
    code = f"import sys, fednlp.partition; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
