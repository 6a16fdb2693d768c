"""What a partitioner is given, and what it returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.partition.embed import Progress
from fednlp.partition.entities import Entities
from fednlp.partition.index import IntArray


@dataclass(frozen=True)
class Request:
    """What is known of the examples that a partitioner assigns.

    Attributes:
        seed: Any integer.
        train_labels: The label id of each training example (N), or its score.
        test_labels: The label id of each test example (M), -1 for one that training does not have; or its score.
        label_names: The labels in the order of their ids; None for scores.
        train_numbers: The example numbers of the training examples, int64 (N), for messages.
        train_field: The value of the option ``field``'s column for each training example, or its position among
            ``field_names``.
        test_field: The same for each test example.
        field_names: The column's values in order, where the fields are positions; -1 is none.
        train_texts: The text of each training example, for methods that read texts.
        test_texts: The text of each test example.
        train_entities: For tagged texts, how many entities of each type each training example has.
        test_entities: The same for each test example.
        max_length: Tokens of a text that an encoder reads.
        progress: Called with texts embedded and texts in all.
    """

    seed: int
    train_labels: NDArray[Any]
    test_labels: NDArray[Any]
    label_names: tuple[str, ...] | None
    train_numbers: IntArray
    train_field: Sequence[object] | None
    test_field: Sequence[object] | None
    field_names: Sequence[str] | None
    train_texts: Sequence[str] | None
    test_texts: Sequence[str] | None
    train_entities: Entities | None
    test_entities: Entities | None
    max_length: int
    progress: Progress | None

    def labels(self) -> tuple[IntArray, IntArray]:
        """Return the label of each training and test example; one and the same for all where the data has scores."""
        if self.label_names is None:
            return np.zeros(len(self.train_labels), np.int64), np.zeros(len(self.test_labels), np.int64)
        return self.train_labels, self.test_labels


@dataclass(frozen=True)
class Assignment:
    """The result of a partitioner.

    Attributes:
        owners: The client of each training example.
        train_groups: Label, cluster or field value of each training example, whose distribution in a client's training
            set its test set follows.
        test_groups: Label, cluster or field value of each test example.
        names: The clients' names, if they have any.
        unseen: True to assign test examples of groups without training examples; False to leave them out.
    """

    owners: NDArray[np.integer[Any]]
    clients: int
    train_groups: IntArray
    test_groups: IntArray
    names: tuple[str, ...] | None = None
    unseen: bool = True
