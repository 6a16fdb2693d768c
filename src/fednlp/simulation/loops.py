"""Selects the training loop of a run."""

from dataclasses import replace

from fednlp.federated.lora import ExactAveraging, check_exact
from fednlp.simulation.baselines import Centralised, LocalOnly, MostFrequentLabel, SequentialFineTuning
from fednlp.simulation.central_labels import CentralLabels
from fednlp.simulation.context import RunContext, Training
from fednlp.simulation.label_holder import OpenLabels
from fednlp.simulation.protection import Protected
from fednlp.simulation.pseudo_labels import PseudoLabels
from fednlp.simulation.rounds import FederatedTraining

_BASELINES: dict[str, type[Centralised | SequentialFineTuning | LocalOnly | MostFrequentLabel]] = {
    "centralised": Centralised,
    "chained": SequentialFineTuning,
    "local": LocalOnly,
    "majority": MostFrequentLabel,
}


def training_of(
    context: RunContext, protected: Protected, open_labels: OpenLabels = CentralLabels
) -> Training:
    """Return the training loop of a run.

    Args:
        protected: The run's algorithm, with differential privacy and secure aggregation.
        open_labels: Opens the labels of a run with few labels.

    Raises:
        ConfigError: The model, the data or the labels do not allow the configured method.
    """
    baseline = _BASELINES.get(context.experiment.algorithm.name)
    if baseline is not None:
        return baseline(context)
    algorithm, adapters = context.worker.algorithm, context.worker.algorithm.uplink.adapters
    if adapters:
        check_exact(context.state.layout, adapters)
        algorithm = replace(algorithm, server=ExactAveraging(algorithm.server, adapters))
    for promise in protected.promises:
        context.log(promise)
    context.facts.update(protected.facts)
    if context.experiment.fewshot is None:
        return FederatedTraining(context, algorithm)
    labels = PseudoLabels(context, algorithm, open_labels(context))
    return FederatedTraining(context, labels.algorithm, labels)
