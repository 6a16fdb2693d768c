"""The search for a training plan: the depth of training, and the number of layers in full (FeS, section 3.3).

A plan trains the top ``depth`` layers of a model: of these the upper ``capacity`` in full, and only the biases of the
others. The layers below are frozen. The paper only states "binary search"; docs/methods/planning.md describes the
details chosen here. The search is pure: the caller evaluates the plans.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

from fednlp.errors import ConfigError

Step = Literal["depth", "capacity", "neighbour"]


@dataclass(frozen=True, order=True)
class TrainingPlan:
    """A training plan.

    Attributes:
        depth: Number of trained layers, counted from the top.
        capacity: Number of these that are trained in full, the uppermost; of the others only biases are trained.
    """

    depth: int
    capacity: int

    def within(self, other: "TrainingPlan") -> bool:
        """Return whether the other plan trains everything that this one trains.

        >>> TrainingPlan(4, 1).within(TrainingPlan(6, 1)), TrainingPlan(4, 3).within(TrainingPlan(6, 1))
        (True, False)
        """
        return self.depth <= other.depth and self.capacity <= other.capacity


@dataclass(frozen=True)
class PlanOutcome:
    """The outcome of evaluating a plan.

    Attributes:
        accuracy: The highest accuracy, 0 to 1.
        seconds: Seconds until the target was reached; None if it was not.
    """

    accuracy: float
    seconds: float | None


@dataclass(frozen=True)
class PlanDecision:
    """One evaluated plan.

    Attributes:
        step: The step of the search.
        reached: True if it reached the target.
    """

    step: Step
    candidate: TrainingPlan
    outcome: PlanOutcome
    reached: bool


Evaluate = Callable[[TrainingPlan], PlanOutcome]
Fits = Callable[[TrainingPlan], bool]


def search_plans(
    layers: int, target: float, evaluate: Evaluate, fits: Fits | None = None
) -> tuple[list[PlanDecision], TrainingPlan | None]:
    """Find the plan with the least time to a target accuracy with few evaluations of the (layers + 1)(layers + 2) / 2.

    1. Depth: binary search for the least at which the target is reached, each depth with as many of its layers in full
       as fit. It goes up to the depth from which a deeper plan has room for fewer layers in full; where none of these
       depths reaches the target, the deeper ones are evaluated one by one.
    2. Capacity: binary search for the least that reaches the target at this depth.
    3. Neighbours of the plan found, one layer deeper and one more layer in full, are evaluated where they fit.

    Of the plans that reached the target, the fastest is chosen; of equally fast ones, the one that trains least.
    Both binary searches assume that accuracy does not fall where more is trained; :func:`monotonicity_violations`
    returns where it did. Where it does not fall, a plan is found if any that fits reaches the target. The searches
    evaluate at most ceil(log2(layers + 2)) and ceil(log2(layers + 1)) plans, and one more for each depth evaluated by
    itself. No plan is evaluated twice.

    Args:
        layers: Number of the model's layers, 1 or more.
        target: The accuracy to be reached, 0 to 1.
        fits: Returns whether a plan can be evaluated (memory); all can if left out. Where one fits, one with fewer
            layers in full usually does too, but need not (a model without biases).

    Returns:
        The evaluated plans, in order; and the chosen one, None where none fits or the target was not reached.

    Raises:
        ConfigError: There is no layer.

    >>> def made_up(plan):  # accuracy 0.8 from three layers on of which one in full; more costs more
    ...     good = plan.depth >= 3 and plan.capacity >= 1
    ...     return PlanOutcome(0.8 if good else 0.5, 10.0 * plan.depth + plan.capacity if good else None)
    >>> evaluated, chosen = search_plans(12, 0.75, made_up)
    >>> chosen, len(evaluated)
    (TrainingPlan(depth=3, capacity=1), 8)
    """
    if layers < 1:
        raise ConfigError(f"a model with {layers} layers has no depth to choose")
    evaluated: dict[TrainingPlan, PlanDecision] = {}

    def reaches(step: Step, candidate: TrainingPlan) -> bool:
        if candidate not in evaluated:
            outcome = evaluate(candidate)
            evaluated[candidate] = PlanDecision(step, candidate, outcome, outcome.accuracy >= target)
        return evaluated[candidate].reached

    may = fits or (lambda candidate: True)
    fullest = [full for depth in range(layers + 1) if (full := _fullest(depth, may)) is not None]
    place = bisect_left(fullest, True, 0, _nested(fullest), key=lambda candidate: reaches("depth", candidate))
    full = next((candidate for candidate in fullest[place:] if reaches("depth", candidate)), None)
    if full is not None:
        depth, most = full.depth, full.capacity
        lesser = [plan for plan in map(partial(TrainingPlan, depth), range(most)) if may(plan)]
        at = bisect_left(lesser, True, key=lambda candidate: reaches("capacity", candidate))
        found = [*lesser, full][at]
        for neighbour in (TrainingPlan(depth + 1, found.capacity), TrainingPlan(depth, found.capacity + 1)):
            there = neighbour.depth <= layers and neighbour.capacity <= neighbour.depth
            if there and may(neighbour):
                reaches("neighbour", neighbour)
    decisions = list(evaluated.values())
    return decisions, _fastest(decisions)


def _fullest(depth: int, may: Fits) -> TrainingPlan | None:
    """Return the plan of a depth with the most layers in full that fits."""
    downwards = (TrainingPlan(depth, capacity) for capacity in range(depth, -1, -1))
    return next((candidate for candidate in downwards if may(candidate)), None)


def _nested(fullest: Sequence[TrainingPlan]) -> int:
    """Return the number of leading plans of which each trains everything that the one before it trains."""
    pairs = enumerate(pairwise(fullest), start=1)
    return next((place for place, (less, more) in pairs if not less.within(more)), len(fullest))


def _fastest(decisions: Sequence[PlanDecision]) -> TrainingPlan | None:
    reached = [decision for decision in decisions if decision.reached]
    if not reached:
        return None

    def order(decision: PlanDecision) -> tuple[float, TrainingPlan]:
        seconds = decision.outcome.seconds
        return (float("inf") if seconds is None else seconds, decision.candidate)

    return min(reached, key=order).candidate


def monotonicity_violations(decisions: Sequence[PlanDecision]) -> list[tuple[PlanDecision, PlanDecision]]:
    """Return where a larger plan was less accurate, against the assumption of the search.

    Args:
        decisions: The evaluated plans, from :func:`search_plans`.

    Returns:
        One pair for each such plan: the best evaluated plan that trains only part of it, and itself. Where
        the first reached the target and the second did not, the search may have missed a plan.
    """
    found = []
    for larger in decisions:
        parts = [d for d in decisions if d.candidate.within(larger.candidate)]
        best = max(parts, key=lambda decision: decision.outcome.accuracy)
        if best.outcome.accuracy > larger.outcome.accuracy:
            found.append((best, larger))
    return found
