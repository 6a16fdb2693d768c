"""What a model is asked: texts as they are typed or piped, or the rows of a file, as rows of its task."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp.data.columns import check_columns, configured_columns
from fednlp.data.readers.json_files import as_text
from fednlp.data.records import read_records
from fednlp.data.schema import SCHEMAS, Schema
from fednlp.errors import DataError
from fednlp.formatting.units import plural
from fednlp.inference.model import Trained
from fednlp.tasks.base import Row


@dataclass(frozen=True)
class Asked:
    """What a model is asked about.

    Attributes:
        columns: The rows' own columns.
        rows: Each row's own columns, and the row as the task reads it.
    """

    columns: Sequence[str]
    rows: Iterator[tuple[Mapping[str, Any], Row]]


def asked_of_texts(trained: Trained, texts: Iterable[str], beside: Mapping[str, str]) -> Asked:
    """Return texts as rows; they are read as they come.

    Raises:
        DataError: When the rows are read: there is none, or one is empty or no UTF-8; further columns are missing.
    """
    name = trained.task.name

    def rows() -> Iterator[tuple[Mapping[str, Any], Row]]:
        number = 0
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise DataError(f"text {number} is empty: type some words")
            if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
                raise DataError(f"text {number} is not UTF-8: convert it, e.g. with iconv")
            yield {"text": text}, row_of(name, text, beside)
        if not number:
            raise DataError("there is no text to predict: type one, pipe some in, or give a file with --in")

    return Asked(("text",), rows())


def asked_of_file(
    trained: Trained,
    path: Path,
    text: str | None = None,
    beside: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Asked:
    """Return the rows of a file, which are read as they come.

    Args:
        trained: The model; its run says what columns are called.
        path: CSV, TSV, JSON lines, or any other file that a run can read.
        text: The column of the text (the question, the words, the source), by default as in the run's own data.
        beside: Further columns, the same for every row.
        warn: Told, at the end, how many rows have no text.

    Raises:
        DataError: There is no such file or column; or, when the rows are read, what is wrong in which line.
    """
    given, name = dict(beside or {}), trained.task.name
    columns, records = read_records(path)
    own = _columns(trained, str(path), columns, text, given)
    first = _first(name)

    def rows() -> Iterator[tuple[Mapping[str, Any], Row]]:
        empty, where_first = 0, ""
        for where, record in records:
            values = {one: as_text(record.get(its)) or "" for one, its in own.items()}
            said = values.pop(first)
            if not said.strip() or said == "[]":
                empty, where_first = empty + 1, where_first or where
            yield record, row_of(name, said, values | given)
        if empty:
            warn(
                f"warning: {plural(empty, 'row')} without a text, the first is {where_first}: its prediction "
                "means nothing"
            )

    return Asked(columns, rows())


def _schema(task: str) -> Schema:
    return SCHEMAS.get(task, SCHEMAS["text-classification"])


def _first(task: str) -> str:
    """Return the column that holds what a task is asked."""
    return "question" if task == "question-answering" else _schema(task).inputs[0]


def _further(task: str) -> list[str]:
    schema = _schema(task)
    return [
        name for name in (*schema.inputs, *schema.optional) if name not in (_first(task), "references", "id")
    ]


def _columns(
    trained: Trained, where: str, names: Sequence[str], text: str | None, beside: Mapping[str, str]
) -> dict[str, str]:
    """Return a file's columns by the canonical names, as the run's own data have them, or by these names."""
    task, data = trained.task.name, trained.experiment.data
    known = {} if data.path is None else configured_columns(data.columns or {}, data.text, data.label)
    found = {}
    for name in (_first(task), *_further(task)):
        own = known.get(name, name)
        if name == _first(task):
            own = text or own
        elif name in beside or (name not in _schema(task).inputs and own not in names):
            continue
        if own not in names and name in names and text is None:
            own = name
        found[name] = own
        try:
            check_columns(where, names, own)
        except DataError as error:
            how = "--text COLUMN" if name == _first(task) else f"--with {name}=TEXT"
            raise DataError(f"{error}; say the {name} with {how}") from None
    return found


def row_of(task: str, text: str, beside: Mapping[str, str]) -> Row:
    """Return the row of a text whose target is not known.

    >>> row_of("token-classification", "Angela Merkel spoke", {})
    {'words': '["Angela", "Merkel", "spoke"]', 'tags': '["O", "O", "O"]'}
    """
    schema, first, allowed = _schema(task), _first(task), _further(task)
    strange = [name for name in beside if name not in allowed]
    if strange:
        known = f"there is {', '.join(allowed)}" if allowed else "there is none"
        raise DataError(f"--with {strange[0]}: {task} has no such column beside {first}: {known}")
    lacking = [name for name in schema.inputs if name != first and name not in beside]
    if lacking:
        raise DataError(f"{task} needs {lacking[0]} too: add --with {lacking[0]}=TEXT")
    row: Row = {first: text, **beside}
    if schema.kind == "tags":
        words = _words(text)
        row = {first: json.dumps(words), "tags": json.dumps(["O"] * len(words))}
    elif schema.target is not None:
        row[schema.target] = {"answers": "[]", "score": "0"}.get(schema.kind, "")
    return row


def _words(text: str) -> list[str]:
    """Return the words of a sentence: of a JSON list, or between blanks."""
    if text.startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list) and all(isinstance(word, str) for word in found):
            return found
    return text.split()
