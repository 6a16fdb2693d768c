"""Scores by label: precision, recall, F1 and support of each, and which labels are taken for which."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fednlp.data.features import Features
from fednlp.tasks.base import Task
from fednlp.tasks.inputs import ratio
from fednlp.tasks.spans import spans

LARGEST_CONFUSION = 200
"""A confusion matrix of more labels than this is not kept."""


@dataclass(frozen=True)
class LabelScores:
    """The scores of each label over a whole set; ``dataclasses.asdict`` is what ``by_label.json`` holds.

    Attributes:
        labels: Names of labels, or types of spans.
        precision: Of each label, in [0, 1]; 0 where it was never predicted.
        recall: Of each label, in [0, 1]; 0 where it never occurs.
        f1: Of each label, in [0, 1].
        support: How often each label occurs.
        confusion: How many examples of true label i are predicted as label j, ``confusion[i][j]``; None for
            spans, and for more than 200 labels.
    """

    labels: list[str]
    precision: list[float]
    recall: list[float]
    f1: list[float]
    support: list[int]
    confusion: list[list[int]] | None = None


def by_label(
    task: Task, predictions: Sequence[Any], features: Features, indices: np.ndarray
) -> LabelScores | None:
    """Return a task's scores by label; None where it has no labels, or measures in a way of its own.

    Args:
        task: Any task; its method ``by_label``, with the same further arguments, gives the scores.
        predictions: One an example.
        indices: Example numbers.
    """
    if not scores_labels(task):
        return None
    found: LabelScores = task.by_label(predictions, features, indices)  # type: ignore[attr-defined]
    return found


def scores_labels(task: Task) -> bool:
    """Return whether a task has scores by label."""
    return defined_together(task, "by_label", "metrics")


def defined_together(task: Task, optional: str, needed: str) -> bool:
    """Return whether a task has an optional method that goes with how it does a needed one.

    A subclass that changes ``metrics``, say, and not ``by_label``, inherits one that knows nothing of its change.
    """
    return defined_together_in(type(task), optional, needed)


def defined_together_in(kind: type, optional: str, needed: str) -> bool:
    """Return the same as :func:`defined_together`, of a class."""

    def owner(name: str) -> type | None:
        return next((one for one in kind.__mro__ if name in vars(one)), None)

    found, base = owner(optional), owner(needed)
    return found is not None and base is not None and issubclass(found, base)


def class_scores(labels: Sequence[str], truth: np.ndarray, guess: np.ndarray) -> LabelScores:
    """Return the scores of classes.

    Args:
        truth: The right class of each example, int64; examples with -1, a label that is not among these, are left
            out, as in macro F1.
        guess: The predicted class of each example, int64.

    >>> class_scores(["a", "b"], np.array([0, 0, 1]), np.array([0, 1, 1])).confusion
    [[1, 1], [0, 1]]
    """
    count = len(labels)
    truth, guess = truth[truth >= 0], guess[truth >= 0]
    support, predicted = (np.bincount(ids, minlength=count) for ids in (truth, guess))
    right = np.bincount(truth[truth == guess], minlength=count)
    confusion = None
    if count <= LARGEST_CONFUSION:
        pairs = np.bincount(truth * count + guess, minlength=count * count)
        confusion = pairs.reshape(count, count).tolist()
    return _scores(labels, right, predicted, support, confusion)


def span_scores(
    labels: Iterable[str], gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], *, strict: bool
) -> LabelScores:
    """Return the scores of the spans of each type, as seqeval has them.

    Args:
        labels: The tags that the model knows; the types are theirs, and those that occur in addition.
        gold: The right tags of each sentence.
        predicted: The predicted tags of each sentence.
        strict: How spans are read off tags (:func:`fednlp.tasks.spans.spans`).
    """
    right, guessed, true = Counter[str](), Counter[str](), Counter[str]()
    for tags, guess in zip(gold, predicted, strict=True):
        ours, theirs = spans(tags, strict=strict), spans(guess, strict=strict)
        for count, found in ((right, ours & theirs), (guessed, theirs), (true, ours)):
            count.update(kind for kind, _, _ in found)
    known = {kind for tag in labels for kind, _, _ in spans([tag])}
    types = sorted(known | true.keys() | guessed.keys())
    hits, taken, support = (np.array([n[kind] for kind in types], np.int64) for n in (right, guessed, true))
    return _scores(types, hits, taken, support)


def _scores(
    labels: Sequence[str],
    right: np.ndarray,
    predicted: np.ndarray,
    support: np.ndarray,
    confusion: list[list[int]] | None = None,
) -> LabelScores:
    return LabelScores(
        list(labels),
        ratio(right, predicted).tolist(),
        ratio(right, support).tolist(),
        ratio(2 * right, predicted + support).tolist(),
        support.tolist(),
        confusion,
    )
