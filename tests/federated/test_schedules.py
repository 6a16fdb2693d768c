"""Learning rates over the rounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.federated.schedules import RateSchedule, ScheduleName

names = st.sampled_from(["constant", "linear", "cosine"])


@given(name=names, rounds=st.integers(1, 50), warmup=st.integers(0, 60), minimum=st.floats(0, 1))
def test_a_rate_rises_then_stays_or_falls_to_the_minimum(
    name: ScheduleName, rounds: int, warmup: int, minimum: float
) -> None:
    schedule = RateSchedule(name, rounds, warmup, minimum)
    factors = [schedule.factor(number) for number in range(1, rounds + 1)]
    rising, rest = factors[:warmup], factors[warmup:]
    assert rising == [number / (warmup + 1) for number in range(1, len(rising) + 1)]
    assert all(0 < factor < 1 for factor in rising)
    assert rest == sorted(rest, reverse=True)
    if rest:
        assert rest[0] == pytest.approx(1.0)
        assert min(rest) >= minimum - 1e-12
    if len(rest) > 1 and name != "constant":
        assert rest[-1] == pytest.approx(minimum)


@given(rounds=st.integers(1, 50), more=st.integers(0, 10), name=names)
def test_after_the_last_round_the_rate_stays(rounds: int, more: int, name: ScheduleName) -> None:
    schedule = RateSchedule(name, rounds, minimum=0.25)
    assert schedule.factor(rounds + more) == schedule.factor(rounds)


def test_a_constant_rate_is_the_default() -> None:
    assert [RateSchedule().factor(number) for number in (1, 2, 100)] == [1.0, 1.0, 1.0]


def test_a_cosine_is_that_of_its_formula() -> None:
    schedule = RateSchedule("cosine", rounds=9, warmup=2, minimum=0.1)
    for number in range(3, 10):
        expected = 0.1 + 0.9 * (1 + math.cos(math.pi * (number - 3) / 6)) / 2
        assert schedule.factor(number) == pytest.approx(expected)
