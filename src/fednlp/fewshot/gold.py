"""Gold labels: how many each client has, for which examples, and which clients label wrongly."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.partition.draws import largest_remainder
from fednlp.partition.index import FloatArray, IntArray, Partition
from fednlp.seeds import generator

# Below, one client has all that it can have before the next has any; above, all have the same but for the odd
# one, and who has that is still drawn.
_LEAST, _MOST = 1e-9, 1e9


@dataclass(frozen=True)
class GoldLabels:
    """The gold labels, known before the first round; a function of the settings and of these labels only.

    Attributes:
        owners: int64 (G), the client of each gold example; rising.
        examples: int64 (G), the gold examples, by number.
        labels: int64 (G), their labels, wrong ones of noisy clients included.
        usable: bool, by example number: whether a text may be given a pseudo label.
        validation: int64, examples and labels that the server has for choosing a pace; empty where it has none.
        noisy_clients: int64, clients whose gold labels were made wrong; rising.
        label_names: Names of the labels, by class number.
    """

    owners: IntArray
    examples: IntArray
    labels: IntArray
    usable: NDArray[np.bool_]
    validation: tuple[IntArray, IntArray]
    noisy_clients: IntArray
    num_clients: int
    label_names: tuple[str, ...]

    def of(self, client: int) -> tuple[IntArray, IntArray]:
        """Return a client's gold examples and their labels."""
        first, last = np.searchsorted(self.owners, [client, client + 1])
        return self.examples[first:last], self.labels[first:last]

    def counts(self) -> IntArray:
        """Return how many gold labels each client has."""
        return np.bincount(self.owners, minlength=self.num_clients).astype(np.int64)

    def classes_without_gold(self) -> list[str]:
        """Return the names of the labels that no gold example has."""
        seen = set(self.labels.tolist())
        return [name for number, name in enumerate(self.label_names) if number not in seen]

    def of_site(self, numbers: IntArray, client: int) -> tuple[IntArray, list[str]]:
        """Return the rows of a client's file, and their labels: empty but for its gold ones.

        Args:
            numbers: int64, the client's training examples.

        Raises:
            ConfigError: The server has all of them, for validation.
        """
        rising = np.setdiff1d(numbers, self.validation[0])
        if not len(rising):
            raise ConfigError(f"fewshot.validation takes all examples of client {client}: lower it")
        examples, labels = self.of(client)
        names = dict(zip(examples.tolist(), (self.label_names[label] for label in labels), strict=True))
        return rising, [names.get(number, "") for number in rising.tolist()]

    def facts(self) -> dict[str, Any]:
        """Return the figures for the run's summary."""
        return {
            "gold": len(self.examples),
            "clients_with_gold": int((self.counts() > 0).sum()),
            "classes_without_gold": self.classes_without_gold(),
            "candidates": int(self.usable.sum()),
            "noisy_clients": self.noisy_clients.tolist(),
        }


def every_second(owners: IntArray, labels: IntArray) -> NDArray[np.bool_]:
    """Return which gold labels are held out of training, bool (G,): half of each class, over all clients, rounded down.

    So the only gold label of a class is trained on.

    Args:
        owners: int64 (G,), the client of each gold label.
        labels: int64 (G,), the labels.

    >>> every_second(np.array([0, 0, 3, 7, 9]), np.array([1, 0, 1, 0, 2])).tolist()
    [False, False, True, True, False]
    """
    order = np.lexsort((owners, labels))
    first = np.searchsorted(labels[order], labels[order])  # where the class of each begins
    held = np.zeros(len(owners), dtype=bool)
    held[order] = (np.arange(len(order)) - first) % 2 == 1
    return held


def draw_gold_labels(
    true_labels: IntArray,
    label_names: tuple[str, ...],
    partition: Partition,
    *,
    total: int,
    gamma: float,
    noisy_fraction: float,
    validation: int,
    seed: int,
) -> GoldLabels:
    """Draw the gold examples, and read their labels and those of the validation examples, and no others.

    Args:
        true_labels: int64, of each training example.
        label_names: Names of the labels, by class number.
        partition: The clients' training examples.
        total: G, gold labels in all.
        gamma: Concentration of the gold labels over clients, as for :func:`dirichlet_counts`.
        noisy_fraction: Share of noisy clients, 0 to 1, as for :func:`label_noise`.
        validation: Examples that the server has, at most; 0 for none.

    Raises:
        ConfigError: There are more gold labels than examples, gold and validation leave none to label, or a number is
            out of range.
    """
    offsets, indices = partition.train_offsets, partition.train_indices
    counts = dirichlet_counts(total, gamma, np.diff(offsets), generator(seed, "gold counts"))
    chosen = choose_examples(counts, offsets, indices, generator(seed, "gold"))
    owners = np.repeat(np.array(list(chosen), dtype=np.int64), [len(some) for some in chosen.values()])
    examples = np.concatenate([np.empty(0, dtype=np.int64), *chosen.values()])
    labels, noisy = label_noise(
        true_labels[examples], owners, noisy_fraction, len(label_names), generator(seed, "wrong labels")
    )
    usable = np.zeros(len(true_labels), dtype=bool)
    usable[indices] = True
    usable[examples] = False
    held_out = np.empty(0, dtype=np.int64)
    if validation:
        rest = np.flatnonzero(usable)
        rng = generator(seed, "validation")
        held_out = np.sort(rng.choice(rest, min(validation, len(rest)), replace=False))
        usable[held_out] = False
        if not usable.any():
            raise ConfigError(
                f"fewshot.gold = {total} and fewshot.validation = {validation} leave none of "
                f"{plural(len(indices), 'text')} to label: lower them"
            )
    known = held_out, true_labels[held_out]
    return GoldLabels(owners, examples, labels, usable, known, noisy, partition.num_clients, label_names)


def dirichlet_counts(total: int, gamma: float, sizes: IntArray, rng: np.random.Generator) -> IntArray:
    """Return how many gold labels each client has, with a skew, in whole numbers.

    The clients' shares are z ~ Dir_C(gamma). A client whose share is more than it has examples is given a gold
    label for each of them, and the rest goes on to the others in the proportions of their shares. FeS tells
    labels "located on few clients" from uniform ones (Table 1, section 4.1) but gives no law; its authors' code
    has a gamma, "the larger the gamma the uniform the labeled data distributed", which is this concentration.

    Args:
        total: G, gold labels in all, 0 or more.
        gamma: Above 0. 0.001 puts them on one client or few, 100 spreads them about evenly.
        sizes: int64 (C), the training examples of each client.

    Returns:
        int64 (C), of sum `total`, nowhere above `sizes`.

    Raises:
        ConfigError: There are more gold labels than examples, or `total` or `gamma` is out of range.

    >>> dirichlet_counts(7, 1e-9, np.array([5, 5, 5]), np.random.default_rng(0)).tolist()
    [2, 0, 5]
    """
    examples = int(sizes.sum())
    if not 0 <= total <= examples:
        raise ConfigError(
            f"{total} gold labels for {examples} training examples: ask for a number from 0 to {examples}"
        )
    if not 0 < gamma < math.inf:
        raise ConfigError(f"gamma = {gamma} for the gold labels: it must be a number above 0")
    logs = _log_gamma(min(max(gamma, _LEAST), _MOST), len(sizes), rng)
    with np.errstate(divide="ignore"):
        room = np.log(sizes)
    # Whoever has the fewest examples for its share is full first.
    order = np.argsort(room - logs, kind="stable")
    ahead = np.logaddexp.accumulate(logs[order][::-1])[::-1]
    left = total - (np.cumsum(sizes[order]) - sizes[order])
    with np.errstate(divide="ignore"):
        asked = np.log(np.maximum(left, 0)) + logs[order] - ahead
    full = int(np.argmax(np.append(asked < room[order], True)))
    counts = np.zeros(len(sizes), dtype=np.int64)
    counts[order[:full]] = sizes[order[:full]]
    if full < len(sizes):
        open_ones = order[full:]
        counts[open_ones] = largest_remainder(np.exp(logs[open_ones] - ahead[full]), int(left[full]))
    return counts


def _log_gamma(shape: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Draw logarithms of Gamma(shape) variables, which in themselves would underflow.

    Gamma(a) has the law of Gamma(a + 1) U^(1/a) (Marsaglia and Tsang, "A simple method for generating gamma
    variables", 2000, section 6).
    """
    logs: FloatArray = np.log(rng.standard_gamma(shape + 1, count)) + np.log1p(-rng.random(count)) / shape
    return logs


def choose_examples(
    counts: IntArray, offsets: IntArray, indices: IntArray, rng: np.random.Generator
) -> dict[int, IntArray]:
    """Draw which examples have a gold label, at random among each client's; no label is looked at.

    Args:
        counts: int64 (C), gold labels of each client, at most as many as it has examples.
        offsets: int64 (C+1) and
        indices: int64, the training examples of a :class:`~fednlp.partition.Partition`.

    Returns:
        For each client with a gold label, in order, its example numbers, rising.

    >>> choose_examples(np.array([0, 2]), np.array([0, 1, 3]), np.array([7, 9, 4]), np.random.default_rng(0))
    {1: array([4, 9])}
    """
    holders = np.flatnonzero(counts)
    return {
        int(client): np.sort(
            rng.choice(indices[offsets[client] : offsets[client + 1]], counts[client], replace=False)
        )
        for client in holders
    }


def label_noise(
    labels: NDArray[np.integer[Any]],
    clients: NDArray[np.integer[Any]],
    fraction: float,
    num_labels: int,
    rng: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Return the gold labels as they are when some clients label everything wrongly, and these clients.

    FeS, section 3.1, "Wrongly labeled data". The noisy clients are drawn among those with gold labels; each of
    their labels becomes another one, drawn at random.

    Args:
        labels: (G), the gold labels, 0 to K-1.
        clients: (G), whose they are.
        fraction: Share of noisy clients among those with gold labels, 0 to 1, rounded to a whole client.
        num_labels: K, 2 or more unless no client is noisy.

    Returns:
        The labels, int64 (G), and the noisy clients, rising.

    Raises:
        ConfigError: The fraction is out of range, or there is no other label.

    >>> label_noise(np.array([0, 1, 1]), np.array([4, 4, 8]), 1.0, 2, np.random.default_rng(0))
    (array([1, 0, 0]), array([4, 8]))
    """
    if not 0 <= fraction <= 1:
        raise ConfigError(f"a share of {fraction} bad clients: it must be from 0 to 1")
    holders = np.unique(clients).astype(np.int64)
    noisy = np.sort(rng.permutation(holders)[: math.floor(fraction * len(holders) + 0.5)])
    if len(noisy) and num_labels < 2:
        raise ConfigError("labels cannot be wrong where there is only one: set the share of bad clients to 0")
    flipped = labels.astype(np.int64)
    wrong = np.isin(clients, noisy)
    if wrong.any():
        flipped[wrong] += rng.integers(1, num_labels, int(wrong.sum()))
        flipped[wrong] %= num_labels
    return flipped, noisy
