"""Training plans of a model: what each trains, and what it takes, before any is tried."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.costs import Device, Plan, peak_memory, seconds_per_example, shape_of
from fednlp.errors import ConfigError
from fednlp.fewshot.planning import Candidate

if TYPE_CHECKING:
    from torch import nn

Say = Callable[[str], None]


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
    """Return what ``[model] train`` says of a plan.

    Args:
        layers: Of the model.
        candidate: The plan.
        head: Whether the model has one.

    >>> train_of(24, Candidate(depth=8, capacity=1))
    {'shared': ['layer.23', 'layer.16-22:bias', 'head'], 'rest': 'frozen'}
    """
    full, lowest = layers - candidate.capacity, layers - candidate.depth
    shared = [_layers(full, layers)] if candidate.capacity else []
    shared += [f"{_layers(lowest, full)}:bias"] if lowest < full else []
    return {"shared": [*shared, "head"] if head else shared, "rest": "frozen"}


def _layers(first: int, end: int) -> str:
    return f"layer.{first}" if end == first + 1 else f"layer.{first}-{end - 1}"


class Priced:
    """A model's plans and their prices; no plan is tried here."""

    def __init__(self, experiment: Experiment, profile: Device, say: Say) -> None:
        from fednlp.assembly import make_task, model_source, open_data
        from fednlp.models import load_tokenizer, longest_text, pretrained_model
        from fednlp.models.groups import groups_of

        self.experiment, self.profile = experiment, profile
        wanted, data = experiment.model, open_data(experiment)
        source = model_source(experiment, data, say)
        tokenizer = load_tokenizer(source)
        task = make_task(experiment.task.wanted or data.task, data, tokenizer, experiment.task.given())
        self.model = pretrained_model(
            source, task.model_class, task.settings(), wanted.config, experiment.seed, None
        )
        config: Any = getattr(self.model, "config", None)
        self.shape = shape_of(config)
        self.length = min(wanted.max_length, longest_text(source, tokenizer, wanted.config))
        self.words: int = config.vocab_size if task.model_class == "AutoModelForMaskedLM" else 0
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
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
        trained, client = _trained(self.model, self.train(candidate)), self.experiment.client
        batch = client.per_device_train_batch_size
        where = self.plan(candidate)
        memory = peak_memory(
            self.parameters,
            trained,
            self.shape,
            where,
            batch=batch,
            length=self.length,
            optimizer="momentum" if client.momentum else client.optimizer,
            logits=batch * self.words,
        )
        return Price(trained, memory, self._seconds(where, True), self._seconds(where, False))

    def plan(self, candidate: Candidate) -> Plan:
        """Return what a plan is to the costs."""
        biases = candidate.depth - candidate.capacity
        return Plan(self.layers, candidate.capacity, biases, self.experiment.runtime.remember)

    def _seconds(self, where: Plan, training: bool) -> float:
        name = self.experiment.model.name_or_path
        found = seconds_per_example(self.profile, name, self.parameters, where, training)
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
    from fednlp.models.selection import apply_selection, parse_train

    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        apply_selection(model, parse_train(train))
        return sum(parameter.numel() for parameter, _ in flags if parameter.requires_grad)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
