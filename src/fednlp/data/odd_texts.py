"""What is odd about the texts of a data set: empty, too long, or there more than once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fednlp.data.facts import shortened
from fednlp.data.oddity import LONGEST_EXAMPLE, Oddity, number, percent, quoted
from fednlp.data.repeats import Repeats, contradicting, in_both_splits, repeated, shared_by_clients
from fednlp.data.scan import BLANK, Scan
from fednlp.data.schema import SCHEMAS
from fednlp.data.split import Numbers
from fednlp.data.textdata import Split, TextData

_MINOR = 0.01
_MINOR_LINES = 0.1  # lines of a play or of a chat repeat by nature


@dataclass(frozen=True)
class CutOff:
    """What the model does not read of the texts because they are too long.

    Attributes:
        texts: How many examples are cut.
        share: The share of all examples that they are.
        tokens: The share of all tokens that is cut off, estimated from a sample where many examples are cut.
        limit: Tokens that are read of an example.
        remedy: What to do.
    """

    texts: int
    share: float
    tokens: float
    limit: int
    remedy: str


@dataclass(frozen=True)
class Holders:
    """Who holds which training example.

    Attributes:
        owners: The client of each row of the training table, -1 where no client holds it.
        names: Names of the clients; their numbers where they have none.
    """

    owners: Numbers
    names: Sequence[str] | None = None

    def name(self, client: int) -> str:
        """Return what a client is called."""
        return f"client {client}" if self.names is None else self.names[client]


def empty_texts(data: TextData, scanned: Scan) -> Iterator[Oddity]:
    """Yield that texts are empty, if any is."""
    train, test = scanned.inputs["train"][data.train_numbers], scanned.inputs["test"][data.test_numbers]
    blank, total = int((train == BLANK).sum() + (test == BLANK).sum()), len(train) + len(test)
    if blank:
        split, places = ("train", train) if (train == BLANK).any() else ("test", test)
        numbers = data.train_numbers if split == "train" else data.test_numbers
        place = int(numbers[np.argmax(places == BLANK)]) + 1
        yield Oddity(
            "empty-texts",
            blank,
            f"{blank:,} of {number(total, 'text')} {'is' if blank == 1 else 'are'} empty",
            f"row {place:,} of the {'file' if data.held_out else f'{split} file'}",
            "fill them in, or remove these rows",
            minor=_is_minor(data, blank, total),
        )


def cut_off(cut: CutOff) -> Oddity:
    """Return that texts are longer than the model reads."""
    return Oddity(
        "cut-off",
        cut.texts,
        f"{number(cut.texts, 'text')} ({percent(cut.share)}) longer than the {cut.limit:,} tokens that the model reads",
        "",
        f"{percent(cut.tokens)} of all tokens are cut off; {cut.remedy}",
        minor=max(cut.share, cut.tokens) < _MINOR,
    )


def repeats_of(data: TextData, scanned: Scan, holders: Holders | None) -> Iterator[Oddity]:
    """Yield where texts are there more than once: within a set, in both, with several labels, at several clients.

    Args:
        data: The data set.
        scanned: A pass over it.
        holders: Who holds which training example; None where there is no partition.
    """
    train, test = (
        Repeats(scanned.inputs[split][numbers], scanned.targets[split][numbers])
        for split, numbers in (("train", data.train_numbers), ("test", data.test_numbers))
    )
    yield from _leaked(data, train, test)
    yield from _repeated(data, "train", train)
    yield from _repeated(data, "test", test)
    if SCHEMAS[data.task].kind in ("class", "score", "tags"):
        yield from _contradicting(data, train)
    if holders is not None:
        yield from _shared(data, train, holders)


def _leaked(data: TextData, train: Repeats, test: Repeats) -> Iterator[Oddity]:
    both, total = in_both_splits(train, test), len(data.test_numbers)
    if both.count:
        remedy = "remove repeated rows from the file" if data.held_out else "remove them from one of the two"
        yield Oddity(
            "in-train-and-test",
            both.count,
            f"{both.count:,} of {number(total, 'test example')} {'has' if both.count == 1 else 'have'} a text of the "
            "training set",
            _text(data, "test", both.first),
            f"scores come out too high; {remedy}",
            minor=_is_minor(data, both.count, total),
        )


def _repeated(data: TextData, split: Split, part: Repeats) -> Iterator[Oddity]:
    again, total = repeated(part), len(part.inputs)
    if again.count:
        what = "training example" if split == "train" else "test example"
        yield Oddity(
            f"repeated-in-{split}",
            again.count,
            f"{again.count:,} of {number(total, what)} {'repeats' if again.count == 1 else 'repeat'} an earlier one",
            _text(data, split, again.first),
            "repeated rows count several times; remove them unless that is meant",
            minor=_is_minor(data, again.count, total),
        )


def _contradicting(data: TextData, train: Repeats) -> Iterator[Oddity]:
    wrong = contradicting(train)
    if wrong.count:
        what = {"class": "label", "score": "score"}.get(SCHEMAS[data.task].kind, "list of tags")
        yield Oddity(
            "contradicting-labels",
            wrong.count,
            f"{number(wrong.count, 'training text')} with more than one {what}",
            f"{_text(data, 'train', wrong.first)}{_targets(data, wrong.first, wrong.other)}",
            "correct them, or keep one",
            minor=_is_minor(data, wrong.count, len(train.inputs)),
        )


def _shared(data: TextData, train: Repeats, holders: Holders) -> Iterator[Oddity]:
    owners = holders.owners[data.train_numbers]
    shared = shared_by_clients(train, owners)
    if shared.count:
        one, other = (holders.name(int(owners[place])) for place in (shared.first, shared.other))
        yield Oddity(
            "shared-by-clients",
            shared.count,
            f"{number(shared.count, 'text')} held by more than one client",
            f"{_text(data, 'train', shared.first)} ({one} and {other})",
            "remove repeated rows if clients should not share texts",
            minor=_is_minor(data, shared.count, len(owners)),
        )


def _is_minor(data: TextData, count: int, total: int) -> bool:
    return count < total * (_MINOR_LINES if SCHEMAS[data.task].kind == "none" else _MINOR)


def _targets(data: TextData, first: int, other: int) -> str:
    """Return the two labels or scores of a text in brackets; nothing for lists of tags."""
    kind, target = SCHEMAS[data.task].kind, SCHEMAS[data.task].target
    if kind == "tags" or target is None:
        return ""
    column = data.column("train", data.columns[target])
    values = [column[int(data.train_numbers[place])].as_py() for place in (first, other)]
    return f" ({' and '.join(map(quoted, values))})"


def _text(data: TextData, split: Split, place: int) -> str:
    numbers = data.train_numbers if split == "train" else data.test_numbers
    return f'"{shortened(data.input_texts(split, numbers[place : place + 1])[0], LONGEST_EXAMPLE)}"'
