"""Label shift, quantity shift, both, or neither: the owner of each example.

Every function returns an owner for each example, 0 to C-1, and depends only on its arguments.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.partition.draws import dirichlet, equal_sizes, low_discrepancy_order, skewed_sizes
from fednlp.partition.index import IntArray, client_runs
from fednlp.seeds import generator

# Client x label numbers held at once: some tens of megabytes, whatever the numbers of clients and labels.
# The draws follow these chunks, so another value makes other partitions.
_CELLS = 1 << 20


def uniform_owners(examples: int, clients: int, seed: int) -> IntArray:
    """Return random owners with sizes that differ by at most one (IID).

    Args:
        examples: Number of examples.
        clients: C, at most as many as examples.
        seed: Any integer.

    Raises:
        PartitionError: There are more clients than examples.

    >>> sorted(np.bincount(uniform_owners(7, 3, seed=0)).tolist())
    [2, 2, 3]
    """
    return _at_random(equal_sizes(generator(seed, "partition sizes"), examples, clients), seed)


def quantity_owners(examples: int, clients: int, beta: float, seed: int) -> IntArray:
    """Return random owners with sizes in proportion to z ~ Dir_C(beta) (quantity shift).

    FedNLP benchmark, section 3.2; every client holds at least one example.

    Args:
        examples: Number of examples.
        clients: C, at most as many as examples.
        beta: The concentration, above 0; small is uneven.
        seed: Any integer.

    Raises:
        PartitionError: There are more clients than examples.
    """
    return _at_random(skewed_sizes(generator(seed, "partition sizes"), examples, clients, beta), seed)


def _at_random(sizes: IntArray, seed: int) -> IntArray:
    owners = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    generator(seed, "partition examples").shuffle(owners)
    return owners


def label_owners(
    labels: NDArray[np.integer[Any]], clients: int, alpha: float, seed: int, beta: float | None = None
) -> IntArray:
    """Return owners by label: client j's examples are drawn without replacement from q_j ~ Dir(alpha * p).

    FedNLP benchmark, section 3.2, with p the label prior. Each place of a client requests a label drawn from
    q_j. Where more places request a label than it has examples, their order is drawn: one draw for all these places
    of a client that is nearer to only that label than to the prior, so that it gets all of them or none, and
    one draw for each other place. The remaining places get the remaining examples at random, that is in
    proportion to the labels' remaining examples. Last, the clients are numbered so that every range of
    numbers has clients near the prior and far from it.

    Args:
        labels: The label of each example, 0 or more.
        clients: C, at most as many as examples.
        alpha: Above 0: 1e-4 is one label a client while supplies last, 1e6 the prior.
        seed: Any integer.
        beta: Concentration of the sizes, which are in proportion to z ~ Dir_C(beta); None for equal sizes, to within
            one.

    Raises:
        PartitionError: There are more clients than examples.

    >>> owners = label_owners(np.arange(8) % 2, clients=4, alpha=1e-4, seed=0)
    >>> np.bincount(owners).tolist()
    [2, 2, 2, 2]
    """
    sizing = generator(seed, "partition sizes")
    if beta is None:
        sizes = equal_sizes(sizing, len(labels), clients)
    else:
        sizes = skewed_sizes(sizing, len(labels), clients, beta)
    names, supply = np.unique(labels, return_counts=True)
    compact = np.searchsorted(names, labels).astype(np.min_scalar_type(len(names)))
    asked, turns = _requested(sizes, supply, alpha, generator(seed, "partition labels"))
    owners = _serve(compact, supply, sizes, asked, turns, seed)
    return np.asarray(balanced_numbering(owners, compact, clients, seed)[owners])


def _requested(
    sizes: IntArray, supply: IntArray, alpha: float, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return the label that each place asks for and its turn, the places of a client lying together."""
    prior = supply / supply.sum()
    labels = np.arange(len(supply), dtype=np.min_scalar_type(len(supply)))
    asked = np.empty(int(sizes.sum()), dtype=labels.dtype)
    turns = rng.random(len(asked), dtype=np.float32)
    end = 0
    for rows in chunks(len(sizes), len(supply)):
        size = sizes[rows]
        counts = rng.multinomial(size, dirichlet(rng, alpha, prior, len(size)))
        start, end = end, end + int(size.sum())
        cells = counts.ravel()
        asked[start:end] = np.repeat(np.tile(labels, len(size)), cells)
        devoted = np.repeat((counts >= size[:, None] * (1 + prior) / 2).ravel(), cells)
        turns[start:end][devoted] = np.repeat(rng.random(len(size), dtype=np.float32), size)[devoted]
    return asked, turns


def _serve(
    labels: NDArray[Any],
    supply: IntArray,
    sizes: IntArray,
    asked: NDArray[Any],
    turns: NDArray[np.float32],
    seed: int,
) -> NDArray[np.integer[Any]]:
    """Return each example's owner: places get the requested label while it lasts, then remaining examples."""
    rng = generator(seed, "partition examples")
    clients = np.arange(len(sizes), dtype=np.min_scalar_type(-len(sizes)))
    places = np.argsort(turns, kind="stable")
    places = places[np.argsort(asked[places], kind="stable")]
    askers = np.repeat(clients, sizes)[places]
    del places
    demand = np.bincount(asked, minlength=len(supply))
    examples = rng.permutation(len(labels))
    examples = examples[np.argsort(labels[examples], kind="stable")]
    owners = np.full(len(labels), -1, dtype=clients.dtype)
    waiting = []
    for queue, stock in zip(_parts(askers, demand), _parts(examples, supply), strict=True):
        served = min(len(queue), len(stock))
        owners[stock[:served]] = queue[:served]
        waiting.append(queue[served:])
    owners[owners < 0] = rng.permutation(np.concatenate(waiting))
    return owners


def _parts(values: NDArray[Any], lengths: IntArray) -> list[NDArray[Any]]:
    return np.split(values, np.cumsum(lengths)[:-1])


def balanced_numbering(
    owners: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]], clients: int, seed: int
) -> IntArray:
    """Return a new number for each client, so that no range of numbers is nearer to the prior than another.

    The clients are ranked by the Hellinger affinity of their labels to the prior, then take the numbers of
    a fair order: a stratified choice among numberings that are equally likely. (The divergence reported is
    that of Jensen and Shannon, which ranks nearly alike; square roots come out the same on every machine,
    logarithms need not.)

    Args:
        owners: The client of each example, 0 to C-1.
        labels: The label of each example, 0 or more.
        seed: Any integer.
    """
    offsets, positions = client_runs(owners, clients)
    near = np.empty(clients)
    count = int(labels.max()) + 1
    prior = np.sqrt(np.bincount(labels, minlength=count))
    for rows in chunks(clients, count):
        held = count_labels(offsets, labels[positions[offsets[rows.start] : offsets[rows.stop]]], rows, count)
        near[rows] = (np.sqrt(held) * prior).sum(axis=1) / np.sqrt(held.sum(axis=1))
    numbers = np.empty(clients, dtype=np.int64)
    numbers[np.argsort(near, kind="stable")] = low_discrepancy_order(
        generator(seed, "partition numbers"), clients
    )
    return numbers


def count_labels(
    offsets: IntArray, labels: NDArray[np.integer[Any]], rows: slice, num_labels: int
) -> IntArray:
    """Return the number of examples of each label that some clients hold (rows, K).

    Args:
        offsets: (C+1), where each client's examples begin.
        labels: The labels of these clients' examples, client by client.
        rows: Numbers of the clients.
    """
    clients = rows.stop - rows.start
    cells = np.repeat(np.arange(clients) * num_labels, np.diff(offsets[rows.start : rows.stop + 1]))
    return np.bincount(cells + labels, minlength=clients * num_labels).reshape(clients, num_labels)


def chunks(clients: int, num_labels: int) -> Iterator[slice]:
    """Cut the clients into runs whose client x label tables stay small."""
    step = max(1, _CELLS // max(1, num_labels))
    for start in range(0, clients, step):
        yield slice(start, min(start + step, clients))
