"""Examples that are there more than once, found by the hashes of their texts and of their labels."""

from dataclasses import dataclass

import numpy as np

from fednlp.data.scan import BLANK, Hashes
from fednlp.data.split import Numbers

_MIX = np.int64(
    -7046029254386353131
)  # 2^64 divided by the golden ratio, odd: it spreads a hash over all bits


@dataclass(frozen=True)
class Repeats:
    """Hashes of the examples of one set, int64 (examples).

    Attributes:
        inputs: Of what the model reads; ``BLANK`` for an empty text, which equals no other.
        targets: Of what it is to predict.
    """

    inputs: Hashes
    targets: Hashes

    @property
    def whole(self) -> Hashes:
        """One hash of inputs and target together."""
        with np.errstate(over="ignore"):
            mixed: Hashes = self.inputs * _MIX + self.targets
        return mixed


@dataclass(frozen=True)
class Found:
    """How many there are, and the places of the first one and of the one that it goes with."""

    count: int
    first: int = -1
    other: int = -1


def repeated(examples: Repeats) -> Found:
    """Return how many examples equal an earlier one, label and all.

    >>> repeated(Repeats(np.array([7, 8, 7, 7]), np.array([1, 1, 1, 2])))
    Found(count=1, first=0, other=2)
    """
    filled = np.flatnonzero(examples.inputs != BLANK)
    return _again(examples.whole[filled], filled)[0]


def in_both_splits(train: Repeats, test: Repeats) -> Found:
    """Return how many test examples have the inputs of a training example; ``first`` is a test example.

    >>> none = np.zeros(2, np.int64)
    >>> in_both_splits(Repeats(np.array([7, 8]), none), Repeats(np.array([9, 8]), none)).count
    1
    """
    there = (test.inputs != BLANK) & np.isin(test.inputs, train.inputs)
    return Found(int(there.sum()), int(np.argmax(there))) if there.any() else Found(0)


def contradicting(examples: Repeats) -> Found:
    """Return how many texts have more than one target, and two examples of the first.

    >>> contradicting(Repeats(np.array([7, 8, 7, 7]), np.array([1, 1, 1, 2])))
    Found(count=1, first=0, other=3)
    """
    filled = np.flatnonzero(examples.inputs != BLANK)
    return _of_several(examples.inputs[filled], examples.whole[filled], filled)


def shared_by_clients(examples: Repeats, owners: Numbers) -> Found:
    """Return how many texts more than one client holds, and an example of two of them.

    Args:
        examples: Of the training set.
        owners: The client of each, -1 for none.
    """
    held = np.flatnonzero((examples.inputs != BLANK) & (owners >= 0))
    with np.errstate(over="ignore"):
        owned = examples.inputs[held] * _MIX + owners[held]
    return _of_several(examples.inputs[held], owned, held)


def _of_several(values: Hashes, finer: Hashes, places: Numbers) -> Found:
    """Return how many values a finer hash divides, and two places of the first that it does."""
    _, first = np.unique(finer, return_index=True)
    first.sort()
    found, again = _again(values[first], places[first])
    return Found(len(np.unique(again)), found.first, found.other)


def _again(values: Hashes, places: Numbers) -> tuple[Found, Hashes]:
    """Return how many values stand there already, with two places of the first that does; and those values."""
    order = np.argsort(values, kind="stable")
    repeats = values[order][1:] == values[order][:-1]
    if not repeats.any():
        return Found(0), values[:0]
    earlier, later = order[:-1][repeats], order[1:][repeats]
    pick = int(np.argmin(places[earlier]))
    return Found(len(later), int(places[earlier[pick]]), int(places[later[pick]])), values[later]
