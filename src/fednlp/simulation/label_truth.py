"""How right pseudo labels are, by the true labels: a simulation has these, and no federation does."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.simulation.label_holder import Numbers


class LabelTruth:
    """Compares pseudo labels with the true labels, for the lines of a run, and counts the true labels.

    Nothing that a run does depends on it, except with ``fewshot.label_counts = "truth"``.

    Args:
        labels: int (examples,), true label of each training example.
        num_labels: Number of labels.
    """

    def __init__(self, labels: NDArray[np.integer[Any]], num_labels: int) -> None:
        self._labels, self._num_labels = labels, num_labels
        self._begin()

    def _begin(self) -> None:
        self._new, self._candidates = [0, 0], [0, 0]

    def counts(self, texts: Numbers) -> Numbers:
        """Return the number of texts of each class, int64 (labels,).

        Args:
            texts: int64, by example number.
        """
        return np.bincount(self._labels[texts], minlength=self._num_labels)

    def note(self, texts: Numbers, predicted: NDArray[np.integer[Any]], chosen: Numbers) -> None:
        """Note what a client has labelled in a round.

        Args:
            texts: int64 (texts,), its candidates, by example number.
            predicted: (texts,), the label that the model gives each.
            chosen: int64, the places in ``texts`` of those that get a pseudo label.
        """
        right = self._labels[texts] == predicted
        for counts, some in ((self._new, right[chosen]), (self._candidates, right)):
            counts[0] += len(some)
            counts[1] += int(some.sum())

    def line(self, pseudo: NDArray[np.int32]) -> dict[str, Any]:
        """Return the figures of a round, and begin the next one.

        Args:
            pseudo: int32 (examples,), the pseudo labels after the round; -1 for none.

        Returns:
            ``precision``: fraction of the pseudo labels that are right, None without any. ``given``, ``right``: their
            number and that of the right ones, by label. ``new``, ``candidates``: the same two numbers, for the
            pseudo labels of this round, and for all texts that the model was run over for them.

        >>> truth = LabelTruth(np.array([0, 1, 1, 0]), 2)
        >>> truth.note(np.array([0, 1, 3]), np.array([0, 1, 1]), np.array([1, 0]))
        >>> truth.line(np.array([0, 1, 0, -1], dtype=np.int32))
        {'precision': 0.666667, 'given': [2, 1], 'right': [1, 1], 'new': [2, 2], 'candidates': [3, 2]}
        """
        given = pseudo[pseudo >= 0]
        right = given[given == self._labels[pseudo >= 0]]
        found: dict[str, Any] = {"precision": round(len(right) / len(given), 6) if len(given) else None}
        for name, some in (("given", given), ("right", right)):
            found[name] = np.bincount(some, minlength=self._num_labels).tolist()
        if self._candidates[0]:
            found |= {"new": self._new, "candidates": self._candidates}
        self._begin()
        return found
