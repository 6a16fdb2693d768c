"""Cells that hold JSON: the answers of a question, words and their tags, the references of a text."""

import json
import re
from typing import Any

from fednlp.formatting.units import plural

# Only JSON with such an escape can hold half a surrogate pair, which no file can store.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NO_ANSWER = "there is no answer, and questions without one (SQuAD 2.0) are not learnt"
_NO_LIST_OF_ANSWERS = (
    'the answers are not a JSON list: write [{"text": "...", "start": number}], where start is the position of the '
    "answer's first character in its context, counted from 0"
)


def answers_fault(context: str, answers: str) -> str | None:
    """Return what is wrong with a row's answers, or None: each must occur in the context at its position.

    Args:
        context: The text.
        answers: JSON as in :mod:`fednlp.formulations`.

    >>> answers_fault("built in 1912", '[{"text": "in 1912", "start": 6}]')
    >>> answers_fault("built in 1912", '[{"text": "1912", "start": 8}]')
    "the answer '1912' does not stand at character 8 of its context"
    >>> answers_fault("built in 1912", "[]")
    'there is no answer, and questions without one (SQuAD 2.0) are not learnt'
    """
    found = _list(answers)
    if not found:
        return _NO_ANSWER if found == [] else _NO_LIST_OF_ANSWERS
    for answer in found:
        text, start = (answer.get("text"), answer.get("start")) if isinstance(answer, dict) else (None, None)
        if not isinstance(text, str) or type(start) is not int:
            return 'an answer is not {"text": "...", "start": number}'
        if not text.strip():
            return "an answer is empty"
        if start < 0 or not context.startswith(text, start):
            return f"the answer {text[:60]!r} does not stand at character {start} of its context"
    return None


def valid_answers(context: str, answers: str) -> tuple[str, int]:
    """Return the answers that occur in the context at their positions, and the number of the others.

    >>> valid_answers("built in 1912", '[{"text": "1912", "start": 9}, {"text": "1912", "start": 8}]')
    ('[{"text": "1912", "start": 9}]', 1)
    """
    found = _list(answers) or []
    kept = [item for item in found if answers_fault(context, json.dumps([item])) is None]
    return json.dumps(kept, ensure_ascii=False), len(found) - len(kept)


def tags_fault(words: str, tags: str) -> str | None:
    """Return what is wrong with a row's words and tags, or None: two JSON lists of strings, one tag a word.

    >>> tags_fault('["EU", "rejects"]', '["B-ORG"]')
    '2 words and 1 tag: there must be one tag a word'
    >>> tags_fault('["EU", "rejects"]', "[3, 0]")
    'the tags are numbers: write their names instead, such as O and B-PER'
    """
    both = _list(words), _list(tags)
    for name, found in zip(("words", "tags"), both, strict=True):
        if found and name == "tags" and all(type(item) is int for item in found):
            return "the tags are numbers: write their names instead, such as O and B-PER"
        if found is None or not all(isinstance(item, str) for item in found):
            return (
                f"the {name} are not a JSON list of strings{_as_python(words if name == 'words' else tags)}"
            )
    assert both[0] is not None
    assert both[1] is not None
    if len(both[0]) != len(both[1]):
        return (
            f"{plural(len(both[0]), 'word')} and {plural(len(both[1]), 'tag')}: there must be one tag a word"
        )
    if not both[0]:
        return "there is no word"
    return None


def _as_python(value: str) -> str:
    """Return what to type where a list is written as Python shows it, and not as JSON."""
    return (
        ', such as ["EU", "rejects"]: of pandas, write the table with to_json(..., lines=True)'
        * value.startswith("['")
    )


def _list(value: str) -> list[Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def own_answers(answers: str) -> str:
    """Return answers as fednlp writes them, from SQuAD's own way or that of Hugging Face ``datasets``."""
    if "answer_start" not in answers:
        return answers
    try:
        found = json.loads(answers)
    except (ValueError, RecursionError):
        return answers
    if isinstance(found, dict) and isinstance(found.get("text"), list):
        starts = found.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(found["text"]):
            return answers
        found = [{"text": text, "start": start} for text, start in zip(found["text"], starts, strict=True)]
    elif isinstance(found, list):
        found = [_renamed(item) for item in found]
    return json.dumps(found, ensure_ascii=False)


def _renamed(answer: Any) -> Any:
    if not isinstance(answer, dict) or "start" in answer:
        return answer
    return {"text": answer.get("text"), "start": answer.get("answer_start")}


def references_fault(value: str, own: str) -> str | None:
    """Return what is wrong with a row's references, in the column ``own``, or None: a JSON list of texts."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and found and all(isinstance(item, str) and item.strip() for item in found):
        return None
    return f'{own!r} is not a JSON list of texts such as ["one summary", "another"]'


def has_half_surrogate(value: str) -> bool:
    """Return whether a JSON value has half a surrogate pair, which no file can store."""
    if not _SURROGATE.search(value):
        return False
    try:
        json.dumps(json.loads(value), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
