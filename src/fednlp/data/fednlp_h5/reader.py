"""Reader of the original FedNLP's data files, ``*_data.h5``.

The keys are numbers, which HDF5 sorts as strings: an example is found by the value of its index, never by position.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fednlp.data.readers import h5
from fednlp.data.readers.json_files import parse_json
from fednlp.data.split import Numbers
from fednlp.data.store import Row
from fednlp.errors import DataError
from fednlp.formatting.sorting import sort_labels

TASKS: Mapping[str, str] = {
    "text_classification": "text-classification",
    "seq_tagging": "token-classification",
    "span_extraction": "question-answering",
    "seq2seq": "sequence-to-sequence",
    "lm": "causal-lm",
}
"""What a file calls a task (``task_type``), to what it is called here."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "text-classification": ("text", "label"),
    "token-classification": ("words", "tags"),
    "question-answering": ("context", "question", "answers", "id"),
    "sequence-to-sequence": ("source", "target", "history"),
    "causal-lm": ("text",),
}
"""The columns that a task's file holds; ``history`` and ``id`` may be missing."""

OWN_ATTRIBUTES = (
    "index_list",
    "train_index_list",
    "test_index_list",
    "task_type",
    "label_vocab",
    "num_labels",
    "answers",
)
"""Attributes of the file as a whole; any other may hold a value for each example."""


@dataclass(frozen=True, eq=False)
class DataFile:
    """The content of a data file; the rows are read on demand.

    Attributes:
        path: The file.
        task: The task, by its name here.
        columns: Of a row: those of :data:`COLUMNS`, then the attributes that hold a value for each example.
        train: The file's index of each row of the training set, int64.
        test: The same of the test set; None where the file does not split its examples: all are in ``train``.
        label_names: The labels or tags, sorted; None where the file does not list them.
        end_inclusive: Whether an answer's end is its last character.
    """

    path: Path
    task: str
    columns: tuple[str, ...]
    train: Numbers
    test: Numbers | None
    label_names: tuple[str, ...] | None
    end_inclusive: bool
    _further: Mapping[str, Mapping[int, str]]
    _spans: Mapping[str, Any]

    def numbers(self, split: Literal["train", "test"]) -> dict[int, int]:
        """Return the row number of each of the file's indices."""
        return {index: number for number, index in enumerate(self._indices(split).tolist())}

    def rows(self, split: Literal["train", "test"]) -> Iterator[Row]:
        """Yield the rows of a split, in the order of its list of indices.

        The answers and tags of the rows are not checked here: :mod:`fednlp.data.checks` does that.

        Raises:
            DataError: An example is missing, or is no text.
        """
        own = [name for name in self.columns if name not in self._further]
        with h5.opened(self.path) as file:
            read = (
                _questions(file, own, self) if self.task == "question-answering" else _plain(file, own, self)
            )
            for index in self._indices(split).tolist():
                yield *read(str(index)), *(values.get(index) for values in self._further.values())

    def _indices(self, split: str) -> Numbers:
        indices = self.train if split == "train" else self.test
        return np.zeros(0, np.int64) if indices is None else indices


def read_data(path: Path, *, end_inclusive: bool = False) -> DataFile:
    """Open a data file of the original FedNLP.

    Attributes that hold a value for each example (``doc_index``, ``label_index_list``, ``movie``) become columns,
    so that a natural partition can be made by them.

    Args:
        path: The file.
        end_inclusive: Read an answer's end as its last character, which the original's loader of MRQA wrote;
            that of SQuAD, and everything else, means the first character after it.

    Raises:
        DataError: It is no such file.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        if "attributes" not in file and "examples" in file:
            raise DataError(
                f'{path}: a file of TensorFlow Federated: data.name = "stackoverflow" reads its Stack Overflow, from '
                "the folder of the files; of another, write a .jsonl file for each client"
            )
        attributes = parse_json(h5.text(h5.child(file, "attributes", "dataset", str(path))), path, 1)
        if not isinstance(attributes, dict):
            raise DataError(f"{path}:/attributes is no JSON object: is this a data file of FedNLP?")
        task = TASKS.get(str(attributes.get("task_type"))) or _task_by_layout(file, attributes, path)
        every = _index_list(attributes, "index_list", path)
        if every is None:
            key = "context_X" if task == "question-answering" else "X"
            every = _keys(h5.child(file, key, "group", str(path)), path)
        train, test = (_index_list(attributes, f"{split}_index_list", path) for split in ("train", "test"))
        further = _further(attributes, every, COLUMNS[task])
        missing = {name for name, key in (("history", "history"), ("id", "question_ids")) if key not in file}
    columns = (*(name for name in COLUMNS[task] if name not in missing), *further)
    spans = attributes.get("answers")
    spans = spans if isinstance(spans, dict) else {}
    split = train is not None and test is not None and len(test) > 0
    names = _label_names(attributes)
    return DataFile(
        path,
        task,
        columns,
        train if split and train is not None else every,
        test if split else None,
        names,
        end_inclusive,
        further,
        spans,
    )


def _task_by_layout(file: Any, attributes: dict[str, Any], path: Path) -> str:
    """Return the task of a file that does not name it, as the original's own seq2seq and LM files do not."""
    if "context_X" in file:
        return "question-answering"
    if "Y" not in file:
        return "causal-lm"
    labels = h5.child(file, "Y", "group", str(path))
    first = next(iter(labels), None)
    if first is not None and h5.child(labels, first, "dataset", str(path)).shape != ():
        return "token-classification"
    return "text-classification" if attributes.get("label_vocab") else "sequence-to-sequence"


def _index_list(attributes: dict[str, Any], key: str, path: Path) -> Numbers | None:
    found = attributes.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(index) is int and 0 <= index < 1 << 62 for index in found):
        raise DataError(
            f"{path}:/attributes: {key} is no list of whole numbers: is this a data file of FedNLP?"
        )
    if len(set(found)) < len(found):
        raise DataError(
            f"{path}:/attributes: {key} holds an index twice: the file is damaged, write it again"
        )
    return np.array(found, np.int64)


def _keys(group: Any, path: Path) -> Numbers:
    keys = list(group)
    if not all(key.isascii() and key.isdigit() and len(key) < 19 for key in keys):
        raise DataError(f"{path}:{group.name} has keys that are no numbers: is this a data file of FedNLP?")
    return np.array(sorted(map(int, keys)), np.int64)


def _further(attributes: dict[str, Any], every: Numbers, taken: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return the attributes that hold a value for each example: a table by index, or a list of equal length."""
    found: dict[str, dict[int, str]] = {}
    indices = every.tolist()
    for name, value in attributes.items():
        if name in OWN_ATTRIBUTES or name in taken or not indices or not isinstance(value, (dict, list)):
            continue
        if len(value) != len(indices):
            continue
        if isinstance(value, list):
            found[name] = {index: _shown(one) for index, one in zip(indices, value, strict=True)}
        elif all(str(index) in value for index in indices):
            found[name] = {index: _shown(value[str(index)]) for index in indices}
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _label_names(attributes: dict[str, Any]) -> tuple[str, ...] | None:
    vocabulary = attributes.get("label_vocab")
    return sort_labels(vocabulary) if isinstance(vocabulary, dict) and vocabulary else None


_GROUPS = {
    "text": "X",
    "source": "X",
    "words": "X",
    "label": "Y",
    "target": "Y",
    "tags": "Y",
    "history": "history",
}
_Read = Callable[[str], Row]


def _plain(file: Any, columns: Sequence[str], data: DataFile) -> _Read:
    """Return a reader of X, Y and history: a string each, or a list of strings."""
    where = str(data.path)
    groups = {name: h5.child(file, _GROUPS[name], "group", where) for name in columns}
    return lambda index: [
        _value(h5.child(group, index, "dataset", where), name) for name, group in groups.items()
    ]


def _value(dataset: Any, name: str) -> str:
    if name in {"words", "tags", "history"}:
        return json.dumps(list(h5.texts(dataset)), ensure_ascii=False)
    if name == "label" and dataset.shape == () and dataset.dtype.kind in "iu":
        return str(h5.whole_numbers(dataset)[0])
    # A text for language modelling may be a list of tokens.
    return " ".join(h5.texts(dataset)) if name == "text" and dataset.shape != () else h5.text(dataset)


def _questions(file: Any, columns: Sequence[str], data: DataFile) -> _Read:
    """Return a reader of contexts, questions, spans and ids."""
    where = str(data.path)
    groups = {key: h5.child(file, key, "group", where) for key in ("context_X", "question_X", "Y")}
    ids = h5.child(file, "question_ids", "group", where) if "id" in columns else None

    def read(index: str) -> Row:
        found = {key: h5.child(group, index, "dataset", where) for key, group in groups.items()}
        context, question = h5.text(found["context_X"]), h5.text(found["question_X"])
        answers = []
        for span in data._spans.get(index) or [h5.whole_numbers(found["Y"]).tolist()]:
            if not (isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)):
                raise DataError(f"{where}:/Y/{index} is not [start, end]: is this a data file of FedNLP?")
            start, end = span[0], span[1] + data.end_inclusive
            answers.append({"text": context[max(start, 0) : max(end, 0)], "start": start})
        row = [context, question, json.dumps(answers, ensure_ascii=False)]
        return row if ids is None else [*row, h5.text(h5.child(ids, index, "dataset", where))]

    return read
