"""Issues of the labels of a data set, and labels that are no classes at all."""

import difflib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from statistics import median
from typing import Any

import numpy as np

from fednlp.data.split import Numbers
from fednlp.data.textdata import Split, TextData
from fednlp.errors import DataError
from fednlp.formatting.units import plural

LONGEST_EXAMPLE = 40
"""Characters of a text or label that a sentence shows."""

_SAMPLE = 200
_FEWEST_ROWS = 10
_WORDS, _CHARACTERS = 6, 40
_MANY_NUMBERS = 30
_FEWEST_SCORES = 3
_JOINING_MARKS = ",;|/+& "
_TAG = re.compile(r"[BIESLU]-\S+")
_MINOR = 0.01
_FEWEST_UNTESTED = 5
_MOST_SHOWN, _MOST_COMPARED = 10, 1000
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})  # as German is written without them
# A typing error of 4 letters or more, at most one letter in five, at most a fifth as often as what is meant.
_SHORTEST, _NEARNESS, _RARER = 4, 0.85, 5
MISSING_WORDS = {
    "nan",
    "none",
    "null",
    "nil",
    "na",
    "n/a",
    "#n/a",
    "<na>",
    "nat",
    "missing",
    "empty",
    "undefined",
    "-",
    "--",
    "?",
}
_PLAIN_NUMBER = re.compile(r"[+-]?\d{1,12}(\.\d{1,12})?(e[+-]?\d{1,2})?", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)\s*")


@dataclass(frozen=True)
class Issue:
    """Something about the data that is probably not intended.

    Attributes:
        kind: Its kind, in a word for programs.
        count: How many labels, texts or examples there are of it.
        message: What is unusual, for people, with the number.
        example: One of them, quoted, a text cut short.
        remedy: What follows from it, and what to do.
        minor: Whether it concerns so few examples that results hardly change: published data sets often have it.
    """

    kind: str
    count: int
    message: str
    example: str
    remedy: str
    minor: bool = False

    def __str__(self) -> str:
        such = f", such as {self.example}" if self.example else ""
        return f"{'note' if self.minor else 'warning'}: {self.message}{such}: {self.remedy}"

    def values(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        found = asdict(self)
        return {("said" if name == "message" else name): value for name, value in found.items()}


def quoted(name: str) -> str:
    """Return a label as it is typed, so that blanks show; its beginning where it is long."""
    return repr(name if len(name) <= LONGEST_EXAMPLE else f"{name[:LONGEST_EXAMPLE]}…")


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.0123), percent(0.5)
    ('1.2 %', '50 %')
    """
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


@dataclass(frozen=True)
class MisreadLabels:
    """Why a column is probably not one of labels, a value of it, and what to type instead."""

    message: str
    example: str
    remedy: str


def check_labels(data: TextData) -> None:
    """Refuse labels that do not look like labels, where the task was inferred from the columns.

    Raises:
        DataError: They are lists, or texts; the message names the task that is probably meant.
    """
    fault = _misread_labels(data)
    if fault is not None:
        raise DataError(f"{data.source}: {fault.message}, such as {fault.example}: {fault.remedy}")


def _misread_labels(data: TextData) -> MisreadLabels | None:
    """Return why a column is probably not one of labels; None where it may be.

    It is not where all values are lists in brackets (words and tags, several labels an example), or where nearly
    every example has its own value and the values are as long as sentences.
    """
    if data.schema.kind != "class":
        return None
    names, label = data.label_names, data.columns["label"]
    if names and all(map(_is_list, names)):
        return MisreadLabels(f"the labels in {label!r} are lists", quoted(names[0]), _remedy_of_lists(data))
    if mark := _joined_by(names):
        joined = max((name for name in names if mark in name), key=lambda name: name.count(mark))
        return MisreadLabels(
            f"the labels in {label!r} are several in one, with {mark!r} between them",
            quoted(joined),
            'an example has one label: keep one in each row, or say task.name = "text-classification" to take each '
            "combination for a label of its own",
        )
    if len(names) > 1 and "O" in names and all(name == "O" or _TAG.fullmatch(name) for name in names):
        return MisreadLabels(
            f"the labels in {label!r} are tags of words",
            quoted(names[-1]),
            "write a word and its tag on each line of a .conll file, with a blank line between sentences",
        )
    rows = len(data.train_numbers) + len(data.test_numbers)
    if rows >= _FEWEST_ROWS and len(names) >= 0.9 * rows and _are_long(names):
        return MisreadLabels(
            f"the labels in {label!r} are free text, {len(names):,} different ones for {rows:,} examples",
            quoted(names[0]),
            f"for texts to be written {_instead(data, 'sequence-to-sequence', 'source', 'target')}; for classes "
            "choose another column for the label",
        )
    return None


def _joined_by(names: Sequence[str]) -> str:
    """Return what separates several labels in one; empty where each is one.

    All parts of joined names are labels of their own, or parts of several names in more than one place. So "Arts,
    Culture" is one label, and so are the combinations of two properties, "high/new" and "low/old".

    >>> _joined_by(["joy", "anger", "anger,joy"]), _joined_by(["joy|anger", "fear|joy", "anger|fear"])
    (',', '|')
    >>> _joined_by(["Arts, Culture", "Sport"]), _joined_by(["a/x", "a/y", "b/x", "b/y"])
    ('', '')
    """
    if len(names) > _MOST_COMPARED:
        return ""
    whole = set(names)
    for mark in _JOINING_MARKS:
        joined = [[part.strip() for part in name.split(mark)] for name in names if mark in name.strip()]
        places: dict[str, set[int]] = {}
        for parts in joined:
            for place, part in enumerate(parts):
                places.setdefault(part, set()).add(place)
        parts = [part for one in joined for part in one]
        fits = sum(part != "" and (part in whole or len(places[part]) > 1) for part in parts)
        if len(joined) >= (3 if mark == " " else 1) and 5 * fits >= 4 * len(parts) and len(places) > 1:
            return mark
    return ""


def _remedy_of_lists(data: TextData) -> str:
    if all(map(_is_list, data.input_texts("train", data.train_numbers[:_SAMPLE]))):
        return f"for words and their tags {_instead(data, 'token-classification', 'words', 'tags')}"
    return "classification takes one label an example; put one into each row"


def _instead(data: TextData, task: str, *names: str) -> str:
    """Return what to type for another task with the same two columns; columns of its own names are found."""
    own = (data.columns["text"], data.columns["label"])
    given = ", ".join(f'{name} = "{one}"' for name, one in zip(names, own, strict=True) if name != one)
    typed = f'say task.name = "{task}"' + (f" and columns = {{{given}}}" if given else "")
    return typed if own == ("text", "label") else f"{typed}, and leave text and label out"


def _is_list(value: str) -> bool:
    stripped = value.strip()
    return stripped.startswith("[") and stripped.endswith("]")


def _are_long(names: tuple[str, ...]) -> bool:
    sample = names[:: max(1, len(names) // _SAMPLE)]
    words, characters = median(len(name.split()) for name in sample), median(map(len, sample))
    return words >= _WORDS or characters >= _CHARACTERS


def label_issues(data: TextData, counts: Mapping[Split, Numbers]) -> Iterator[Issue]:
    """Yield the issues of labels or tags; where the column does not hold any, that alone.

    Args:
        counts: Examples of each label (words of each tag) by split.
    """
    kind, names = data.schema.kind, data.label_names
    if kind == "tags":
        yield from _unseen(names, counts, "tag", "word")
    if kind != "class":
        return
    column, rows = data.columns["label"], len(data.train_numbers) + len(data.test_numbers)
    unfit = _no_classes(data, column, rows)
    if unfit is not None:
        yield unfit
        return
    if len(names) == 1:
        yield Issue(
            "one-label",
            1,
            "every example has the same label",
            quoted(names[0]),
            "a model learns nothing from it; add examples of other labels, or choose another column for the label",
        )
    both = counts["train"] + counts["test"]
    yield from _missing(names, both)
    yield from _similar(names, both)
    yield from _single(names, both)
    yield from _unseen(names, counts, "label", "example")


def _no_classes(data: TextData, column: str, rows: int) -> Issue | None:
    """Return why a column of labels holds no classes, if it seems so."""
    names = data.label_names
    if fault := _misread_labels(data):
        return Issue("misread", len(names), fault.message, fault.example, fault.remedy)
    if _are_a_scale(names, rows):
        return Issue(
            "numeric-labels",
            len(names),
            f"{len(names):,} labels that are all numbers",
            quoted(names[len(names) // 2]),
            f'if {column!r} is a score, use task.name = "text-regression" with columns = {{score = "{column}"}}; if it '
            "numbers the examples, choose another column for the label",
        )
    if rows >= _FEWEST_ROWS and 2 * len(names) > rows:
        return Issue(
            "label-per-row",
            len(names),
            f"{len(names):,} labels for {rows:,} examples",
            quoted(names[0]),
            f"the column {column!r} does not group examples into classes; choose another column for the label",
        )
    return None


def _are_a_scale(names: Sequence[str], rows: int) -> bool:
    """Say whether labels are numbers of a scale: fractions, or too many of them for the examples."""
    if len(names) < _FEWEST_SCORES or not all(_NUMBER.fullmatch(name) for name in names):
        return False
    if any(not float(name).is_integer() for name in names):
        return True
    return len(names) > _MANY_NUMBERS and 10 * len(names) > rows


def _unseen(names: Sequence[str], counts: Mapping[Split, Numbers], what: str, unit: str) -> Iterator[Issue]:
    """Find labels that only one of the sets has."""
    other: dict[Split, Split] = {"test": "train", "train": "test"}
    said = {
        "test": ("test", "training", "always counted as errors; add training examples, or leave them out"),
        "train": ("training", "the test set", "never tested; if they are no labels, leave them out"),
    }
    for split, lacking in other.items():
        unseen = np.flatnonzero((counts[lacking] == 0) & (counts[split] > 0))
        if not len(unseen) or (split == "train" and not counts["test"].sum()):
            continue
        if split == "train" and what == "label":  # a rare label may well be held out of no example
            unseen = unseen[counts["train"][unseen] >= _FEWEST_UNTESTED]
            if not len(unseen):
                continue
        first = int(unseen[np.argmax(counts[split][unseen])])
        there, absent, remedy = said[split]
        option = f' with data.labels_map = {{ {_key(names[first])} = "" }}' if what == "label" else ""
        yield Issue(
            f"{split}-only-labels",
            len(unseen),
            f"{plural(len(unseen), what)} in the {there} set that {absent} does not have"
            if split == "test"
            else f"{plural(len(unseen), what)} in {there} that {absent} does not have",
            f"{quoted(names[first])} ({plural(int(counts[split][first]), unit)})",
            f"{remedy}{option}",
            minor=what == "tag" and split == "train",
        )


def _missing(names: Sequence[str], counts: Numbers) -> Iterator[Issue]:
    """Find labels that programs write where there is none."""
    found = [place for place, name in enumerate(names) if is_missing_word(name)]
    if found and len(found) < len(names):
        first = max(found, key=lambda place: int(counts[place]))
        count = int(counts[found].sum())
        yield Issue(
            "missing-value-labels",
            count,
            f"{plural(count, 'example')} with a label that programs write where there is none",
            quoted(names[first]),
            "it is learnt as a label; if it is none, leave its examples out with data.labels_map = "
            f'{{ {_key(names[first])} = "" }}',
        )


def is_missing_word(value: str) -> bool:
    """Say whether a value is what programs and people write where there is none.

    >>> [is_missing_word(value) for value in ("NaN", "<NA>", " n/a ", "-", "none of these", "no")]
    [True, True, True, True, False, False]
    """
    return value.strip().casefold() in MISSING_WORDS


def _key(name: str) -> str:
    """Return a label as a key of a table of TOML.

    >>> _key("a b"), _key('say "a"')
    ('"a b"', '"say \\\\"a\\\\""')
    """
    return json.dumps(name, ensure_ascii=False)


def _similar(names: Sequence[str], counts: Numbers) -> Iterator[Issue]:
    """Find labels that differ by case, blanks or Unicode form alone, are one number, or are nearly one word."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(_folded(name), []).append(place)
    alike = [group for group in groups.values() if len(group) > 1]
    if alike:
        count = sum(map(len, alike))
        yield Issue(
            "similar-labels",
            count,
            f"{count:,} labels differ from another only by case, blanks, Unicode form or how a number is written",
            " and ".join(quoted(names[place]) for place in alike[0][:2]),
            f"they are learnt as different labels; join them with {_joining(names, counts, alike)}",
        )
    near = _near(names, counts, groups)
    if near:
        yield Issue(
            "near-labels",
            len(near),
            f"{plural(len(near), 'label')} nearly equal to a more frequent one",
            " beside ".join(quoted(names[place]) for place in near[0]),
            "if they are typing errors, join them with "
            + _joining(names, counts, [list(pair) for pair in near]),
        )


def _folded(name: str) -> str:
    """Return what is equal for labels that differ by case, blanks or Unicode form; of a number, its value.

    >>> [_folded(name) for name in ("Yes ", "01", "+1", "1e0", "true", "1.50", "v01")]
    ['yes', '1', '1', '1', '1', '1.5', 'v01']
    """
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    folded = {"true": "1", "false": "0"}.get(folded, folded)
    return str(Decimal(folded).normalize()) if _PLAIN_NUMBER.fullmatch(folded) else folded


def _joining(names: Sequence[str], counts: Numbers, groups: Sequence[Sequence[int]]) -> str:
    """Return the option that joins the labels of each group to the most frequent of them; of many, the first ones."""
    pairs = [
        f"{_key(names[place])} = {_key(names[kept])}"
        for group in groups
        for kept in [max(group, key=lambda place: int(counts[place]))]
        for place in group
        if place != kept
    ]
    more = f" and so on, {len(pairs)} in all" if len(pairs) > _MOST_SHOWN else ""
    return f"data.labels_map = {{ {', '.join(pairs[:_MOST_SHOWN])} }}{more}"


def _near(
    names: Sequence[str], counts: Numbers, groups: Mapping[str, Sequence[int]]
) -> list[tuple[int, int]]:
    """Return rare labels with the frequent label that each may be meant to be, both without digits.

    Two labels that both occur often are no typing errors of each other, and a label that is as near to one as to
    another may be meant to be either: nothing is proposed for them.
    """
    if len(names) > _MOST_COMPARED:
        return []
    words = {
        name: group
        for name, group in groups.items()
        if len(name) >= _SHORTEST and not any(map(str.isdigit, name))
    }
    plain = {name: name.translate(_UMLAUTS) for name in words}
    frequent = {name: max(group, key=lambda place: int(counts[place])) for name, group in words.items()}
    found: dict[int, int] = {}
    for name, group in words.items():
        rare = max(int(counts[place]) for place in group)
        others: dict[str, list[int]] = {}
        for one, place in frequent.items():
            if one != name and int(counts[place]) >= _RARER * rare:
                others.setdefault(plain[one], []).append(place)
        nearest = difflib.get_close_matches(plain[name], others, 2, _NEARNESS)
        ratios = [difflib.SequenceMatcher(a=one, b=plain[name]).ratio() for one in nearest]
        if nearest and len(set(ratios)) == len(ratios) and len(others[nearest[0]]) == 1:
            found |= dict.fromkeys(group, others[nearest[0]][0])
    return [(place, _end_of(target, found)) for place, target in found.items()]


def _end_of(place: int, joined: Mapping[int, int]) -> int:
    """Return the label that one comes to, where the one that it is joined to is joined itself."""
    while place in joined:
        place = joined[place]
    return place


def _single(names: Sequence[str], counts: Numbers) -> Iterator[Issue]:
    once = np.flatnonzero(counts == 1)
    if len(once):
        yield Issue(
            "single-example-labels",
            len(once),
            f"{plural(len(once), 'label')} with a single example",
            quoted(names[int(once[0])]),
            "it is either trained on or tested, never both; add examples, or merge rare labels",
            minor=len(once) < _MINOR * int(counts.sum()),
        )
