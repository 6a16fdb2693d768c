"""What a reader does not judge: whether what a row says can be true. One call a row; None means it can."""

import json
from typing import Any


def answers_fault(context: str, answers: str) -> str | None:
    """Say what is wrong with a row's answers, or None: each must stand in the context where it says.

    Args:
        context: The text.
        answers: JSON as in :mod:`fednlp.data.schema`.

    >>> answers_fault("built in 1912", '[{"text": "in 1912", "start": 6}]')
    >>> answers_fault("built in 1912", '[{"text": "1912", "start": 8}]')
    "the answer '1912' does not stand at character 8 of its context"
    >>> answers_fault("built in 1912", "[]")
    'there is no answer'
    """
    found = _list(answers)
    if not found:
        return "there is no answer" if found == [] else "the answers are not a JSON list"
    for answer in found:
        text, start = (answer.get("text"), answer.get("start")) if isinstance(answer, dict) else (None, None)
        if not isinstance(text, str) or type(start) is not int:
            return 'an answer is not {"text": "...", "start": number}'
        if not text.strip():
            return "an answer is empty"
        if start < 0 or not context.startswith(text, start):
            return f"the answer {text[:60]!r} does not stand at character {start} of its context"
    return None


def standing(context: str, answers: str) -> tuple[str, int]:
    """Return the answers that stand in the context where they say, and how many do not.

    >>> standing("built in 1912", '[{"text": "1912", "start": 9}, {"text": "1912", "start": 8}]')
    ('[{"text": "1912", "start": 9}]', 1)
    """
    found = _list(answers) or []
    kept = [item for item in found if answers_fault(context, json.dumps([item])) is None]
    return json.dumps(kept, ensure_ascii=False), len(found) - len(kept)


def tags_fault(words: str, tags: str) -> str | None:
    """Say what is wrong with a row's words and tags, or None: two JSON lists of strings, one tag a word.

    >>> tags_fault('["EU", "rejects"]', '["B-ORG"]')
    '2 words and 1 tags: there must be one tag a word'
    """
    both = _list(words), _list(tags)
    for name, found in zip(("words", "tags"), both, strict=True):
        if found is None or not all(isinstance(item, str) for item in found):
            return f"the {name} are not a JSON list of strings"
    assert both[0] is not None
    assert both[1] is not None
    if len(both[0]) != len(both[1]):
        return f"{len(both[0])} words and {len(both[1])} tags: there must be one tag a word"
    if not both[0]:
        return "there is no word"
    return None


def _list(value: str) -> list[Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None
