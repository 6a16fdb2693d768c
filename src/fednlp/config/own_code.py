"""The settings that name code of the user's own, and whether it can be found."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.method_options import named_functions
from fednlp.errors import ConfigError
from fednlp.plugins import is_own, load


def own_code(experiment: ExperimentFields) -> list[tuple[str, str]]:
    """Return the settings that name code of the user's own, each with the ``"module:attribute"`` that it names."""
    named = [
        ("task.name", experiment.task.name or ""),
        ("task.metric", str(experiment.task.given().get("metric"))),
        ("partition.method", experiment.partition.method),
        ("algorithm.name", experiment.algorithm.name),
        ("aggregator.name", experiment.aggregator.name if experiment.aggregator else ""),
        ("attack.name", experiment.attack.name if experiment.attack else ""),
        ("cohort.name", experiment.cohort.name if experiment.cohort else ""),
        ("runtime.engine", experiment.runtime.engine),
        *(("exchange.up", word) for word in experiment.exchange.up),
        *(("exchange.down", word) for word in experiment.exchange.down),
    ]
    return [(key, name) for key, name in named if is_own(name)]


def own_code_problems(experiment: ExperimentFields) -> list[str]:
    """Return why code of the user's own cannot be used, a sentence each."""
    found = []
    registries = {f"{registry.kind.section}.name": registry for _, registry in named_functions(experiment)}
    for key, name in own_code(experiment):
        try:
            if key in registries:
                registries[key].find(name)
            else:
                load(name, key)
        except ConfigError as error:
            found.append(str(error))
    return found
