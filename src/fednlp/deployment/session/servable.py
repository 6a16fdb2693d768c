"""Which experiments a server without training examples can run; the others are refused by name."""

from collections.abc import Callable, Iterator

from fednlp.config import Experiment
from fednlp.config.compatibility import Feature, conflicts, settings_features
from fednlp.config.sections import Fewshot
from fednlp.deployment.session.secure_terms import NO_DIRECTORY, NOT_FEWSHOT
from fednlp.errors import ConfigError
from fednlp.models.registry import FROM_SCRATCH_NAMES

DRAWN = ("gold", "gamma", "noisy_client_fraction", "validation")
"""Keys of ``[fewshot]`` that say which labels a simulation hides: at a site its files do."""
TRUTH_IS_HIDDEN = (
    'fewshot.label_counts = "truth" is for simulations: it reads the labels of unlabelled texts, which a real '
    "federation does not have"
)
"""What a site says of it."""
BETWEEN_MACHINES = Feature(
    "a federation between machines",
    breaks={"simulation": "leaves each client and its texts at a site of its own"},
    remedy="",
)
"""What a deployment takes from the settings of an experiment."""


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
    problems = conflicts([*settings_features(experiment), BETWEEN_MACHINES])
    if experiment.secure.malicious_server:
        problems.append(NO_DIRECTORY)
    if experiment.fewshot is not None and experiment.secure.protocol != "none":
        problems.append(NOT_FEWSHOT)
    return problems


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
    drawn = [key for key in DRAWN if _differs(experiment.fewshot, key)]
    if drawn:
        yield (
            f"fewshot.{drawn[0]} is for simulations, which hide labels: a site has the labels of its own files, and a "
            "text without one has an empty cell; leave it out"
        )
    if experiment.fewshot is not None and experiment.fewshot.filter == "random":
        yield 'fewshot.filter = "random" is a baseline of simulations: say fewshot.filter = "representational"'
    searches = experiment.fewshot is not None and experiment.fewshot.pacing == "search"
    if searches and experiment.data.validation_path is None:
        yield (
            'fewshot.pacing = "search" compares paces on labelled texts of the server: say data.validation_path = '
            '"validation.csv", or fewshot.pacing = "curriculum"'
        )
    if experiment.data.validation_path is not None and not searches:
        yield 'data.validation_path is for fewshot.pacing = "search" alone: leave it out'
    yield from unsupported(experiment)


def _differs(fewshot: Fewshot | None, key: str) -> bool:
    return fewshot is not None and getattr(fewshot, key) != Fewshot.model_fields[key].default
