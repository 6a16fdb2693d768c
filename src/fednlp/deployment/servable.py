"""Which experiments a server without training examples can run; the others are refused by name."""

from collections.abc import Iterator

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.deployment.secure_terms import NO_DIRECTORY
from fednlp.errors import ConfigError
from fednlp.models.registry import FROM_SCRATCH_NAMES


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
    return list(_unsupported(experiment))


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
    yield from _unsupported(experiment)


def _unsupported(experiment: Experiment) -> Iterator[str]:
    name = experiment.algorithm.name
    if name in BASELINES:
        yield f"{name} is a baseline of simulations: say another algorithm.name"
    if experiment.fewshot is not None:
        yield "[fewshot] draws gold labels from all examples, which no server of a federation has: leave it out"
    if experiment.attack is not None:
        yield "[attack] is for simulations: leave it out"
    if experiment.secure.malicious_server:
        yield NO_DIRECTORY
    if experiment.evaluation.cross_client_evaluation:
        yield "evaluation.cross_client_evaluation needs all sites' test examples in one place: leave it out"
