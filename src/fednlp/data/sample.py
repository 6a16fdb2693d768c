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
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formatting.units import plural

if TYPE_CHECKING:
    import pyarrow as pa


Size = int | Mapping[str, int] | None
"""How many examples to draw: so many in all, so many of each silo that is named, or None for all."""

_KINDS: Mapping[Split, str] = {"train": "training", "test": "test"}
_NAMES_SHOWN = 20


def sampled(
    data: TextData, train_size: Size, test_size: Size, seed: int, field: str | None = None
) -> TextData:
    """Return a data set with fewer training or test examples, drawn at random.

    Labels keep their shares, and so do silos where the data are of silos. A size for each silo that is named leaves the
    other silos whole; each draw is the silo's own, with the shares of its labels, whichever others are named. The rows
    that are drawn are written to tables of their own in the cache, batch by batch, so that nothing that follows reads
    the others.

    Args:
        train_size: How many training examples to draw, in all or of each silo that is named; None for all.
        test_size: How many test examples to draw, the same way.
        field: The column whose values are the silos that may be named; None where there is none.

    Raises:
        DataError: There are fewer examples, a silo is named that there is not, or a silo is left without a training
            example.
        RunError: The disk is full, or the cache cannot be written.
    """
    train_size, test_size = (None if size == {} else size for size in (train_size, test_size))
    if train_size is None and test_size is None:
        return data
    train, test = (
        _drawn(data, "train", train_size, seed, field),
        _drawn(data, "test", test_size, seed, field),
    )
    if data.silo is not None:
        _require_silos(data, train)
    by = [field] if isinstance(train_size, Mapping) or isinstance(test_size, Mapping) else []
    identity = [data.fingerprint, *map(_ordered, (train_size, test_size)), seed, *by]
    fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    drawn_from: dict[Split, int] = {"train": len(data.train_numbers), "test": len(data.test_numbers)}
    sizes: dict[Split, int] = {"train": len(train), "test": len(test)}
    notes = tuple(
        f"{data.name}: {sizes[split]:,} of {whole:,} {_KINDS[split]} examples drawn (data.{split}_size)"
        for split, whole in drawn_from.items()
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


def _ordered(size: Size) -> Size:
    """Return a table of sizes in the order of its names, so that those that say the same are the same."""
    return dict(sorted(size.items())) if isinstance(size, Mapping) else size


def _drawn(data: TextData, split: Split, size: Size, seed: int, field: str | None) -> Numbers:
    """Return the rows of a table that are drawn, in order."""
    numbers = data.train_numbers if split == "train" else data.test_numbers
    if isinstance(size, Mapping):
        return _drawn_by_silo(data, split, numbers, size, seed, field)
    if size is None or size == len(numbers):
        return numbers
    _require_as_many(f"data.{split}_size", size, data.name, len(numbers), split)
    if data.silo is None:
        strata, count = _by_label(data, split, numbers)
    else:
        strata, names = data.groups(split, data.silo)
        strata, count = strata[numbers], len(names)
    _, chosen = hold_out(strata, count, size / len(numbers), seed, f"{split} sample")
    return numbers[chosen]


def _drawn_by_silo(
    data: TextData, split: Split, numbers: Numbers, sizes: Mapping[str, int], seed: int, field: str | None
) -> Numbers:
    """Return the rows of the silos that are not named, and those that are drawn of the others, in order."""
    key = f"data.{split}_size"
    if field is None:
        raise DataError(
            f"{key} names silos ({next(iter(sizes))!r}), and {data.name} has none: say a number, such as "
            f"{key} = {sum(sizes.values())}; or, where a column says whose an example is, partition.method = "
            '"natural" and partition.field'
        )
    codes, values = data.groups(split, field)
    codes = codes[numbers]
    places = {values[code]: code for code in np.unique(codes[codes >= 0]).tolist()}
    strata, count = _by_label(data, split, numbers)
    kept = np.ones(len(numbers), dtype=bool)
    for name, size in sizes.items():
        if name not in places:
            raise DataError(
                f"{key} names the silo {name!r}, and {data.name} has no {_KINDS[split]} examples of it: "
                f"{did_you_mean(name, places)}it has those of {_listed([*places])}"
            )
        own = np.flatnonzero(codes == places[name])
        if size != len(own):
            _require_as_many(f"{key}.{name}", size, f"the silo {name!r}", len(own), split)
            left, _ = hold_out(strata[own], count, size / len(own), seed, f"{split} sample/{name}")
            kept[own[left]] = False
    return numbers[kept]


def _require_as_many(key: str, size: int, where: str, there: int, split: Split) -> None:
    if size > there:
        raise DataError(
            f"{key} = {size:,}, but {where} has {plural(there, f'{_KINDS[split]} example')}: lower it, or leave it out"
        )


def _by_label(data: TextData, split: Split, numbers: Numbers) -> tuple[Numbers, int]:
    """Return the label of some rows as a stratum, and how many strata there are."""
    strata, count = data.labels(split)[numbers], max(len(data.label_names), 1)
    if (strata < 0).any():  # those without a label that training examples have are a stratum too
        strata, count = strata + 1, count + 1
    return strata, count


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMES_SHOWN:,} more"] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])


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
