"""Input rows of a model: typed or piped texts, or the rows of a file, as rows of its task."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp.data.columns import check_columns, configured_columns
from fednlp.data.preferences import pair_columns, pair_maker
from fednlp.data.readers.json_files import as_text
from fednlp.data.records import read_records
from fednlp.data.store import Fault
from fednlp.errors import DataError
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS, Schema, formulation_of
from fednlp.inference.model import Trained
from fednlp.tasks.base import Row


@dataclass(frozen=True)
class InputRows:
    """Rows to predict, read one after the other.

    Attributes:
        columns: Names of the rows' own columns.
        rows: For each row its own columns, and the row as the task reads it.
        delimiter: What separates the cells of the ``.csv`` file that the rows are from; None for others.
    """

    columns: Sequence[str]
    rows: Iterator[tuple[Mapping[str, Any], Row]]
    delimiter: str | None = None


def rows_of_texts(trained: Trained, texts: Iterable[str], extra_columns: Mapping[str, str]) -> InputRows:
    """Return texts as rows, which are read lazily.

    Args:
        extra_columns: Further columns by name, the same for every row.

    Raises:
        DataError: When the rows are read: there are none, or one is empty or not UTF-8; further columns are missing.
    """
    name = trained.task.name
    _require_columns(extra_columns)

    def rows() -> Iterator[tuple[Mapping[str, Any], Row]]:
        number = 0
        for number, text in enumerate(texts, 1):
            if not text.strip():
                raise DataError(f"text {number} is empty: type some words")
            _require_utf8(text, f"text {number}")
            yield {"text": text}, _row_of(name, text, extra_columns)
        if not number:
            raise DataError("there is no text to predict: type one, pipe some in, or give a file with --in")

    return InputRows(("text",), rows())


def rows_of_file(
    trained: Trained,
    path: Path,
    text: str | None = None,
    extra_columns: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> InputRows:
    """Return the rows of a file, which are read lazily.

    Args:
        trained: The model; its run's configuration names the columns.
        path: CSV, TSV, JSON lines, or any other file that a run can read.
        text: The column of the text (the question, the words, the source), by default as in the run's own data.
        extra_columns: Further columns by name, the same for every row.
        warn: Called at the end with a message if rows have no text.

    Raises:
        DataError: There is no such file or column; or, when the rows are read, a row cannot be read.
    """
    given, name = dict(extra_columns or {}), trained.task.name
    _require_columns(given)
    columns, records, delimiter = read_records(path, _own_columns(trained))
    pairs = pair_columns(columns, _own_columns(trained)) if _schema(name).kind == "pairs" else None
    if pairs is not None and text is None:
        return InputRows(columns, _prompts(columns, pairs, records, given.get("system", "")), delimiter)
    own = _columns(trained, str(path), columns, text, given)
    first = _first(name)

    def rows() -> Iterator[tuple[Mapping[str, Any], Row]]:
        empty, where_first = 0, ""
        for where, record in records:
            values = {one: as_text(record.get(its)) or "" for one, its in own.items()}
            value = values.pop(first)
            if not value.strip() or value == "[]":
                empty, where_first = empty + 1, where_first or where
            yield record, _row_of(name, value, values | given)
        if empty:
            warn(
                f"warning: {plural(empty, 'row')} without a text, the first is {where_first}: its prediction "
                "means nothing"
            )

    return InputRows(columns, rows(), delimiter)


def _prompts(
    columns: Sequence[str],
    pairs: Sequence[str],
    records: Iterable[tuple[str, Mapping[str, Any]]],
    system: str,
) -> Iterator[tuple[Mapping[str, Any], Row]]:
    """Yield each record with the prompt of its pair.

    Args:
        pairs: The columns of a pair.
        records: After their locations.

    Raises:
        DataError: One is no pair.
    """
    make = pair_maker(pairs)(columns)
    for where, record in records:
        found = make([as_text(record.get(name)) for name in columns])
        if isinstance(found, Fault):
            raise DataError(f"{where}: {found.message}")
        yield record, {"messages": _asked(found[0], system)}


def _require_columns(columns: Mapping[str, str]) -> None:
    for name, text in columns.items():
        _require_utf8(text, f"--with {name}")


def _require_utf8(text: str, where: str) -> None:
    """Check that a typed text has no bytes that are no characters, which Python keeps as halves of surrogate pairs."""
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        raise DataError(
            f"{where}, as typed, is not UTF-8 ({text[:40]!a}): convert it, e.g. with iconv, or give a file with --in, "
            "whose line is named"
        )


def _schema(task: str) -> Schema:
    return TASKS.get(formulation_of(task), TASKS["text-classification"]).schema


def _first(task: str) -> str:
    """Return the column of a task's main input."""
    return "question" if task == "question-answering" else _schema(task).inputs[0]


def _further(task: str) -> list[str]:
    schema = _schema(task)
    if "messages" in schema.inputs:
        return ["system"]
    return [
        name for name in (*schema.inputs, *schema.optional) if name not in (_first(task), "references", "id")
    ]


def _own_columns(trained: Trained) -> dict[str, str]:
    """Return the columns of the run's own data by the canonical names, where they are the user's files."""
    data = trained.experiment.data
    return {} if data.path is None else configured_columns(data.columns or {}, data.text, data.label)


def _columns(
    trained: Trained, where: str, names: Sequence[str], text: str | None, extra_columns: Mapping[str, str]
) -> dict[str, str]:
    """Return the file's column for each canonical name: the one of the run's own data, or the canonical name."""
    task, known, found = trained.task.name, _own_columns(trained), {}
    for name in (_first(task), *_further(task)):
        own = known.get(name, name)
        if name == _first(task):
            own = text or own
        elif name in extra_columns or (name not in _schema(task).inputs and own not in names):
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


def _row_of(task: str, text: str, extra_columns: Mapping[str, str]) -> Row:
    """Return the row of a text whose target is not known.

    Raises:
        DataError: A column is missing, or is not supported by the task.
    >>> _row_of("token-classification", "Angela Merkel spoke", {})
    {'words': '["Angela", "Merkel", "spoke"]', 'tags': '["O", "O", "O"]'}
    """
    schema, first, allowed = _schema(task), _first(task), _further(task)
    strange = [name for name in extra_columns if name not in allowed]
    if strange:
        known = f"there is {', '.join(allowed)}" if allowed else "there is none"
        raise DataError(f"--with {strange[0]}: {task} has no such column besides {first}: {known}")
    if "messages" in schema.inputs:
        return {first: _asked(text, extra_columns.get("system", ""))}
    lacking = [name for name in schema.inputs if name != first and name not in extra_columns]
    if lacking:
        raise DataError(f"{task} needs {lacking[0]} too: add --with {lacking[0]}=TEXT")
    row: Row = {first: text, **extra_columns}
    if schema.kind == "tags":
        words = _words(text)
        row = {first: json.dumps(words), "tags": json.dumps(["O"] * len(words))}
    elif schema.target is not None:
        row[schema.target] = {"answers": "[]", "score": "0"}.get(schema.kind, "")
    return row


def _asked(text: str, system: str) -> str:
    """Return the messages of a conversation whose last one is the user's: a text, or messages as JSON.

    >>> _asked("Hi", "")
    '[{"role": "user", "content": "Hi"}]'
    """
    messages = [{"role": "user", "content": text}]
    if text.startswith("[{"):
        with suppress(ValueError, RecursionError):
            messages = json.loads(text)
    opening = [{"role": "system", "content": system}] if system else []
    return json.dumps([*opening, *messages], ensure_ascii=False)


def _words(text: str) -> list[str]:
    """Return the words of a sentence: the items of a JSON list, or what stands between blanks."""
    if text.startswith("["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list) and all(isinstance(word, str) for word in found):
            return found
    return text.split()
