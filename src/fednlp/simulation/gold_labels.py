"""What is known before the first round of few-shot learning: gold labels, and which texts may be labelled."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config.sections import Fewshot
from fednlp.data.features import open_features
from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.filtering import representative
from fednlp.fewshot.gold import choose, flip, spread
from fednlp.fewshot.pacing import rounded_up
from fednlp.partition.embed import embed
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.tasks.text_classification import TextClassification

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Known:
    """What is known from the start; a function of the experiment and of the gold labels alone.

    Attributes:
        owners: Of each gold example, its client; rising.
        numbers: The gold examples.
        labels: Their labels.
        usable: bool, by example number: whether a text may be given a pseudo label.
        validation: Examples and labels that the server has for choosing a pace; none where it does not.
        noisy: Clients whose gold labels were made wrong.
        clients: All clients.
        names: Of the labels.
    """

    owners: Numbers
    numbers: Numbers
    labels: Numbers
    usable: NDArray[np.bool_]
    validation: tuple[Numbers, Numbers]
    noisy: Numbers
    clients: int
    names: tuple[str, ...]

    def of(self, client: int) -> tuple[Numbers, Numbers]:
        """Return a client's gold examples and their labels."""
        first, last = np.searchsorted(self.owners, [client, client + 1])
        return self.numbers[first:last], self.labels[first:last]

    def counts(self) -> Numbers:
        """Return how many gold labels each client has."""
        return np.bincount(self.owners, minlength=self.clients).astype(np.int64)

    def facts(self) -> dict[str, Any]:
        """Return what the run's summary says of it."""
        held = self.counts()
        without = [name for number, name in enumerate(self.names) if number not in set(self.labels.tolist())]
        return {
            "gold": len(self.numbers),
            "clients_with_gold": int((held > 0).sum()),
            "classes_without_gold": without,
            "candidates": int(self.usable.sum()),
            "noisy_clients": self.noisy.tolist(),
        }


def known_labels(context: RunContext) -> Known:
    """Draw the gold examples and read their labels, and no others.

    Raises:
        ConfigError: The task has no classes, there are more gold labels than examples, or none is left to label.
        RunError: The features are gone.
    """
    fewshot, partition, seed = context.experiment.fewshot, context.partition, context.experiment.seed
    assert fewshot is not None
    if not isinstance(context.worker.task, TextClassification):
        raise ConfigError(
            f"[fewshot] gives texts classes, and {context.worker.task.name} has none: leave it out"
        )
    true = _labels_of(context.worker.spec.train_features)
    names = tuple(context.worker.task.labels)
    counts = spread(
        fewshot.gold, fewshot.gamma, np.diff(partition.train_offsets), generator(seed, "gold counts")
    )
    chosen = choose(counts, partition.train_offsets, partition.train_indices, generator(seed, "gold"))
    owners = np.repeat(np.array(list(chosen), dtype=np.int64), [len(some) for some in chosen.values()])
    numbers = np.concatenate([np.empty(0, dtype=np.int64), *chosen.values()])
    labels, noisy = flip(
        true[numbers], owners, fewshot.noisy_client_fraction, len(names), generator(seed, "wrong labels")
    )
    usable = np.zeros(len(true), dtype=bool)
    usable[partition.train_indices] = True
    usable[numbers] = False
    validation = np.empty(0, dtype=np.int64)
    if fewshot.pacing == "search":
        rest = np.sort(np.flatnonzero(usable))
        rng = generator(seed, "validation")
        validation = np.sort(rng.choice(rest, min(fewshot.validation, len(rest)), replace=False))
        usable[validation] = False
        if not usable.any():
            raise ConfigError(
                f"fewshot.gold = {fewshot.gold} and fewshot.validation = {fewshot.validation} leave none of "
                f"{len(partition.train_indices)} texts to label: lower them"
            )
    if fewshot.filter_ratio is not None:
        usable = _representative(context, fewshot, usable)
    known = Known(
        owners, numbers, labels, usable, (validation, true[validation]), noisy, partition.num_clients, names
    )
    for name in known.facts()["classes_without_gold"]:
        context.log(f'no gold label is "{name}": it is learnt from pseudo labels alone, if at all')
    return known


def _representative(context: RunContext, fewshot: Fewshot, usable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Leave of each client's texts the share that stands best for them (FeS, section 3.2)."""
    assert fewshot.filter_ratio is not None
    partition, numbers = context.partition, np.flatnonzero(usable)
    context.log(f"embedding {len(numbers):,} texts for filtering (once; kept in the cache)")
    vectors = embed(context.texts(numbers))
    place = np.full(len(usable), -1, dtype=np.int64)
    place[numbers] = np.arange(len(numbers))
    left = np.zeros(len(usable), dtype=bool)
    for client in range(partition.num_clients):
        own = np.sort(partition.train(client))
        own = own[usable[own]]
        budget = rounded_up(fewshot.filter_ratio * len(own))
        picks = representative(vectors[place[own]], budget, fewshot.neighbours, fewshot.rho)
        left[own[picks]] = True
    return left


def _labels_of(folder: str) -> Numbers:
    features = open_features(Path(folder))
    if features is None:
        raise RunError(f"the features in {folder} are gone: start the run again, they are made anew")
    return features.values("label")
