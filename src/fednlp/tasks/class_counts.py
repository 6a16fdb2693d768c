"""What accuracy, macro F1 and Matthews correlation of classes are made of: three counts for each label.

They are fewer than a confusion matrix holds, and tell less.
"""

import math
from collections.abc import Sequence

import numpy as np

from fednlp.tasks.whole_sums import quotient


def class_counts(labels: int, truth: np.ndarray, guess: np.ndarray) -> list[int]:
    """Return the number of examples, then of each label: how often it is right, predicted, and true.

    Args:
        truth: The right class of each example, int64; -1 for a label that is not among these, whose examples count
            in the first number alone.
        guess: The predicted class of each example, int64.

    >>> class_counts(2, np.array([0, 0, 1, -1]), np.array([0, 1, 1, 1]))
    [4, 1, 1, 1, 2, 2, 1]
    """
    examples, known = len(truth), truth >= 0
    truth, guess = truth[known], guess[known]
    counted = (truth[truth == guess], guess, truth)
    return [examples, *(int(n) for ids in counted for n in np.bincount(ids, minlength=labels))]


def counts_by_example(labels: int, truth: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Return what each example adds to :func:`class_counts`, float64 (examples, 1 + 3 labels).

    >>> counts_by_example(2, np.array([0, -1]), np.array([1, 1])).astype(int).tolist()
    [[1, 0, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 0]]
    """
    known = (truth >= 0)[:, None]
    guessed, true = (known & (ids[:, None] == np.arange(labels)) for ids in (guess, truth))
    return np.hstack([np.ones((len(truth), 1)), guessed & true, guessed, true])


def label_f1(counts: Sequence[int], label: int) -> float:
    """Return the F1 of one label from counts of examples; it is 0 where the label is neither true nor predicted.

    >>> label_f1([4, 1, 1, 1, 2, 2, 1], 1)
    0.6666666666666666
    """
    labels = len(counts) // 3
    right, guessed, true = (counts[1 + k * labels + label] for k in range(3))
    return quotient(2 * right, guessed + true)


def class_metrics(counts: Sequence[int], *, to_last_bit: bool = False) -> dict[str, float]:
    """Return accuracy, macro F1 and Matthews correlation (as scikit-learn has them) from counts of examples.

    The correlation is the R_K of J. Gorodkin, "Comparing two K-category assignments by a K-category correlation
    coefficient", 2004.

    Args:
        counts: From :func:`class_counts`, summed.
        to_last_bit: Round each step as scikit-learn does. What a run says of its whole test set is rounded in this way,
            and what it says of sums over clients is not.
    """
    labels = len(counts) // 3
    examples, (right, guessed, true) = counts[0], (counts[1 + k * labels :][:labels] for k in range(3))
    hits, known = sum(right), sum(true)
    accuracy = quotient(hits, examples)
    if not known:
        return {"accuracy": accuracy, "macro_f1": math.nan, "mcc": math.nan}
    both = [(r, g + t) for r, g, t in zip(right, guessed, true, strict=True) if g + t]
    each = [2 * r / total for r, total in both]
    shared = hits * known - sum(g * t for g, t in zip(guessed, true, strict=True))
    of_guessed, of_true = (known * known - sum(n * n for n in of) for of in (guessed, true))
    varied = min(of_guessed, of_true) > 0
    if to_last_bit:
        f1 = float(np.mean(each))
        mcc = shared / math.sqrt(of_guessed * of_true) if varied else 0.0
    else:
        f1 = math.fsum(each) / len(each)
        mcc = shared / math.sqrt(of_guessed) / math.sqrt(of_true) if varied else 0.0
    return {"accuracy": accuracy, "macro_f1": f1, "mcc": mcc}
