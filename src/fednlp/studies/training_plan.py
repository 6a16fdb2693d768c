"""``fednlp plan``: search a training plan for a device by its costs and a short run (FeS, section 3.3).

:mod:`fednlp.studies.depth_capacity` decides which plans are evaluated, and in which order; here are their costs,
estimated before anything is trained, and their short runs. docs/methods/planning.md defines the figures.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES, Costs, Data, Report
from fednlp.costs import DeviceProfile, TrainingDepth, load_profile, profile_names, seconds_per_example
from fednlp.errors import ConfigError
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import human_seconds, metric_title, metric_value, plural
from fednlp.models.groups import groups_of
from fednlp.models.pretrained import load_tokenizer, longest_text, pretrained_model
from fednlp.models.selection import apply_selection, parse_selection
from fednlp.prompts.prompt_sets import prompt_names
from fednlp.runtime.worker_process import kept_workers
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.components import Log, make_task, model_source, open_data
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.resource_estimation import memory_of_depth, model_sizes
from fednlp.simulation.run import run
from fednlp.studies.depth_capacity import (
    PlanDecision,
    PlanOutcome,
    TrainingPlan,
    monotonicity_violations,
    search_plans,
)

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class PlanLimits:
    """The target of a plan search, and the limits of the device.

    Attributes:
        target: A value of the task's metric, above 0 and at most 1.
        rounds: Number of rounds of the run that evaluates a plan.
        device: Name or path of a device profile; that of ``[costs]`` if left out.
        bandwidth: MB/s (10^6 bytes a second), both ways; those of ``[costs]`` if left out.
        memory: Bytes of memory; the device's if left out, and unlimited where its profile states none.
    """

    target: float
    rounds: int = 5
    device: str | None = None
    bandwidth: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if not 0 < self.target <= 1:
            raise ConfigError(f"target = {self.target}: give a share above 0 and at most 1, e.g. 0.8")
        if self.rounds < 1:
            raise ConfigError(f"rounds = {self.rounds}: give a whole number from 1")
        if self.bandwidth is not None and not 0 < self.bandwidth < math.inf:
            raise ConfigError(f"bandwidth = {self.bandwidth}: give MB/s, above 0")
        if self.memory is not None and self.memory < 1:
            raise ConfigError(f"memory = {self.memory}: give bytes, above 0")


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


@dataclass(frozen=True)
class PlanTrial:
    """The figures of a plan's short run.

    Attributes:
        accuracy: The highest value of the metric after any round, 0 to 1.
        seconds: Mean simulated seconds of a round.
        bytes: Mean bytes of a round, both ways, over all of its clients.
        labelled: Mean number of texts labelled in a round.
        rounds_to_target: Rounds until the target was reached; None where it was not.
        seconds_to_target: Simulated seconds until the target was reached; None where it was not.
    """

    accuracy: float
    seconds: float
    bytes: float
    labelled: float
    rounds_to_target: int | None
    seconds_to_target: float | None


@dataclass(frozen=True)
class PlanSearchResult:
    """The evaluated plans, and the chosen one.

    Attributes:
        model: Name or path of the model.
        data: Name or path of the data on which plans were tried.
        layers: Number of the model's layers.
        metric: The task's metric, in which the target is stated.
        limits: Target and limits of the search.
        device: Name of the device profile.
        budget: Bytes of memory; None for unlimited memory.
        least: Bytes that the smallest plan requires.
        decisions: The evaluated plans, in order.
        costs: Estimated costs of each evaluated plan.
        runs: Figures of the short run of each evaluated plan.
        chosen: The chosen plan; None where no plan fits, or none reached the target.
        train: ``[model] train`` of the chosen plan.
    """

    model: str
    data: str
    layers: int
    metric: str
    limits: PlanLimits
    device: str
    budget: int | None
    least: int
    decisions: list[PlanDecision]
    costs: dict[TrainingPlan, PlanCost]
    runs: dict[TrainingPlan, PlanTrial]
    chosen: TrainingPlan | None
    train: dict[str, Any] | None

    def monotonicity_violations(self) -> list[tuple[PlanDecision, PlanDecision]]:
        """Return the pairs of plans of which the larger was less accurate, against the assumption of the search."""
        return monotonicity_violations(self.decisions)


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

    def __init__(self, experiment: Experiment, profile: DeviceProfile, log: Log) -> None:
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


def _trained(model: nn.Module, train: dict[str, Any]) -> int:
    """Return the number of parameters that a selection trains; the model is left unchanged."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        apply_selection(model, parse_selection(train))
        return sum(parameter.numel() for parameter, _ in flags if parameter.requires_grad)
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


def selection_text(planned: PlanSearchResult) -> str:
    """Return the chosen plan as TOML, with a comment that says what it is for.

    Raises:
        ConfigError: No plan was chosen.
    """
    import tomli_w

    if planned.chosen is None or planned.train is None:
        raise ConfigError("no plan was chosen: there is nothing to write")
    chosen, tried, limits = planned.chosen, planned.runs[planned.chosen], planned.limits
    layers, below = plural(planned.layers, "layer"), plural(chosen.depth - chosen.capacity, "layer")
    whole, rounds = plural(chosen.capacity, "layer"), plural(limits.rounds, "round")
    seconds = tried.seconds_to_target or 0
    lines = [
        f"Training plan for {clean(planned.model)}, which has {layers}. Another model needs another plan.",
        f"Trained: the head, the top {whole} whole, and the biases of the {below} below.",
        "Frozen: everything else, the embeddings included.",
        f"Tried on {clean(planned.data)} for {rounds}: {planned.metric} {tried.accuracy:.3f}.",
        f"Target {limits.target:g} reached after {seconds:.4g} simulated seconds on {clean(planned.device)}.",
    ]
    return "".join(f"# {line}\n" for line in lines) + tomli_w.dumps({"model": {"train": planned.train}})


def on_public_set(experiment: Experiment, public: str) -> Experiment:
    """Return an experiment on another data set, with its prompt where the experiment has one.

    Plans are chosen "offline on cloud", on a public set as hard as the private one (FeS, section 3.3), so that the
    test set of the experiment chooses nothing.

    Args:
        experiment: The experiment for which a plan is wanted.
        public: Name of a known data set, and its files where it is not fetched: ``"bbc"``, ``"agnews=DIR"``.

    Raises:
        ConfigError: It is the experiment's own data set, or has no prompt.
    """
    name, _, path = public.partition("=")
    if name == experiment.data.name:
        raise ConfigError(f"--public {name} is the experiment's own data set: name another, or leave it out")
    task = experiment.task
    if task.given().get("prompt"):
        if name not in prompt_names():
            raise ConfigError(f"{name} has no prompt: name one of {', '.join(prompt_names())}")
        task = task.model_copy(update={"prompt": name})
    return experiment.model_copy(update={"data": Data(name=name, path=path or None), "task": task})


@kept_workers()
def find_training_plan(
    experiment: Experiment, limits: PlanLimits, log: Log, on_progress: OnProgress
) -> PlanSearchResult:
    """Search for the training plan with which an experiment reaches a target in the least simulated time.

    Args:
        experiment: The experiment, which evaluates each plan in a short run with its seed, in a temporary folder.
            ``[model] train`` and ``[costs]`` are replaced, and the curriculum replaces a search for a pace.
        limits: Target, device, bandwidth, memory, and rounds of a run.
        log: Called with a message before each slow step, and with the result of each plan.
        on_progress: Called with clients done, of how many, and their name, in each round.

    Raises:
        ConfigError: The experiment or the device does not support plans, or ``[costs] device`` is a mix and ``limits``
            has no device.
        FednlpError: As for :func:`fednlp.run`.
    """
    experiment = _checked(experiment)
    costs, profile = _costs(experiment, limits)
    budget = limits.memory if limits.memory is not None else profile.memory
    estimator = PlanEstimator(experiment, profile, log)
    runs: dict[TrainingPlan, PlanTrial] = {}
    metric = ""
    with TemporaryDirectory(prefix="fednlp-plan-") as folder:

        def attempt(candidate: TrainingPlan) -> PlanOutcome:
            nonlocal metric
            place = Path(folder) / f"{candidate.depth}-{candidate.capacity}"
            one = _trial(experiment, limits, estimator.selection(candidate), costs)
            callback = _ForwardProgress(NullCallback().log if runs else log, on_progress)
            done = run(one, place, callback=callback)
            metric = done.read_json("summary.json")["metric"]
            found = runs[candidate] = _read(done.round_lines(), metric, limits.target)
            log(_trial_text(candidate, found, metric, limits))
            return PlanOutcome(found.accuracy, found.seconds_to_target)

        fits = None if budget is None and estimator.has_every_plan else lambda c: estimator.fits(c, budget)
        decisions, chosen = search_plans(estimator.layers, limits.target, attempt, fits)
    return PlanSearchResult(
        model=experiment.model.name_or_path,
        data=experiment.data.name or str(experiment.data.path),
        layers=estimator.layers,
        metric=metric,
        limits=limits,
        device=profile.name,
        budget=budget,
        least=estimator.least_memory(),
        decisions=decisions,
        costs={one.candidate: estimator.cost(one.candidate) for one in decisions},
        runs=runs,
        chosen=chosen,
        train=None if chosen is None else estimator.selection(chosen),
    )


def _checked(experiment: Experiment) -> Experiment:
    if experiment.algorithm.name in BASELINES:
        raise ConfigError(
            f"a plan weighs computing against sending, and {experiment.algorithm.name} sends nothing: say "
            'algorithm.name = "fedavg"'
        )
    if experiment.model.peft is not None:
        raise ConfigError("a plan chooses among the model's own layers: leave [model.peft] out")
    fewshot = experiment.fewshot
    if fewshot is not None and fewshot.pacing == "search":  # its trials of paces would take the few rounds
        fewshot = fewshot.model_copy(update={"pacing": "curriculum"})
    return experiment.model_copy(update={"fewshot": fewshot}).resolved()


def _costs(experiment: Experiment, limits: PlanLimits) -> tuple[Costs, DeviceProfile]:
    """Return ``[costs]`` with bandwidth and device, and the device's profile."""
    up = limits.bandwidth if limits.bandwidth is not None else experiment.costs.bandwidth_up
    down = limits.bandwidth if limits.bandwidth is not None else experiment.costs.bandwidth_down
    if up is None or down is None:
        raise ConfigError("say how fast the clients' links are, in MB/s: --bandwidth 1")
    name = limits.device or experiment.costs.device
    if isinstance(name, dict):
        raise ConfigError(
            "costs.device is a mix of devices, and a plan is for one, which has its own memory: say for which, with "
            f"--device {' or '.join(name)}"
        )
    if name is None:
        raise ConfigError(
            f"say which device it is for: --device {' or '.join(profile_names())}, or a TOML file"
        )
    return Costs(bandwidth_up=up, bandwidth_down=down, device=name), load_profile(name)


def _trial(experiment: Experiment, limits: PlanLimits, train: dict[str, Any], costs: Costs) -> Experiment:
    """Return the experiment that evaluates a plan: shorter, so that the learning rates rise in fewer rounds."""
    client, server = (
        section.model_copy(update={"warmup_rounds": min(section.warmup_rounds, limits.rounds - 1)})
        for section in (experiment.client, experiment.server)
    )
    evaluation = {"every": 1, "personal": False, "cross_client_evaluation": False}
    changes = {
        "name": "plan",
        "num_rounds": limits.rounds,
        "model": experiment.model.model_copy(update={"train": train}),
        "client": client.model_copy(update={"finetune_steps": 0}),
        "server": server,
        "costs": costs,
        "evaluation": experiment.evaluation.model_copy(update=evaluation),
        "report": Report(),
    }
    return experiment.model_copy(update=changes)


def _read(lines: list[dict[str, Any]], metric: str, target: float) -> PlanTrial:
    """Return the figures of a short run, by its lines."""
    scores = [line["evaluation"]["global"][metric] for line in lines]
    seconds = list(accumulate(line["simulated_seconds"] for line in lines))
    when = next((number for number, score in enumerate(scores) if score >= target), None)
    return PlanTrial(
        accuracy=max(scores),
        seconds=seconds[-1] / len(lines),
        bytes=sum(line["bytes_up"] + line["bytes_down"] for line in lines) / len(lines),
        labelled=sum(line.get("labelled", 0) for line in lines) / len(lines),
        rounds_to_target=None if when is None else when + 1,
        seconds_to_target=None if when is None else seconds[when],
    )


def _trial_text(candidate: TrainingPlan, found: PlanTrial, metric: str, limits: PlanLimits) -> str:
    what = f"top {plural(candidate.depth, 'layer')}, {candidate.capacity} in full: {metric_title(metric)} "
    what += metric_value(metric, found.accuracy)
    if found.seconds_to_target is None:
        return f"{what}, target not reached in {plural(limits.rounds, 'round')}"
    return f"{what}, target after {human_seconds(found.seconds_to_target)}"


class _ForwardProgress(NullCallback):
    """A callback that forwards the messages of the first run, and the progress of the rounds."""

    def __init__(self, log: Log, on_progress: OnProgress) -> None:
        self._log, self._on_progress = log, on_progress

    def log(self, text: str) -> None:
        self._log(text)

    def on_progress(self, done: int, of: int, what: str) -> None:
        self._on_progress(done, of, what)
