"""What an experiment's parts need of each other and break: those of its sections, and of the method that it names.

A section says so of its settings (:attr:`fednlp.section.Section.traits`). What a method needs and breaks follows from
its value (:class:`~fednlp.federated.algorithm.Algorithm`), its rule, and ``needs`` and ``breaks`` of its decorator.
"""

import math
from collections.abc import Iterator

from fednlp.config.fields import ExperimentFields, section_types
from fednlp.config.sections import BASELINES, GIVEN
from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import average_model
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.transform_spec import additive, parse_chain
from fednlp.formulations import TASKS
from fednlp.plugins import raised
from fednlp.registry import MethodPart
from fednlp.section import TRAITS, Feature, Reason

_SIZES = (1, 2, 3, 1000)
"""Numbers of examples by which a weight function is tried."""

_OF_SEVERAL = (
    Feature("min_clients", {"one_size": "counts the clients of a cohort that come through"}),
    Feature(
        "client.keep_optimizer, [pull] or exchange.error_feedback",
        breaks={"nothing_kept": "has clients keep something to themselves"},
        given=lambda e: e.client.keep_optimizer or e.pull.rule != "all" or e.exchange.error_feedback,
    ),
)
"""Features that are no section's alone."""
WITHOUT_CLOCK = Feature(
    "costs.device",
    breaks={"clock": "is not given"},
    remedy="set costs.device to a profile, or to a mix of several",
    given=lambda e: e.costs.device is None and not e.data.at_sites,
)
"""A simulation that knows no client's time. Clients that are processes of their own take theirs."""


def settings_features(experiment: ExperimentFields) -> list[Feature]:
    """Return the features that the settings of an experiment stand for."""
    of_sections = [feature for _, section in section_types() for feature in section.traits]
    there = [one for one in (*of_sections, *_OF_SEVERAL) if one.in_experiment(experiment)]
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
        breaks: dict[str, Reason] = {"class_labels": "has no labels"}
        if task in TASKS and TASKS[task].head == "CausalLM":
            breaks["encoder"] = "has a decoder"
        there.append(Feature(task, breaks=breaks, remedy=""))
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
    if algorithm.receives:
        breaks["open_population"] = "keeps sums over all sites from round to round"
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
        if algorithm.selection.remembers:
            selects["open_population"] = "remembers the sites of the beginning"
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
