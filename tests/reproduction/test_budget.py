"""What is chosen fits into the time left, is chosen alike each time, and is as cheap as can be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.reproduction.making import Step, choose, parse_budget

_JOBS = st.sampled_from("abcdefgh")
_COSTS = {name: 2.0**number for number, name in enumerate("abcdefgh")}
_STEPS = st.lists(
    st.builds(
        lambda names, seed: (tuple((name, _COSTS[name]) for name in sorted(names)), seed),
        st.sets(_JOBS, min_size=1),
        st.integers(0, 2),
    ),
    max_size=8,
).map(lambda found: [Step(("p", f"e{number}"), seed, jobs) for number, (jobs, seed) in enumerate(found)])


def cost(steps: list[Step]) -> float:
    """Return what steps take together: a run that several share is done once."""
    return sum(dict(pair for step in steps for pair in step.jobs).values())


@given(_STEPS, st.floats(0, 600))
def test_what_is_chosen_fits_and_nothing_more_would(steps: list[Step], seconds: float) -> None:
    chosen = choose(steps, seconds)
    assert cost(chosen) <= seconds
    assert len({step.entry for step in chosen}) == len(chosen)
    for other in steps:
        if other not in chosen:
            assert cost([*chosen, other]) > seconds


@given(_STEPS, st.floats(0, 600))
def test_the_choice_depends_on_nothing_else(steps: list[Step], seconds: float) -> None:
    assert choose(steps, seconds) == choose(list(steps), seconds)


@given(_STEPS)
def test_first_seeds_come_first_and_the_cheapest_of_them(steps: list[Step]) -> None:
    chosen = choose(steps, math.inf)
    assert [step.seed for step in chosen] == sorted(step.seed for step in steps)
    if steps:
        least = min(cost([step]) for step in steps if step.seed == chosen[0].seed)
        assert cost(chosen[:1]) == least


@given(_STEPS, st.floats(0, 600), st.floats(0, 600))
def test_the_first_choice_is_the_same_with_more_time(steps: list[Step], a: float, b: float) -> None:
    """Of equal seeds: more time adds to what is done, and does not replace it."""
    alike = [Step(step.entry, 0, step.jobs) for step in steps]
    fewer, more = choose(alike, min(a, b)), choose(alike, max(a, b))
    assert more[: len(fewer)] == fewer


def test_a_shared_run_is_paid_once() -> None:
    shared = [Step(("p", "x"), 0, (("a", 10.0),)), Step(("p", "y"), 0, (("a", 10.0), ("b", 1.0)))]
    assert [step.entry[1] for step in choose(shared, 11.0)] == ["x", "y"]
    assert [step.entry[1] for step in choose(shared, 10.5)] == ["x"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("2h", 7200), ("3600s", 3600), ("1h30m", 5400), (" 0.5h ", 1800), ("0s", 0)],
)
def test_budgets_are_read(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1d", "-1h", "h", "1h 30m x", "1e3h", "99999999h"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a time such as 90m, 2h, 1h30m or 3600s"):
        parse_budget(text)
