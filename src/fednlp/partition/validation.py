"""A validation part of the clients' training examples, in place of their tests: settings are chosen by it."""

import numpy as np

from fednlp.errors import PartitionError
from fednlp.partition.index import Partition
from fednlp.partition.test_sets import set_aside


def hold_out_validation(partition: Partition, fraction: float, seed: int) -> Partition:
    """Return a partition in which each client's tests are a share of its own training examples.

    A client sets aside ``fraction`` of its training examples, rounded, and keeps one at least. The test examples of the
    given partition are in neither part.

    Args:
        partition: The examples of each client.
        fraction: The share that is set aside, above 0 and below 1.
        seed: Of the draw.

    Raises:
        PartitionError: No client has enough examples to set one aside.

    >>> part = hold_out_validation(Partition([0, 4, 5], [9, 3, 5, 1, 7], [0, 1, 1], [2], [0, 1]), 0.5, seed=0)
    >>> len(part.train(0)), len(part.test(0)), part.train(1).tolist(), part.test(1).tolist()
    (2, 2, [7], [])
    """
    sizes = np.diff(partition.train_offsets)
    held = np.minimum(np.floor(sizes * fraction + 0.5).astype(np.int64), sizes - 1)
    if not held.any():
        raise PartitionError(
            f"validation_fraction = {fraction:g} leaves every client without a validation example: raise it, or use "
            "fewer clients"
        )
    return set_aside(partition, held, seed, "validation")
