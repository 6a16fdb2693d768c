"""The gold labels of a run: drawn by its settings from its data, filtered by embeddings of its texts."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fednlp.data.features import open_features
from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.filtering import filter_clients
from fednlp.fewshot.gold import GoldLabels, draw_gold_labels
from fednlp.partition.embed import embed
from fednlp.simulation.context import RunContext
from fednlp.tasks.text_classification import TextClassification


def gold_labels_of(context: RunContext) -> GoldLabels:
    """Return the gold labels of a run with few labels; no other label is read.

    Raises:
        ConfigError: The task has no classes, there are more gold labels than examples, or no example is left to label.
        RunError: The cached features were deleted.
    """
    fewshot, partition, task = context.experiment.fewshot, context.partition, context.worker.task
    assert fewshot is not None
    if not isinstance(task, TextClassification):
        raise ConfigError(f"[fewshot] gives texts classes, and {task.name} has none: leave it out")
    folder = context.worker.spec.train_features
    features = open_features(Path(folder))
    if features is None:
        raise RunError(f"the features in {folder} are gone: start the run again, which makes them again")
    gold = draw_gold_labels(
        features.values("label"),
        tuple(task.labels),
        partition,
        total=fewshot.gold,
        gamma=fewshot.gamma,
        noisy_fraction=fewshot.noisy_client_fraction,
        validation=fewshot.validation if fewshot.pacing == "search" else 0,
        seed=context.experiment.seed,
    )
    if fewshot.filter_ratio is not None:
        texts = np.flatnonzero(gold.usable)
        context.log(f"embedding {len(texts):,} texts for filtering (once; kept in the cache)")
        vectors = embed(context.texts(texts))
        usable = filter_clients(
            partition, gold.usable, vectors, fewshot.filter_ratio, fewshot.neighbours, fewshot.rho
        )
        gold = replace(gold, usable=usable)
    for name in gold.classes_without_gold():
        context.log(f'no gold label is "{name}": it is learnt only from pseudo labels, if at all')
    return gold
