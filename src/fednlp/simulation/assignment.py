"""The examples of each client of an experiment."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

import numpy as np

from fednlp.config import Experiment
from fednlp.config.sections import Partition as PartitionOptions
from fednlp.data import TextData
from fednlp.data.textdata import Split
from fednlp.errors import PartitionError
from fednlp.partition import Partition, make_partition
from fednlp.partition.methods import METHODS
from fednlp.partition.test_sets import split_own_tests
from fednlp.plugins import is_own
from fednlp.simulation.partition_file import read_partition_file
from fednlp.tasks.spans import spans

BY_LABEL = ("label", "label+quantity")
"""The methods that share tagged texts out by the types of their entities."""


@dataclass(frozen=True, repr=False, kw_only=True)
class OwnSplitData(TextData):
    """A data set whose test examples are split off the clients' examples, with the partition that was split.

    Attributes:
        shared_out: The examples of each client, for training and for its tests.
    """

    shared_out: Partition


def build_partition(experiment: Experiment, data: TextData, log: Callable[[str], None]) -> Partition:
    """Build the experiment's partition, a function of labels, options and seed only.

    With ``evaluation.validation_fraction`` the clients' tests are a part of their own training examples.

    Args:
        experiment: Resolved.
        data: The data set whose examples are assigned to clients.
        log: Called with a message before each slow step.

    Raises:
        PartitionError: The method does not fit the data.
    """
    partition = data.shared_out if isinstance(data, OwnSplitData) else _shared_out(experiment, data, log)
    fraction, seed = experiment.evaluation.validation_fraction, experiment.partition.seed
    if fraction is None:
        return partition
    if (np.diff(partition.train_offsets) < 2).all():
        raise PartitionError(
            "evaluation.validation_fraction leaves no client a validation example, since none has two training "
            "examples: use fewer clients"
        )
    return split_own_tests(partition, fraction, experiment.seed if seed is None else seed, "validation")


def with_own_tests(experiment: Experiment, data: TextData, log: Callable[[str], None]) -> OwnSplitData:
    """Share the examples out, split each client's, and return the data set with the parts split off as its test set.

    Args:
        experiment: Resolved, with ``partition.test_sets = "own-split"``.
        data: The data set as it was published; its own test set is left out.
        log: Called with a message before each slow step.

    Raises:
        PartitionError: The method does not fit the data.
    """
    partition = _with_own_split(experiment, data, log)
    split = tested_on_parts(data, partition)
    fingerprint = sha256(data.fingerprint.encode() + split.test_numbers.tobytes()).hexdigest()
    values = {field.name: getattr(split, field.name) for field in fields(split)}
    return OwnSplitData(**values | {"fingerprint": fingerprint}, shared_out=partition)


def tested_on_parts(data: TextData, partition: Partition) -> TextData:
    """Return a data set whose test examples are those of a partition that are parts of its training table.

    Args:
        data: The data set; its own test set is left out.
        partition: Of the training table, whose rows are also the clients' tests.
    """
    train, test = np.sort(partition.train_indices), np.sort(partition.test_indices)
    return replace(
        data, test=data.train, train_numbers=train, test_numbers=test, held_out=True, own_tests=True
    )


def _with_own_split(experiment: Experiment, data: TextData, log: Callable[[str], None]) -> Partition:
    """Share out all examples of the training table, and split each client's."""
    numbers = np.union1d(data.train_numbers, data.test_numbers) if data.held_out else data.train_numbers
    whole = replace(data, test=data.train, train_numbers=numbers, test_numbers=numbers[:0], held_out=True)
    made = _shared_out(experiment, whole, log)
    return split_own_tests(made, experiment.data.test_fraction, experiment.partition.seed or 0)


def _shared_out(experiment: Experiment, data: TextData, log: Callable[[str], None]) -> Partition:
    """Build the partition, whose test examples are the data set's own."""
    configured, kind = experiment.partition, data.schema.kind
    if configured.method == "file":
        return read_partition_file(configured, data, experiment.data.path)
    train, test = data.train_numbers, data.test_numbers
    if configured.method == "proportions" and kind not in ("class", "score"):
        raise PartitionError(
            f"{data.name} has neither labels nor scores, which proportions speak of: "
            'say partition.method = "uniform", "quantity", "cluster" or "natural"'
        )
    fields: dict[str, Any] = {}
    field = _client_field(configured, data, log)
    if field is not None:
        train_field, names = data.groups("train", field)
        test_field, _ = data.groups("test", field, names)
        fields = {"train_field": train_field[train], "test_field": test_field[test], "field_names": names}
    if configured.method == "cluster":
        log(f"embedding the texts of {data.name} for cluster shift (once; kept in the cache)")
    if is_own(configured.method) or METHODS.find(configured.method).reads_texts:
        fields |= {
            "train_texts": data.input_texts("train", train),
            "test_texts": data.input_texts("test", test),
        }
    if kind == "tags" and (configured.method in BY_LABEL or is_own(configured.method)):
        fields |= {"train_entities": entities(data, "train"), "test_entities": entities(data, "test")}
    labels = data.scores if kind == "score" else data.labels
    return make_partition(
        configured.spec(),
        labels("train")[train],
        labels("test")[test],
        num_labels=len(data.label_names) if kind == "class" else None,
        train_numbers=train,
        test_numbers=test,
        label_names=data.label_names if kind == "class" else None,
        **fields,
    )


def entities(data: TextData, split: Split) -> list[Counter[str]]:
    """Return how many entities of each type each training or test example of a data set with tags has."""
    numbers = data.train_numbers if split == "train" else data.test_numbers
    rows = data.column(split, data.columns["tags"]).take(numbers).to_pylist()
    return [Counter(kind for kind, _, _ in spans(json.loads(tags))) for tags in rows]


def _client_field(configured: PartitionOptions, data: TextData, log: Callable[[str], None]) -> str | None:
    """Return the column whose values are the clients, None for methods that use none."""
    if configured.method == "silos":
        if data.silo is None:
            raise PartitionError(
                f'{data.name} is one data set, and partition.method = "silos" makes a client of each of several: give '
                'data.path a folder of files or of folders, a pattern such as "silos/*.csv" or a list; or, where a '
                'column says whose an example is, say partition.method = "natural" and partition.field'
            )
        return data.silo
    if data.silo is not None and configured.method != "natural":
        log(
            f'the silos are pooled and shared out again by "{configured.method}"; "silos" has each as a client'
        )
    field: str | None = configured.given().get("field")
    return field
