"""What training takes before it is tried: the memory of a client, and the prices of training plans."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.costs import Device, Plan, Sizes, client_memory, seconds_per_example, shape_of
from fednlp.errors import ConfigError
from fednlp.fewshot.planning import Candidate

if TYPE_CHECKING:
    from torch import nn

    from fednlp.tasks.base import Task
    from fednlp.training.worker import ClientWorker

Say = Callable[[str], None]


def sizes_of(task: "Task", model: "nn.Module", length: int) -> Sizes:
    """Return what the memory of a client depends on in a task and its model.

    Args:
        task: Its head may be over the vocabulary: at one place of a row, at those that are hidden, or of the target.
        model: On which only the sizes are read.
        length: Tokens of a row at most.

    Raises:
        ConfigError: The model's configuration does not say how large its layers are.
    """
    from fednlp.tasks.blocks import MAX_LOGITS, MAX_ROWS
    from fednlp.tasks.language_modeling import LanguageModeling

    config: Any = getattr(model, "config", None)
    shape, parameters = shape_of(config), sum(parameter.numel() for parameter in model.parameters())
    if task.model_class not in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        return Sizes(parameters, shape, length)
    words: int = config.vocab_size
    places = 1
    if task.model_class == "AutoModelForCausalLM":
        places = getattr(task, "max_target_length", length)
    elif (hidden := getattr(task, "mlm_probability", None)) is not None:
        places = max(1, round(hidden * length))
    rows = max(1, min(MAX_ROWS, MAX_LOGITS // (length * words)))
    return Sizes(parameters, shape, length, places * words, rows, isinstance(task, LanguageModeling))


def memory_of_plan(experiment: Experiment, sizes: Sizes, plan: Plan, trained: int, tied: int = 0) -> int:
    """Return the bytes at the peak of a client of an experiment under a plan.

    Args:
        experiment: Says batches and optimiser, and whether clients label.
        sizes: Of model and texts.
        plan: Which layers are trained.
        trained: Parameters that are trained.
        tied: Of these, those of a word embedding that is the head too.
    """
    client, fewshot = experiment.client, experiment.fewshot
    labels = fewshot is not None and fewshot.pacing != "none"
    return client_memory(
        sizes,
        plan,
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
        sizes = sizes_of(side.task, model, length)
    except ConfigError:
        return None
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return memory_of_plan(experiment, sizes, Plan(*depth), trained, _tied(model))


def _tied(model: Any) -> int:
    """Return the parameters of a trained word embedding whose matrix is the head's too."""
    words: Any = getattr(model.get_input_embeddings(), "weight", None)
    head: Any = getattr(model.get_output_embeddings(), "weight", None)
    tied = words is not None and words is head and words.requires_grad
    return int(words.numel()) if tied else 0


@dataclass(frozen=True)
class Price:
    """What a plan takes before anything is tried.

    Attributes:
        parameters: That are trained and sent.
        memory: Bytes at the peak of training or labelling.
        training: Seconds an example of a local step.
        inference: Seconds an example that is labelled.
    """

    parameters: int
    memory: int
    training: float
    inference: float


def train_of(layers: int, candidate: Candidate, head: bool = True) -> dict[str, Any]:
    """Return what ``[model] train`` says of a plan; it fits no model of other layers.

    Args:
        layers: Of the model.
        candidate: The plan.
        head: Whether the model has one.

    >>> train_of(24, Candidate(depth=8, capacity=1))
    {'shared': ['layer.23', 'layer.16-22:bias', 'head'], 'rest': 'frozen', 'layers': 24}
    """
    full, lowest = layers - candidate.capacity, layers - candidate.depth
    shared = [_layers(full, layers)] if candidate.capacity else []
    shared += [f"{_layers(lowest, full)}:bias"] if lowest < full else []
    return {"shared": [*shared, "head"] if head else shared, "rest": "frozen", "layers": layers}


def _layers(first: int, end: int) -> str:
    return f"layer.{first}" if end == first + 1 else f"layer.{first}-{end - 1}"


class Priced:
    """A model's plans and their prices; no plan is tried here."""

    def __init__(self, experiment: Experiment, profile: Device, say: Say) -> None:
        from fednlp.models import load_tokenizer, longest_text, pretrained_model
        from fednlp.models.groups import groups_of
        from fednlp.simulation.build import make_task, model_source, open_data

        self.experiment, self.profile = experiment, profile
        wanted, data = experiment.model, open_data(experiment)
        source = model_source(experiment, data, say)
        tokenizer = load_tokenizer(source)
        task = make_task(experiment.task.wanted or data.task, data, tokenizer, experiment.task.given())
        self.model = pretrained_model(
            source, task.model_class, task.settings(), wanted.config, experiment.seed, None
        )
        length = min(wanted.max_length, longest_text(source, tokenizer, wanted.config))
        self.sizes = sizes_of(task, self.model, length)
        parts = groups_of(self.model)
        self.layers, self.head = _stack(set(parts.values())), "head" in parts.values()
        biased = {part for name, part in parts.items() if name.endswith("bias")}
        self.biased = all(f"layer.{number}" in biased for number in range(self.layers))
        self.price = cache(self._price)

    @property
    def all_there(self) -> bool:
        """Whether every plan can be made of this model."""
        return self.biased and self.head

    def train(self, candidate: Candidate) -> dict[str, Any]:
        """Return what ``[model] train`` says of a plan."""
        return train_of(self.layers, candidate, self.head)

    def may(self, candidate: Candidate, budget: int | None) -> bool:
        """Whether a model has what a plan trains, and a device room for it."""
        there = (self.head or candidate.depth > 0) and (self.biased or candidate.capacity == candidate.depth)
        return there and (budget is None or self.price(candidate).memory <= budget)

    def least(self) -> int:
        """Return the bytes that the smallest plan takes."""
        return self.price(Candidate(0, 0) if self.head else Candidate(1, 0 if self.biased else 1)).memory

    def _price(self, candidate: Candidate) -> Price:
        trained, where = _trained(self.model, self.train(candidate)), self.plan(candidate)
        memory = memory_of_plan(self.experiment, self.sizes, where, trained)
        return Price(trained, memory, self._seconds(where, True), self._seconds(where, False))

    def plan(self, candidate: Candidate) -> Plan:
        """Return what a plan is to the costs."""
        biases = candidate.depth - candidate.capacity
        return Plan(self.layers, candidate.capacity, biases, self.experiment.runtime.cache_activations)

    def _seconds(self, where: Plan, training: bool) -> float:
        name = self.experiment.model.name_or_path
        found = seconds_per_example(self.profile, name, self.sizes.parameters, where, training)
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
