"""The scores of SQuAD: by hand, and as an implementation in other words has them."""

import gzip
import itertools
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.tasks.question_answering import best_scores, exact_match, normalised, token_f1


def words_of(text: str) -> list[str]:
    """The rules again, letter by letter: a word is what has no space in it, once ASCII punctuation is gone.

    An article is a run of letters, digits and underscores that is "a", "an" or "the"; a letter is what Python's
    regular expressions take for one.
    """
    kept = "".join(ch for ch in text.lower() if not (ch.isascii() and unicodedata.category(ch)[0] in "PS"))
    runs = ["".join(run) for _, run in itertools.groupby(kept, key=lambda ch: ch.isalnum() or ch == "_")]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def f1_of(prediction: str, gold: str) -> float:
    """F1 by striking out matched words one at a time."""
    guess, left = words_of(prediction), words_of(gold)
    total, same = len(left), 0
    for word in guess:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(guess), same / total
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("  an\tapple,  a day\n", "apple day"),
        ("U.S.", "us"),
        ("a.n.", ""),  # punctuation goes first, and what is left is an article
        ("theatre", "theatre"),
        ("the-end", "theend"),
        ("“the” end", "“ ” end"),  # quotes beyond ASCII stay, as in the official script
        ("Über A", "über"),
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("Denver Broncos", "the Denver Broncos!", 1, 1),
        ("Broncos", "Denver Broncos", 0, 2 / 3),
        ("a b c d", "c d e", 0, 2 * (2 / 3) * (2 / 3) / (2 / 3 + 2 / 3)),  # without the article: b c d
        ("no no no", "no", 0, 0.5),
        ("", "Denver", 0, 0),
        ("the", "A", 1, 0),  # both empty: version 1.1 gives no F1 for it
    ],
)
def test_by_hand(prediction: str, gold: str, exact: float, f1: float) -> None:
    assert exact_match(prediction, gold) == exact
    assert token_f1(prediction, gold) == pytest.approx(f1, abs=1e-12)


@given(
    *[st.lists(st.sampled_from(["the", "A", "an", "cat", "Cat.", "-", "x-ray", "été", "_the", "$5", " "]))]
    * 2
)
def test_as_in_other_words(first: list[str], second: list[str]) -> None:
    prediction, gold = " ".join(first), " ".join(second)
    assert normalised(prediction).split() == words_of(prediction)
    assert token_f1(prediction, gold) == pytest.approx(f1_of(prediction, gold), abs=1e-12)
    assert exact_match(prediction, gold) == (words_of(prediction) == words_of(gold))


@given(st.text(), st.text())
def test_bounds_and_symmetry(first: str, second: str) -> None:
    assert 0 <= token_f1(first, second) <= 1
    assert token_f1(first, second) == pytest.approx(token_f1(second, first), abs=1e-12)
    assert exact_match(first, first) == 1
    assert token_f1(first, first) == float(bool(normalised(first)))


def test_best_over_golds() -> None:
    assert best_scores("Broncos", ["Denver", "Denver Broncos", "the Broncos"]) == (1, 1)
    assert best_scores("Broncos", ["Denver", "Denver Broncos"]) == pytest.approx((0, 2 / 3))
    assert best_scores("Broncos", []) == (0, 0)


def test_real_answers(data_folder: Path) -> None:
    answers = []
    for name in ("xquad/xquad.en.json", "xquad/xquad.de.json", "squadshifts/squaddev_v1.1.json.gz"):
        raw = (data_folder / name).read_bytes()
        read = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
        for article in read["data"]:
            for paragraph in article["paragraphs"]:
                answers += [[answer["text"] for answer in qa["answers"]] for qa in paragraph["qas"]]
    assert len(answers) > 10_000
    for golds in answers:
        for one, other in itertools.pairwise([*golds, answers[0][0]]):
            assert normalised(one).split() == words_of(one), one
            assert token_f1(one, other) == pytest.approx(f1_of(one, other), abs=1e-12)
