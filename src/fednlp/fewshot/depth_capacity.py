"""The search for a training plan: how deep to train, and how much of that in full (FeS, section 3.3).

A plan trains the top ``depth`` layers of a model: of these the upper ``capacity`` in full, the others by their
biases alone. The layers below are frozen. The paper says "binary search" and no more; docs/methods/planning.md states
our choices. The search is pure: the caller tries the plans.
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
    """A plan: the top ``depth`` layers are trained, of these the upper ``capacity`` in full, the others by biases."""

    depth: int
    capacity: int

    def within(self, other: "TrainingPlan") -> bool:
        """Whether everything that this one trains, the other trains too.

        >>> TrainingPlan(4, 1).within(TrainingPlan(6, 1)), TrainingPlan(4, 3).within(TrainingPlan(6, 1))
        (True, False)
        """
        return self.depth <= other.depth and self.capacity <= other.capacity


@dataclass(frozen=True)
class PlanOutcome:
    """What trying a plan came to: the highest accuracy, and the seconds until the target; None if not reached."""

    accuracy: float
    seconds: float | None


@dataclass(frozen=True)
class PlanDecision:
    """One plan tried: in which step of the search, what came of it, and whether it reached the target."""

    step: Step
    candidate: TrainingPlan
    outcome: PlanOutcome
    reached: bool


Try = Callable[[TrainingPlan], PlanOutcome]
Fits = Callable[[TrainingPlan], bool]


def search_plans(
    layers: int, target: float, try_candidate: Try, fits: Fits | None = None
) -> tuple[list[PlanDecision], TrainingPlan | None]:
    """Find the plan with the least time to a target accuracy, trying few of the (layers + 1)(layers + 2) / 2.

    1. Depth: binary search for the least at which the target is reached, each depth with as many of its layers in full
       as fit. It goes up to the depth from which a deeper plan has room for fewer layers in full; where none of these
       depths reaches the target, the deeper ones are tried one by one.
    2. Capacity: binary search for the least that reaches the target at this depth.
    3. Neighbours of the plan found, one layer deeper and one more layer in full, are tried where they fit.

    Of all that reached the target the one with the fewest seconds is chosen; of equal ones that which trains least.
    Both binary searches assume that accuracy does not fall where more is trained; :func:`monotonicity_violations`
    returns where it did. Where it does not fall, a plan is found if any that fits reaches the target. The searches
    take at most ceil(log2(layers + 2)) and ceil(log2(layers + 1)) tries, one more for each depth tried by itself, and
    no plan is tried twice.

    Args:
        layers: Of the model, 1 or more.
        target: The accuracy to be reached.
        try_candidate: Tries a plan.
        fits: Whether a plan may be tried at all (memory); all may if left out. Where one fits, one with fewer layers
            in full usually does too, but need not (a model without biases).

    Returns:
        What was tried, in order; and the plan, None where nothing fits or the target was not reached.

    Raises:
        ConfigError: There is no layer.

    >>> def made_up(plan):  # accuracy 0.8 from three layers on of which one in full; more costs more
    ...     good = plan.depth >= 3 and plan.capacity >= 1
    ...     return PlanOutcome(0.8 if good else 0.5, 10.0 * plan.depth + plan.capacity if good else None)
    >>> tried, chosen = search_plans(12, 0.75, made_up)
    >>> chosen, len(tried)
    (TrainingPlan(depth=3, capacity=1), 8)
    """
    if layers < 1:
        raise ConfigError(f"a model with {layers} layers has no depth to choose")
    tried: dict[TrainingPlan, PlanDecision] = {}

    def reaches(step: Step, candidate: TrainingPlan) -> bool:
        if candidate not in tried:
            outcome = try_candidate(candidate)
            tried[candidate] = PlanDecision(step, candidate, outcome, outcome.accuracy >= target)
        return tried[candidate].reached

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
    decisions = list(tried.values())
    return decisions, _fastest(decisions)


def _fullest(depth: int, may: Fits) -> TrainingPlan | None:
    """Return the plan of a depth with the most layers in full that fits."""
    downwards = (TrainingPlan(depth, capacity) for capacity in range(depth, -1, -1))
    return next((candidate for candidate in downwards if may(candidate)), None)


def _nested(fullest: Sequence[TrainingPlan]) -> int:
    """Return how many of the first plans train all that the ones before them do."""
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
    """Return where training more gave less accuracy, against what the search rests on.

    Args:
        decisions: From :func:`search_plans`.

    Returns:
        One pair for each plan with which it fell: the best plan tried that trains only part of it, and itself. Where
        the first reached the target and the second did not, the search may have missed a plan.
    """
    found = []
    for larger in decisions:
        parts = [d for d in decisions if d.candidate.within(larger.candidate)]
        best = max(parts, key=lambda decision: decision.outcome.accuracy)
        if best.outcome.accuracy > larger.outcome.accuracy:
            found.append((best, larger))
    return found
