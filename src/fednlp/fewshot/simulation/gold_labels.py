"""The gold labels of a run: drawn by its settings from its data, filtered by embeddings of its texts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.data.features import open_features
from fednlp.data.textdata import TextData
from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.filtering import filter_at_random, filter_clients
from fednlp.fewshot.gold import GoldLabels, draw_gold_labels
from fednlp.formatting.units import plural
from fednlp.partition import Partition
from fednlp.partition.embed import embed
from fednlp.partition.index import IntArray
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.tasks.base import Task
from fednlp.tasks.text_classification import TextClassification


def gold_labels_of(context: RunContext) -> GoldLabels:
    """Return the gold labels of a run with few labels; no other label is read.

    Raises:
        ConfigError: The task has no classes, there are more gold labels than examples, or no example is left to label.
        RunError: The cached features were deleted.
    """
    fewshot, partition = context.experiment.fewshot, context.partition
    assert fewshot is not None
    names = class_names_of(context.worker.task)
    folder = context.worker.spec.train_features
    features = open_features(Path(folder))
    if features is None:
        raise RunError(f"the features in {folder} are gone: start the run again, which makes them again")
    gold = drawn_gold_labels(context.experiment, features.values("label"), names, partition)
    if fewshot.filter_ratio is not None and fewshot.filter == "random":
        rng = generator(context.experiment.seed, "filter")
        usable = filter_at_random(partition, gold.usable, fewshot.filter_ratio, rng)
        gold = replace(gold, usable=usable)
    elif fewshot.filter_ratio is not None:
        gold = replace(gold, usable=_representative(context, gold))
    for name in gold.classes_without_gold():
        context.log(f'no gold label is "{name}": it is learnt only from pseudo labels, if at all')
    return gold


def _representative(context: RunContext, gold: GoldLabels) -> NDArray[np.bool_]:
    """Return the texts that representational filtering leaves to be labelled, bool by example number."""
    fewshot, partition = context.experiment.fewshot, context.partition
    assert fewshot is not None
    assert fewshot.filter_ratio is not None
    context.log(f"embedding {plural(int(gold.usable.sum()), 'text')} for filtering (once; kept in the cache)")
    own = [np.sort(partition.train(client)) for client in range(partition.num_clients)]
    own = [numbers[gold.usable[numbers]] for numbers in own]
    texts = np.concatenate(own)
    vectors = embed(context.texts(texts), groups=[len(numbers) for numbers in own])[np.argsort(texts)]
    return filter_clients(
        partition, gold.usable, vectors, fewshot.filter_ratio, fewshot.neighbours, fewshot.rho
    )


def drawn_gold_labels(
    experiment: Experiment, labels: IntArray, names: tuple[str, ...], partition: Partition
) -> GoldLabels:
    """Return the gold labels that an experiment draws, before any filtering.

    Args:
        experiment: With ``[fewshot]``.
        labels: int64, of each training example.
        names: Names of the labels, by class number.
        partition: The clients' training examples.

    Raises:
        ConfigError: There are more gold labels than examples, or no example is left to label.
    """
    fewshot = experiment.fewshot
    assert fewshot is not None
    return draw_gold_labels(
        labels,
        names,
        partition,
        total=fewshot.gold,
        gamma=fewshot.gamma,
        noisy_fraction=fewshot.noisy_client_fraction,
        validation=fewshot.validation if fewshot.pacing == "search" else 0,
        seed=experiment.seed,
    )


def split_labels(experiment: Experiment, data: TextData, partition: Partition) -> GoldLabels:
    """Return the labels that a data set's files have where it is split into those of sites.

    Raises:
        ConfigError: There are more gold labels than examples, or the task has no classes.
    """
    if data.schema.kind != "class":
        raise ConfigError(f"[fewshot] gives texts classes, and {data.task} has none: leave it out")
    return drawn_gold_labels(experiment, data.labels("train"), data.label_names, partition)


def class_names_of(task: Task) -> tuple[str, ...]:
    """Return the names of a task's classes, by number.

    Raises:
        ConfigError: It has none, so that texts cannot be given pseudo labels.
    """
    if not isinstance(task, TextClassification):
        raise ConfigError(f"[fewshot] gives texts classes, and {task.name} has none: leave it out")
    return tuple(task.labels)
