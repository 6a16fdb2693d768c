"""Spans in sequences of BIO tags, and the counts that precision, recall and F1 are made of."""

from collections.abc import Iterator, Sequence

Span = tuple[str, int, int]
"""Type, first word, and the word after the last."""


def spans(tags: Sequence[str], *, strict: bool = False) -> set[Span]:
    """Return the spans that a sentence's tags mark.

    Args:
        tags: One a word: ``O``, or a letter and a type such as ``B-creative-work``. A type may be absent.
        strict: IOB2 to the letter: a span begins with B and goes on with I of the same type, and an I that
            follows neither belongs to none. Otherwise as ``conlleval`` and seqeval read them (Tjong Kim Sang
            and De Meulder 2003): such an I begins a span; E and S (IOBES) end one.

    >>> sorted(spans(["B-PER", "I-PER", "O", "I-LOC"]))
    [('LOC', 3, 4), ('PER', 0, 2)]
    >>> spans(["B-PER", "I-PER", "O", "I-LOC"], strict=True)
    {('PER', 0, 2)}
    """
    return set(_strict(tags) if strict else _lenient(tags))


def counts(gold: Sequence[str], predicted: Sequence[str], *, strict: bool = False) -> tuple[int, int, int]:
    """Return how many spans of a sentence are right, predicted, and gold; right is type and both ends.

    >>> counts(["B-A", "I-A", "O"], ["B-A", "O", "B-B"])
    (0, 2, 1)
    """
    true, guess = spans(gold, strict=strict), spans(predicted, strict=strict)
    return len(true & guess), len(guess), len(true)


def _lenient(tags: Sequence[str]) -> Iterator[Span]:
    begin, before, kind = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        letter, own = tag[:1] or "O", tag[1:].split("-", 1)[-1] or "_"
        inside = before != "O"
        goes_on = inside and letter not in "OBS" and before not in "ES" and own == kind
        if inside and not goes_on:
            yield kind, begin, place
        if not goes_on:
            begin = place
        before, kind = letter, own


def _strict(tags: Sequence[str]) -> Iterator[Span]:
    begin, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        letter, own = tag[:1], tag[1:].strip("-") or "_"
        if kind and not (letter == "I" and own == kind):
            yield kind, begin, place
            kind = ""
        if letter == "B":
            begin, kind = place, own
