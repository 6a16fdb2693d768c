"""Checks of rows and of cells of JSON: whether a row can be an example of a task, one for each kind of target."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from fednlp.data.chats import conversation_fault
from fednlp.data.choices import choices_fault
from fednlp.data.columns import LISTS, check_columns, columns_of
from fednlp.data.label_names import label_name
from fednlp.data.store import Check, Fault, Row, Rows, View
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS

OnInvalidRow = Literal["refuse", "drop"]
"""What to do with a row that cannot be an example: refuse the file, or drop the row."""

_SHOWN = 40
# Only JSON with such an escape can hold half a surrogate pair, which no file can store.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NO_ANSWER = "there is no answer, and questions without one (SQuAD 2.0) are not learnt"
_NO_LIST_OF_ANSWERS = (
    'the answers are not a JSON list: write [{"text": "...", "start": number}], where start is the position of the '
    "answer's first character in its context, counted from 0"
)
# What any parser of numbers accepts; a number in another notation is rewritten.
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


def row_check(task: str, columns: Mapping[str, str], names: Sequence[str], unlabelled: bool = False) -> Check:
    """Return the check of a row for a task: it gives the row back, or what is wrong with it.

    Args:
        columns: The task's columns: own names by canonical ones.
        names: All columns of the row, in their order.
        unlabelled: Whether a row may lack its label, which is then empty.

    >>> check = row_check("text-regression", {"text": "text", "score": "score"}, ["text", "score"])
    >>> check(["a", "0.5"])
    ['a', '0.5']
    >>> check(["a", "high"]).message
    "'high' in 'score' is no number: write one such as 3.5"
    """
    schema = TASKS[task].schema
    places = {name: names.index(own) for name, own in columns.items()}
    given = [name for name in schema.needed if not (unlabelled and name == "label")]
    needed = [(places[name], columns[name], name == "label") for name in given]
    lists = [(places[name], own) for name, own in columns.items() if name in LISTS]
    judge = _JUDGES[schema.kind](columns, places)
    if unlabelled and "label" in places:
        judge = _or_empty(places["label"], judge)

    def check(row: Row) -> Row | Fault:
        for place, own, is_label in needed:
            if row[place] is None:
                return Fault(f"{own!r} is missing: fill it in", is_label)
        found = judge(row)
        if found is None and lists:
            found = _surrogate_fault(row, lists)
        if isinstance(found, str):
            return Fault(found)
        return row if found is None else found

    return check


Judge = Callable[[Row], str | Fault | Row | None]
"""Returns what is wrong with a row, or the row rewritten, or None where it is valid as it is."""


def _class(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    place, own = places["label"], columns["label"]
    fault = Fault(f"the label is missing: fill in {own!r}", no_label=True)

    def judge(row: Row) -> Fault | Row | None:
        label = _at(row, place)
        if not label.strip():
            return fault
        name = label_name(label)
        return None if name == label else _changed(row, place, name)

    return judge


def _or_empty(place: int, judge: Judge) -> Judge:
    """Have a blank label pass as an empty one."""
    return lambda row: judge(row) if _at(row, place).strip() else _changed(row, place, "")


def _score(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    place, own = places["score"], columns["score"]

    def judge(row: Row) -> str | Row | None:
        value = _at(row, place)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            return f"{value[:_SHOWN]!r} in {own!r} is no number: write one such as 3.5"
        return None if _PLAIN_NUMBER.fullmatch(value) else _changed(row, place, repr(number))

    return judge


def _changed(row: Row, place: int, value: str) -> Row:
    return [*row[:place], value, *row[place + 1 :]]


def _tags(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    words, tags = places["words"], places["tags"]

    def judge(row: Row) -> str | None:
        both = _at(row, words), _at(row, tags)
        fault = tags_fault(*both)
        if fault is not None:
            return f"{fault}, in {columns['words']!r} and {columns['tags']!r}"
        for value, name in zip(both, ("word", "tag"), strict=True):
            # The quotes of an empty string stand in the JSON; so they may at the end of a word of quotes.
            if '""' in value and not all(item.strip() for item in json.loads(value)):
                return f"a {name} is empty: write every word and its tag"
        return None

    return judge


def _answers(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    context, question, place = (places[name] for name in ("context", "question", "answers"))

    def judge(row: Row) -> str | Row | None:
        for name in (context, question):
            if not _at(row, name).strip():
                return f"the {'context' if name == context else 'question'} is empty: fill it in"
        answers = _own_answers(_at(row, place))
        fault = answers_fault(_at(row, context), answers)
        if fault is not None:
            return fault
        return None if answers == row[place] else _changed(row, place, answers)

    return judge


def _text(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    sides = [(places[name], columns[name]) for name in ("source", "target")]
    references = places.get("references")

    def judge(row: Row) -> str | None:
        for place, own in sides:
            if not _at(row, place).strip():
                return f"the text in {own!r} is empty: fill it in"
        if references is None or row[references] is None:
            return None
        return _references_fault(_at(row, references), columns["references"])

    return judge


def _messages(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    choices = places.get("choices")

    def judge(row: Row) -> str | None:
        fault = conversation_fault(_at(row, places["messages"]))
        if fault is not None or choices is None:
            return fault
        last = json.loads(_at(row, places["messages"]))[-1]["content"]
        return choices_fault(row[choices], columns["choices"], last)

    return judge


def _none(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    return lambda row: None


def _surrogate_fault(row: Row, lists: Sequence[tuple[int, str]]) -> str | None:
    for place, own in lists:
        if _has_half_surrogate(_at(row, place)):
            return f"half a surrogate pair (\\ud800 to \\udfff) in {own!r} is no character: remove it"
    return None


def _at(row: Row, place: int) -> str:
    return row[place] or ""


_JUDGES: Mapping[str, Callable[[Mapping[str, str], Mapping[str, int]], Judge]] = {
    "class": _class,
    "score": _score,
    "tags": _tags,
    "answers": _answers,
    "text": _text,
    "messages": _messages,
    "pairs": _none,  # as they were made (fednlp.data.preferences)
    "none": _none,
}


def named_columns(rows: Rows) -> tuple[str, Sequence[str]]:
    """Return the location of the column names, for messages, and the names.

    Raises:
        DataError: A name occurs twice.
    """
    where, names = rows.names_at or rows.shown, rows.names()
    check_columns(where, names)
    return where, names


def view_of(
    rows: Rows,
    task: str,
    configured: Mapping[str, str],
    on_invalid_row: OnInvalidRow,
    unlabelled: bool = False,
) -> View:
    """Return how rows are read for a task.

    Args:
        rows: The rows of the data set.
        configured: The user's own names of columns, by the canonical ones.
        on_invalid_row: Whether an invalid row is refused or dropped.
        unlabelled: Whether a row may lack its label.

    Raises:
        DataError: A column is missing.
    """
    where, names = named_columns(rows)
    optional = TASKS[task].schema.optional
    # One that is not needed may be in one of the files only.
    configured = {name: own for name, own in configured.items() if name not in optional or own in names}
    found = columns_of(where, names, task, configured)
    return View(
        task,
        {own: canonical for canonical, own in found.items()},
        lambda columns: row_check(task, found, columns, unlabelled),
        on_invalid_row == "drop",
        unlabelled,
    )


def answers_fault(context: str, answers: str) -> str | None:
    """Return what is wrong with a row's answers, or None: each must occur in the context at its position.

    Args:
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


def _own_answers(answers: str) -> str:
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


def _references_fault(value: str, own: str) -> str | None:
    """Return what is wrong with a row's references, in the column ``own``, or None: a JSON list of texts."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and found and all(isinstance(item, str) and item.strip() for item in found):
        return None
    return f'{own!r} is not a JSON list of texts such as ["one summary", "another"]'


def _has_half_surrogate(value: str) -> bool:
    """Return whether a JSON value has half a surrogate pair, which no file can store."""
    if not _SURROGATE.search(value):
        return False
    try:
        json.dumps(json.loads(value), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
