"""Score the model of a run on other data: in all, label by label, and row by row in a file."""

import json
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.config import Experiment
from fednlp.data import CATALOGUE, TextData, load_data
from fednlp.data.columns import LISTS, MissingColumns
from fednlp.data.features import row_batches, write_features
from fednlp.data.files import suffix_of
from fednlp.data.profiling.statistics import count_labels
from fednlp.data.readers.csv_files import DELIMITERS
from fednlp.data.records import check_table, is_json, table_writer
from fednlp.data.textdata import Split
from fednlp.errors import DataError
from fednlp.formatting.units import plural
from fednlp.formulations import TASKS, formulation_of
from fednlp.inference.model import OnProgress, Trained, open_trained
from fednlp.inference.predict import PREDICTION, check_free, readable, text_of
from fednlp.simulation.components import open_data
from fednlp.tasks.label_scores import LabelScores, by_label, scores_labels
from fednlp.training.scores import defined, interval

if TYPE_CHECKING:
    import pyarrow as pa

_ADDED = ("example", PREDICTION, "probability")
_MOST_NAMES = 5
_LONGEST_NAME = 40
_OWN_COLUMNS = "name the file's own with --text, --label or --column"


@dataclass(frozen=True)
class Scores:
    """The scores of a model on some data.

    Attributes:
        metrics: The task's metrics, and the mean loss; None where the examples do not define one.
        labels: Scores by label, for tasks that have labels.
        unknown: Number of examples (or words) by label, for labels that the model does not know.
        interval: Of the task's metric, by so many examples.
    """

    metrics: dict[str, float | None]
    labels: LabelScores | None = None
    unknown: dict[str, int] = field(default_factory=dict)
    interval: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the metrics, and ``interval``, ``by_label`` and ``unknown_labels`` where there are any."""
        found: dict[str, Any] = dict(self.metrics)
        if self.interval is not None:
            found["interval"] = self.interval
        if self.labels is not None:
            found |= {"by_label": asdict(self.labels), "unknown_labels": self.unknown}
        return found


def evaluate_run(
    folder: str | PathLike[str],
    path: str | Path | None = None,
    out: str | Path | None = None,
    log: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = lambda done, of, what: None,
    client: str | None = None,
    task: str | None = None,
    device: str | None = None,
    columns: Mapping[str, str] | None = None,
    own: bool = False,
    examples: Callable[[Path | None, Mapping[str, str]], TextData] | None = None,
) -> Scores:
    """Score the model of a run on a file, or on the run's own test set.

    Args:
        path: A file in the format of the run's own data; for a known data set, one of its published files, or a file
            with the column names of its task. None for the run's test set.
        out: File for each row with its prediction: CSV, TSV or JSON lines by its suffix; None for no file.
        log: Called with notes on the data, and with warnings.
        on_progress: Called with batches (or lines) done, of how many, and their name.
        client: Name or number of the client whose model to use, where clients have models of their own.
        task: The run's task, as in :func:`fednlp.inference.model.open_trained`.
        device: Where the model computes, as for :func:`fednlp.inference.model.device_for`.
        columns: The file's own names of columns by the canonical ones, where they are others than in the run's data.
        own: Whether it is a site's own model, as in :func:`fednlp.inference.model.open_trained`.
        examples: Reads ``path`` with ``columns`` where a site scores; without a path its own tests.

    Raises:
        DataError: The data have labels, and the model knows none of them.
        FednlpError: The data or the model cannot be loaded, or the file cannot be written; the message says why.
    """
    out = None if out is None else Path(out)
    if out is not None:
        check_table(out)
    trained = open_trained(folder, client, task, device, own)
    if examples is not None:
        data, numbers, table = _numbered(examples(None if path is None else Path(path), columns or {}), path)
    else:
        if path is None and trained.experiment.data.at_sites:
            path = _server_tests(trained.experiment)
        data, numbers, table = _examples(trained.experiment, trained.task_spec, path, columns or {})
    for note in data.notes:
        log(note)
    if data.dropped:
        log(f"{plural(data.dropped, 'row')} left out: {data.dropped_why}")
    if out is not None:
        check_free(table.column_names, _ADDED)
    table = table.take(numbers)
    columns = {name: own for name, own in data.columns.items() if own in table.column_names}
    unknown: dict[str, int] = {}
    if scores_labels(trained.task):
        split: Split = "test" if path is None else "train"
        unknown = unknown_labels(data, split, trained.task.labels)  # type: ignore[attr-defined]
        if unknown:
            log(_warning(unknown, data.schema.kind == "tags"))
    scores, predictions, probabilities = _scored(trained, table, columns, on_progress, likely=out is not None)
    scores = replace(scores, unknown=unknown)
    if out is not None:
        added = [name for name in _ADDED if name != "probability" or probabilities is not None]
        with table_writer(out, [*table.column_names, *added], data.delimiter) as write:
            done = 0
            for rows in _lines(trained, table, columns, numbers, predictions, probabilities, is_json(out)):
                write(rows)
                done += len(rows)
                on_progress(done, len(predictions), "lines")
    return scores


def _examples(
    experiment: Experiment, task_spec: str, path: str | Path | None, columns: Mapping[str, str]
) -> tuple[TextData, np.ndarray, "pa.Table"]:
    """Return the data, the example numbers to predict, and the table that holds them."""
    if path is None:
        return _numbered(open_data(experiment), path)
    task = formulation_of(task_spec)
    return _numbered(_file_of(experiment, path, task if task in TASKS else None, columns), path)


def _numbered(data: TextData, path: str | Path | None) -> tuple[TextData, np.ndarray, "pa.Table"]:
    """Return data with the numbers of the examples to predict and their table: all of a file, or the tests."""
    if path is None:
        return data, data.test_numbers, data.test
    return data, np.arange(data.train.num_rows, dtype=np.int64), data.train


def _server_tests(experiment: Experiment) -> str:
    """Return the file of the global test set of a federation between machines.

    Raises:
        DataError: It has none: the tests are at the sites.
    """
    if experiment.data.test_path is None:
        raise DataError("the run's test examples are at its sites: name a file of your own with --data FILE")
    return experiment.data.test_path


def _file_of(
    experiment: Experiment, path: str | Path, task: str | None, columns: Mapping[str, str]
) -> TextData:
    """Load a file with the run's data settings; for a known data set it may have the canonical columns instead.

    Args:
        path: The file.
        task: Name of the task, if it is one of fednlp's.
        columns: The file's own names of columns, which come before those of the run's data.
    """
    section = experiment.data
    load = partial(load_data, path=path, task=task, on_invalid_row=section.on_invalid_row, test_fraction=None)
    names = {"text": section.text, "label": section.label, **section.columns, **columns}
    read = partial(load, columns=columns)
    own = partial(load, text=names.pop("text"), label=names.pop("label"), columns=names)
    if section.name is None:
        is_csv = suffix_of(Path(path)) in DELIMITERS or Path(path).is_dir()
        try:
            return own(delimiter=section.delimiter if is_csv else None)
        except MissingColumns as error:
            raise DataError(f"{error}; {_OWN_COLUMNS}") from None
    try:
        return read()
    except DataError as error:
        if section.name not in CATALOGUE and isinstance(error, MissingColumns):
            raise DataError(f"{error}; {_OWN_COLUMNS}") from None
        if section.name not in CATALOGUE:
            raise
        try:
            return own(section.name)
        except DataError:
            published = f"nor is it a file of {section.name} ({CATALOGUE[section.name].files})"
            raise DataError(f"{error}; {published}") from None


def _scored(
    trained: Trained, table: "pa.Table", columns: Mapping[str, str], on_progress: OnProgress, *, likely: bool
) -> tuple[Scores, list[Any], np.ndarray | None]:
    """Return the scores, the prediction of each row, and its probability if requested and available."""
    probabilities = np.zeros(table.num_rows) if likely and trained.knows_probabilities else None
    predictions: list[Any] = [None] * table.num_rows
    loss = weight = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        batches = row_batches(table, columns)
        features = write_features(Path(scratch) / "features", (trained.encode(rows) for rows in batches))
        features = trained.with_reference(features)
        if probabilities is None:
            outcomes = trained.predict(features, on_progress)
        else:
            both = trained.predict_with_probabilities(features, on_progress)
            outcomes = [outcome for outcome, _ in both]
            for outcome, shares in both:
                probabilities[outcome.indices] = shares.max(1)
        for outcome in outcomes:
            loss, weight = loss + outcome.loss, weight + outcome.weight
            for number, prediction in zip(outcome.indices, outcome.predictions, strict=True):
                predictions[number] = prediction
        everyone = np.arange(len(features))
        metrics = defined(trained.task.metrics(predictions, features, everyone))
        labels = by_label(trained.task, predictions, features, everyone)
        between = interval(trained.task, features, outcomes)
    metrics["loss"] = loss / weight if weight else None
    return Scores(metrics, labels, interval=between), predictions, probabilities


def _lines(
    trained: Trained,
    table: "pa.Table",
    columns: Mapping[str, str],
    numbers: np.ndarray,
    predictions: Sequence[Any],
    probabilities: np.ndarray | None,
    json_lines: bool,
) -> Iterator[list[dict[str, Any]]]:
    """Yield rows for a file: their own columns, their number, the prediction, and its probability."""
    lists = {own for name, own in columns.items() if name in LISTS} if json_lines else set()
    place = 0
    for rows in row_batches(table, {name: name for name in table.column_names}):
        lines = []
        for row in rows:
            task_row = {name: row[own] for name, own in columns.items()}
            value = readable(trained, predictions[place], task_row)
            line: dict[str, Any] = {
                **{name: _parsed(own) if name in lists else own for name, own in row.items()},
                "example": int(numbers[place]),
                PREDICTION: value if json_lines else text_of(value),
            }
            if probabilities is not None:
                line["probability"] = round(float(probabilities[place]), 6)
            lines.append(line)
            place += 1
        yield lines


def _parsed(value: str | None) -> Any:
    return None if value is None else json.loads(value)


def unknown_labels(data: TextData, split: Split, known: Collection[str]) -> dict[str, int]:
    """Count the examples with labels that a model does not know; of tags the words.

    Args:
        split: The part of it that is scored.
        known: The labels of the model.

    Raises:
        DataError: There are labels, and the model knows none of them. The tag ``O`` alone, which marks no span, does
            not count as known.
    """
    counts = zip(data.label_names, count_labels(data)[split].tolist(), strict=True)
    found = {name: count for name, count in counts if count}
    unknown = {name: count for name, count in found.items() if name not in known}
    nothing = {"O"} if data.schema.kind == "tags" else set()
    if unknown and not found.keys() - unknown.keys() - nothing:
        table = data.train if split == "train" else data.test
        raise DataError(
            f"{data.source}: the model knows none of the labels there ({_shown(unknown)}), which are in the column "
            f"{_own_column(data)!r}; it knows {_shown(known)}: {_remedy(data, table, known)}"
        )
    return unknown


def _warning(unknown: Mapping[str, int], tags: bool) -> str:
    """Return a warning about labels that the model does not know, with their effect on the scores.

    Args:
        unknown: How many rows, or words, have each of them.
        tags: Whether they are tags of words.
    """
    count = sum(unknown.values())
    if tags:
        words = plural(count, "word")
        return f"warning: {words} with a tag that the model does not know ({_shown(unknown)}): always wrong"
    return (
        f"warning: {plural(count, 'row')} with a label that the model does not know ({_shown(unknown)}): wrong in "
        "accuracy, and left out of the other scores"
    )


def _shown(names: Collection[str]) -> str:
    """Return a few names, each of bounded length, and how many more there are.

    >>> _shown("abcdefg")
    "'a', 'b', 'c', 'd', 'e' and 2 more"
    """
    cut = (one if len(one) <= _LONGEST_NAME else f"{one[:_LONGEST_NAME]}..." for one in names)
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(repr, islice(cut, _MOST_NAMES))) + more


def _own_column(data: TextData) -> str:
    return data.columns["tags" if data.schema.kind == "tags" else "label"]


def _remedy(data: TextData, table: "pa.Table", known: Collection[str]) -> str:
    """Return what to type: the column that holds nothing but labels that the model knows, if there is one."""
    if data.schema.kind == "tags":
        return "name the column of the tags with --column tags=COLUMN, or write them as the model does"
    for column in table.column_names:
        if set(table.column(column).unique().to_pylist()) <= set(known):
            return f"they are in another column, so add --label {shlex.quote(column)}"
    return "name the column of the labels with --label COLUMN, or write them as the model does"
