"""What ``[aggregator]`` and ``[attack]`` cannot go with."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.method_options import foreign_options, found_or_none
from fednlp.config.sections import BASELINES, Aggregator
from fednlp.errors import ConfigError
from fednlp.federated.aggregators import AGGREGATORS, Rule
from fednlp.federated.attacks import ATTACKS


def aggregator_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with ``[aggregator]``, a sentence each."""
    section, method = experiment.aggregator, experiment.algorithm.name
    if section is None:
        return []
    if method in BASELINES:
        return [f"[aggregator] is not supported by {method}, where nothing is aggregated: leave it out"]
    rule = found_or_none(AGGREGATORS, section.name)
    if rule is None:  # reported already
        return []
    found = foreign_options(section, AGGREGATORS, rule)
    if not found and rule.refuses is not None:
        found += rule.refuses(section.function_options, experiment)
    return found or _conflicts(experiment, section, rule)


def _conflicts(experiment: ExperimentFields, section: Aggregator, rule: Rule) -> list[str]:
    """Return the other sections that a rule cannot work beside."""
    from fednlp.models.peft_options import averaging_of

    name, found = section.name, []
    try:
        additive = rule.make(section.function_options).additive
    except ConfigError as error:
        return [str(error)]
    if experiment.secure.protocol != "none" and not additive:
        found.append(
            f"[secure] shows the server nothing but the sum of the updates, and {name} needs each of them: leave one "
            "of [aggregator] and [secure] out"
        )
    if experiment.privacy is not None and not additive:
        found.append(
            f"[privacy] bounds how much one client changes a sum, and {name} is no sum: leave one of [aggregator] and "
            "[privacy] out"
        )
    if additive and name != "mean":
        found += [
            f"[{other}] has an aggregator of its own: leave one of [aggregator] and [{other}] out"
            for other, given in (
                ("secure", experiment.secure.protocol != "none"),
                ("privacy", experiment.privacy is not None),
            )
            if given
        ]
    if experiment.pull.rule != "all" and not additive:
        found.append(
            f"[pull] sends other tensors for every client, and {name} compares the same ones of all: leave one of "
            "[aggregator] and [pull] out"
        )
    if averaging_of(experiment.model.peft) == "exact" and not additive:
        found.append(
            f'[model.peft] averaging = "exact" averages the products of the clients\' factors, and {name} is no '
            'average: say averaging = "ffa" or "plain"'
        )
    return found


def attack_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with ``[attack]``, a sentence each."""
    section, method = experiment.attack, experiment.algorithm.name
    if section is None:
        return []
    if method in BASELINES:
        return [f"[attack] is not supported by {method}, where no client sends anything: leave it out"]
    plugin = found_or_none(ATTACKS, section.name)
    if plugin is None:  # reported already
        return []
    found = foreign_options(section, ATTACKS, plugin)
    if not found and plugin.refuses is not None:
        found += plugin.refuses(section.function_options, experiment)
    if found:
        return found
    try:
        plugin.make(section.function_options)
    except ConfigError as error:
        return [str(error)]
    return []
