"""Features on disk: text is tokenised once into memory-mapped arrays that all workers share.

A ragged column (token ids) is its values end to end, int32, and int64 offsets; a text is the same with the
bytes of its UTF-8; a plain column is one int64 array (labels) or float64 (scores). ``meta.json`` is written
last and states every file's type and length, so a folder that was cut short counts as absent.
"""

import ctypes
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fednlp.disk import locked

_VERSION = 2
_TYPES = {"int32": np.int32, "uint8": np.uint8, "int64": np.int64, "float64": np.float64}
_ROWS_AT_ONCE = 2048
_PAGE_OUT = 21  # MADV_PAGEOUT of Linux 5.4 and later, madvise(2)


@dataclass(frozen=True)
class Features:
    """Read-only features of one table, by example number.

    Attributes:
        folder: Where the arrays lie; None for arrays in memory.
        offsets: Offsets by ragged or text column name.
    """

    folder: Path | None
    arrays: dict[str, np.ndarray]
    offsets: dict[str, np.ndarray]

    def __repr__(self) -> str:
        return f"<Features of {len(self):,} examples: {', '.join(self.arrays)}>"

    def __len__(self) -> int:
        return len(next(iter(self.offsets.values()))) - 1

    def values(self, column: str) -> np.ndarray:
        """Return a plain column, one value an example."""
        return self.arrays[column]

    def ragged(self, column: str, number: int) -> np.ndarray:
        """Return one example's values of a ragged column."""
        offsets = self.offsets[column]
        return self.arrays[column][offsets[number] : offsets[number + 1]]

    def text(self, column: str, number: int) -> str:
        """Return one example's text."""
        return self.ragged(column, number).tobytes().decode("utf-8")

    @cached_property
    def all_lengths(self) -> np.ndarray:
        """Tokens of every example, int64."""
        return np.diff(self.offsets["input_ids"])

    def lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Tokens of the given examples, int64."""
        offsets = self.offsets["input_ids"]
        lengths: np.ndarray = offsets[np.asarray(numbers) + 1] - offsets[numbers]
        return lengths

    def padded(self, column: str, numbers: np.ndarray, padding: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a ragged column as int64 (examples, longest), and its mask of ones and zeros."""
        offsets, values = self.offsets[column], self.arrays[column]
        starts = offsets[numbers]
        lengths = offsets[numbers + 1] - starts
        ids = np.full((len(numbers), int(lengths.max(initial=0))), padding, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            ids[row, :length] = values[start : start + length]
            mask[row, :length] = 1
        return ids, mask

    def words(self, numbers: np.ndarray) -> np.ndarray:
        """Return the token ids that the given examples use, with repeats."""
        offsets, values = self.offsets["input_ids"], self.arrays["input_ids"]
        if len(numbers) == 0:
            return values[:0]
        spans = zip(offsets[numbers].tolist(), offsets[numbers + 1].tolist(), strict=True)
        return np.concatenate([values[start:stop] for start, stop in spans])

    def with_values(self, column: str, numbers: np.ndarray, values: np.ndarray) -> "Features":
        """Return the same features with some values of a plain column replaced."""
        changed = np.array(self.arrays[column])
        changed[numbers] = values
        return replace(self, arrays={**self.arrays, column: changed})

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> "Features":
        """Return the same features with further plain columns, or others in their place."""
        return replace(self, arrays={**self.arrays, **columns})

    @classmethod
    def in_memory(cls, rows: Iterable[Mapping[str, Any]]) -> "Features":
        """Build features from rows in memory, as :func:`write_features` does on disk."""
        rows = list(rows)
        arrays: dict[str, np.ndarray] = {}
        offsets: dict[str, np.ndarray] = {}
        for name in rows[0]:
            pieces, lengths = _pieces([row[name] for row in rows])
            arrays[name] = np.concatenate(pieces)
            if lengths is not None:
                offsets[name] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return cls(None, arrays, offsets)


def _pieces(column: list[Any]) -> tuple[list[np.ndarray], list[int] | None]:
    """Return a column's values as arrays, and the length of each where it is ragged."""
    first = column[0]
    if isinstance(first, str):
        pieces = [np.frombuffer(text.encode("utf-8"), np.uint8) for text in column]
    elif isinstance(first, (list, np.ndarray)):
        pieces = [np.asarray(item, np.int32) for item in column]
    else:
        return [np.asarray(column, np.float64 if isinstance(first, float) else np.int64)], None
    return pieces, [len(piece) for piece in pieces]


def open_features(folder: Path) -> Features | None:
    """Open a folder of features, or return None where it is absent, was cut short or cannot be read."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["version"] != _VERSION:
            return None
        if any((folder / name).stat().st_size != size for name, size in meta["bytes"].items()):
            return None
        arrays = {
            name: _mapped(folder / f"{name}.bin", _TYPES[kind]) for name, kind in meta["columns"].items()
        }
        offsets = {name: _mapped(folder / f"{name}.offsets", np.int64) for name in meta["ragged"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return Features(folder, arrays, offsets)


def write_features(
    folder: Path,
    batches: Iterable[list[dict[str, Any]]],
    progress: Callable[[int], None] = lambda rows: None,
) -> Features:
    """Write features to a folder, batch after batch in bounded memory, and open them.

    Args:
        folder: Replaced as a whole, once everything is written.
        batches: Lists of rows from a task's ``encode``.
        progress: Told how many rows are done.
    """
    return _made_whole(folder, lambda work: _write(work, batches, progress))


def add_columns(features: Features, folder: Path, columns: Mapping[str, np.ndarray]) -> Features:
    """Write features with further plain columns to a folder of their own, and open them.

    Args:
        features: On disk; their files are linked, or copied where the disk has no links.
        folder: Replaced as a whole, once everything is written.
        columns: int64 or float64, one value an example.
    """
    before = features.folder
    assert before is not None

    def write(work: Path) -> None:
        meta = json.loads((before / "meta.json").read_text())
        for name in meta["bytes"]:
            try:
                os.link(before / name, work / name)
            except OSError:
                shutil.copyfile(before / name, work / name)
        for name, values in columns.items():
            (work / f"{name}.bin").write_bytes(values.tobytes())
            meta["columns"][name] = str(values.dtype)
            meta["bytes"][f"{name}.bin"] = values.nbytes
        (work / "meta.json").write_text(json.dumps(meta))

    return _made_whole(folder, write)


def _made_whole(folder: Path, write: Callable[[Path], None]) -> Features:
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(work)
        with locked(folder.with_name(f".{folder.name}.lock")):
            features = open_features(folder)
            if features is not None:  # another process was first: its features are the same
                return features
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    features = open_features(folder)
    assert features is not None
    return features


def _write(work: Path, batches: Iterable[list[dict[str, Any]]], progress: Callable[[int], None]) -> None:
    columns: dict[str, str] = {}
    ends: dict[str, int] = {}
    done = 0
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {}

        def opened(name: str) -> BinaryIO:
            if name not in files:
                files[name] = stack.enter_context((work / name).open("wb"))
            return files[name]

        for rows in batches:
            for name in rows[0]:
                pieces, lengths = _pieces([row[name] for row in rows])
                columns.setdefault(name, str(pieces[0].dtype))
                opened(f"{name}.bin").write(np.concatenate(pieces).tobytes())
                if lengths is None:
                    continue
                if name not in ends:
                    opened(f"{name}.offsets").write(np.zeros(1, np.int64).tobytes())
                offsets = ends.get(name, 0) + np.cumsum(lengths, dtype=np.int64)
                opened(f"{name}.offsets").write(offsets.tobytes())
                ends[name] = int(offsets[-1])
            done += len(rows)
            progress(done)
    sizes = {path.name: path.stat().st_size for path in sorted(work.iterdir())}
    meta = {"version": _VERSION, "columns": columns, "ragged": sorted(ends), "bytes": sizes}
    (work / "meta.json").write_text(json.dumps(meta))


def row_batches(table: Any, columns: Mapping[str, str]) -> Iterator[list[dict[str, str | None]]]:
    """Yield an Arrow table's rows in lists of bounded length, and do not keep what is mapped of them in memory.

    Args:
        columns: What to call each column, to its name in the table.
    """
    names = list(columns)
    for batch in table.select(list(columns.values())).to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield batch.rename_columns(names).to_pylist()
        release_pages(buffer for column in batch.columns for buffer in column.buffers())


def _mapped(path: Path, dtype: type) -> np.ndarray:
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


def release_pages(buffers: Iterable[Any]) -> None:
    """Tell the system that the pages of some Arrow buffers are not needed for now.

    Nothing is lost, whatever the buffers are: a page of a file is read again when it is touched. A system that
    cannot do so goes on holding them.

    Args:
        buffers: With an ``address`` and a ``size`` in bytes; None stands for no buffer.
    """
    advise = _madvise()
    if advise is None:
        return
    for buffer in buffers:
        if buffer is not None and buffer.size:
            start = buffer.address // mmap.PAGESIZE * mmap.PAGESIZE
            advise(start, buffer.address + buffer.size - start, _PAGE_OUT)


@cache
def _madvise() -> Any:
    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):  # no such function: not a Unix
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
