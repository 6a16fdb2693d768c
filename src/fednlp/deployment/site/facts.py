"""What is known of a run before a site joins it: what it would train, send and tell, and what that costs in privacy."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from fednlp.config import Experiment
from fednlp.config.sections import Costs
from fednlp.costs import local_examples
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.communication import bytes_down
from fednlp.federated.params import Layout
from fednlp.federated.upload import upload_bytes
from fednlp.formatting.units import plural
from fednlp.models.groups import groups_of
from fednlp.models.parameter_table import ParameterRow, parameter_table, total
from fednlp.partition import Partition
from fednlp.privacy.accountant import epsilon_of_known_cohorts
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.protection import Protected, protect
from fednlp.simulation.resource_estimation import fleet_of, memory_of_model
from fednlp.tasks.base import Task
from fednlp.training.local_training import LocalTraining
from fednlp.training.model_layout import layout_of
from fednlp.training.worker_spec import adapters_of, selected


@dataclass(frozen=True)
class Download:
    """A file that a site gets before the first round.

    Attributes:
        name: What it is, for people.
        size: Its bytes.
        digest: SHA-256, 64 hexadecimal digits.
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class SentTensor:
    """A tensor whose update leaves the site.

    Attributes:
        name: Its name in the model.
        group: The part of the model that it belongs to (:func:`fednlp.models.groups.groups_of`).
        parameters: Number of its elements.
    """

    name: str
    group: str
    parameters: int


@dataclass(frozen=True)
class PrivacyPrice:
    """What a whole run spends.

    Attributes:
        epsilon: At the level of sites; infinite without noise.
        delta: In (0, 1).
        hides_from_server: Whether it holds against the server; otherwise only against whoever sees the models.
        statement: One line for people, with what is assumed.
    """

    epsilon: float
    delta: float
    hides_from_server: bool
    statement: str


@dataclass(frozen=True)
class Facts:
    """What is known of a run before a site joins it.

    Attributes:
        examples: Number of the site's training examples.
        downloads: What it gets before the first round.
        parts: The parts of the model, with the numbers of their parameters that are shared, personal and frozen.
        tensors: What leaves in a round; with ``[pull]`` some of it.
        vectors: Names of the vectors of that length that leave in a round, the update first.
        bytes_down: Bytes that a site gets in a round, the model as the experiment sends it.
        bytes_up: Bytes that it sends in a round, at most; without the keys and shares of secure aggregation.
        masked: Whether the update is masked, so that the server sees sums alone.
        cohort: Sites in a round.
        smallest_sum: The fewest sites that a secure sum may be over; None without secure aggregation.
        steps: Local steps in a round.
        memory: Predicted bytes of memory; None where there is no estimate.
        seconds: Predicted seconds of local training in a round; None where there is no estimate.
        privacy: What the run spends; None without ``[privacy]``.
        tells_size: Whether the server weighs sites by their numbers of examples.
        asks_labels: Whether the server asks sites for the names of their labels.
        gold: Number of the site's training examples with a label; None where all have.
        reports: Names of the numbers of the method's own that a site reports.
        asks_losses: Whether the server asks sites for their losses before it draws a cohort.
    """

    task: str
    examples: int
    downloads: tuple[Download, ...]
    parts: tuple[ParameterRow, ...]
    tensors: tuple[SentTensor, ...]
    vectors: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    masked: bool
    cohort: int
    smallest_sum: int | None
    steps: int
    memory: int | None
    seconds: float | None
    privacy: PrivacyPrice | None
    tells_size: bool
    asks_labels: bool
    gold: int | None = None
    reports: tuple[str, ...] = ()
    asks_losses: bool = False

    @property
    def total(self) -> ParameterRow:
        """The whole model."""
        return total(self.parts)


def facts_of(
    experiment: Experiment,
    model: nn.Module,
    task: Task,
    *,
    clients: int,
    examples: int,
    longest: int,
    downloads: Iterable[Download] = (),
    gold: int | None = None,
    asks_labels: bool = False,
    random_cohorts: bool = False,
    profile: str | None = None,
) -> Facts:
    """Work out what a site would train, send and tell.

    Args:
        experiment: Resolved, and allowed by :func:`fednlp.deployment.site.refusals.check_settings`.
        model: The model that the run starts from; what the experiment freezes is marked in it.
        clients: Number of sites.
        examples: Number of the site's training examples.
        longest: Maximum number of tokens of a row.
        downloads: What the site gets before the first round.
        gold: Number of its training examples with a label; None where all have.
        asks_labels: Whether the server asks for the names of its labels.
        random_cohorts: Whether each cohort is drawn at random among all sites, and nobody outside knows who is in it:
            only then does sampling lower epsilon.
        profile: Name or path of the profile of the site's device.

    Raises:
        ConfigError: The experiment cannot run with so many sites, or there is no such profile.
        MissingDependency: ``[privacy]`` needs dp-accounting.
    """
    selection = selected(model, experiment.model.train, experiment.model.peft)
    adapters = adapters_of(model, experiment.model.peft, True)
    layout = layout_of(model, selection.personal, adapters.derived)
    protected = protect(build_algorithm(experiment), experiment, even_partition(clients), layout.numel)
    uplink = replace(protected.algorithm.uplink, adapters=adapters)
    algorithm = replace(protected.algorithm, uplink=uplink)
    masked, cohort = experiment.secure.protocol != "none", min(experiment.clients_per_round, clients)
    return Facts(
        task=task.name,
        examples=examples,
        downloads=tuple(downloads),
        parts=tuple(parameter_table(model, selection)),
        tensors=_sent(layout, groups_of(model)),
        vectors=algorithm.sends,
        bytes_down=_bytes_down(algorithm, layout, cohort),
        bytes_up=upload_bytes(algorithm, layout, None, masked=masked),
        masked=masked,
        cohort=cohort,
        smallest_sum=_smallest_sum(algorithm),
        steps=experiment.client.steps(examples),
        memory=memory_of_model(experiment, task, model, longest, algorithm.held_vectors * layout.numel),
        seconds=_seconds(experiment, algorithm, model, examples, profile),
        privacy=_price(experiment, protected, random_cohorts),
        tells_size=algorithm.weight(1) != algorithm.weight(2),
        asks_labels=asks_labels,
        gold=gold,
        reports=algorithm.reports,
        asks_losses=algorithm.selection is not None and algorithm.selection.asks,
    )


def update_examples(client: LocalTraining, examples: int) -> int:
    """Return how many different examples an update is made of.

    Args:
        examples: How many a client has.

    >>> update_examples(LocalTraining(max_steps=3), 712), update_examples(LocalTraining(), 712)
    (24, 712)
    """
    return min(examples, client.max_steps * client.examples_per_step) if client.max_steps > 0 else examples


def even_partition(clients: int) -> Partition:
    """Return a partition with one example for each client: what a site works out does not depend on others' sizes."""
    numbers = np.arange(clients + 1)
    return Partition(numbers, numbers[:-1], np.zeros_like(numbers), numbers[:0], numbers[:-1])


def _sent(layout: Layout, groups: dict[str, str]) -> tuple[SentTensor, ...]:
    return tuple(
        SentTensor(entry.name, groups[entry.name], entry.numel)
        for entry in layout.entries
        if entry.kind != "derived"
    )


def _bytes_down(algorithm: Algorithm, layout: Layout, cohort: int) -> int:
    """Return the bytes that a site gets which took part in the round before."""
    adapters = algorithm.uplink.adapters
    return bytes_down(
        algorithm.downlink,
        layout,
        vectors=len(algorithm.receives),
        adapters=adapters,
        rank=adapters.change_rank([-1] * cohort, not algorithm.downlink.plain),
    )


def _smallest_sum(algorithm: Algorithm) -> int | None:
    """Return the fewest clients that a secure sum may be over; None without secure aggregation."""
    from fednlp.secure.aggregator import SecureMean

    rule = algorithm.aggregator
    return rule.params.fewest_in_sum if isinstance(rule, SecureMean) else None


def _seconds(
    experiment: Experiment, algorithm: Algorithm, model: nn.Module, examples: int, profile: str | None
) -> float | None:
    """Return the predicted seconds of local training in a round; None where the profile does not state them."""
    if profile is None:
        return None
    fleet = fleet_of(experiment.model_copy(update={"costs": Costs(device=profile)}), model, 1)
    if fleet is None or fleet.models[0].training is None:
        return None
    options, sizes = experiment.client, np.array([examples])
    seen = local_examples(
        sizes,
        epochs=options.num_train_epochs,
        batch_size=options.examples_per_step,
        max_steps=options.max_steps,
    )
    return float(algorithm.local_work(seen, sizes)[0]) * fleet.models[0].training


def _price(experiment: Experiment, protected: Protected, random_cohorts: bool) -> PrivacyPrice | None:
    """Return what a run spends; without random cohorts as if every site trained in every round."""
    found, privacy = protected.facts.get("privacy"), experiment.privacy
    if found is None or privacy is None:
        return None
    by_clients, rounds, delta = found["where"] == "clients", experiment.num_rounds, found["delta"]
    spent = math.inf if found["epsilon"] is None else found["epsilon"]
    if by_clients or random_cohorts:
        return PrivacyPrice(spent, delta, by_clients, found["statement"])
    spent = epsilon_of_known_cohorts(found["noise"], privacy.sampling, rounds, delta)
    if not math.isfinite(spent):
        return PrivacyPrice(spent, delta, False, found["statement"])
    return PrivacyPrice(
        spent,
        delta,
        False,
        f"({spent:.3g}, {delta:.3g})-differential privacy of sites against whoever sees the models, for a site that "
        f"trains in every round ({plural(rounds, 'round')}); the server adds noise of {found['noise']:.4g} x the clip "
        "norm and is trusted with each update; nothing is counted for cohorts being drawn at random",
    )
