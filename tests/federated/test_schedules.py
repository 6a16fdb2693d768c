"""Learning rates over the rounds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.federated.schedules import RateSchedule, ScheduleName

names = st.sampled_from(["constant", "linear", "cosine"])
rates = st.floats(0, 1)
HUGGING_FACE = {"constant": "constant", "linear": "linear", "cosine": "cosine_with_min_lr"}


def hugging_face(name: ScheduleName, rounds: int, warmup: int, minimum: float) -> list[float]:
    """Return the factors of the steps of Hugging Face's schedule."""
    from transformers import get_scheduler

    options = {"min_lr_rate": minimum} if name == "cosine" else {}
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    made = get_scheduler(
        HUGGING_FACE[name],
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=rounds,
        scheduler_specific_kwargs=options,
    )
    (shape,) = made.lr_lambdas
    return [float(shape(step)) for step in range(rounds + 1)]


@given(name=names, rounds=st.integers(1, 50), warmup=st.integers(0, 60), minimum=rates)
def test_a_rate_rises_then_stays_or_falls_towards_the_minimum(
    name: ScheduleName, rounds: int, warmup: int, minimum: float
) -> None:
    schedule = RateSchedule(name, rounds, warmup, minimum)
    factors = [schedule.factor(number) for number in range(1, rounds + 1)]
    rising, rest = factors[:warmup], factors[warmup:]
    assert rising == [number / (warmup + 1) for number in range(1, len(rising) + 1)]
    assert all(factor > 0 for factor in factors)
    assert rest == sorted(rest, reverse=True)
    if rest:
        assert rest[0] == pytest.approx(1.0)
        assert min(rest) >= minimum - 1e-12
    if name != "constant" and warmup < rounds:
        assert schedule.factor(rounds + 1) == pytest.approx(minimum)


@given(name=names, rounds=st.integers(1, 50), minimum=rates, data=st.data())
def test_the_fall_is_hugging_faces_with_a_step_for_each_round(
    name: ScheduleName, rounds: int, minimum: float, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(0, rounds - 1))
    minimum = minimum if name == "cosine" else 0.0  # their linear schedule has none
    steps = hugging_face(name, rounds, warmup, minimum)
    schedule = RateSchedule(name, rounds, warmup, minimum)
    for number in range(warmup + 1, rounds + 2):
        assert schedule.factor(number) == pytest.approx(steps[number - 1], abs=1e-12)


@given(rounds=st.integers(2, 50), data=st.data())
def test_the_rise_is_hugging_faces_a_step_later(rounds: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(1, rounds - 1))
    steps = hugging_face("linear", rounds + 2, warmup + 1, 0.0)
    schedule = RateSchedule("linear", rounds, warmup)
    for number in range(1, warmup + 1):
        assert schedule.factor(number) == pytest.approx(steps[number])


def test_a_constant_rate_is_the_default() -> None:
    assert [RateSchedule().factor(number) for number in (1, 2, 100)] == [1.0, 1.0, 1.0]


@given(names, st.integers(1, 20), st.integers(1, 20))
def test_after_the_last_round_the_rate_stays_at_the_minimum(
    name: ScheduleName, rounds: int, more: int
) -> None:
    schedule = RateSchedule(name, rounds, minimum=0.25)
    assert schedule.factor(rounds + more) == pytest.approx(1.0 if name == "constant" else 0.25)
