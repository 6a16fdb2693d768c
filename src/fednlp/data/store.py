"""Rows on disk: any reader's rows, streamed once into an Arrow file of the cache, then memory-mapped."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp.data.cache import cache_dir
from fednlp.disk import ELSEWHERE, atomic, sha256_of
from fednlp.errors import RunError

if TYPE_CHECKING:
    import pyarrow as pa

Row = Sequence[str | None]

_VERSION = 1
# A batch ends at either bound; both are part of the digest of the content, hence of _VERSION.
_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 1 << 22
# Above this size a table is trusted by its size and time of writing instead of being read at every use.
_ALWAYS_HASHED = 256 << 20
# Another process may replace a table between writing and opening it; that does not happen twice in a row.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Rows:
    """Rows of strings that can be read when they are needed.

    Attributes:
        what: Names the place in the cache: what is read, and every option of reading it.
        identity: Changes whenever the content may have changed (a digest, or sizes and times).
        shown: Where the rows come from, for people.
        read: Opens the rows: their column names, and an iterator.
    """

    what: tuple[str, ...]
    identity: str
    shown: str
    read: Callable[[], tuple[Sequence[str], Iterator[Row]]]


@dataclass(frozen=True)
class Stored:
    """A memory-mapped table, and the SHA-256 of its rows and column names."""

    table: "pa.Table"
    content: str


def stored(rows: Rows) -> Stored:
    """Return rows as a memory-mapped table, reading them only if the cache does not hold them as they are.

    Raises:
        DataError: Whatever the reader finds wrong.
        RunError: The disk is full, or the cache cannot be written.
    """
    key = hashlib.sha256(json.dumps([_VERSION, *rows.what]).encode()).hexdigest()[:32]
    path = cache_dir() / "tables" / f"{key}.arrow"
    note = path.with_suffix(".json")
    for _ in range(_ATTEMPTS):
        found = _load(path, note, rows.identity)
        if found is not None:
            return found
        _write(path, note, rows)
    raise RunError(
        f"{path} does not keep what is written to it, or is written by another process: {ELSEWHERE}"
    )


def _load(path: Path, note: Path, identity: str) -> Stored | None:
    """Return a table of the cache, or None where it is absent, out of date, cut short or altered."""
    import pyarrow as pa

    try:
        noted: dict[str, Any] = json.loads(note.read_text())
        status = path.stat()
        if noted["identity"] != identity or noted["bytes"] != status.st_size:
            return None
        untouched = status.st_size > _ALWAYS_HASHED and noted["mtime_ns"] == status.st_mtime_ns
        if not untouched and noted["sha256"] != sha256_of(path):
            return None
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        return Stored(table, noted["content"])
    except (OSError, ValueError, KeyError, TypeError):  # Arrow's own errors are ValueErrors
        return None


def _write(path: Path, note: Path, rows: Rows) -> None:
    import pyarrow as pa

    columns, iterator = rows.read()
    schema = pa.schema([(column, pa.string()) for column in columns])
    content = hashlib.sha256(json.dumps(list(columns)).encode())
    with atomic(path) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _batches(iterator):
            content.update(json.dumps(batch).encode())
            values = list(zip(*batch, strict=True))
            writer.write_batch(pa.record_batch([pa.array(v, pa.string()) for v in values], schema=schema))
    status = path.stat()
    noted = {
        "identity": rows.identity,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": sha256_of(path),
        "content": content.hexdigest(),
        "shown": rows.shown,
    }
    with atomic(note) as file:
        file.write(json.dumps(noted).encode())


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += sum(len(value) for value in row if value is not None)
        if len(batch) == _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
