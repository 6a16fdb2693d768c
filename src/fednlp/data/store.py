"""Rows on disk: any reader's rows, streamed once into an Arrow file of the cache, then memory-mapped."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp.disk import ELSEWHERE, atomic, sha256_of
from fednlp.errors import DataError, RunError
from fednlp.hubs.cache import cache_dir
from fednlp.startup.quick_arrow import import_arrow

if TYPE_CHECKING:
    import pyarrow as pa

Row = Sequence[str | None]

SILO = "silo"
"""The column that names the silo of a row."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a row, and what to do; it takes the place of the row.

    Attributes:
        no_label: Whether the row has no label.
        silo: The silo that the row is of; empty where it is of none.
    """

    message: str
    no_label: bool = False
    silo: str = ""


class MissingLabel(DataError):
    """A row has no label.

    Args:
        found: The place of the row, and what is wrong with it.
    """

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}{_OR_DROP}")
        self.found = found


Located = tuple[str, Row | Fault]
"""A row, or what is wrong with it, after its location for people: ``"file.csv:3"``."""

Check = Callable[[Row], Row | Fault]

_OR_DROP = ', or leave such rows out with data.on_invalid_row = "drop"'
_VERSION = 5
_REASONS = 3
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
        names: Gives the column names at a glance; a later row may bring further ones.
        read: Opens the rows: their column names, and an iterator. It is told what each column is for: a
            canonical name (:mod:`fednlp.formulations`) by the column's own.
        names_at: Where the column names stand, for people; ``shown`` by default.
        note: What was found out about how to read them, for people; empty where nothing was.
        delimiter: What separates the cells of ``.csv`` files; None for other files, and where several differ.
    """

    what: tuple[str, ...]
    identity: str
    shown: str
    names: Callable[[], Sequence[str]]
    read: Callable[[Mapping[str, str]], tuple[Sequence[str], Iterator[Located]]]
    names_at: str = ""
    note: str = ""
    delimiter: str | None = None


@dataclass(frozen=True)
class View:
    """How rows are read for a task.

    Attributes:
        roles: What each column is for, by the column's own name.
        check: Makes the check of a row for column names.
        drop: Leave out the rows that do not pass; else the first of them is an error.
        unlabelled: Whether a row may lack its label.
    """

    task: str
    roles: Mapping[str, str]
    check: Callable[[Sequence[str]], Check]
    drop: bool = False
    unlabelled: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What names it in the cache."""
        key = self.task, json.dumps(sorted(self.roles.items())), "drop" if self.drop else "refuse"
        return (*key, "unlabelled") if self.unlabelled else key


@dataclass(frozen=True)
class Stored:
    """A memory-mapped table.

    Attributes:
        content: SHA-256 of its rows and column names.
        dropped: How many rows were left out.
        reasons: Why the first few of them were.
        dropped_by: How many of each silo were.
    """

    table: "pa.Table"
    content: str
    dropped: int = 0
    reasons: tuple[str, ...] = ()
    dropped_by: Mapping[str, int] = field(default_factory=dict)


def stored(rows: Rows, view: View) -> Stored:
    """Return rows as a memory-mapped table, reading them only if the cache does not hold them as they are.

    Raises:
        DataError: Whatever the reader or the check finds wrong.
        RunError: The disk is full, or the cache cannot be written.
    """
    path = _place(rows, view)
    note = path.with_suffix(".json")
    for _ in range(_ATTEMPTS):
        found = _load(path, note, rows.identity)
        if found is not None:
            return found
        _write(path, note, rows, view)
    raise RunError(
        f"{path} does not keep what is written to it, or is written by another process: {ELSEWHERE}"
    )


def rows_in_cache(rows: Rows, view: View) -> int | None:
    """Return how many rows the cache holds of these, or None where it does not hold them as they are."""
    path = _place(rows, view)
    found = _load(path, path.with_suffix(".json"), rows.identity)
    return None if found is None else int(found.table.num_rows)


def _place(rows: Rows, view: View) -> Path:
    key = hashlib.sha256(json.dumps([_VERSION, *rows.what, *view.key]).encode()).hexdigest()[:32]
    return cache_dir() / "tables" / f"{key}.arrow"


def _load(path: Path, note: Path, identity: str) -> Stored | None:
    """Return a table of the cache, or None where it is absent, out of date, cut short or altered."""
    import_arrow()
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
        return Stored(
            table, noted["content"], noted["dropped"], tuple(noted["reasons"]), dict(noted["dropped_by"])
        )
    except (OSError, ValueError, KeyError, TypeError):  # Arrow's own errors are ValueErrors
        return None


def _write(path: Path, note: Path, rows: Rows, view: View) -> None:
    import pyarrow as pa

    columns, placed = rows.read(view.roles)
    sieve = _Sieve(view.check(columns), view.drop, columns.index(SILO) if SILO in columns else None)
    schema = pa.schema([(column, pa.string()) for column in columns])
    content = hashlib.sha256(json.dumps(list(columns)).encode())
    with atomic(path) as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _batches(sieve.passed(placed, rows.shown)):
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
        "dropped": sieve.dropped,
        "reasons": sieve.reasons,
        "dropped_by": sieve.dropped_by,
        "shown": rows.shown,
    }
    with atomic(note) as file:
        file.write(json.dumps(noted).encode())


class _Sieve:
    """Passes the rows that a check accepts, and counts the others or refuses the first of them."""

    def __init__(self, check: Check, drop: bool, silo: int | None) -> None:
        self.check, self.drop, self.silo = check, drop, silo
        self.dropped_by: Counter[str] = Counter()
        self.dropped = 0
        self.reasons: list[str] = []

    def passed(self, placed: Iterator[Located], shown: str) -> Iterator[Row]:
        """Yield the rows that pass; at least one must."""
        row = None
        for where, item in placed:
            found = item if isinstance(item, Fault) else self.check(item)
            if isinstance(found, Fault):
                self._leave_out(f"{where}: {found.message}", found.no_label)
                of = found.silo if isinstance(item, Fault) or self.silo is None else item[self.silo]
                if of:
                    self.dropped_by[of] += 1
            else:
                row = found
                yield row
        if row is None:
            why = f" ({self.dropped} left out; {self.reasons[0]})" if self.dropped else ""
            raise DataError(f"{shown}: it holds no example{why}")

    def _leave_out(self, reason: str, no_label: bool) -> None:
        if not self.drop:
            raise MissingLabel(reason) if no_label else DataError(f"{reason}{_OR_DROP}")
        self.dropped += 1
        if len(self.reasons) < _REASONS:
            self.reasons.append(reason)


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


def file_identity(paths: Sequence[Path]) -> str:
    """Return what changes when a file of these is written: their sizes and times."""
    statuses = [path.stat() for path in paths]
    return " ".join(f"{status.st_size}:{status.st_mtime_ns}" for status in statuses)
