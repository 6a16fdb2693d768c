"""What goes with what: each feature states what it needs of an experiment, and what it takes from the others.

A need and what breaks it are joined into one sentence, so that two features that were never thought of together are
checked. What a method needs and breaks follows from its value (:class:`~fednlp.federated.algorithm.Algorithm`), its
rule, and ``needs`` and ``breaks`` of its decorator. Rules of one section's own values are in
:mod:`fednlp.config.checks`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, GIVEN
from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import average_model
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.transform_spec import additive, parse_chain
from fednlp.models.peft_methods import averaging_of
from fednlp.plugins import raised
from fednlp.registry import MethodPart

TRAITS: Mapping[str, str] = {
    "additive": "updates are summed, and no more is made of one than its share of the sum",
    "all_counted": "every update that arrives counts",
    "all_drawn": "cohorts are drawn among all clients",
    "averages": "the new model is the old one and the mean update",
    "bounded_update": "an update is of one round, and cut once",
    "class_labels": "the task is to tell labels apart",
    "clock": "the time that each client takes is known",
    "each_report": "the server has the numbers of each client's training",
    "equal_weights": "every client counts once",
    "federated_rounds": "clients train and send in rounds",
    "fixed_base": "weights that no client trains stay as they are",
    "fixed_labels": "a client learns from the same labels in all rounds",
    "foreseen": "who is in a cohort follows from the seed and the round alone",
    "honest_server": "the server does what it says",
    "no_reports": "clients report no numbers in the open",
    "noised_sums": "nothing exact of the clients is published",
    "nothing_kept": "clients keep nothing from one round to the next",
    "one_model": "all clients train the same model of the server",
    "one_size": "all cohorts are of one size",
    "one_training": "a client trains one model in a round",
    "one_vector": "clients send the model's update, and no other vector",
    "plain_steps": "clients take local steps from the global model, of one batch over a frozen base, and nothing else",
    "replaceable_rule": "a method's updates are averaged, and another rule may stand in its place",
    "same_tensors": "all clients send the same tensors",
    "sees_updates": "the server has each update by itself",
    "simulation": "all clients and their texts are in one place",
    "training_labels": "the labels of all training examples are at hand",
    "updates": "clients send what they changed, and not their weights",
    "waits": "the run draws a round's cohort, and the round waits for it",
    "weighted_mean": "a sum of updates is their weighted mean",
    "whole_model": "the whole model is shared by all clients",
}
"""What features need and break, each with what holds where it is not broken."""
_SIZES = (1, 2, 3, 1000)
"""Numbers of examples by which a weight function is tried."""

Reason = str | tuple[str, str]
"""Words after a feature's name; or these words, and what to type in place of the feature's ``remedy``."""


@dataclass(frozen=True)
class Feature:
    """One thing that an experiment may have.

    Attributes:
        name: What messages call it. That of a setting is as it is typed: a section, a key that is not as by default, or
            a key with its value.
        needs: What it needs, by the names in :data:`TRAITS`, each with why.
        breaks: What it breaks for others, each with how.
        remedy: What to type so that it is not there, by default to leave it out; empty where the other feature alone
            can go.
        given: Whether an experiment has it, where the name does not say so.
    """

    name: str
    needs: Mapping[str, Reason] = field(default_factory=dict)
    breaks: Mapping[str, Reason] = field(default_factory=dict)
    remedy: str | None = None
    given: Callable[[ExperimentFields], bool] | None = None

    def in_experiment(self, experiment: ExperimentFields) -> bool:
        """Whether an experiment has it."""
        if self.given is not None:
            return self.given(experiment)
        path, _, value = self.name.partition(" = ")
        section, _, key = path.strip("[]").partition(".")
        there, default = getattr(experiment, section), ExperimentFields.model_fields[section].default
        if there is None or not key:
            return bool(there != default)
        if value:
            return bool(getattr(there, key) == value.strip('"'))
        return bool(getattr(there, key) != type(there).model_fields[key].default)


def conflicts(features: Iterable[Feature]) -> list[str]:
    """Return why features do not go together: a sentence for each need and each feature that breaks it.

    >>> secure = Feature("[secure]", breaks={"sees_updates": "shows the server their sum alone"})
    >>> conflicts([Feature("median", {"sees_updates": "compares updates"}, remedy=""), secure])
    ['median compares updates, and [secure] shows the server their sum alone: leave [secure] out']
    """
    there = list(features)
    return [
        _joined((needer, needer.needs[trait]), (breaker, breaker.breaks[trait]))
        for needer in there
        for trait in needer.needs
        for breaker in there
        if trait in breaker.breaks and breaker is not needer
    ]


def _joined(*halves: tuple[Feature, Reason]) -> str:
    clauses, remedies = [], []
    for feature, reason in halves:
        usual = f"leave {feature.name} out" if feature.remedy is None else feature.remedy
        words, remedy = (reason, usual) if isinstance(reason, str) else reason
        clauses.append(f"{feature.name} {words}")
        remedies.append(remedy)
    what_to_type = ", or ".join(filter(None, dict.fromkeys(remedies))) or "leave one of the two out"
    return f"{', and '.join(clauses)}: {what_to_type}"


_ROUNDS = {"federated_rounds": "needs federated rounds"}


def _keeps_layers(experiment: ExperimentFields) -> bool:
    train = experiment.model.train
    return isinstance(train, Mapping) and (
        bool({"critical_layer", "personal"} & {*train}) or "personal" in train.values()
    )


FEATURES: tuple[Feature, ...] = (
    # What clients send, and how it becomes one.
    Feature("[aggregator]", {**_ROUNDS, "replaceable_rule": "takes the place of the weighted mean"}),
    Feature(
        "[attack]",
        {**_ROUNDS, "simulation": "has clients send false updates, which no site does for a server"},
        {"plain_steps": "has some of them send something else"},
    ),
    Feature("[exchange]", _ROUNDS),
    Feature("[cohort]", {**_ROUNDS, "waits": "draws the clients of a round"}),
    Feature(
        'exchange.send = "weights"',
        {"one_model": "rounds one model"},
        {"updates": "has clients send their weights"},
    ),
    Feature(
        "exchange.error_feedback",
        {"one_model": "adds what was lost of an update to the next one of the same model"},
        {"bounded_update": "carries one update into others"},
    ),
    Feature(
        "clip in exchange.up",
        breaks={"bounded_update": "cuts updates too"},
        given=lambda e: any(word.startswith("clip") for word in e.exchange.up),
    ),
    Feature(
        "[pull]",
        {
            **_ROUNDS,
            "one_vector": "chooses tensors of the model's update",
            "one_model": "compares a client's tensors with one model",
        },
        {
            "same_tensors": "sends different tensors for each client",
            "plain_steps": "compares with what each client sent before",
        },
    ),
    Feature('pull.push = "selected"', breaks={"whole_model": "sends no client the whole model"}),
    # Protections.
    Feature(
        "[secure]",
        {
            **_ROUNDS,
            "one_vector": "sums the model's update alone under its masks",
            "no_reports": "hides nothing else than updates",
            "weighted_mean": "has an aggregator of its own",
            "same_tensors": (
                "sums the same tensors of all clients",
                "leave [secure] out, or select tensors for the whole run with model.train",
            ),
            "one_size": "needs cohorts of one size",
            "foreseen": "has the sites check each cohort",
            "all_counted": ("has its own way with dropouts", "raise clients_per_round and secure.dropout"),
        },
        {"sees_updates": "shows the server nothing but the sum over the cohort"},
    ),
    Feature(
        "secure.sum_reports",
        breaks={
            "each_report": "shows their sums alone",
            "noised_sums": "publishes exact sums of the clients' losses",
        },
    ),
    Feature("secure.clip", breaks={"bounded_update": "cuts updates too"}),
    Feature("secure.malicious_server", breaks={"honest_server": "is for one that may lie"}),
    Feature(
        "[privacy]",
        {
            **_ROUNDS,
            "one_vector": "clips and noises the model's update alone",
            "no_reports": "noises nothing else than updates",
            "weighted_mean": "has an aggregator of its own",
            "additive": "bounds how much one client changes a sum",
            "equal_weights": "bounds what one client can change, whatever its number of examples",
            "same_tensors": "does not hide which tensors of a client moved far",
            "updates": "bounds updates",
            "bounded_update": "cuts each round's update once, by privacy.clip",
            "noised_sums": "has a guarantee that covers nothing exact",
            "all_drawn": "counts on cohorts drawn among all clients",
            "foreseen": "counts on cohorts that are drawn without a look at the clients",
            "all_counted": "counts on one client changing one update",
            "honest_server": "counts on a server that sums the updates, and their noise, of all who stay",
        },
    ),
    Feature('privacy.sampling = "poisson"', breaks={"one_size": "draws cohorts that vary in size"}),
    Feature("min_clients", {"one_size": "counts the clients of a cohort that come through"}),
    # Rounds and their clients.
    Feature(
        "rounds.over_selection",
        {
            **_ROUNDS,
            "clock": "needs the time that each client takes",
            "all_drawn": "draws more clients among all",
            "foreseen": "draws more clients than the round needs",
            "waits": "draws more clients, and waits for the fastest of them",
        },
        {"all_counted": "withdraws updates that arrive late, so that fast clients decide who counts"},
        remedy="say rounds.over_selection = 1.0",
    ),
    Feature(
        "client.keep_optimizer",
        {"one_training": "keeps the state of one optimiser", "one_model": "keeps that of steps on one model"},
    ),
    Feature(
        "client.keep_optimizer, [pull] or exchange.error_feedback",
        breaks={"nothing_kept": "has clients keep something to themselves"},
        given=lambda e: e.client.keep_optimizer or e.pull.rule != "all" or e.exchange.error_feedback,
    ),
    Feature(
        "runtime.clients_at_once",
        {
            **_ROUNDS,
            "plain_steps": "computes the steps of several clients over one frozen base in one pass",
            "fixed_base": "trains adapters or heads over a frozen base",
            "simulation": "trains clients of several sites in one process",
        },
    ),
    *(
        Feature(f"client.{key}", breaks={"plain_steps": "changes how a step is computed"})
        for key in ("gradient_accumulation_steps", "max_tokens_per_batch", "gradient_checkpointing", "fp16")
    ),
    # The model.
    Feature(
        '[model.peft] averaging = "exact"',
        {
            "averages": "averages the products of the clients' two factors",
            "sees_updates": "needs the product of each client's two factors",
            "same_tensors": "needs all adapters of all clients",
            "one_model": "moves the base weights of one model",
        },
        {
            "fixed_base": "moves the base weights under the adapters",
            "additive": "multiplies what clients send",
        },
        remedy='say averaging = "ffa" or "plain"',
        given=lambda e: averaging_of(e.model.peft) == "exact",
    ),
    Feature(
        'model.train = "all"',
        breaks={"plain_steps": "trains all weights"},
        remedy='add [model.peft], or freeze layers, such as by model.train = "head"',
        given=lambda e: e.model.train == "all" and e.model.peft is None,
    ),
    Feature(
        "model.train",
        {"one_model": "keeps layers that clients train with one model"},
        {"whole_model": "keeps layers with each client"},
        remedy='share all layers; to share all but the embeddings, say model.train.frozen = "embeddings"',
        given=_keeps_layers,
    ),
    # Few labels.
    Feature(
        "[fewshot]",
        {
            **_ROUNDS,
            "class_labels": ("labels texts", 'say task.name = "prompt-classification"'),
            "foreseen": "draws its cohorts among the clients that have labels",
            "one_model": "labels texts by one model",
        },
        {
            "training_labels": "hides those of most",
            "all_drawn": "draws its cohorts among the clients that have labels by then",
            "plain_steps": "also has them label texts",
        },
    ),
    Feature(
        "[fewshot] with pseudo labels",
        breaks={"fixed_labels": "changes what a client learns from"},
        remedy='say fewshot.pacing = "none"',
        given=lambda e: e.fewshot is not None and e.fewshot.pacing != "none",
    ),
    Feature(
        'fewshot.pacing = "search"',
        {"nothing_kept": "puts the model back between trials, but nothing that clients keep"},
    ),
    Feature(
        'fewshot.trials = "parallel"',
        {"sees_updates": "needs a sum of each group of clients"},
        remedy='say fewshot.trials = "sequential"',
        given=lambda e: (
            e.fewshot is not None and (e.fewshot.pacing, e.fewshot.trials) == ("search", "parallel")
        ),
    ),
    Feature(
        "fewshot.detect_label_noise",
        {
            "sees_updates": "shows the server what single clients label, and what the model says to it",
            "simulation": "compares the gold labels of all clients with the model's predictions",
        },
    ),
    Feature('fewshot.label_counts = "truth"', {"simulation": "reads the labels of unlabelled texts"}),
    # Tests and costs.
    Feature(
        "evaluation.federated",
        {**_ROUNDS, "one_model": "sums over tests of one model"},
        {
            "noised_sums": (
                "publishes exact sums over the clients' test examples",
                "leave it out, and test the model on examples of the server (data.test_path)",
            )
        },
    ),
    Feature("evaluation.validation_fraction", {"training_labels": "needs labels of training examples"}),
    Feature('data.name = "sites"', breaks={"training_labels": "leaves the examples at the sites"}, remedy=""),
    Feature("costs.device", {"each_report": "counts the examples that each client has seen"}),
)
"""The features that are settings, grouped by what they are about."""
WITHOUT_CLOCK = Feature(
    "costs.device",
    breaks={"clock": "is not given"},
    remedy="set costs.device to a profile, or to a mix of several",
    given=lambda e: e.costs.device is None and not e.data.at_sites,
)
"""A simulation that knows no client's time. Clients that are processes of their own take theirs."""


def settings_features(experiment: ExperimentFields) -> list[Feature]:
    """Return the features that the settings of an experiment stand for."""
    there = [feature for feature in FEATURES if feature.in_experiment(experiment)]
    name, task, up = experiment.algorithm.name, experiment.task.configured, experiment.exchange.up
    if name in BASELINES:
        needs: dict[str, Reason] = {
            "simulation": ("has all texts in one process", "say another algorithm.name")
        }
        there.append(Feature(name, needs, {"federated_rounds": "has none"}, remedy=""))
    if name == GIVEN:
        draws = "draws its own cohorts, of which its sample may draw more"
        there.append(Feature("an algorithm that is given as a value", breaks={"waits": draws}, remedy=""))
    if task not in (None, "text-classification", "prompt-classification"):
        there.append(Feature(task, breaks={"class_labels": "has no labels"}, remedy=""))
    try:
        adds, why = additive(parse_chain(up, "up"))
    except ConfigError:  # refused by itself
        return there
    if not adds:
        remedy = "secure.bits says how finely updates are rounded, and model.train or model.peft sends fewer parameters"
        needs = {"sees_updates": (f"cannot be summed unopened ({why})", f"leave it out ({remedy})")}
        there.append(Feature(f"exchange.up = {up}", needs))
    return there


def method_features(
    algorithm: Algorithm, aggregator: Aggregator, experiment: ExperimentFields
) -> Iterator[Feature]:
    """Yield what a method and its rule stand for, by what their values declare.

    Args:
        algorithm: The method, named or given as a value.
        aggregator: The rule: that of ``[aggregator]``, or the method's own.
        experiment: Whose sections say what to type.

    Raises:
        ConfigError: As for :func:`_weighs`.
    """
    name, own, server = algorithm.name, algorithm.aggregator, algorithm.server
    sent, reports, keeps = (", ".join(v) for v in (algorithm.sends[1:], algorithm.reports, algorithm.keeps))
    needs, breaks = dict[str, Reason](), dict[str, Reason]()
    if sent:
        breaks["one_vector"] = f"also sends {sent}"
    if reports:
        breaks["no_reports"] = f"has its clients report {reports}"
    if keeps:
        needs["fixed_base"] = f"has its clients keep what follows no other base ({keeps})"
        breaks["nothing_kept"] = f"has its clients keep {keeps}"
    if algorithm.personal_model is not None:
        needs["whole_model"] = "keeps a whole personal model with each client"
        breaks["one_training"] = "trains two models at each client"
    if not (isinstance(server, ServerOptimizer) and server.averages):
        remedy = 'say algorithm.name = "fedavg" or "fedprox" without [server]'
        breaks["averages"] = ("has a server that does more than average", remedy)
    if algorithm.models:
        breaks["one_model"] = f"has {1 + len(algorithm.models)}"
    if algorithm.client is not average_model:
        breaks["plain_steps"] = "has its clients do more"
    if type(own) is not WeightedMean:
        breaks["replaceable_rule"] = f"has an aggregator of its own ({type(own).__name__})"
    if _weighs(algorithm):
        named = experiment.algorithm.name != GIVEN and experiment.algorithm.weighting != "uniform"
        build = f"build {name} with weight=fednlp.federated.cohort.equally"
        remedy = 'say algorithm.weighting = "uniform"' if named else build
        breaks["equal_weights"] = ("weighs clients by their examples", remedy)
    yield Feature(name, needs, breaks, remedy="")
    if algorithm.selection is not None:
        selects = {"foreseen": "selects clients by their losses or earlier rounds"}
        yield Feature("[cohort]" if experiment.cohort is not None else name, breaks=selects)
    if type(aggregator) is not WeightedMean:
        yield _rule_feature(algorithm, aggregator, experiment)


def _rule_feature(algorithm: Algorithm, aggregator: Aggregator, experiment: ExperimentFields) -> Feature:
    """Return what a rule stands for that is no weighted mean."""
    section, needs, breaks = experiment.aggregator, dict[str, Reason](), dict[str, Reason]()
    if not aggregator.weighs:
        needs["equal_weights"] = ("counts every client once, whatever number of examples it states", "")
    if aggregator.additive:
        breaks["weighted_mean"] = "is another"
    else:
        needs |= {
            "sees_updates": "needs each update",
            "same_tensors": "compares the same tensors of all clients",
        }
        breaks |= {"additive": "is no sum", "averages": ("is no average", "")}
        if section is not None:
            needs["no_reports"] = "leaves attackers out of the updates alone"
    if section is not None:
        return Feature(section.name, needs, breaks, "leave [aggregator] out")
    return Feature(f"the aggregator of {algorithm.name} ({type(aggregator).__name__})", needs, breaks, "")


def plugin_feature(plugin: MethodPart) -> Feature:
    """Return what the decorator of a named function says that it needs and breaks.

    Raises:
        ConfigError: It names a trait that there is not.
    """
    unknown = [trait for trait in (*plugin.needs, *plugin.breaks) if trait not in TRAITS]
    if unknown:
        raise ConfigError(
            f'{plugin.section}.name = "{plugin.name}" needs or breaks {", ".join(unknown)}: known are '
            f"{', '.join(TRAITS)}"
        )
    return Feature(plugin.name, plugin.needs, plugin.breaks, remedy="")


def _weighs(algorithm: Algorithm) -> bool:
    """Whether a method's clients count by their numbers of examples.

    Raises:
        ConfigError: Its weight function raises an error, or returns no finite number from 0.
    """
    try:
        weights = {float(algorithm.weight(size)) for size in _SIZES}
    except Exception as error:
        raise ConfigError(
            f"the weight of {algorithm.name} raised {raised(error)}: return a number for every number of examples"
        ) from error
    if not all(0 <= weight < math.inf for weight in weights):
        raise ConfigError(
            f"the weights of {algorithm.name} are {sorted(weights)}: return finite numbers from 0"
        )
    return len(weights) > 1
