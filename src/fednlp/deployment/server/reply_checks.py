"""Checks of what a site answers: what it was asked, about itself, in numbers that a server can count with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fednlp.deployment.session.setup import MOST_EXAMPLES
from fednlp.errors import RunError
from fednlp.federated.client import ClientLoss, ClientResult
from fednlp.federated.sums import LARGEST
from fednlp.formatting.units import is_correlation, is_share
from fednlp.runtime.messages import ClientModelResult, ClientSums
from fednlp.tasks.base import Task
from fednlp.training.local_training import LocalTraining

MOST_COUNTED = 2**48
"""Bytes or tensors that a site may report of a round."""
MOST_CALLS = 100
"""Times that a method may have a client take its local steps in a round."""
MOST_REPORTED = 1e18
"""Size of a loss, or of a score that is no share, that a site may report."""
MOST_FACTS = 1 << 16
"""Characters of JSON that a site may say beside its numbers."""
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


def require_own(request: Any, answer: Any, kind: type[Any], may: Reportable) -> None:
    """Check that an answer is to the request: a site speaks for itself alone.

    A number that is negative or longer than a float would end the server when it computes a mean, and again at each
    start, as the answer is stored. One that no training can give would stand for all sites in a mean.

    Args:
        request: As the site got it.
        answer: What it said.
        kind: Of the answers to such a request.
        may: What a site may report.

    Raises:
        RunError: It is not.
    """
    if not (isinstance(answer, kind) and answer.client == request.client):
        raise RunError("the site answered something else than it was asked")
    for name in _COUNTS:
        count = getattr(answer, name, None)
        if count is not None and not 0 <= count <= may.most.get(name, MOST_COUNTED):
            raise RunError(f"the site answered with a number of {name} that cannot be")
    if isinstance(answer, ClientResult):
        if answer.weight != request.weight:
            raise RunError("the site answered with another weight than it was told")
        _require_short(answer.facts)
        if answer.error is None:
            _require_within("loss", answer.loss, MOST_REPORTED, may.least_loss)
            if {*answer.metrics} != {*may.reports}:
                raise RunError("the site answered with other numbers than the method's clients report")
            for name, value in answer.metrics.items():
                _require_within(repr(name[:40]), value, LARGEST)
            if request.masking is None:
                _require_norms(answer.facts)
    if isinstance(answer, ClientLoss) and answer.error is None:
        _require_within("loss", answer.loss, MOST_REPORTED, may.least_loss)
    if isinstance(answer, ClientSums) and request.masking is None and answer.error is None:
        _require_counts(answer.sums, may.least_loss)
    if isinstance(answer, ClientModelResult):
        if answer.everyone is not None or answer.by_owner is not None:
            raise RunError("the site answered with scores on tests that are not its own")
        if answer.own is not None:
            share = is_share(may.metric) or is_correlation(may.metric)
            least = -1e-6 if is_share(may.metric) else -MOST_REPORTED
            _require_within(may.metric, answer.own, 1 + 1e-6 if share else MOST_REPORTED, least)


def _require_within(name: str, value: float, most: float, least: float = -MOST_REPORTED) -> None:
    if not max(-most, least) <= value <= most:  # neither does NaN lie within
        raise RunError(f"the site answered with a {name} of {value:g}, which cannot be")


def _require_norms(facts: dict[str, Any]) -> None:
    """Check that a site says nothing beside its numbers but how far tensors moved, and which model."""
    norms = facts.get("update_norms", [])
    fits = isinstance(norms, list) and all(
        type(one) in (int, float) and 0 <= one <= MOST_REPORTED for one in norms
    )
    named = isinstance(facts.get("model", ""), str)  # the server knows its models (require_reported)
    if not (fits and named) or {*facts} - {"update_norms", "model"}:
        raise RunError("the site says something beside its numbers that no method asks for")


def _require_counts(sums: list[int], least_loss: float) -> None:
    """Check the number of test examples, their loss and its weight (:func:`fednlp.training.scores.sums_of`)."""
    if len(sums) > 2 and not (
        0 <= sums[0] <= MOST_EXAMPLES and sums[2] >= 0 and (sums[1] >= 0 or least_loss < 0)
    ):
        raise RunError("the site answered with a number of test examples that cannot be")


def _require_short(facts: dict[str, Any]) -> None:
    try:
        length = len(json.dumps(facts))
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or too deep
        length = MOST_FACTS + 1
    if length > MOST_FACTS:
        raise RunError(f"the site says more than {MOST_FACTS:,} characters beside its numbers")
