"""Issues of the texts of a data set: empty, truncated, or present more than once.

Duplicates are found by hashes: within a split, in both splits, with several targets, and at several clients.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fednlp.data.profiling.label_issues import LONGEST_EXAMPLE, MISSING_WORDS, Issue, percent, quoted
from fednlp.data.profiling.statistics import BLANK, Hashes, Scan, shortened
from fednlp.data.split import Numbers
from fednlp.data.textdata import Split, TextData
from fednlp.formatting.units import plural

_MIX = np.int64(-7046029254386353131)
"""2^64 divided by the golden ratio, odd: it spreads a hash over all bits."""
_MINOR = 0.01
_PLACE = re.compile(r"[a-z]+://\S+|[^\s.]\S*\.[A-Za-z]{2,4}\d?")
_MINOR_LINES = 0.1  # lines of a play or of a chat repeat by nature


@dataclass(frozen=True)
class ExampleHashes:
    """Hashes of the examples of one split, int64 (examples).

    Attributes:
        inputs: Of what the model reads; ``BLANK`` for an empty text, which equals no other.
    """

    inputs: Hashes
    targets: Hashes

    @property
    def whole(self) -> Hashes:
        """One hash of inputs and target together."""
        with np.errstate(over="ignore"):
            mixed: Hashes = self.inputs * _MIX + self.targets
        return mixed


@dataclass(frozen=True)
class Duplicates:
    """The number of duplicates, and the positions of the first one and of its counterpart."""

    count: int
    first: int = -1
    other: int = -1


def missing_word_issues(data: TextData, scanned: Scan) -> Iterator[Issue]:
    """Yield the issue of texts that programs write where there is none, such as ``nan``."""
    splits: tuple[Split, ...] = ("train", "test")
    numbers = dict(zip(splits, (data.train_numbers, data.test_numbers), strict=True))
    words = {
        hash(form(word)): form(word) for word in MISSING_WORDS for form in (str, str.upper, str.capitalize)
    }
    words |= {hash("NaN"): "NaN", hash("NaT"): "NaT"}
    hashes = np.array(sorted(words), np.int64)
    found = [scanned.inputs[split][own] for split, own in numbers.items()]
    there = [int(one) for own in found for one in own[np.isin(own, hashes)]]
    if there and len(there) < sum(map(len, found)):
        yield Issue(
            "missing-value-texts",
            len(there),
            f"{plural(len(there), 'text')} that programs write where there is none",
            quoted(words[there[0]]),
            "it is read as a text; fill it in, or remove the row",
            minor=len(there) < _MINOR * sum(map(len, found)),
        )


def damaged_text_issues(data: TextData, scanned: Scan) -> Iterator[Issue]:
    """Yield the issue of texts that were written or read in a wrong encoding before."""
    count, total = scanned.damaged.total(), data.train.num_rows + (0 if data.held_out else data.test.num_rows)
    if count:
        yield Issue(
            "damaged-texts",
            count,
            f"{count:,} of {plural(total, 'text')} {'has' if count == 1 else 'have'} signs of a wrong encoding",
            f'"{shortened(scanned.example, LONGEST_EXAMPLE)}"',
            "export them again as UTF-8 from where they are right",
            minor=count < _MINOR * total,
        )


def no_text_issues(texts: Sequence[str]) -> Iterator[Issue]:
    """Yield the issue of a sample of texts that are rather numbers, dates, addresses or names of files."""
    filled = [text.strip() for text in texts if text.strip()]
    numbers = [text for text in filled if not any(map(str.isalpha, text))]
    places = [text for text in filled if _PLACE.fullmatch(text)]
    for kind, found in (("have no letters", numbers), ("are names of files or addresses", places)):
        if found and 10 * len(found) >= 9 * len(filled):
            yield Issue(
                "no-texts",
                len(found),
                f"{len(found):,} of {plural(len(filled), 'text')} looked at {kind}",
                quoted(found[0]),
                "a model reads what stands in the column; if another one has the texts, name it in data.text",
            )


def repeated(examples: ExampleHashes) -> Duplicates:
    """Return how many examples equal an earlier one, label and all.

    >>> repeated(ExampleHashes(np.array([7, 8, 7, 7]), np.array([1, 1, 1, 2])))
    Duplicates(count=1, first=0, other=2)
    """
    filled = np.flatnonzero(examples.inputs != BLANK)
    return _again(examples.whole[filled], filled)[0]


def in_both_splits(train: ExampleHashes, test: ExampleHashes) -> Duplicates:
    """Return how many test examples have the inputs of a training example; ``first`` is a test example.

    >>> none = np.zeros(2, np.int64)
    >>> in_both_splits(ExampleHashes(np.array([7, 8]), none), ExampleHashes(np.array([9, 8]), none)).count
    1
    """
    there = (test.inputs != BLANK) & np.isin(test.inputs, train.inputs)
    return Duplicates(int(there.sum()), int(np.argmax(there))) if there.any() else Duplicates(0)


def contradicting(examples: ExampleHashes) -> Duplicates:
    """Return how many texts have more than one target, and two examples of the first.

    >>> contradicting(ExampleHashes(np.array([7, 8, 7, 7]), np.array([1, 1, 1, 2])))
    Duplicates(count=1, first=0, other=3)
    """
    filled = np.flatnonzero(examples.inputs != BLANK)
    return _of_several(examples.inputs[filled], examples.whole[filled], filled)


def shared_by_clients(examples: ExampleHashes, owners: Numbers) -> Duplicates:
    """Return how many texts more than one client holds, and an example of two of them.

    Args:
        owners: The client of each, -1 for none.
    """
    held = np.flatnonzero((examples.inputs != BLANK) & (owners >= 0))
    with np.errstate(over="ignore"):
        owned = examples.inputs[held] * _MIX + owners[held]
    return _of_several(examples.inputs[held], owned, held)


def _of_several(values: Hashes, finer: Hashes, places: Numbers) -> Duplicates:
    """Return how many values a finer hash divides, and two places of the first that it does."""
    _, first = np.unique(finer, return_index=True)
    first.sort()
    found, again = _again(values[first], places[first])
    return Duplicates(len(np.unique(again)), found.first, found.other)


def _again(values: Hashes, places: Numbers) -> tuple[Duplicates, Hashes]:
    """Return how many values stand there already, with two places of the first that does; and those values."""
    order = np.argsort(values, kind="stable")
    repeats = values[order][1:] == values[order][:-1]
    if not repeats.any():
        return Duplicates(0), values[:0]
    earlier, later = order[:-1][repeats], order[1:][repeats]
    pick = int(np.argmin(places[earlier]))
    return Duplicates(len(later), int(places[earlier[pick]]), int(places[later[pick]])), values[later]


@dataclass(frozen=True)
class Truncation:
    """The part of the texts that the model does not read because they are too long.

    Attributes:
        texts: How many examples are cut.
        share: The share of all examples that they are.
        tokens: The share of all tokens that is cut off, estimated from a sample where many examples are cut.
        limit: Tokens that are read of an example.
        remedy: The advice to the user.
        cuts: How many examples lose which part, by words for it, where a task tells parts.
        severe: Whether one of the parts is never a minor loss.
    """

    texts: int
    share: float
    tokens: float
    limit: int
    remedy: str
    cuts: Mapping[str, int] = field(default_factory=dict)
    severe: bool = False


@dataclass(frozen=True)
class Holders:
    """The client of each training example.

    Attributes:
        owners: The client of each row of the training table, -1 where no client holds it.
        names: Names of the clients; their numbers where they have none.
    """

    owners: Numbers
    names: Sequence[str] | None = None

    def name(self, client: int) -> str:
        """Return what a client is called."""
        return f"client {client}" if self.names is None else self.names[client]


def empty_text_issues(data: TextData, scanned: Scan) -> Iterator[Issue]:
    """Yield the issue that texts are empty, if any is."""
    train, test = scanned.inputs["train"][data.train_numbers], scanned.inputs["test"][data.test_numbers]
    blank, total = int((train == BLANK).sum() + (test == BLANK).sum()), len(train) + len(test)
    if blank:
        split, places = ("train", train) if (train == BLANK).any() else ("test", test)
        numbers = data.train_numbers if split == "train" else data.test_numbers
        place = int(numbers[np.argmax(places == BLANK)]) + 1
        yield Issue(
            "empty-texts",
            blank,
            f"{blank:,} of {plural(total, 'text')} {'is' if blank == 1 else 'are'} empty",
            f"row {place:,} of the {'file' if data.held_out else f'{split} file'}",
            "fill them in, or remove these rows",
            minor=_is_minor(data, blank, total),
        )


def truncation_issue(truncated: Truncation) -> Issue:
    """Return the issue that texts are longer than the model reads, with what they lose."""
    parts = ", ".join(f"{words} ({count:,})" for words, count in truncated.cuts.items())
    texts = f"{plural(truncated.texts, 'text')} ({percent(truncated.share)})" if truncated.texts else "texts"
    return Issue(
        "cut-off",
        max(truncated.texts, *truncated.cuts.values(), 0),
        f"{texts} longer than the {truncated.limit:,} tokens that the model reads"
        + (f", which lose {parts}" if parts else ""),
        "",
        f"{percent(truncated.tokens)} of all tokens are cut off; {truncated.remedy}",
        minor=not truncated.severe and max(truncated.share, truncated.tokens) < _MINOR,
    )


def duplicate_issues(data: TextData, scanned: Scan, holders: Holders | None) -> Iterator[Issue]:
    """Yield the issues of duplicates: within a split, in both splits, with several targets, at several clients.

    Args:
        holders: The client of each training example; None where there is no partition.
    """
    train, test = (
        ExampleHashes(scanned.inputs[split][numbers], scanned.targets[split][numbers])
        for split, numbers in (("train", data.train_numbers), ("test", data.test_numbers))
    )
    yield from _leaked(data, train, test)
    yield from _repeated(data, "train", train)
    yield from _repeated(data, "test", test)
    if data.schema.kind in ("class", "score", "tags"):
        yield from _contradicting(data, train)
    if holders is not None:
        yield from _shared(data, train, holders)


def _leaked(data: TextData, train: ExampleHashes, test: ExampleHashes) -> Iterator[Issue]:
    both, total = in_both_splits(train, test), len(data.test_numbers)
    if both.count:
        remedy = "remove repeated rows from the file" if data.held_out else "remove them from one of the two"
        yield Issue(
            "in-train-and-test",
            both.count,
            f"{both.count:,} of {plural(total, 'test example')} {'has' if both.count == 1 else 'have'} a text of the "
            "training set",
            _text(data, "test", both.first),
            f"scores come out too high; {remedy}",
            minor=_is_minor(data, both.count, total),
        )


def _repeated(data: TextData, split: Split, part: ExampleHashes) -> Iterator[Issue]:
    again, total = repeated(part), len(part.inputs)
    if again.count:
        what = "training example" if split == "train" else "test example"
        yield Issue(
            f"repeated-in-{split}",
            again.count,
            f"{again.count:,} of {plural(total, what)} {'repeats' if again.count == 1 else 'repeat'} an earlier one",
            _text(data, split, again.first),
            "repeated rows count several times; remove them unless that is meant",
            minor=_is_minor(data, again.count, total),
        )


def _contradicting(data: TextData, train: ExampleHashes) -> Iterator[Issue]:
    wrong = contradicting(train)
    if wrong.count:
        what = {"class": "label", "score": "score"}.get(data.schema.kind, "list of tags")
        yield Issue(
            "contradicting-labels",
            wrong.count,
            f"{plural(wrong.count, 'training text')} with more than one {what}",
            f"{_text(data, 'train', wrong.first)}{_targets(data, wrong.first, wrong.other)}",
            "correct them, or keep one",
            minor=_is_minor(data, wrong.count, len(train.inputs)),
        )


def _shared(data: TextData, train: ExampleHashes, holders: Holders) -> Iterator[Issue]:
    owners = holders.owners[data.train_numbers]
    shared = shared_by_clients(train, owners)
    if shared.count:
        one, other = (holders.name(int(owners[place])) for place in (shared.first, shared.other))
        yield Issue(
            "shared-by-clients",
            shared.count,
            f"{plural(shared.count, 'text')} held by more than one client",
            f"{_text(data, 'train', shared.first)} ({one} and {other})",
            "remove repeated rows if clients should not share texts",
            minor=_is_minor(data, shared.count, len(owners)),
        )


def _is_minor(data: TextData, count: int, total: int) -> bool:
    return count < total * (_MINOR_LINES if data.schema.kind == "none" else _MINOR)


def _targets(data: TextData, first: int, other: int) -> str:
    """Return the two labels or scores of a text in brackets; nothing for lists of tags."""
    kind, target = data.schema.kind, data.schema.target
    if kind == "tags" or target is None:
        return ""
    column = data.column("train", data.columns[target])
    values = [column[int(data.train_numbers[place])].as_py() for place in (first, other)]
    return f" ({' and '.join(map(quoted, values))})"


def _text(data: TextData, split: Split, place: int) -> str:
    numbers = data.train_numbers if split == "train" else data.test_numbers
    return f'"{shortened(data.input_texts(split, numbers[place : place + 1])[0], LONGEST_EXAMPLE)}"'
