"""A client's own test set: assigned so that it follows its training distribution, or split off its examples."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.partition.index import Partition
from fednlp.seeds import generator


def assign_test_examples(
    train_groups: NDArray[np.integer[Any]],
    train_owners: NDArray[np.integer[Any]],
    test_groups: NDArray[np.integer[Any]],
    seed: int,
    *,
    unseen: bool = True,
) -> NDArray[np.int64]:
    """Return the owner of each test example, each group in proportion to the clients' training examples.

    Systematic sampling: the test examples of a group, in random order, are laid at equal distances, from a
    random start, along the group's training examples in client order; each goes to the client it meets. A
    client's share of a group is thus within one example of proportional, and is empty only by rounding.

    Args:
        train_groups: The label, cluster or field value of each training example, 0 or more.
        train_owners: The client of each training example, 0 to C-1.
        test_groups: The group of each test example; any value may be one that no training example has.
        seed: Any integer.
        unseen: Assign test examples of unseen groups in proportion to the clients' sizes; False leaves them
            out, with owner -1.

    >>> assign_test_examples(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), np.array([1, 0, 1]), seed=0).tolist()
    [1, 0, 1]
    """
    rng = generator(seed, "partition test sets")
    owners = np.full(len(test_groups), -1, dtype=np.int64)
    names, supply = np.unique(train_groups, return_counts=True)
    groups = np.minimum(np.searchsorted(names, test_groups), len(names) - 1)
    seen = names[groups] == test_groups
    # Groups in turn, clients in turn within a group: two stable sorts, the second by small numbers, which is fast.
    by_client = np.argsort(train_owners, kind="stable")
    small = np.searchsorted(names, train_groups).astype(np.min_scalar_type(len(names)))
    line = train_owners[by_client[np.argsort(small[by_client], kind="stable")]]
    order = rng.permutation(len(test_groups))
    order = order[np.argsort(groups[order], kind="stable")]
    assigned = order[seen[order]]
    owners[assigned] = line[_spread(groups[assigned], supply, rng)]
    if unseen and not seen.all():
        rest = order[~seen[order]]
        everything = np.zeros(len(rest), dtype=np.int64)
        owners[rest] = np.sort(train_owners)[_spread(everything, np.array([len(line)]), rng)]
    return owners


def split_own_tests(
    partition: Partition, fraction: float, seed: int, draw: str = "own test sets"
) -> Partition:
    """Return a partition in which a part of each client's training examples, drawn at random, is its test set.

    Args:
        partition: The examples of each client; their test examples do not count.
        fraction: Share of a client's examples that are its tests, rounded to the nearest number; of two examples or
            more it is at least one, and one at least is left for training.
        seed: Any integer.
        draw: What is drawn: other names give other parts.

    >>> part = Partition([0, 5, 6], [8, 0, 4, 6, 2, 7], [0, 0, 0], [], [0, 1])
    >>> split = split_own_tests(part, 0.2, seed=0)
    >>> [len(split.train(c)) for c in (0, 1)], [len(split.test(c)) for c in (0, 1)]
    ([4, 1], [1, 0])
    """
    sizes = np.diff(partition.train_offsets)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((generator(seed, draw).random(len(owners)), owners))
    rank = np.arange(len(owners)) - np.repeat(partition.train_offsets[:-1], sizes)
    tests = np.where(sizes > 1, np.clip(np.rint(fraction * sizes), 1, np.maximum(sizes - 1, 1)), 0).astype(
        np.int64
    )
    is_test = np.zeros(len(owners), dtype=bool)
    is_test[order] = rank < tests[owners]

    def offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(counts)])

    return Partition(
        offsets(sizes - tests),
        partition.train_indices[~is_test],
        offsets(tests),
        partition.train_indices[is_test],
        partition.client_ids,
        partition.client_names,
    )


def _spread(
    groups: NDArray[np.integer[Any]], supply: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return, for examples sorted by group, places at equal distances along the group's stretch."""
    demand = np.bincount(groups, minlength=len(supply))
    rank = np.arange(len(groups)) - np.repeat(np.cumsum(demand) - demand, demand)
    start = rng.random(len(supply))
    step = supply / np.maximum(demand, 1)
    place = ((rank + start[groups]) * step[groups]).astype(np.int64)
    # Rounding must not lead past the end.
    first = np.cumsum(supply) - supply
    return np.asarray(first[groups] + np.minimum(place, supply[groups] - 1), dtype=np.int64)
