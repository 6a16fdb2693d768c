"""The statistics of a data set: how it was read, its labels, how long its texts are, and some examples."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.data.chats import dialogue
from fednlp.data.columns import LISTS
from fednlp.data.features import release_pages
from fednlp.data.split import Numbers
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


def _input_names(data: TextData, split: Split) -> list[str]:
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
    names, target = _input_names(data, split), data.schema.target
    own = [data.columns[name] for name in names] + ([data.columns[target]] if target else [])
    needed = len(data.schema.inputs)
    inputs, targets = np.zeros(table.num_rows, np.int64), np.zeros(table.num_rows, np.int64)
    start = 0
    for batch in table.select(list(dict.fromkeys(own))).to_batches(max_chunksize=_ROWS_AT_ONCE):
        stop = start + batch.num_rows
        columns = [_texts(batch, column) for column in own]
        read = columns[: len(names)]
        texts = [_words(name, c) for name, c in zip(names, read, strict=True)]
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


def _words(name: str, column: Sequence[str]) -> Sequence[str]:
    """Return the words of a column's values, by its canonical name."""
    if name == "messages":
        return [dialogue(value) for value in column]
    if name in LISTS:
        return [" ".join(json.loads(value)) if value else "" for value in column]
    return column


def _hashes(columns: Sequence[Sequence[str]]) -> Hashes:
    rows = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
    return np.fromiter(map(hash, rows), np.int64, len(columns[0]))


MOST_LABELS = 20
"""The labels that are listed; the others are counted."""

_SAMPLE = 1000
_SAMPLE_CHARACTERS = 200
_EXAMPLES = 3
_LONGEST = 80
_SCRIPTS = {"CJK": "Han", "KATAKANA-HIRAGANA": "Katakana", "FULLWIDTH": "Latin", "MODIFIER": ""}


@dataclass(frozen=True)
class Spread:
    """How numbers are distributed: half are at most ``median``, 95 % at most ``p95``, all at most ``longest``."""

    median: int
    p95: int
    longest: int

    def __str__(self) -> str:
        return f"median {self.median:,}, 95 % {self.p95:,}, longest {self.longest:,}"


@dataclass(frozen=True)
class LabelCount:
    """How many training and test examples have a label; of tags, how many words."""

    name: str
    train: int
    test: int


@dataclass(frozen=True)
class SiloCount:
    """The numbers of a silo's examples, of its rows left out, and of its examples of each listed label."""

    name: str
    train: int
    test: int
    dropped: int
    labels: Mapping[str, int]


@dataclass(frozen=True)
class DataStatistics:
    """How a data set was read, and what is in it.

    Attributes:
        source: Where the examples come from.
        columns: The task's columns: own names by canonical ones.
        train: Number of training examples.
        test: Number of test examples.
        held_out: Whether the test set was taken out of the one file; False for silos and for own tests.
        own_tests: Whether the test examples are split off the examples of each client.
        dropped: How many rows were left out.
        num_labels: Number of labels or tags; None for a task without.
        labels: The most frequent of them, at most :data:`MOST_LABELS`.
        scores: Lowest, median and highest score of the training examples; None for a task without.
        characters: Characters of the inputs, by their canonical names.
        tokens: Tokens that the model reads of an example; None where no tokenizer is known.
        scripts: Share of the letters by script, of a sample, the most frequent first.
        examples: The first training examples, cut short: values by canonical names.
        silos: Of each silo its examples; empty where the data are not of silos.
        notes: What was found out about the files: the silos and their test sets, what separates cells.
    """

    name: str
    source: str
    task: str
    columns: Mapping[str, str]
    others: tuple[str, ...]
    train: int
    test: int
    held_out: bool
    own_tests: bool
    dropped: int
    num_labels: int | None
    labels: tuple[LabelCount, ...]
    scores: tuple[float, float, float] | None
    characters: Mapping[str, Spread]
    words: Mapping[str, Spread]
    tokens: Spread | None
    scripts: Mapping[str, float]
    examples: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    silos: tuple[SiloCount, ...] = ()


def statistics_of(data: TextData, scanned: Scan, label_counts: Mapping[Split, Numbers]) -> DataStatistics:
    """Return the statistics of a data set.

    Args:
        label_counts: As :func:`count_labels` gives them.
    """
    return DataStatistics(
        name=data.name,
        source=data.source,
        task=data.task,
        columns=dict(data.columns),
        others=tuple(name for name in data.train.column_names if name not in data.columns.values()),
        train=len(data.train_numbers),
        test=len(data.test_numbers),
        held_out=data.held_out and data.silo is None and not data.own_tests,
        own_tests=data.own_tests,
        dropped=data.dropped,
        num_labels=len(data.label_names) if data.schema.kind in ("class", "tags") else None,
        labels=_most_frequent(data.label_names, label_counts),
        scores=_scores(data),
        characters={name: spread_of(counts) for name, counts in scanned.characters.items()},
        words={name: spread_of(counts) for name, counts in scanned.words.items()},
        tokens=None,
        scripts=_scripts_of(sampled_inputs(data)),
        examples=_examples(data),
        notes=tuple(data.notes),
        silos=_silos(data, _most_frequent(data.label_names, label_counts)),
    )


def with_tokens(statistics: DataStatistics, lengths: Numbers) -> DataStatistics:
    """Return statistics with how many tokens the examples have, int64, one an example."""
    return replace(statistics, tokens=spread_of(Counter(lengths.tolist())) if len(lengths) else None)


def count_labels(data: TextData) -> dict[Split, Numbers]:
    """Return how many training and test examples (of tags: words) have each label, int64 (labels), by split."""
    splits: tuple[Split, ...] = ("train", "test")
    numbers = dict(zip(splits, (data.train_numbers, data.test_numbers), strict=True))
    if data.schema.kind == "tags":
        return {split: _count_tags(data, split, numbers[split]) for split in splits}
    size = len(data.label_names)
    return {split: np.bincount(data.labels(split)[numbers[split]], minlength=size)[:size] for split in splits}


def spread_of(counts: Mapping[int, int]) -> Spread:
    """Return the spread of numbers from how often each occurs.

    >>> str(spread_of({10: 90, 20: 9, 5000: 1}))
    'median 10, 95 % 20, longest 5,000'
    """
    values = np.array(sorted(counts), dtype=np.int64)
    reached = np.cumsum([counts[value] for value in values.tolist()])
    median, p95 = (int(values[np.searchsorted(reached, share * reached[-1])]) for share in (0.5, 0.95))
    return Spread(median, p95, int(values[-1]))


def _scripts_of(texts: Sequence[str]) -> dict[str, float]:
    """Return the share of letters by script, the most frequent first; those below a thousandth are left out.

    >>> _scripts_of(["abcdef", "где", "漢"])
    {'Latin': 0.6, 'Cyrillic': 0.3, 'Han': 0.1}
    """
    counts: Counter[str] = Counter()
    for character, count in Counter("".join(text[:_SAMPLE_CHARACTERS] for text in texts)).items():
        if character.isalpha():
            first = unicodedata.name(character, "").split(" ")[0]
            counts[_SCRIPTS.get(first, first.capitalize())] += count
    del counts[""]
    total = counts.total()
    return {name: count / total for name, count in counts.most_common() if count * 1000 >= total}


def columns_text(columns: Mapping[str, str]) -> str:
    """Return which column is read for what.

    >>> columns_text({"text": "text", "label": "topic"})
    "text, label = 'topic'"
    """
    return ", ".join(name if name == own else f"{name} = {own!r}" for name, own in columns.items())


def scripts_text(shares: Mapping[str, float]) -> str:
    """Return the shares of the scripts in percent.

    >>> scripts_text({"Latin": 0.9, "Han": 0.1})
    'Latin 90 %, Han 10 %'
    """
    return ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares.items()) or "no letters"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return the beginning of a text in one line.

    >>> shortened("one  two\\nthree four", 12)
    'one two thr…'
    """
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest and len(text) <= 4 * longest else f"{line[: longest - 1]}…"


def _most_frequent(names: Sequence[str], counts: Mapping[Split, Numbers]) -> tuple[LabelCount, ...]:
    order = np.argsort(-(counts["train"] + counts["test"]), kind="stable")[: min(MOST_LABELS, len(names))]
    return tuple(LabelCount(names[i], int(counts["train"][i]), int(counts["test"][i])) for i in order)


def _silos(data: TextData, labels: Sequence[LabelCount]) -> tuple[SiloCount, ...]:
    """Return the counts of each silo, in the order of the names."""
    if data.silo is None:
        return ()
    codes, names = data.groups("train", data.silo)
    splits = [
        np.bincount(codes[own], minlength=len(names)) for own in (data.train_numbers, data.test_numbers)
    ]
    everyone = np.concatenate([data.train_numbers, data.test_numbers])
    shown = [data.label_names.index(label.name) for label in labels] if data.schema.kind == "class" else []
    ids = data.labels("train")[everyone]
    by_label = {place: np.bincount(codes[everyone][ids == place], minlength=len(names)) for place in shown}
    return tuple(
        SiloCount(
            name,
            int(splits[0][number]),
            int(splits[1][number]),
            data.dropped_by.get(name, 0),
            {data.label_names[place]: int(counts[number]) for place, counts in by_label.items()},
        )
        for number, name in enumerate(names)
    )


def _count_tags(data: TextData, split: Split, numbers: Numbers) -> Numbers:
    counts: Counter[str] = Counter()
    column = data.column(split, data.columns["tags"])
    for start in range(0, len(numbers), _SAMPLE):
        for value in column.take(numbers[start : start + _SAMPLE]).to_pylist():
            counts.update(json.loads(value))
    return np.array([counts[name] for name in data.label_names], dtype=np.int64)


def _scores(data: TextData) -> tuple[float, float, float] | None:
    if data.schema.kind != "score":
        return None
    scores = data.scores("train")[data.train_numbers]
    return float(scores.min()), float(np.median(scores)), float(scores.max())


def sampled_inputs(data: TextData) -> list[str]:
    """Return the inputs of training examples, evenly spaced, a bounded number of them."""
    places = np.linspace(0, len(data.train_numbers) - 1, min(_SAMPLE, len(data.train_numbers)))
    return data.input_texts("train", data.train_numbers[places.astype(np.int64)])


def _examples(data: TextData) -> tuple[dict[str, str], ...]:
    target = data.schema.target
    names = [*_input_names(data, "train"), *([target] if target else [])]
    table: Any = data.train.select([data.columns[name] for name in names])
    rows = table.take(data.train_numbers[:_EXAMPLES]).rename_columns(names).to_pylist()
    return tuple({name: shortened(value or "") for name, value in row.items()} for row in rows)
