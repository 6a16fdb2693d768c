"""Estimates before anything is trained: the memory of a client, and the memory and time of training plans."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.costs import (
    DeviceProfile,
    Fleet,
    ModelSizes,
    TrainingDepth,
    client_memory,
    layer_sizes,
    make_fleet,
    seconds_per_example,
)
from fednlp.errors import ConfigError
from fednlp.fewshot.depth_capacity import TrainingPlan
from fednlp.partition import Partition

if TYPE_CHECKING:
    from torch import nn

    from fednlp.simulation.components import Log
    from fednlp.tasks.base import Task
    from fednlp.training.worker import ClientWorker


def fleet_of(experiment: Experiment, model: "nn.Module", num_clients: int) -> Fleet | None:
    """Return the clients' devices and their cost models; None where ``[costs]`` configures none.

    Args:
        experiment: Resolved.
        model: The model, of which the frozen parameters are marked.
        num_clients: Number of clients of the partition.
    """
    from fednlp.models.trainable_depth import trainable_depth

    costs, depth = experiment.costs, trainable_depth(model)
    return make_fleet(
        costs.bandwidth_up,
        costs.bandwidth_down,
        costs.device,
        model=experiment.model.name_or_path,
        parameters=sum(p.numel() for p in model.parameters()),
        num_clients=num_clients,
        seed=experiment.seed,
        depth=None if depth is None else TrainingDepth(*depth, cached=experiment.runtime.cache_activations),
    )


def model_sizes(task: "Task", model: "nn.Module", length: int) -> ModelSizes:
    """Return the sizes that the memory of a client depends on, of a task and its model.

    Args:
        task: The task, which selects the head: for labels, or over the vocabulary at one position of a row, at the
            masked ones, or at those of the target.
        model: The model, of which only the sizes are read.
        length: Maximum number of tokens of a row.

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
    experiment: Experiment, sizes: ModelSizes, depth: TrainingDepth, trained: int, held: int, tied: int = 0
) -> int:
    """Return the peak memory of a client that trains to some depth, in bytes.

    Args:
        experiment: Resolved; its batch sizes, optimiser and labelling are used.
        sizes: Sizes of model and texts.
        depth: The trained layers.
        trained: Number of trained parameters.
        held: Number of values that the method holds beside the model that it trains.
        tied: Number of these in a word embedding whose matrix is the head's too.

    Raises:
        ConfigError: The optimiser is unknown.
    """
    client, fewshot = experiment.client, experiment.fewshot
    labels, tokens = fewshot is not None and fewshot.pacing != "none", client.max_tokens_per_batch
    return client_memory(
        sizes,
        depth,
        trained,
        batch=client.examples_per_step if tokens else client.per_device_train_batch_size,
        labelled=experiment.evaluation.batch_size if labels else 0,
        optimizer="momentum" if client.momentum else client.optimizer,
        tied=tied,
        held=held,
        max_tokens=tokens,
        checkpointing=client.gradient_checkpointing,
    )


def memory_of_run(experiment: Experiment, worker: "ClientWorker") -> int | None:
    """Return the peak memory of a client of a run, in bytes; None where no estimate applies.

    There is no estimate where :func:`memory_of_model` has none, nor where an example is longer than a row, since the
    number of rows of a batch is then unknown.

    Args:
        experiment: Resolved.
        worker: The worker, with the model, of which the frozen parameters are marked, and the features.
    """
    length = worker.spec.longest
    if not experiment.data.at_sites and _longest_example(worker) > length:
        return None
    held = worker.algorithm.held_vectors * worker.layout.numel
    return memory_of_model(experiment, worker.task, worker.replica.model, length, held)


def memory_of_model(
    experiment: Experiment, task: "Task", model: "nn.Module", length: int, held: int
) -> int | None:
    """Return the peak memory of a client that trains a model, in bytes; None where no estimate applies.

    There is no estimate for models with adapters, with two stacks of layers, without attention, or that run a layer
    several times.

    Args:
        experiment: Resolved.
        task: The task.
        model: The model, of which the frozen parameters are marked.
        length: Maximum number of tokens of a row; 0 where it is not known.
        held: Number of values that the method holds beside the model that it trains.
    """
    from fednlp.models.trainable_depth import backward_depth

    depth = backward_depth(model)
    if experiment.model.peft is not None or depth is None or not length:
        return None
    try:
        sizes = model_sizes(task, model, length)
    except ConfigError:
        return None
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return memory_of_depth(experiment, sizes, TrainingDepth(*depth), trained, held, _tied(model))


def _longest_example(worker: "ClientWorker") -> int:
    """Return the most tokens of a training example."""
    partition = worker.partition
    numbers = partition.train_indices if isinstance(partition, Partition) else partition.train_numbers
    return int(worker.train_features.lengths(numbers).max(initial=0))


def _tied(model: Any) -> int:
    """Return the number of parameters of a trained word embedding whose matrix is the head's too; 0 without one."""
    words: Any = getattr(model.get_input_embeddings(), "weight", None)
    head: Any = getattr(model.get_output_embeddings(), "weight", None)
    tied = words is not None and words is head and words.requires_grad
    return int(words.numel()) if tied else 0


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
        plan: The plan.
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
            plan: The plan.
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
