"""Estimates before anything is trained: the memory of a client, and the memory and time of training plans."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.costs import (
    DeviceProfile,
    ModelSizes,
    TrainingDepth,
    client_memory,
    layer_sizes,
    seconds_per_example,
)
from fednlp.errors import ConfigError
from fednlp.fewshot.depth_capacity import TrainingPlan

if TYPE_CHECKING:
    from torch import nn

    from fednlp.tasks.base import Task
    from fednlp.training.worker import ClientWorker

Log = Callable[[str], None]


def model_sizes(task: "Task", model: "nn.Module", length: int) -> ModelSizes:
    """Return the sizes that the memory of a client depends on, of a task and its model.

    Args:
        task: Its head may be over the vocabulary: at one place of a row, at those that are hidden, or of the target.
        model: On which only the sizes are read.
        length: Tokens of a row at most.

    Raises:
        ConfigError: The model's configuration does not state the sizes of its layers.
    """
    from fednlp.tasks.blocks import MAX_LOGITS, MAX_ROWS
    from fednlp.tasks.language_modeling import LanguageModeling

    config: Any = getattr(model, "config", None)
    shape, parameters = layer_sizes(config), sum(parameter.numel() for parameter in model.parameters())
    if task.model_class not in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        return ModelSizes(parameters, shape, length)
    words: int = config.vocab_size
    places = 1
    if task.model_class == "AutoModelForCausalLM":
        places = getattr(task, "max_target_length", length)
    elif (hidden := getattr(task, "mlm_probability", None)) is not None:
        places = max(1, round(hidden * length))
    rows = max(1, min(MAX_ROWS, MAX_LOGITS // (length * words)))
    return ModelSizes(parameters, shape, length, places * words, rows, isinstance(task, LanguageModeling))


def memory_of_depth(
    experiment: Experiment, sizes: ModelSizes, depth: TrainingDepth, trained: int, tied: int = 0
) -> int:
    """Return the bytes at the peak of a client of an experiment that trains to some depth.

    Args:
        experiment: Says batches and optimiser, and whether clients label.
        sizes: Of model and texts.
        depth: Which layers are trained.
        trained: Parameters that are trained.
        tied: Of these, those of a word embedding that is the head too.
    """
    client, fewshot = experiment.client, experiment.fewshot
    labels = fewshot is not None and fewshot.pacing != "none"
    return client_memory(
        sizes,
        depth,
        trained,
        batch=client.per_device_train_batch_size,
        labelled=experiment.evaluation.batch_size if labels else 0,
        optimizer="momentum" if client.momentum else client.optimizer,
        tied=tied,
    )


def memory_of_run(experiment: Experiment, side: "ClientWorker") -> int | None:
    """Return the bytes at the peak of a client of a run, None where no prediction applies.

    None for models with adapters, with two stacks of layers, without attention, or that run a layer several times; and
    where an example is longer than a row, since the number of rows of a batch is then unknown.

    Args:
        experiment: Of the run.
        side: Its model, of which the frozen parameters are marked, and texts.
    """
    from fednlp.models.trainable_depth import backward_depth

    length, model, features = side.spec.longest, side.replica.model, side.train_features
    depth = backward_depth(model)
    if experiment.model.peft is not None or depth is None or not length:
        return None
    if features.lengths(side.partition.train_indices).max(initial=0) > length:
        return None
    try:
        sizes = model_sizes(side.task, model, length)
    except ConfigError:
        return None
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return memory_of_depth(experiment, sizes, TrainingDepth(*depth), trained, _tied(model))


def _tied(model: Any) -> int:
    """Return the parameters of a trained word embedding whose matrix is the head's too."""
    words: Any = getattr(model.get_input_embeddings(), "weight", None)
    head: Any = getattr(model.get_output_embeddings(), "weight", None)
    tied = words is not None and words is head and words.requires_grad
    return int(words.numel()) if tied else 0


@dataclass(frozen=True)
class PlanCost:
    """What a training plan is estimated to take.

    Attributes:
        parameters: Parameters that are trained and sent.
        memory: Bytes at the peak of training or labelling.
        training: Seconds an example of a local step.
        inference: Seconds an example that is labelled.
    """

    parameters: int
    memory: int
    training: float
    inference: float


def plan_selection(layers: int, plan: TrainingPlan, head: bool = True) -> dict[str, Any]:
    """Return a plan as ``[model] train``; it fits no model with another number of layers.

    Args:
        layers: Of the model.
        plan: The plan.
        head: Whether the model has one.

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
    """The costs of training plans for one model and one device; nothing is trained."""

    def __init__(self, experiment: Experiment, profile: DeviceProfile, log: Log) -> None:
        from fednlp.models import load_tokenizer, longest_text, pretrained_model
        from fednlp.models.groups import groups_of
        from fednlp.simulation.build import make_task, model_source, open_data

        self.experiment, self.profile = experiment, profile
        settings, data = experiment.model, open_data(experiment)
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
        """Whether every plan can be made of this model: it has a head, and biases in every layer."""
        return self.biased and self.head

    def selection(self, plan: TrainingPlan) -> dict[str, Any]:
        """Return a plan as ``[model] train``."""
        return plan_selection(self.layers, plan, self.head)

    def fits(self, plan: TrainingPlan, memory: int | None) -> bool:
        """Return whether the model has what a plan trains, and some bytes of memory suffice for it.

        Args:
            plan: The plan.
            memory: Bytes; None for any amount.
        """
        possible = (self.head or plan.depth > 0) and (self.biased or plan.capacity == plan.depth)
        return possible and (memory is None or self.cost(plan).memory <= memory)

    def least_memory(self) -> int:
        """Return the bytes that the smallest plan takes."""
        return self.cost(TrainingPlan(0, 0) if self.head else TrainingPlan(1, 0 if self.biased else 1)).memory

    def depth(self, plan: TrainingPlan) -> TrainingDepth:
        """Return which layers a plan trains."""
        biases = plan.depth - plan.capacity
        return TrainingDepth(self.layers, plan.capacity, biases, self.experiment.runtime.cache_activations)

    def _cost(self, plan: TrainingPlan) -> PlanCost:
        trained, depth = _trained(self.model, self.selection(plan)), self.depth(plan)
        memory = memory_of_depth(self.experiment, self.sizes, depth, trained)
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
    """Return how many parameters a selection trains; the model is as it was."""
    from fednlp.models.selection import apply_selection, parse_selection

    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        apply_selection(model, parse_selection(train))
        return sum(parameter.numel() for parameter, _ in flags if parameter.requires_grad)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
