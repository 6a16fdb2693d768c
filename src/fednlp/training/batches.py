"""Batches of examples of like length, in an order drawn afresh each epoch."""

from collections.abc import Callable, Iterator

import numpy as np

_POOL = 32
"""Batches that are sorted by length together: long enough to pad little, short enough to stay random."""


def epoch_batches(
    examples: np.ndarray,
    lengths: np.ndarray,
    batch_size: int,
    rng: np.random.Generator,
    by_length: bool = True,
) -> list[np.ndarray]:
    """Cut one epoch into batches.

    Args:
        examples: Example numbers, int64.
        lengths: Tokens of each of them.
        batch_size: Examples a batch; the last may be smaller.
        by_length: Sort by length within pools of batches, then shuffle the batches.

    Returns:
        Arrays of example numbers, which hold every example once.
    """
    order = rng.permutation(len(examples))
    if not by_length or len(order) <= batch_size:
        return [examples[order[i : i + batch_size]] for i in range(0, len(order), batch_size)]
    batches = []
    pool = _POOL * batch_size
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [examples[part[i : i + batch_size]] for i in range(0, len(part), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def local_batches(
    examples: np.ndarray,
    lengths: np.ndarray,
    batch_size: int,
    steps: int,
    rng: np.random.Generator,
    by_length: bool = True,
) -> Iterator[np.ndarray]:
    """Yield ``steps`` batches, epoch after epoch."""
    left = steps
    while left > 0:
        for batch in epoch_batches(examples, lengths, batch_size, rng, by_length)[:left]:
            yield batch
            left -= 1


def passes(
    numbers: np.ndarray,
    lengths: Callable[[np.ndarray], np.ndarray],
    batch_size: int,
    max_tokens: int = 0,
) -> list[np.ndarray]:
    """Cut the examples of a step into the batches of its forward and backward passes.

    Args:
        numbers: Example numbers.
        lengths: Returns the tokens of each of some examples; asked only where ``max_tokens`` is.
        batch_size: Examples a pass, in the order given; not used where ``max_tokens`` is.
        max_tokens: If positive, the passes are of examples sorted by length, each of as many as fit in so many tokens
            with padding: examples times the longest of them. A longer example is a pass of its own.

    Returns:
        Arrays of example numbers, which hold every example once.

    >>> tokens = np.array([2, 9, 2, 3, 20])
    >>> [one.tolist() for one in passes(np.arange(5), tokens.take, 8, max_tokens=12)]
    [[0, 2, 3], [1], [4]]
    """
    if not max_tokens:
        return [numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size)]
    tokens = lengths(numbers)
    order = np.argsort(tokens, kind="stable")
    cut, start = [], 0
    for place, length in enumerate(tokens[order].tolist()):
        if place > start and (place + 1 - start) * length > max_tokens:
            cut.append(numbers[order[start:place]])
            start = place
    return [*cut, numbers[order[start:]]]


def evaluation_batches(examples: np.ndarray, lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Cut examples into batches sorted by length, the longest first; a function of its arguments alone."""
    order = np.argsort(-lengths, kind="stable")
    return [examples[order[i : i + batch_size]] for i in range(0, len(order), batch_size)]
