"""TFF's StackOverflow, and HDF5 files that mean harm."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

h5py = pytest.importorskip("h5py")

from fednlp.data.readers import h5  # noqa: E402
from fednlp.data.readers.language import STACKOVERFLOW_COLUMNS, stackoverflow  # noqa: E402
from fednlp.errors import DataError, MissingDependency  # noqa: E402

Write = Callable[[str, str | bytes], Path]

USERS = [str(number) for number in (7, 100, 12, 9)]


def made(path: Path, change: Callable[[Any], None] | None = None) -> Path:
    """A file in the layout of TFF, with a user's examples as variable strings and scores as numbers."""
    with h5py.File(path, "w") as file:
        for user in USERS:
            group = file.create_group(f"examples/{user}")
            count = int(user) % 5 + 1
            for name in ("tokens", "title", "tags", "creation_date", "type"):
                values = [f"{name} ä {user} {number}".encode() for number in range(count)]
                group.create_dataset(name, data=np.array(values, dtype=object), dtype=h5py.string_dtype())
            group.create_dataset("score", data=np.arange(count))
        if change is not None:
            change(file)
    return path


def test_every_example_with_its_user(tmp_path: Path) -> None:
    rows = [
        dict(zip(STACKOVERFLOW_COLUMNS, row, strict=True)) for row in stackoverflow(made(tmp_path / "a.h5"))
    ]
    assert [row["user"] for row in rows] == [user for user in sorted(USERS) for _ in range(int(user) % 5 + 1)]
    assert all(row["text"] == f"tokens ä {row['user']} {row['score']}" for row in rows)
    assert rows[-1] == {
        "text": "tokens ä 9 4",
        "tags": "tags ä 9 4",
        "title": "title ä 9 4",
        "user": "9",
        "type": "type ä 9 4",
        "score": "4",
        "creation_date": "creation_date ä 9 4",
    }


def test_fields_may_be_missing_but_the_tokens(tmp_path: Path) -> None:
    def without(*names: str) -> Callable[[Any], None]:
        def change(file: Any) -> None:
            for name in names:
                del file[f"examples/12/{name}"]

        return change

    rows = list(stackoverflow(made(tmp_path / "a.h5", without("tags", "score"))))
    assert [row[1] for row in rows if row[3] == "12"] == [None] * 3
    with pytest.raises(DataError, match="/examples/12/tokens is missing"):
        list(stackoverflow(made(tmp_path / "b.h5", without("tokens"))))


def _replace(name: str, make: Callable[[Any, str], None]) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        make(file, name)

    return change


def _external(file: Any, name: str) -> None:
    file.create_dataset(name, shape=(1,), dtype="S64", external=[("/etc/hostname", 0, 64)])


def _virtual(file: Any, name: str) -> None:
    layout = h5py.VirtualLayout(shape=(1,), dtype="S64")
    layout[:] = h5py.VirtualSource("other.h5", "data", shape=(1,))
    file.create_virtual_dataset(name, layout)


def _soft(file: Any, name: str) -> None:
    file[name] = h5py.SoftLink("/examples/12/tags")


def _outside(file: Any, name: str) -> None:
    file[name] = h5py.ExternalLink("other.h5", "/data")


def _huge(file: Any, name: str) -> None:
    file.create_dataset(name, shape=(1 << 40,), dtype="S64", chunks=(1 << 20,))


def _hollow(file: Any, name: str) -> None:
    """Strings that were never written: they take no room in the file."""
    file.create_dataset(
        name, shape=(1 << 20,), dtype=h5py.string_dtype(), chunks=(1 << 10,), compression="gzip"
    )


def _references(file: Any, name: str) -> None:
    file.create_dataset(name, data=np.array([file.ref] * 3, dtype=h5py.ref_dtype))


def _vectors(file: Any, name: str) -> None:
    file.create_dataset(name, shape=(3,), dtype=h5py.vlen_dtype(np.int32))


def _table(file: Any, name: str) -> None:
    file[name] = np.zeros((3, 2))


def _records(file: Any, name: str) -> None:
    file[name] = np.zeros(3, dtype=[("a", "i4"), ("b", "S4")])


def _group(file: Any, name: str) -> None:
    file.create_group(name)


def _latin1(file: Any, name: str) -> None:
    file[name] = np.array([b"\xe4"] * 3)


def _short(file: Any, name: str) -> None:
    file[name] = np.array([b"a"] * 2)


HARM = {
    _external: "is stored elsewhere or by a plugin",
    _virtual: "is stored elsewhere or by a plugin",
    _soft: "points elsewhere",
    _outside: "points elsewhere",
    _huge: "claims 1,099,511,627,776 entries",
    _hollow: "claims 1,048,576 entries",
    _references: "where there should be strings",
    _vectors: "where there should be strings",
    _table: "has the shape (3, 2)",
    _records: "where there should be strings",
    _group: "is no dataset",
    _latin1: "is not UTF-8",
    _short: "lists of unequal length",
}


@pytest.mark.parametrize("make", HARM, ids=lambda make: make.__name__)
def test_harm_is_refused(tmp_path: Path, make: Callable[[Any, str], None]) -> None:
    path = made(tmp_path / "a.h5", _replace("examples/12/tokens", make))
    with pytest.raises(DataError) as caught:
        list(stackoverflow(path))
    assert HARM[make] in str(caught.value)
    assert str(caught.value).startswith(f"{path}:/examples/12")
    assert "\n" not in str(caught.value)


def test_text_that_shares_its_bytes_without_end_is_stopped(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.array(["x" * 1000] * 100, dtype=h5py.string_dtype())
    with (
        h5.opened(tmp_path / "a.h5") as file,
        pytest.raises(DataError, match="holds more than 0 MiB of text"),
    ):
        list(h5.texts(h5.child(file, "a", "dataset", "a.h5"), most=50_000))


@given(st.data())
@pytest.mark.whole
def test_a_file_that_is_cut_short_is_refused(data: st.DataObject) -> None:
    """Bytes altered within a file are the HDF5 library's own business: it is not proof against all of them."""
    with tempfile.TemporaryDirectory() as folder:
        content = made(Path(folder) / "whole.h5").read_bytes()
        cut = Path(folder) / "cut.h5"
        cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(DataError, match="not HDF5, or damaged") as caught:
            list(stackoverflow(cut))
        assert "\n" not in str(caught.value)


def test_without_h5py_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingDependency, match=r"run .*pip install .*\[h5\]"):
        list(stackoverflow(path))


def test_what_is_no_h5(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.h5: not HDF5, or damaged"):
        list(stackoverflow(write("a.h5", "text")))
    with pytest.raises(DataError, match=r"there is no file .*nowhere\.h5"):
        list(stackoverflow(tmp_path / "nowhere.h5"))
