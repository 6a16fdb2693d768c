"""Whether a row can be an example of a task: one check per kind of target, called as rows are read."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fednlp.data.columns import LISTS
from fednlp.data.readers.checks import answers_fault, tags_fault
from fednlp.data.schema import SCHEMAS
from fednlp.data.store import Check, Fault, Row

_SHOWN = 40
# What any reader of numbers takes; other ways to write one are written anew.
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
# Only JSON with such an escape can hold half a surrogate pair, which no file can store.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def row_check(task: str, columns: Mapping[str, str], names: Sequence[str]) -> Check:
    """Return the check of a row for a task: it gives the row back, or what is wrong with it.

    Args:
        task: Its name.
        columns: The task's columns: own names by canonical ones.
        names: All columns of the row, in their order.

    >>> check = row_check("text-regression", {"text": "text", "score": "score"}, ["text", "score"])
    >>> check(["a", "0.5"])
    ['a', '0.5']
    >>> check(["a", "high"]).said
    "'high' in 'score' is no number: write one such as 3.5"
    """
    schema = SCHEMAS[task]
    places = {name: names.index(own) for name, own in columns.items()}
    needed = [(places[name], columns[name]) for name in schema.needed]
    lists = [(places[name], own) for name, own in columns.items() if name in LISTS]
    judge = _JUDGES[schema.kind](columns, places)

    def check(row: Row) -> Row | Fault:
        for place, own in needed:
            if row[place] is None:
                return Fault(f"{own!r} is missing: fill it in")
        found = judge(row)
        if found is None and lists:
            found = _surrogate_fault(row, lists)
        if isinstance(found, str):
            return Fault(found)
        return row if found is None else found

    return check


Judge = Callable[[Row], str | Row | None]
"""Says what is wrong with a row, or how it is to be written, or nothing where it is well."""


def _class(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    place, own = places["label"], columns["label"]
    return lambda row: None if _at(row, place).strip() else f"the label is missing: fill in {own!r}"


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
        answers = _spans(_at(row, place))
        fault = answers_fault(_at(row, context), answers)
        if fault is not None:
            return fault
        return None if answers == row[place] else _changed(row, place, answers)

    return judge


def _spans(answers: str) -> str:
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


def _references_fault(value: str, own: str) -> str | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and found and all(isinstance(item, str) and item.strip() for item in found):
        return None
    return f'{own!r} is not a JSON list of texts such as ["one summary", "another"]'


def _none(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    return lambda row: None


def _surrogate_fault(row: Row, lists: Sequence[tuple[int, str]]) -> str | None:
    for place, own in lists:
        value = _at(row, place)
        if _SURROGATE.search(value):
            try:
                json.dumps(json.loads(value), ensure_ascii=False).encode()
            except UnicodeEncodeError:
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
    "none": _none,
}
