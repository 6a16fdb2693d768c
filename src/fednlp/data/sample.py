"""A seeded sample of a data set, of the size that a paper uses, as tables of its own."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fednlp.data.split import Numbers, hold_out
from fednlp.data.store import Check, Located, Row, Rows, View, stored
from fednlp.data.textdata import Split, TextData, positions
from fednlp.errors import DataError
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    import pyarrow as pa


def sampled(data: TextData, train_size: int | None, test_size: int | None, seed: int) -> TextData:
    """Return a data set with fewer training or test examples, drawn at random.

    Labels keep their shares, and so do silos where the data are of silos. The rows that are drawn are written to tables
    of their own in the cache, batch by batch, so that nothing that follows reads the others.

    Args:
        data: The whole data set.
        train_size: How many training examples to draw; None for all.
        test_size: How many test examples to draw; None for all.
        seed: Of the draw.

    Raises:
        DataError: There are fewer examples, or a silo is left without a training example.
        RunError: The disk is full, or the cache cannot be written.
    """
    if train_size is None and test_size is None:
        return data
    train, test = _drawn(data, "train", train_size, seed), _drawn(data, "test", test_size, seed)
    if data.silo is not None:
        _require_silos(data, train)
    identity = [data.fingerprint, train_size, test_size, seed]
    fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    drawn_from: dict[Split, int] = {"train": len(data.train_numbers), "test": len(data.test_numbers)}
    sizes = {split: len(numbers) for split, numbers in (("train", train), ("test", test))}
    notes = tuple(
        f"{data.name}: {sizes[split]:,} of {whole:,} {kind} examples drawn (data.{split}_size)"
        for split, whole, kind in (
            ("train", drawn_from["train"], "training"),
            ("test", drawn_from["test"], "test"),
        )
        if sizes[split] < whole
    )
    common = {"fingerprint": fingerprint, "drawn_from": drawn_from, "notes": (*data.notes, *notes)}
    if data.held_out:
        rows = np.union1d(train, test)
        table = _table(data, "train", rows, fingerprint)
        numbers = {"train_numbers": np.searchsorted(rows, train), "test_numbers": np.searchsorted(rows, test)}
        return replace(data, train=table, test=table, **numbers, **common)  # type: ignore[arg-type]
    return replace(
        data,
        train=_table(data, "train", train, fingerprint),
        test=_table(data, "test", test, fingerprint),
        train_numbers=np.arange(len(train), dtype=np.int64),
        test_numbers=np.arange(len(test), dtype=np.int64),
        **common,  # type: ignore[arg-type]
    )


def _drawn(data: TextData, split: Split, size: int | None, seed: int) -> Numbers:
    """Return the rows of a table that are drawn, in order."""
    numbers = data.train_numbers if split == "train" else data.test_numbers
    if size is None or size == len(numbers):
        return numbers
    if size > len(numbers):
        kind = "training" if split == "train" else "test"
        raise DataError(
            f"data.{split}_size = {size:,}, but {data.name} has {plural(len(numbers), f'{kind} example')}: lower it, "
            "or leave it out"
        )
    if data.silo is None:
        strata, count = data.labels(split)[numbers], max(len(data.label_names), 1)
        if (strata < 0).any():  # those without a label that training examples have are a stratum too
            strata, count = strata + 1, count + 1
    else:
        strata, names = data.groups(split, data.silo)
        strata, count = strata[numbers], len(names)
    _, chosen = hold_out(strata, count, size / len(numbers), seed, f"{split} sample")
    return numbers[chosen]


def _require_silos(data: TextData, train: Numbers) -> None:
    assert data.silo is not None
    column = data.train.column(data.silo)
    names = column.unique().to_pylist()
    left = np.bincount(positions(column, names)[train], minlength=len(names))
    if not left.all():
        raise DataError(
            f"data.train_size = {len(train):,} leaves the silo {names[int(np.argmin(left))]!r} without a training "
            "example: raise it"
        )


def _table(data: TextData, split: Split, numbers: Numbers, fingerprint: str) -> "pa.Table":
    """Return some rows of a table as a memory-mapped table of their own."""
    table = data.train if split == "train" else data.test
    columns = list(table.column_names)
    rows = Rows(
        what=("sample", fingerprint, split),
        identity=fingerprint,
        shown=f"a sample of {data.source}",
        names=lambda: columns,
        read=_reader(table, numbers),
    )
    return stored(rows, View(data.task, {}, _as_it_is)).table


def _reader(
    table: "pa.Table", numbers: Numbers
) -> Callable[[Mapping[str, str]], tuple[Sequence[str], Iterator[Located]]]:
    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        return table.column_names, _rows(table, numbers)

    return read


def _rows(table: "pa.Table", numbers: Numbers) -> Iterator[Located]:
    """Yield rows of a table, one batch in memory at a time."""
    first = 0
    for batch in table.to_batches():
        low, high = np.searchsorted(numbers, [first, first + batch.num_rows])
        if high > low:
            own = numbers[low:high]
            columns = batch.take((own - first).tolist()).to_pydict().values()
            for number, row in zip(own, zip(*columns, strict=True), strict=True):
                yield f"row {number}", row
        first += batch.num_rows


def _as_it_is(columns: Sequence[str]) -> Check:
    """Return the check of rows that were checked before."""

    def check(row: Row) -> Row:
        return row

    return check
