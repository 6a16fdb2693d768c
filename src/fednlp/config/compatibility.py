"""What a method cannot go with, by what its value declares: a named one, one of the user's own, one given in Python.

What the method is called, and how it was made, does not matter here. A method's own ``refuses`` adds what its value
does not tell.
"""

import math
from collections.abc import Mapping

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import GIVEN
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import average_model
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.server import ServerOptimizer
from fednlp.models.peft_options import averaging_of
from fednlp.plugins import raised

_SIZES = (1, 2, 3, 1000)
"""Numbers of examples by which a weight function is tried."""


def conflicts(algorithm: Algorithm, aggregator: Aggregator, experiment: ExperimentFields) -> list[str]:
    """Return what goes with a method in no experiment, or not in this one, a sentence each.

    Args:
        algorithm: The method.
        aggregator: The rule: that of ``[aggregator]``, or the method's own.
        experiment: Whose other sections are looked at.
    """
    return [
        *_vectors(algorithm, experiment),
        *_kept(algorithm, experiment),
        *_personal_model(algorithm, experiment),
        *_server(algorithm, experiment),
        *_aggregator(algorithm, aggregator, experiment),
        *_weights(algorithm, aggregator, experiment),
        *_settings(algorithm, experiment),
        *_at_once(algorithm, experiment),
        *_selection(algorithm, experiment),
    ]


def _rule(algorithm: Algorithm, experiment: ExperimentFields) -> str:
    """Return what messages call the rule by which updates become one."""
    if experiment.aggregator is not None:
        return experiment.aggregator.name
    return f"the aggregator of {algorithm.name} ({type(algorithm.aggregator).__name__})"


def _protections(experiment: ExperimentFields) -> list[str]:
    """Return the sections that protect updates, each by an aggregator of its own."""
    given = {"secure": experiment.secure.protocol != "none", "privacy": experiment.privacy is not None}
    return [section for section, there in given.items() if there]


def _vectors(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse what protects or chooses the model's update alone, where clients send or report more than that."""
    name, (_, *others), found = algorithm.name, algorithm.sends, []
    more, reports, protections = ", ".join(others), ", ".join(algorithm.reports), _protections(experiment)
    if others and "secure" in protections:
        found.append(
            f"[secure] sums the model's update alone under its masks, and {name} also sends {more}: leave [secure] out"
        )
    if others and "privacy" in protections:
        found.append(
            f"[privacy] clips and noises the model's update alone, and {name} also sends {more}: leave [privacy] out"
        )
    if others and experiment.pull.rule != "all":
        found.append(
            f"[pull] chooses tensors of the model's update, and {name} also sends {more}, which belongs to all of "
            "them: leave [pull] out"
        )
    if reports and "secure" in protections:
        found.append(
            f"the clients of {name} report {reports}, which [secure] does not hide: leave [secure] out"
        )
    if reports and "privacy" in protections:
        found.append(
            f"the clients of {name} report {reports}, which [privacy] does not noise: leave [privacy] out"
        )
    return found


def _kept(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse what moves the model without what clients keep beside it."""
    name, keeps, found = algorithm.name, ", ".join(algorithm.keeps), []
    if keeps and averaging_of(experiment.model.peft) == "exact":
        found.append(
            f'[model.peft] averaging = "exact" changes the base weights under the adapters, and what the clients of '
            f'{name} keep ({keeps}) does not follow: say averaging = "ffa" or "plain"'
        )
    if keeps and experiment.fewshot is not None and experiment.fewshot.pacing == "search":
        found.append(
            f'fewshot.pacing = "search" puts the model back between trials, and not what the clients of {name} keep '
            f"({keeps}): set another pacing"
        )
    return found


def _personal_model(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse what goes with one model a client, and not with two."""
    name, train, found = algorithm.name, experiment.model.train, []
    if algorithm.personal_model is None:
        return []
    if isinstance(train, Mapping) and (
        {"critical_layer", "personal"} & {*train} or "personal" in train.values()
    ):
        found.append(
            f"{name} keeps a whole personal model with each client, and model.train keeps layers there: leave one of "
            'the two out; to share all layers but the embeddings, say model.train.frozen = "embeddings"'
        )
    if experiment.pull.push == "selected":
        found.append(
            f"{name} has a personal model of each client beside the global model, which pull.push = "
            '"selected" does not send as a whole: say pull.push = "all"'
        )
    if experiment.client.keep_optimizer:
        found.append(
            f"client.keep_optimizer keeps the state of one optimiser, and a client of {name} trains two models: "
            "leave it out"
        )
    return found


def _server(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse exact averaging of adapters by a server that does more than average."""
    server, exact = algorithm.server, averaging_of(experiment.model.peft) == "exact"
    if not exact or (isinstance(server, ServerOptimizer) and server.averages):
        return []
    return [
        f'[model.peft] averaging = "exact" needs a server that averages, which that of {algorithm.name} does not do '
        'alone: say algorithm.name = "fedavg" or "fedprox" without [server], or averaging = "ffa"'
    ]


def _aggregator(algorithm: Algorithm, aggregator: Aggregator, experiment: ExperimentFields) -> list[str]:
    """Refuse what replaces a rule of its own, or needs a sum where the rule is none."""
    section, own, found = experiment.aggregator, algorithm.aggregator, []
    if section is not None and type(own) is not WeightedMean:
        return [
            f"{algorithm.name} has an aggregator of its own ({type(own).__name__}): leave [aggregator] out"
        ]
    if type(aggregator) is WeightedMean:
        return []
    rule = _rule(algorithm, experiment)
    leave = "leave [{}] out" if section is None else "leave one of [aggregator] and [{}] out"
    reasons = dict.fromkeys(_protections(experiment), f"has an aggregator of its own, in place of {rule}")
    if not aggregator.additive:
        sums = {
            "secure": f"shows the server nothing but the sum of the updates, and {rule} needs each of them",
            "privacy": f"bounds how much one client changes a sum, and {rule} is no sum",
        }
        reasons = {other: sums[other] for other in reasons}
        if experiment.pull.rule != "all":
            reasons["pull"] = (
                f"sends different tensors for each client, and {rule} compares the same ones of all"
            )
        if section is not None and algorithm.reports:
            found.append(
                f"the clients of {algorithm.name} report {', '.join(algorithm.reports)}, whose mean a single attacker "
                f"moves at will, whatever {rule} leaves out: leave [aggregator] out"
            )
        if averaging_of(experiment.model.peft) == "exact":
            found.append(
                f'[model.peft] averaging = "exact" averages the products of the clients\' factors, and {rule} is no '
                'average: say averaging = "ffa" or "plain"'
            )
    return [f"[{other}] {reason}: {leave.format(other)}" for other, reason in reasons.items()] + found


def _weights(algorithm: Algorithm, aggregator: Aggregator, experiment: ExperimentFields) -> list[str]:
    """Refuse clients that count by their examples where each must count once."""
    try:
        weights = {float(algorithm.weight(size)) for size in _SIZES}
    except Exception as error:
        return [
            f"the weight of {algorithm.name} raised {raised(error)}: return a number for every number of examples"
        ]
    if not all(0 <= weight < math.inf for weight in weights):
        return [f"the weights of {algorithm.name} are {sorted(weights)}: return finite numbers from 0"]
    if len(weights) == 1:
        return []
    found, named = [], experiment.algorithm.name != GIVEN and experiment.algorithm.weighting != "uniform"
    remedy = (
        'say algorithm.weighting = "uniform"'
        if named
        else f"build {algorithm.name} with weight=fednlp.federated.cohort.equally"
    )
    if experiment.privacy is not None:
        found.append(
            f"[privacy] bounds what one client can change, whatever its number of examples: {remedy}"
        )
    if not aggregator.weighs:
        rule = _rule(algorithm, experiment)
        found.append(f"{rule} counts every client once, whatever number of examples it states: {remedy}")
    return found


def _settings(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse settings that a value does not follow, and parts of a value that settings replace."""
    name, found = algorithm.name, []
    if algorithm.uplink != Uplink() or algorithm.downlink != Downlink():
        found.append(
            f"{name} says how updates or the model travel, which [exchange] and [pull] say in a run: leave uplink and "
            "downlink out of the Algorithm"
        )
    if (
        experiment.algorithm.name == GIVEN
        and experiment.min_clients > 1
        and algorithm.min_clients != experiment.min_clients
    ):
        found.append(
            f"min_clients = {experiment.min_clients} is not that of {name}, which was given as a value with "
            f"{algorithm.min_clients}: build it with min_clients={experiment.min_clients}"
        )
    return found


def _at_once(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse clients that do more than to take their local steps from the global model."""
    if experiment.runtime.clients_at_once == 1 or algorithm.client is average_model:
        return []
    return [
        f"runtime.clients_at_once is for clients that take their local steps and send what these changed, and those of "
        f"{algorithm.name} do more: leave clients_at_once out"
    ]


def _selection(algorithm: Algorithm, experiment: ExperimentFields) -> list[str]:
    """Refuse what foresees cohorts, where they go by what clients answer or did before."""
    if algorithm.selection is None:
        return []
    who = f"{algorithm.name} selects its clients by their losses or earlier rounds"
    if experiment.cohort is not None:
        who = f'cohort.name = "{experiment.cohort.name}" selects clients by their losses or earlier rounds'
    reasons = {
        "[secure] has the sites check each cohort": experiment.secure.protocol != "none",
        "[privacy] counts on cohorts that are drawn without looking at the clients": experiment.privacy
        is not None,
        "[fewshot] draws its cohorts among the clients with labels": experiment.fewshot is not None,
        "rounds.over_selection draws more clients than a round needs": experiment.rounds.over_selection > 1,
    }
    return [f"{reason}, and {who}: leave one of the two out" for reason, there in reasons.items() if there]
