"""The examples that a request has a client train on, with the labels that come with it."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fednlp.data.features import Features
from fednlp.partition import OneClient, Partition
from fednlp.training.worker_spec import UNLABELLED


@contextmanager
def labelled_examples(
    features: Features,
    partition: Partition | OneClient,
    client: int,
    examples: list[int] | None,
    labels: list[int] | None,
) -> Iterator[np.ndarray]:
    """Yield the examples that a client trains on; labels of a request hold for the time of a block.

    Args:
        features: Of the training set.
        partition: Whose examples are whose.
        client: Its id.
        examples: Of the request; None for all that the client has.
        labels: Theirs; None for those of the data set.
    """
    if examples is None:
        yield partition.train(client)
        return
    numbers = np.array(examples, dtype=np.int64)
    if labels is None:
        yield numbers
        return
    known = features.values("label")
    known[numbers] = np.array(labels, dtype=np.int64)
    try:
        yield numbers
    finally:
        known[numbers] = UNLABELLED
