"""Seconds an example by how deep a model is trained."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.costs import (
    DeviceProfile,
    Speed,
    TrainingDepth,
    device_cost_model,
    load_profile,
    seconds_per_example,
)
from fednlp.errors import ConfigError

LARGE = 355_000_000
ROBERTA = "FacebookAI/roberta-large"
counts = st.integers(1, 24).flatmap(
    lambda layers: st.tuples(st.just(layers), st.integers(0, layers), st.integers(0, layers))
)
ratios = st.none() | st.floats(0.1, 4)


def _device(**training: object) -> DeviceProfile:
    return DeviceProfile(
        "mine", "stated", training=Speed({"m": 6.0}, **training), inference=Speed({"m": 2.0})
    )  # type: ignore[arg-type]


def _seconds(device: DeviceProfile, plan: TrainingDepth | None, training: bool = True) -> float:
    found = seconds_per_example(device, "m", 1, plan, training)
    assert found is not None
    return found


@given(counts, ratios)
def test_deeper_plans_take_longer_and_biases_less_than_whole_layers(
    numbers: tuple[int, int, int], backward: float | None
) -> None:
    layers, trained, biases = numbers
    device = _device(backward=backward)
    biases = min(biases, layers - trained)
    plan = TrainingDepth(layers, trained, biases)
    took = _seconds(device, plan)
    assert took <= _seconds(device, TrainingDepth(layers, trained + biases)) + 1e-9
    assert took <= _seconds(device, replace(plan, cached=False)) + 1e-9
    if biases:
        assert took > _seconds(device, TrainingDepth(layers, trained, biases - 1))
    if trained < layers:
        assert _seconds(device, TrainingDepth(layers, trained)) < _seconds(
            device, TrainingDepth(layers, trained + 1)
        )
    assert _seconds(device, plan, training=False) <= _seconds(device, None, training=False) + 1e-9


@given(st.integers(1, 24))
def test_a_whole_model_takes_what_the_profile_says(layers: int) -> None:
    device = _device()
    assert _seconds(device, TrainingDepth(layers, layers)) == _seconds(device, None) == 6.0
    assert _seconds(device, TrainingDepth(layers, layers), training=False) == 2.0
    assert _seconds(device, TrainingDepth(layers, 0)) == 0.0


def test_the_arithmetic_by_hand() -> None:
    """12 layers, 2 s forwards and 4 s backwards: 1/6 s and 1/3 s a layer, backwards with biases alone 1/6 s."""
    plan = TrainingDepth(12, trained_layers=2, bias_layers=3)
    assert _seconds(_device(), plan) == pytest.approx(2 * (1 / 6 + 1 / 3) + 3 * (1 / 6 + 1 / 6))
    assert _seconds(_device(), plan, training=False) == pytest.approx(5 / 6)
    kept = replace(plan, cached=False)
    assert _seconds(_device(), kept) == pytest.approx(2 * 1 / 2 + 3 * 1 / 3 + 7 / 6)
    assert _seconds(_device(), kept, training=False) == pytest.approx(2.0)


def test_what_a_profile_states_comes_before_the_rule() -> None:
    assert _seconds(_device(bias=0.5), TrainingDepth(12, 0, 12)) == pytest.approx(3.0)
    assert _seconds(_device(backward=1.0), TrainingDepth(12, 0, 12)) == pytest.approx(6.0 * 1.5 / 2)
    deep = _device(depths={"m": {0: 0.5, 2: 1.5}})
    assert [_seconds(deep, TrainingDepth(6, depth)) for depth in (0, 1, 2, 4, 6)] == [
        0.5,
        1.0,
        1.5,
        3.75,
        6.0,
    ]
    with pytest.raises(ConfigError, match="what m takes at a depth of 2, which has 1 layer"):
        _seconds(deep, TrainingDepth(1, 1))


def test_training_is_reckoned_from_inference_and_the_other_way_round() -> None:
    phone = load_profile("pixel-4")
    told = [
        seconds_per_example(phone, "google/mobilebert-uncased", 1, None, training)
        for training in (True, False)
    ]
    assert told == [pytest.approx(3 * 0.062), 0.062]
    half = DeviceProfile("mine", "stated", training=Speed({"m": 6.0}, backward=1.0))
    assert seconds_per_example(half, "m", 1, None, training=False) == 3.0
    assert seconds_per_example(half, "another", 1, TrainingDepth(2, 1), training=True) is None
    shallow = DeviceProfile("mine", "stated", training=Speed(depths={"m": {1: 0.5}}))
    assert seconds_per_example(shallow, "m", 1, TrainingDepth(4, 1), training=True) == 0.5
    assert seconds_per_example(shallow, "m", 1, TrainingDepth(4, 2), training=True) is None
    assert seconds_per_example(shallow, "m", 1, TrainingDepth(4, 1), training=False) is None


def test_the_scripts_of_fes_halve_the_time_for_biases() -> None:
    for name, seconds in (("jetson-tx2", 1.0), ("raspberry-pi-4b", 15.0)):
        assert (
            seconds_per_example(load_profile(name), ROBERTA, LARGE, TrainingDepth(24, 0, 24), True) == seconds
        )


def test_a_cost_model_follows_the_depth() -> None:
    at = device_cost_model(
        None, None, "jetson-tx2", model=ROBERTA, parameters=LARGE, depth=TrainingDepth(24, 6, 6)
    )
    assert at is not None
    assert (at.training, at.inference) == (pytest.approx(0.5 + 0.25), pytest.approx(0.5))
    assert (at.watts_computing, at.watts_sending) == (12.0, 4.0)


@pytest.mark.parametrize("numbers", [(2, 3, 0), (2, 1, 2), (2, -1, 0), (0, 0, 0), (3, 4, -1)])
def test_a_plan_that_fits_no_model_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="does not fit a model of"):
        TrainingDepth(*numbers)
