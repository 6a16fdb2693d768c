"""Pseudo labels of which each class has a number of its own.

The code of the FeS authors takes the counts from the labels on the texts (``generate_fedipet_train_sets`` in the module
``pet.ipet``). These are hidden labels, so the rule is for simulations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.fewshot.pacing import most_confident


def most_confident_of_each(
    confidences: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    counts: NDArray[np.integer[Any]],
) -> NDArray[np.int64]:
    """Return the indices of the highest confidences of each class, class by class.

    If a class is predicted for fewer texts than its count, all of these are returned, and no other text in their place.

    Args:
        confidences: (texts,), the model's confidence in each text's label; NaN is never selected.
        labels: (texts,), the predicted class of each text.
        counts: (classes,), number of texts to select of each class.

    >>> confidences = np.array([0.9, 0.8, 0.7, 0.6])
    >>> most_confident_of_each(confidences, np.array([0, 0, 0, 1]), np.array([1, 2])).tolist()
    [0, 3]
    """
    found = []
    for label, count in enumerate(counts.tolist()):
        own = np.flatnonzero(labels == label)
        found.append(own[most_confident(confidences[own], count)])
    return np.concatenate(found).astype(np.int64)
