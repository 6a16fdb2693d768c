"""Estimates of the memory and the time of training plans, before anything is trained."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.costs import DeviceProfile, TrainingDepth, seconds_per_example
from fednlp.errors import ConfigError
from fednlp.simulation.resource_estimation import memory_of_depth, model_sizes
from fednlp.studies.depth_capacity import TrainingPlan

if TYPE_CHECKING:
    from torch import nn

    from fednlp.simulation.components import Log


@dataclass(frozen=True)
class PlanCost:
    """The estimated costs of a training plan.

    Attributes:
        parameters: Number of parameters that are trained and sent.
        memory: Peak memory of training or labelling, in bytes.
        training: Seconds per example of a local step.
        inference: Seconds per labelled example.
    """

    parameters: int
    memory: int
    training: float
    inference: float


def plan_selection(layers: int, plan: TrainingPlan, head: bool = True) -> dict[str, Any]:
    """Return a plan as ``[model] train``; it fits no model with another number of layers.

    Args:
        layers: Number of the model's layers.
        head: True if the model has a head.

    >>> plan_selection(24, TrainingPlan(depth=8, capacity=1))
    {'shared': ['layer.23', 'layer.16-22:bias', 'head'], 'rest': 'frozen', 'layers': 24}
    """
    full, lowest = layers - plan.capacity, layers - plan.depth
    shared = [_layers(full, layers)] if plan.capacity else []
    shared += [f"{_layers(lowest, full)}:bias"] if lowest < full else []
    return {"shared": [*shared, "head"] if head else shared, "rest": "frozen", "layers": layers}


def _layers(first: int, end: int) -> str:
    return f"layer.{first}" if end == first + 1 else f"layer.{first}-{end - 1}"


class PlanEstimator:
    """Estimates the costs of training plans for one model and one device, without training.

    Args:
        experiment: Resolved.
        profile: The device's profile.
        log: Called with a message before each slow step.

    Raises:
        ConfigError: The model has no single stack of layers.
    """

    def __init__(self, experiment: Experiment, profile: DeviceProfile, log: "Log") -> None:
        from fednlp.models.groups import groups_of
        from fednlp.models.pretrained import load_tokenizer, longest_text, pretrained_model
        from fednlp.simulation.components import make_task, model_source, open_data
        from fednlp.simulation.configured_algorithm import build_algorithm

        self.experiment, self.profile = experiment, profile
        self.vectors = build_algorithm(experiment).held_vectors
        settings, data = experiment.model, open_data(experiment, log)
        source = model_source(experiment, data, log)
        tokenizer = load_tokenizer(source)
        task = make_task(experiment.task.configured or data.task, data, tokenizer, experiment.task.given())
        self.model = pretrained_model(
            source, task.model_class, task.settings(), settings.config, experiment.seed, None
        )
        length = min(settings.max_length, longest_text(source, tokenizer, settings.config))
        self.sizes = model_sizes(task, self.model, length)
        parts = groups_of(self.model)
        self.layers, self.head = _stack(set(parts.values())), "head" in parts.values()
        biased = {part for name, part in parts.items() if name.endswith("bias")}
        self.biased = all(f"layer.{number}" in biased for number in range(self.layers))
        self.cost = cache(self._cost)

    @property
    def has_every_plan(self) -> bool:
        """True if the model allows every plan: it has a head, and biases in every layer."""
        return self.biased and self.head

    def selection(self, plan: TrainingPlan) -> dict[str, Any]:
        """Return a plan as ``[model] train``."""
        return plan_selection(self.layers, plan, self.head)

    def fits(self, plan: TrainingPlan, memory: int | None) -> bool:
        """Return whether the model has the parameters that a plan trains, and the plan fits in memory.

        Args:
            memory: Bytes of memory; None for unlimited memory.
        """
        possible = (self.head or plan.depth > 0) and (self.biased or plan.capacity == plan.depth)
        return possible and (memory is None or self.cost(plan).memory <= memory)

    def least_memory(self) -> int:
        """Return the bytes of memory that the smallest plan requires."""
        return self.cost(TrainingPlan(0, 0) if self.head else TrainingPlan(1, 0 if self.biased else 1)).memory

    def depth(self, plan: TrainingPlan) -> TrainingDepth:
        """Return the trained layers of a plan."""
        biases = plan.depth - plan.capacity
        return TrainingDepth(self.layers, plan.capacity, biases, self.experiment.runtime.cache_activations)

    def _cost(self, plan: TrainingPlan) -> PlanCost:
        trained, depth = _trained(self.model, self.selection(plan)), self.depth(plan)
        memory = memory_of_depth(self.experiment, self.sizes, depth, trained, self.vectors * trained)
        return PlanCost(trained, memory, self._seconds(depth, True), self._seconds(depth, False))

    def _seconds(self, depth: TrainingDepth, training: bool) -> float:
        name = self.experiment.model.name_or_path
        found = seconds_per_example(self.profile, name, self.sizes.parameters, depth, training)
        if found is None:
            raise ConfigError(
                f"the profile {self.profile.name} does not say how long {name} takes: choose another, or measure one "
                "with fednlp device measure"
            )
        return found


def _stack(parts: set[str]) -> int:
    layers = {part for part in parts if part.startswith("layer.")}
    if not layers:
        there = ", ".join(sorted(parts))[:200]
        raise ConfigError(f"a plan needs a model with one stack of layers; this one has {there}")
    return len(layers)


def _trained(model: "nn.Module", train: dict[str, Any]) -> int:
    """Return the number of parameters that a selection trains; the model is left unchanged."""
    from fednlp.models.selection import apply_selection, parse_selection

    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        apply_selection(model, parse_selection(train))
        return sum(parameter.numel() for parameter, _ in flags if parameter.requires_grad)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
