"""Checks of rows: whether a row can be an example of a task, one check for each kind of target."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fednlp.data.columns import LISTS, check_columns, columns_of
from fednlp.data.json_cells import (
    answers_fault,
    has_half_surrogate,
    own_answers,
    references_fault,
    tags_fault,
)
from fednlp.data.label_names import label_name
from fednlp.data.store import Check, Fault, Row, Rows, View
from fednlp.formulations import TASKS

OnInvalidRow = Literal["refuse", "drop"]
"""What to do with a row that cannot be an example: refuse the file, or drop the row."""

_SHOWN = 40
# What any parser of numbers accepts; a number in another notation is rewritten.
_PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", re.ASCII)


def row_check(task: str, columns: Mapping[str, str], names: Sequence[str], unlabelled: bool = False) -> Check:
    """Return the check of a row for a task: it gives the row back, or what is wrong with it.

    Args:
        task: Its name.
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
        answers = own_answers(_at(row, place))
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
        return references_fault(_at(row, references), columns["references"])

    return judge


def _none(columns: Mapping[str, str], places: Mapping[str, int]) -> Judge:
    return lambda row: None


def _surrogate_fault(row: Row, lists: Sequence[tuple[int, str]]) -> str | None:
    for place, own in lists:
        if has_half_surrogate(_at(row, place)):
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
        task: Its task.
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
