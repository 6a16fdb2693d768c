"""A look at a data set before anything is trained on it: what it is in figures, and what is odd about it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fednlp.data.facts import Facts, columns_text, count_labels, facts_of, scripts_text, with_tokens
from fednlp.data.odd_labels import odd_labels
from fednlp.data.odd_texts import CutOff, Holders, cut_off, empty_texts, repeats_of
from fednlp.data.oddity import LONGEST_EXAMPLE, Oddity, quoted
from fednlp.data.scan import scan
from fednlp.data.split import Numbers
from fednlp.data.textdata import TextData

_MOST_LINES = 8
_FEW_LABELS = 5
_ORDER = (
    "misread",
    "label-per-row",
    "one-label",
    "numeric-labels",
    "similar-labels",
    "in-train-and-test",
    "contradicting-labels",
    "empty-texts",
    "cut-off",
    "test-only-labels",
    "repeated-in-train",
    "repeated-in-test",
    "shared-by-clients",
    "single-example-labels",
)
"""Kinds of oddities, the most serious first."""


@dataclass(frozen=True)
class Look:
    """What a data set is.

    Attributes:
        facts: How it was read, its labels, the lengths of its texts, some examples.
        oddities: What is odd about it, the most serious first.
    """

    facts: Facts
    oddities: tuple[Oddity, ...]

    def values(self, texts: bool = True) -> dict[str, Any]:
        """Return everything as values that JSON can hold.

        Args:
            texts: Whether to show examples; without them no text of the data is in it.
        """
        found = {**asdict(self.facts), "oddities": [asdict(oddity) for oddity in self.oddities]}
        if not texts:
            del found["examples"]
            for oddity in found["oddities"]:
                del oddity["example"]
        return found

    def lines(self) -> list[str]:
        """Return the look in at most eight lines: how the data were read, labels, lengths, warnings."""
        lines = [_read_line(self.facts), *_target_lines(self.facts, _FEW_LABELS), _length_line(self.facts)]
        serious = [str(oddity) for oddity in self.oddities if not oddity.minor]
        room = _MOST_LINES - len(lines)
        shown = serious if len(serious) <= room else serious[: room - 1]
        lines += shown
        if more := len(serious) - len(shown):
            lines.append(f"and {more} more warning{'' if more == 1 else 's'}: fednlp data info lists them")
        return lines

    def page(self) -> str:
        """Return the look in full."""
        facts = self.facts
        rows: list[tuple[str, str]] = [
            ("name", facts.name),
            ("source", facts.source),
            *(("found", note) for note in facts.notes),
            ("task", facts.task),
            ("columns", columns_text(facts.columns)),
            ("other columns", ", ".join(facts.others) or "none"),
            ("examples", _sizes(facts)),
        ]
        if facts.dropped:
            rows.append(("rows left out", f"{facts.dropped:,}"))
        rows += _target_rows(facts)
        rows += [(f"{name}, characters", str(spread)) for name, spread in facts.characters.items()]
        rows += [(f"{name}, words", str(spread)) for name, spread in facts.words.items()]
        rows.append(("scripts", scripts_text(facts.scripts)))
        for number, example in enumerate(facts.examples, 1):
            rows += [(f"example {number}, {name}", value) for name, value in example.items()]
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        lines += [str(oddity) for oddity in self.oddities] or ["nothing odd was found"]
        return "\n".join(lines)


def look(
    data: TextData,
    holders: Holders | None = None,
    tokens: Numbers | None = None,
    cut: CutOff | None = None,
) -> Look:
    """Look at a data set.

    Texts are gone through once; 16 bytes an example are kept of them meanwhile.

    Args:
        data: The data set.
        holders: Who holds which training example, to find texts that several clients hold.
        tokens: How many tokens the model reads of each example, int64; left out where no model is known.
        cut: What the model does not read of long texts.
    """
    scanned, counts = scan(data), count_labels(data)
    facts = facts_of(data, scanned, counts)
    if tokens is not None:
        facts = with_tokens(facts, tokens)
    found = [*odd_labels(data, counts), *empty_texts(data, scanned), *repeats_of(data, scanned, holders)]
    if cut is not None and cut.texts:
        found.append(cut_off(cut))
    found.sort(key=lambda oddity: (oddity.minor, _ORDER.index(oddity.kind)))
    return Look(facts, tuple(found))


def _read_line(facts: Facts) -> str:
    return f"data: {facts.name} read as {facts.task} ({columns_text(facts.columns)}): {_sizes(facts)}"


def _sizes(facts: Facts) -> str:
    held = " (held out of the same file)" if facts.held_out else ""
    return f"{facts.train:,} training and {facts.test:,} test examples{held}"


def _target_lines(facts: Facts, most: int) -> Iterator[str]:
    if facts.num_labels is not None:
        named = ", ".join(
            f"{_visible(label.name)} {label.train + label.test:,}" for label in facts.labels[:most]
        )
        more = facts.num_labels - min(most, len(facts.labels))
        word = "tags" if facts.task == "token-classification" else "labels"
        yield f"{word}: {facts.num_labels:,}: {named}{f' and {more:,} more' if more else ''}"
    elif facts.scores is not None:
        yield f"scores: {_scores(facts.scores)}"


def _target_rows(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts.scores is not None:
        yield "scores", _scores(facts.scores)
    if facts.num_labels is None:
        return
    yield ("tags" if facts.task == "token-classification" else "labels"), f"{facts.num_labels:,}"
    for label in facts.labels:
        yield f"  {_visible(label.name)}", f"{label.train:,} training, {label.test:,} test"
    if facts.num_labels > len(facts.labels):
        yield "", f"and {facts.num_labels - len(facts.labels):,} more"


def _visible(name: str) -> str:
    """Return a label so that blanks around it show."""
    return quoted(name) if name != name.strip() or len(name) > LONGEST_EXAMPLE else name


def _scores(scores: Sequence[float]) -> str:
    low, middle, high = scores
    return f"{low:g} to {high:g}, median {middle:g}"


def _length_line(facts: Facts) -> str:
    if facts.tokens is not None:
        return f"lengths: {facts.tokens} tokens; script: {scripts_text(facts.scripts)}"
    said = "; ".join(f"{name} {spread} words" for name, spread in facts.words.items())
    return f"lengths: {said}; script: {scripts_text(facts.scripts)}"
