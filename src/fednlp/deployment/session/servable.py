"""Which experiments a server without training examples can run; the others are refused by name."""

from collections.abc import Callable, Iterator

from fednlp.config import Experiment
from fednlp.config.compatibility import settings_features
from fednlp.errors import ConfigError
from fednlp.models.registry import FROM_SCRATCH_NAMES
from fednlp.section import Feature, conflicts

BETWEEN_MACHINES = Feature(
    "a federation between machines",
    breaks={"simulation": "leaves each client and its texts at a site of its own"},
    remedy="",
)
"""What a deployment takes from the settings of an experiment."""
_SUMS_BETWEEN = Feature(
    "[secure] between machines",
    {"fixed_sizes": ("agrees on each site's weight at its setup", "leave [secure] out")},
    given=lambda e: e.secure.protocol != "none",
)


def servable(experiment: Experiment, log: Callable[[str], None]) -> Experiment:
    """Return an experiment without what only a simulation evaluates; each key that is left out is said.

    So one file goes through run, compare, rehearse and serve.

    Args:
        experiment: As it is written, or resolved.
        log: Called with a line for each key.
    """
    if not experiment.evaluation.cross_client_evaluation:
        return experiment
    log(
        "evaluation.cross_client_evaluation is left out: between machines no site's own model goes to the other sites"
    )
    evaluation = experiment.evaluation.model_copy(update={"cross_client_evaluation": False})
    return experiment.model_copy(update={"evaluation": evaluation})


def require_servable(experiment: Experiment) -> None:
    """Check that a federation between machines can run an experiment.

    Args:
        experiment: As it is written, or resolved.

    Raises:
        ConfigError: It cannot; every reason is named, with what to do.
    """
    problems = list(_problems(experiment))
    if problems:
        raise ConfigError("\n".join(f"{experiment.name}: {one}" for one in problems), problems)


def unsupported(experiment: Experiment) -> list[str]:
    """Return what of a simulation's experiment cannot be had in a federation between machines, a sentence each."""
    between = [BETWEEN_MACHINES]
    if _SUMS_BETWEEN.in_experiment(experiment):
        between.append(_SUMS_BETWEEN)
    return conflicts([*settings_features(experiment), *between])


def _problems(experiment: Experiment) -> Iterator[str]:
    if not experiment.data.at_sites:
        yield (
            'the examples of this experiment are not at sites: say data.name = "sites" (with data.labels, and '
            "data.test_path if the server has a test set), or try it on one machine with: fednlp rehearse"
        )
        return
    task = experiment.task.configured
    if task is None:
        yield 'the server has no data to infer the task from: say task.name = "text-classification", ...'
    if experiment.model.name_or_path in FROM_SCRATCH_NAMES:
        yield (
            f"{experiment.model.name_or_path} is built over a vocabulary of the training texts, which are at the "
            "sites: give model.name_or_path a folder with a tokenizer.json, or a pretrained model"
        )
    for _, section in experiment.sections():
        yield from section.problems_at_sites(experiment)
    yield from unsupported(experiment)
