"""The search for a training plan against looking at every plan, over made-up accuracies."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.studies.depth_capacity import (
    PlanDecision,
    PlanOutcome,
    TrainingPlan,
    monotonicity_violations,
    search_plans,
)

TARGET = 0.5


@dataclass
class World:
    """Made-up accuracies and seconds of every plan of a model, and which of them were tried."""

    layers: int
    accuracy: dict[TrainingPlan, float]
    seconds: Callable[[TrainingPlan], float]
    tried: list[TrainingPlan] = field(default_factory=list)

    def __call__(self, candidate: TrainingPlan) -> PlanOutcome:
        self.tried.append(candidate)
        accuracy = self.accuracy[candidate]
        return PlanOutcome(accuracy, self.seconds(candidate) if accuracy >= TARGET else None)

    def least(self, fits: Callable[[TrainingPlan], bool] = lambda candidate: True) -> TrainingPlan | None:
        """Look at every plan: the least depth that reaches the target, and then the least capacity."""
        reached = [c for c, accuracy in self.accuracy.items() if accuracy >= TARGET and fits(c)]
        return min(reached, default=None)


def plans(layers: int) -> list[TrainingPlan]:
    return [TrainingPlan(depth, capacity) for depth in range(layers + 1) for capacity in range(depth + 1)]


def grows(candidate: TrainingPlan) -> float:
    return 1.0 + 3 * candidate.depth + candidate.capacity


@st.composite
def worlds(draw: st.DrawFn, monotone: bool = True) -> World:
    layers = draw(st.integers(1, 14))
    random = draw(st.randoms(use_true_random=False))
    hard = draw(st.sampled_from([0.6, 1.0, 3.0, 9.0]))  # few plans reach the target, or most
    accuracy = {plan: random.random() ** hard for plan in plans(layers)}
    if monotone:
        for plan in accuracy:  # the least come first, so that these are raised already
            below = [TrainingPlan(plan.depth - 1, plan.capacity), TrainingPlan(plan.depth, plan.capacity - 1)]
            accuracy[plan] = max(accuracy.get(c, 0.0) for c in (plan, *below))
    return World(layers, accuracy, grows)


def most_tries(layers: int, one_by_one: int = 0) -> int:
    depths = math.ceil(math.log2(layers + 2 - one_by_one)) + one_by_one
    return depths + math.ceil(math.log2(layers + 1)) + 2


@given(worlds())
def test_it_finds_what_looking_at_every_plan_finds(world: World) -> None:
    """Where more training costs more time and never accuracy."""
    decisions, chosen = search_plans(world.layers, TARGET, world)
    assert chosen == world.least()
    assert monotonicity_violations(decisions) == []


@given(worlds(), st.randoms(use_true_random=False))
def test_the_chosen_plan_is_the_fastest_that_was_tried(world: World, random: object) -> None:
    """Whatever the seconds are; and the least plan is among those tried."""
    drawn = {plan: float(random.randint(1, 5)) for plan in world.accuracy}  # type: ignore[attr-defined]
    world.seconds = drawn.__getitem__
    decisions, chosen = search_plans(world.layers, TARGET, world)
    reached = [one.candidate for one in decisions if one.reached]
    assert world.least() in reached or (chosen is None and not reached and world.least() is None)
    if chosen is not None:
        assert (drawn[chosen], chosen) == min((drawn[plan], plan) for plan in reached)


@given(worlds(monotone=False), st.booleans())
def test_few_plans_are_tried_and_none_twice(world: World, tight: bool) -> None:
    """Whatever the accuracies are."""
    fits = _room(world.layers) if tight else lambda candidate: True
    decisions, _ = search_plans(world.layers, TARGET, world, fits)
    assert len(set(world.tried)) == len(world.tried) <= most_tries(world.layers, _beyond(world.layers, fits))
    assert [one.candidate for one in decisions] == world.tried
    assert [one.reached for one in decisions] == [world.accuracy[c] >= TARGET for c in world.tried]


def _room(layers: int) -> Callable[[TrainingPlan], bool]:
    return lambda candidate: 2 * candidate.capacity + candidate.depth <= layers


def _beyond(layers: int, fits: Callable[[TrainingPlan], bool]) -> int:
    """Count the depths from the first at which fewer layers in full fit than at the one before."""
    fitting = [[c for c in range(depth + 1) if fits(TrainingPlan(depth, c))] for depth in range(layers + 1)]
    most = [max(capacities) for capacities in fitting if capacities]
    return next((len(most) - n for n in range(1, len(most)) if most[n] < most[n - 1]), 0)


@given(worlds())
def test_nothing_is_tried_that_does_not_fit(world: World) -> None:
    fits = _room(world.layers)
    _, chosen = search_plans(world.layers, TARGET, world, fits)
    assert all(map(fits, world.tried))
    assert chosen == world.least(fits)


@st.composite
def steps(draw: st.DrawFn) -> World:
    """Up to three plans, and all that train as much as one of these, reach the target."""
    layers = draw(st.integers(1, 24))
    needs = draw(st.lists(st.sampled_from(plans(layers)), min_size=1, max_size=3))
    accuracy = {plan: 0.9 if any(n.within(plan) for n in needs) else 0.1 for plan in plans(layers)}
    return World(layers, accuracy, grows)


@st.composite
def budgets(draw: st.DrawFn) -> Callable[[TrainingPlan], bool]:
    """Room for so much at so much a layer; and models without biases may have holes in it."""
    deep, full, most = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(0, 24))
    hole = draw(st.none() | st.integers(2, 9))

    def fits(plan: TrainingPlan) -> bool:
        holds = hole is None or (plan.depth + plan.capacity) % hole != 1
        return holds and deep * plan.depth + full * plan.capacity <= deep * most

    return fits


@settings(max_examples=300)
@given(steps() | worlds(), budgets())
@pytest.mark.whole
def test_whatever_fits_and_reaches_the_target_is_not_missed(
    world: World, fits: Callable[[TrainingPlan], bool]
) -> None:
    """A deeper plan may have room for fewer layers in full; the least depth is found all the same."""
    _, chosen = search_plans(world.layers, TARGET, world, fits)
    assert chosen == world.least(fits)
    assert all(map(fits, world.tried))
    assert len(set(world.tried)) == len(world.tried) <= most_tries(world.layers, _beyond(world.layers, fits))


@pytest.mark.parametrize(("need", "found"), [(TrainingPlan(0, 9), (9, 9)), (TrainingPlan(12, 2), (12, 2))])
def test_deeper_plans_with_fewer_layers_in_full(need: TrainingPlan, found: tuple[int, int]) -> None:
    """Up to depth 10 all layers in full fit; (11, 6), (12, 3) and (13, 0) are the fullest from there on."""
    world = World(24, {plan: 0.9 if need.within(plan) else 0.1 for plan in plans(24)}, grows)
    decisions, chosen = search_plans(
        24, TARGET, world, lambda plan: 10 * plan.depth + 3 * plan.capacity <= 130
    )
    assert chosen == TrainingPlan(*found)
    assert len(decisions) <= most_tries(24, one_by_one=3)
    assert TrainingPlan(13, 0) not in world.tried


@given(st.integers(1, 40), st.data())
def test_room_for_biases_alone(layers: int, data: st.DataObject) -> None:
    need = data.draw(st.integers(0, layers))
    accuracy = {plan: 0.9 if plan.depth >= need else 0.1 for plan in plans(layers)}
    _, chosen = search_plans(layers, TARGET, World(layers, accuracy, grows), lambda plan: plan.capacity == 0)
    assert chosen == TrainingPlan(need, 0)


@given(worlds(monotone=False))
def test_falls_are_told(world: World) -> None:
    decisions, _ = search_plans(world.layers, TARGET, world)
    told = {more.candidate: less for less, more in monotonicity_violations(decisions)}

    def best_part(one: PlanDecision) -> float:
        return max(world.accuracy[c] for c in world.tried if c.within(one.candidate))

    for one in decisions:
        assert (one.candidate in told) == (best_part(one) > one.outcome.accuracy)
        if one.candidate in told:
            assert told[one.candidate].outcome.accuracy == best_part(one)
            assert told[one.candidate].candidate.within(one.candidate)


def test_a_fall_right_above_the_plan_found_is_seen() -> None:
    """The neighbour is tried though the binary search had no need of it."""
    accuracy = {plan: 0.8 if plan.depth >= 5 else 0.1 for plan in plans(16)} | {TrainingPlan(6, 0): 0.2}
    world = World(16, accuracy, grows)
    decisions, chosen = search_plans(16, TARGET, world)
    assert chosen == TrainingPlan(5, 0)
    assert (TrainingPlan(5, 0), TrainingPlan(6, 0)) in [
        (less.candidate, more.candidate) for less, more in monotonicity_violations(decisions)
    ]


def test_the_papers_plan_for_ag_news() -> None:
    """24 layers, the top one in full and the biases of seven below (section 3.3)."""
    good = {plan: 0.9 if plan.depth >= 8 and plan.capacity >= 1 else 0.85 for plan in plans(24)}
    world = World(24, {plan: a - 0.38 for plan, a in good.items()}, grows)
    decisions, chosen = search_plans(24, TARGET, world)
    assert chosen == TrainingPlan(8, 1)
    assert len(decisions) <= 11 < len(good) == 325


def test_a_faster_neighbour_is_chosen() -> None:
    """A plan that trains more may need fewer rounds."""
    accuracy = {plan: 0.9 if plan.depth >= 2 else 0.1 for plan in plans(6)}
    world = World(6, accuracy, lambda plan: 1.0 if plan == TrainingPlan(3, 0) else 5.0)
    assert search_plans(6, TARGET, world)[1] == TrainingPlan(3, 0)


def test_nothing_to_choose() -> None:
    never = World(3, dict.fromkeys(plans(3), 0.1), grows)
    assert search_plans(3, TARGET, never, lambda plan: False) == ([], None)
    decisions, chosen = search_plans(3, TARGET, never)
    assert chosen is None
    assert decisions[-1].candidate == TrainingPlan(3, 3)
    with pytest.raises(ConfigError, match="0 layers"):
        search_plans(0, TARGET, never)
