"""Predict any number of rows with the model of a run, and write the predictions to a file."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fednlp.data.features import Features
from fednlp.data.records import check_table, is_json, table_writer
from fednlp.errors import DataError
from fednlp.inference.inputs import InputRows, rows_of_texts
from fednlp.inference.model import Trained, open_trained
from fednlp.tasks.base import Row

_ROWS_AT_ONCE = 512
_CHARACTERS_AT_ONCE = 1 << 22

PREDICTION = "prediction"
"""The column that predictions are written to."""


@dataclass(frozen=True)
class Prediction:
    """The prediction of a model for one row.

    Attributes:
        value: A label, an answer, a text, a number, or a list of ``{"word": ..., "tag": ...}``.
        probabilities: Probability of each label, 0 to 1, the likeliest first; None where not requested.
    """

    row: Mapping[str, Any]
    value: Any
    probabilities: Mapping[str, float] | None = None

    @property
    def text(self) -> str:
        """The prediction on one line: ``Anna/B-PER was/O`` for tags."""
        return text_of(self.value)


def predict_texts(
    folder: str | PathLike[str],
    texts: str | Sequence[str],
    extra_columns: Mapping[str, str] = MappingProxyType({}),
    client: str | None = None,
    task: str | None = None,
    device: str | None = None,
) -> list[Any]:
    """Predict with the model of a run.

    Args:
        texts: The text, the words with spaces between them, the question, or the source, one an example; a single
            one may be given by itself.
        extra_columns: Further columns, the same for every text: ``text_pair``, or the ``context`` of questions.
        client: Name or number of the client whose model to use, where clients have models of their own.
        task: The run's task, as in :func:`fednlp.inference.model.open_trained`.
        device: Where the model computes, as for :func:`fednlp.inference.model.device_for`.

    Returns:
        A readable prediction for each text.

    Raises:
        DataError: A text is empty; a column is missing, or is not supported by the task.
        RunError: The folder holds no model.
    """
    trained = open_trained(folder, client, task, device)
    asked = [texts] if isinstance(texts, str) else texts
    found = predictions(trained, rows_of_texts(trained, asked, extra_columns))
    return [one.text if isinstance(one.value, list) else one.value for one in found]


def predictions(
    trained: Trained, inputs: InputRows, *, probabilities: bool = False, top: int | None = None
) -> Iterator[Prediction]:
    """Predict rows in their order, in chunks of bounded memory.

    Args:
        probabilities: Return the probabilities of labels too.
        top: Number of labels to return, the likeliest; None for all.

    Raises:
        RunError: The task gives no probabilities.
    """
    if probabilities:
        trained.require_probabilities()
    for chunk in _chunks(inputs.rows):
        rows = [row for _, row in chunk]
        if hasattr(trained.task, "replies"):
            for (own, _), value in zip(chunk, trained.replies(rows), strict=True):
                yield Prediction(own, value)
            continue
        features = Features.in_memory(trained.encode(rows))
        found: dict[int, tuple[Any, Mapping[str, float] | None]] = {}
        if probabilities:
            labels: Sequence[str] = trained.task.labels  # type: ignore[attr-defined]
            for outcome, shares in trained.predict_with_probabilities(features):
                likeliest = [_likeliest(labels, own, top) for own in shares]
                found |= zip(outcome.indices, zip(outcome.predictions, likeliest, strict=True), strict=True)
        else:
            for outcome in trained.predict(features):
                found |= (
                    (n, (value, None)) for n, value in zip(outcome.indices, outcome.predictions, strict=True)
                )
        for number, (own, row) in enumerate(chunk):
            value, likeliest_labels = found[number]
            yield Prediction(own, readable(trained, value, row), likeliest_labels)


def _chunks(rows: Iterable[tuple[Mapping[str, Any], Row]]) -> Iterator[list[tuple[Mapping[str, Any], Row]]]:
    chunk: list[tuple[Mapping[str, Any], Row]] = []
    characters = 0
    for own, row in rows:
        chunk.append((own, row))
        characters += sum(len(value) for value in row.values() if value)
        if len(chunk) == _ROWS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _likeliest(labels: Sequence[str], shares: np.ndarray, top: int | None) -> dict[str, float]:
    order = np.argsort(-shares, kind="stable")[:top]
    return {labels[place]: round(float(shares[place]), 6) for place in order.tolist()}


def readable(trained: Trained, prediction: Any, row: Row) -> Any:
    """Return a prediction in readable form; tags with their words.

    Args:
        prediction: Its prediction for the row.
        row: The row as the task reads it.
    """
    from fednlp.tasks.token_classification import TokenClassification

    if isinstance(trained.task, TokenClassification):
        words = json.loads(row["words"] or "[]")
        return [{"word": word, "tag": tag} for word, tag in zip(words, prediction, strict=True)]
    return trained.task.format_prediction(prediction)


def text_of(value: Any) -> str:
    """Return a prediction on one line.

    >>> text_of([{"word": "Anna", "tag": "B-PER"}, {"word": "was", "tag": "O"}])
    'Anna/B-PER was/O'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(
        isinstance(one, dict) and one.keys() == {"word", "tag"} for one in value
    ):
        return " ".join(f"{one['word']}/{one['tag']}" for one in value)
    return json.dumps(value, ensure_ascii=False)


def write_predictions(
    path: Path,
    trained: Trained,
    inputs: InputRows,
    *,
    probabilities: bool = False,
    top: int | None = None,
    done: Callable[[int], None] = lambda rows: None,
) -> int:
    """Write rows with their own columns and predictions; return their number.

    JSON lines get ``prediction``, and an object of ``probabilities`` by label. A table gets ``prediction``, and
    ``probability_<label>`` for each label; or, of the ``top`` likeliest, ``label_1``, ``probability_1`` and so on.

    Args:
        path: The file; its suffix selects the format (:func:`fednlp.data.records.table_writer`). The cells of a
            ``.csv`` file are separated as in the one that the rows are from.
        probabilities: Write the probabilities of labels too.
        top: Number of labels to write, the likeliest; None for all.
        done: Called with the number of rows written so far.

    Raises:
        DataError: The suffix is unknown, or the rows have a column of such a name already.
        RunError: The file cannot be written, or there are no probabilities.
    """
    check_table(path)
    added = [PREDICTION]
    if probabilities:
        trained.require_probabilities()
        added += ["probabilities"] if is_json(path) else _probability_columns(trained, top)
    check_free(inputs.columns, added)
    count = 0
    with table_writer(path, [*inputs.columns, *added], inputs.delimiter) as write:
        for some in _lists(predictions(trained, inputs, probabilities=probabilities, top=top)):
            write(_line(one) if is_json(path) else _cells(one, top) for one in some)
            count += len(some)
            done(count)
    return count


def check_free(columns: Sequence[str], added: Sequence[str]) -> None:
    """Check that rows have no column of their own under a name that is added.

    Raises:
        DataError: They have such a column.
    """
    taken = next((name for name in added if name in columns), None)
    if taken is not None:
        raise DataError(
            f"--out adds a column {taken!r}, and the data have one of that name: rename or remove it"
        )


def _lists(found: Iterable[Prediction]) -> Iterator[list[Prediction]]:
    found = iter(found)
    while some := list(islice(found, _ROWS_AT_ONCE)):
        yield some


def _line(one: Prediction) -> dict[str, Any]:
    shares = {} if one.probabilities is None else {"probabilities": one.probabilities}
    return {**one.row, PREDICTION: one.value, **shares}


def _cells(one: Prediction, top: int | None) -> dict[str, Any]:
    shares = one.probabilities or {}
    cells: dict[str, Any] = {}
    if top is None:
        cells = {f"probability_{label}": share for label, share in shares.items()}
    else:
        for place, (label, share) in enumerate(shares.items(), 1):
            cells |= {f"label_{place}": label, f"probability_{place}": share}
    return {**one.row, PREDICTION: one.text, **cells}


def _probability_columns(trained: Trained, top: int | None) -> list[str]:
    labels: Sequence[str] = trained.task.labels  # type: ignore[attr-defined]
    if top is None:
        return [f"probability_{label}" for label in labels]
    places = range(1, min(top, len(labels)) + 1)
    return [name for place in places for name in (f"label_{place}", f"probability_{place}")]
