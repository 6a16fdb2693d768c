"""Checks of what a site answers: what it was asked, about itself, in numbers that a server can count with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fednlp.deployment.session.site_kinds import SITE_KINDS
from fednlp.errors import RunError
from fednlp.runtime.messages import KINDS
from fednlp.tasks.base import Task
from fednlp.training.local_training import LocalTraining

MOST_COUNTED = 2**48
"""Bytes or tensors that a site may report of a round."""
MOST_CALLS = 100
"""Times that a method may have a client take its local steps in a round."""
MOST_REPORTED = 1e18
"""Size of a loss, or of a score that is no share, that a site may report."""
_COUNTS = ("examples", "steps", "gradient_examples", "bytes_down", "tensors_down", "bytes_up", "labels")


def most_counts(options: LocalTraining, examples: int) -> dict[str, int]:
    """Return the largest counts that a site may report of a round, by their names.

    Args:
        options: Of the clients' local training.
        examples: How many the site said that it has.

    >>> most_counts(LocalTraining(num_train_epochs=2), 9)
    {'examples': 1800, 'steps': 400, 'gradient_examples': 900, 'labels': 9}
    """
    steps = options.steps(examples)
    seen = steps * options.examples_per_step if options.max_steps > 0 else options.num_train_epochs * examples
    once = {"examples": seen, "steps": steps, "gradient_examples": examples}
    return {name: MOST_CALLS * count for name, count in once.items()} | {"labels": examples}


@dataclass(frozen=True)
class Reportable:
    """What a site may report.

    Attributes:
        most: The largest counts by name (:func:`most_counts`).
        metric: The task's, of which the site may report its score.
        reports: Names of the method's numbers, all of which a site reports.
        least_loss: The smallest that a loss can be.
    """

    most: Mapping[str, int]
    metric: str
    reports: tuple[str, ...] = ()
    least_loss: float = 0.0


def least_loss(task: Task) -> float:
    """Return the smallest that a loss of a task can be: a cross-entropy or a squared error is no less than 0."""
    return 0.0 if type(task).__module__.startswith("fednlp.") else -MOST_REPORTED


def require_own(request: Any, answer: Any, may: Reportable) -> None:
    """Check that an answer is to the request: a site speaks for itself alone.

    A number that is negative or longer than a float would end the server when it computes a mean, and again at each
    start, as the answer is stored. One that no training can give would stand for all sites in a mean.

    Args:
        request: As the site got it.
        may: What a site may report.

    Raises:
        RunError: It is not.
    """
    if not (type(answer) is KINDS[type(request)].answer and answer.client == request.client):
        raise RunError("the site answered something else than it was asked")
    for name in _COUNTS:
        count = getattr(answer, name, None)
        if count is not None and not 0 <= count <= may.most.get(name, MOST_COUNTED):
            raise RunError(f"the site answered with a number of {name} that cannot be")
    SITE_KINDS[type(request)].bounds(request, answer, may)


def require_within(name: str, value: float, most: float, least: float = -MOST_REPORTED) -> None:
    """Check that a number is one, and within bounds."""
    if not max(-most, least) <= value <= most:  # neither does NaN lie within
        raise RunError(f"the site answered with a {name} of {value:g}, which cannot be")
