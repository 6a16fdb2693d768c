"""Whether what a row says can be true."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.checks import answers_fault, tags_fault


@given(st.text(min_size=1), st.data())
def test_a_piece_of_the_context_stands_where_it_was_cut(context: str, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(context) - 1))
    last = data.draw(st.integers(first, len(context) - 1))
    text = context[first : last + 1]
    answers = json.dumps([{"text": text, "start": first}])
    assert (answers_fault(context, answers) is None) == bool(text.strip())
    wrong = json.dumps([{"text": text + "x", "start": len(context) - len(text)}])
    assert answers_fault(context, wrong) is not None


FAULTS = {
    '[{"text": "a", "start": -3}]': "does not stand at character -3",
    '[{"text": " ", "start": 1}]': "an answer is empty",
    '[{"text": "a"}]': "an answer is not",
    '[{"text": "a", "start": true}]': "an answer is not",
    "[1]": "an answer is not",
    "[]": "there is no answer",
    "{}": "the answers are not a JSON list",
    "[": "the answers are not a JSON list",
    "[" * 100_000: "the answers are not a JSON list",
}


@pytest.mark.parametrize("answers", FAULTS, ids=range(len(FAULTS)))
def test_answers_that_cannot_be(answers: str) -> None:
    assert FAULTS[answers] in (answers_fault("a a", answers) or "")


@pytest.mark.parametrize(
    ("words", "tags", "fault"),
    [
        ('["a", "b"]', '["O", "O"]', None),
        ('["a", "b"]', '["O"]', "2 words and 1 tag"),
        ('["a", 1]', '["O", "O"]', "the words are not"),
        ('["a"]', '"O"', "the tags are not"),
        ("[]", "[]", "there is no word"),
    ],
)
def test_words_and_tags(words: str, tags: str, fault: str | None) -> None:
    found = tags_fault(words, tags)
    assert found is None if fault is None else fault in (found or "")
