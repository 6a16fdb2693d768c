"""Spans of BIO tags are those of seqeval, in both modes, whatever the tags."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.tasks.spans import counts, spans

TYPES = ["A", "PER", "creative-work", "I", "x-", "-y", "_"]


def tags(letters: str) -> st.SearchStrategy[str]:
    marked = st.builds("{}-{}".format, st.sampled_from(letters), st.sampled_from(TYPES))
    return st.one_of(st.just("O"), marked, st.sampled_from(letters))


def pairs(letters: str) -> st.SearchStrategy[list[tuple[list[str], list[str]]]]:
    """Sentences of up to nine words, each with two taggings, one often much like the other."""
    word = st.tuples(tags(letters), tags(letters)) | tags(letters).map(lambda tag: (tag, tag))
    sentence = st.lists(word, max_size=9).map(lambda words: ([a for a, _ in words], [b for _, b in words]))
    return st.lists(sentence, min_size=1, max_size=5)


def figures(sentences: list[tuple[list[str], list[str]]], *, strict: bool) -> tuple[float, float, float]:
    right, predicted, gold = map(sum, zip(*(counts(a, b, strict=strict) for a, b in sentences), strict=True))
    return (
        right / predicted if predicted else 0.0,
        right / gold if gold else 0.0,
        2 * right / (predicted + gold) if predicted + gold else 0.0,
    )


def of_seqeval(sentences: list[tuple[list[str], list[str]]], **mode: Any) -> list[float]:
    from seqeval.metrics import f1_score, precision_score, recall_score

    gold, guess = [a for a, _ in sentences], [b for _, b in sentences]
    return [
        score(gold, guess, zero_division=0, **mode) for score in (precision_score, recall_score, f1_score)
    ]


@given(pairs("BIES"))
def test_equal_to_seqeval(sentences: list[tuple[list[str], list[str]]]) -> None:
    assert figures(sentences, strict=False) == pytest.approx(of_seqeval(sentences), abs=1e-9)


@given(pairs("BI"))
def test_equal_to_strict_seqeval(sentences: list[tuple[list[str], list[str]]]) -> None:
    from seqeval.scheme import IOB2

    expected = of_seqeval(sentences, mode="strict", scheme=IOB2)
    assert figures(sentences, strict=True) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("sentence", "lenient", "strict"),
    [
        ([], set(), set()),
        (["O", "O"], set(), set()),
        (["B-A", "B-A"], {("A", 0, 1), ("A", 1, 2)}, {("A", 0, 1), ("A", 1, 2)}),
        (["B-A", "I-B", "I-B"], {("A", 0, 1), ("B", 1, 3)}, {("A", 0, 1)}),
        (["I-A", "I-A"], {("A", 0, 2)}, set()),
        (["B-a-b", "I-a-b"], {("a-b", 0, 2)}, {("a-b", 0, 2)}),
        (["S-A", "E-A"], {("A", 0, 1), ("A", 1, 2)}, set()),
        (["", "B-A"], {("A", 1, 2)}, {("A", 1, 2)}),  # nothing is outside
    ],
)
def test_by_hand(sentence: list[str], lenient: set[object], strict: set[object]) -> None:
    assert spans(sentence) == lenient
    assert spans(sentence, strict=True) == strict


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["A", "B", ""]))))
def test_well_formed_tags_read_back(pieces: list[tuple[int, str]]) -> None:
    written: list[str] = []
    expected = set()
    for length, kind in pieces:
        if kind:
            expected.add((kind, len(written), len(written) + length))
            written += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
        else:
            written += ["O"] * length
    assert spans(written) == spans(written, strict=True) == expected
