"""One pass over the texts of a data set: how long they are, and a hash of each to find it again."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fednlp.data.columns import LISTS
from fednlp.data.features import release_pages
from fednlp.data.textdata import Split, TextData

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = NDArray[np.int64]

BLANK = 0
"""Stands in place of the hash of an example whose input is empty."""

_ROWS_AT_ONCE = 4096
_DAMAGED = re.compile("\ufffd|Ã[\x80-\xbf\u0152-\u017e\u02c6\u02dc\u2013-\u203a\u20ac\u2122]|â€|Â[\xa0-\xbf]")
"""The character that stands for one that could not be read; and UTF-8 that was read as cp1252."""


@dataclass
class Scan:
    """What one pass over a data set finds.

    Attributes:
        inputs: A hash of each row's inputs by split, int64 (rows of the table); ``BLANK`` where one is empty.
        targets: The same of what is to be predicted, zeros where there is nothing. Both splits share their
            arrays where the test set was held out.
        characters: How many texts have how many characters, by the canonical name of the input.
        words: The same in words between blanks.
        damaged: How many rows have signs of a wrong encoding, by split.
        example: The first text of these.
    """

    inputs: dict[str, Hashes] = field(default_factory=dict)
    targets: dict[str, Hashes] = field(default_factory=dict)
    characters: dict[str, Counter[int]] = field(default_factory=dict)
    words: dict[str, Counter[int]] = field(default_factory=dict)
    damaged: Counter[str] = field(default_factory=Counter)
    example: str = ""


def input_names(data: TextData, split: Split) -> list[str]:
    """Return the canonical names of what the model reads of an example, in the table of a split."""
    there = data.columns_in(split)
    schema = data.schema
    return [name for name in (*schema.inputs, "text_pair") if name in there]


def scan(data: TextData) -> Scan:
    """Go over the texts of a data set once; 16 bytes a row are kept of them.

    A hash is Python's own, keyed by the process: equal texts are found, and it is never stored.
    """
    found = Scan()
    splits: tuple[Split, ...] = ("train",) if data.held_out else ("train", "test")
    for split in splits:
        _scan_table(data, split, found)
    if data.held_out:
        found.inputs["test"], found.targets["test"] = found.inputs["train"], found.targets["train"]
    return found


def _scan_table(data: TextData, split: Split, found: Scan) -> None:
    table = data.train if split == "train" else data.test
    names, target = input_names(data, split), data.schema.target
    own = [data.columns[name] for name in names] + ([data.columns[target]] if target else [])
    needed = len(data.schema.inputs)
    inputs, targets = np.zeros(table.num_rows, np.int64), np.zeros(table.num_rows, np.int64)
    start = 0
    for batch in table.select(list(dict.fromkeys(own))).to_batches(max_chunksize=_ROWS_AT_ONCE):
        stop = start + batch.num_rows
        columns = [_texts(batch, column) for column in own]
        read = columns[: len(names)]
        texts = [_joined(c) if name in LISTS else c for name, c in zip(names, read, strict=True)]
        inputs[start:stop] = _hashes(read)
        wrong = [text for text in texts[0] if not text.isascii() and _DAMAGED.search(text)]
        found.damaged[split] += len(wrong)
        found.example = found.example or next(iter(wrong), "")
        for column in texts[:needed]:
            inputs[start:stop][[not text.strip() for text in column]] = BLANK
        if target:
            targets[start:stop] = _hashes(columns[-1:])
        for name, column in zip(names, texts, strict=True):
            found.characters.setdefault(name, Counter()).update(map(len, column))
            found.words.setdefault(name, Counter()).update(len(text.split()) for text in column)
        release_pages(buffer for column in batch.columns for buffer in column.buffers())
        start = stop
    found.inputs[split], found.targets[split] = inputs, targets


def _texts(batch: "pa.RecordBatch", column: str) -> list[str]:
    return [value or "" for value in batch.column(column).to_pylist()]


def _joined(column: Sequence[str]) -> list[str]:
    return [" ".join(json.loads(value)) if value else "" for value in column]


def _hashes(columns: Sequence[Sequence[str]]) -> Hashes:
    rows = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
    return np.fromiter(map(hash, rows), np.int64, len(columns[0]))
