"""Selects the training loop of a run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fednlp.federated.adapters.base import AdaptingServer
from fednlp.simulation.baselines import Centralised, LocalOnly, MostFrequentLabel, SequentialFineTuning
from fednlp.simulation.context import RunContext, Training
from fednlp.simulation.protection import Protected
from fednlp.simulation.rounds import FederatedTraining

_BASELINES: dict[str, type[Centralised | SequentialFineTuning | LocalOnly | MostFrequentLabel]] = {
    "centralised": Centralised,
    "chained": SequentialFineTuning,
    "local": LocalOnly,
    "majority": MostFrequentLabel,
}


def training_of(
    context: RunContext, protected: Protected, open_labels: Callable[[RunContext], Any] | None = None
) -> Training:
    """Return the training loop of a run.

    Args:
        protected: The run's algorithm, with differential privacy and secure aggregation.
        open_labels: Opens the labels that change with the rounds, where not this process holds them.

    Raises:
        ConfigError: The model, the data or the labels do not allow the configured method.
    """
    baseline = _BASELINES.get(context.experiment.algorithm.name)
    if baseline is not None:
        return baseline(context)
    algorithm, adapters = context.worker.algorithm, context.worker.algorithm.uplink.adapters
    if adapters.pairs:
        adapters.check(context.state.layout)
        algorithm = replace(algorithm, server=AdaptingServer(algorithm.server, adapters))
    for promise in protected.promises:
        context.log(promise)
    context.facts.update(protected.facts)
    for rounds in context.experiment.parts("rounds"):
        labels = rounds(context, algorithm, open_labels)
        return FederatedTraining(context, labels.algorithm, labels)
    return FederatedTraining(context, algorithm)
