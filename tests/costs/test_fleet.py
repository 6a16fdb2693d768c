"""A mix of devices: each client has one, drawn once, and takes the time and power of its own."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.costs import (
    ClientCost,
    CostModel,
    Fleet,
    assign_kinds,
    client_seconds,
    device_cost_model,
    local_examples,
    make_fleet,
    round_line,
    uniform_fleet,
)
from fednlp.errors import ConfigError

MODEL: dict[str, Any] = {"model": "roberta-large", "parameters": 355_000_000}
weights = st.lists(st.integers(1, 1000), min_size=1, max_size=6)
seeds = st.integers(0, 2**63 - 1)
rates = st.none() | st.floats(1e3, 1e9)
seconds = st.none() | st.floats(0, 100)
watts = st.none() | st.floats(0, 100)
models = st.builds(CostModel, rates, rates, seconds, seconds, seconds, watts, watts)
costs = st.builds(ClientCost, *[st.integers(0, 2**40)] * 7)


def _shares(numbers: list[int]) -> list[float]:
    return [number / sum(numbers) for number in numbers]


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw up to four kinds of devices, and which of them up to eight clients have."""
    kinds = draw(st.lists(models, min_size=1, max_size=4))
    which = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=8))
    return Fleet(tuple(kinds), np.array(which, dtype=np.int64))


@given(weights, st.integers(1, 300), seeds)
def test_the_counts_of_devices_are_the_shares_by_largest_remainder(
    numbers: list[int], clients: int, seed: int
) -> None:
    exact = [number * clients / sum(numbers) for number in numbers]
    counts = np.bincount(assign_kinds(_shares(numbers), clients, seed), minlength=len(numbers))
    assert counts.sum() == clients
    assert all(math.floor(e + 1e-9) <= c <= math.ceil(e - 1e-9) for c, e in zip(counts, exact, strict=True))
    rounded_up = [e - math.floor(e) for c, e in zip(counts, exact, strict=True) if c > e + 1e-9]
    rounded_down = [e - math.floor(e) for c, e in zip(counts, exact, strict=True) if c < e - 1e-9]
    assert min(rounded_up, default=1.0) >= max(rounded_down, default=0.0) - 1e-9


@given(weights, st.integers(1, 100), seeds, seeds)
def test_a_seed_changes_who_has_a_device_and_never_how_many(
    numbers: list[int], clients: int, seed: int, other: int
) -> None:
    one = assign_kinds(_shares(numbers), clients, seed)
    np.testing.assert_array_equal(one, assign_kinds(_shares(numbers), clients, seed))
    np.testing.assert_array_equal(np.sort(one), np.sort(assign_kinds(_shares(numbers), clients, other)))


def test_who_has_which_device_is_drawn_uniformly() -> None:
    drawn = np.stack([assign_kinds([0.25, 0.75], 8, seed) for seed in range(4000)])
    slow = (drawn == 0).mean(axis=0)
    np.testing.assert_allclose(slow, 0.25, atol=5 * math.sqrt(0.25 * 0.75 / 4000))
    pairs = ((drawn[:, 0] == 0) & (drawn[:, 1] == 0)).mean()  # 2 of 8 without replacement
    assert pairs == pytest.approx(2 / 8 * 1 / 7, abs=5 * math.sqrt(0.036 / 4000))


def test_a_mix_gives_each_client_the_cost_model_of_its_device_whatever_the_order_of_its_names() -> None:
    mix = {"raspberry-pi-4b": 0.3, "jetson-tx2": 0.7}
    fleet = make_fleet(1.0, 2.0, mix, num_clients=10, seed=3, **MODEL)
    assert fleet is not None
    alone = {name: device_cost_model(1.0, 2.0, name, **MODEL) for name in mix}
    given = [fleet.of(client) for client in range(10)]
    assert [given.count(alone[name]) for name in mix] == [3, 7]  # type: ignore[arg-type]
    turned = make_fleet(1.0, 2.0, dict(reversed(mix.items())), num_clients=10, seed=3, **MODEL)
    assert turned is not None
    assert [turned.of(client) for client in range(10)] == given
    other = make_fleet(1.0, 2.0, mix, num_clients=10, seed=4, **MODEL)
    assert other is not None
    assert [other.of(client) for client in range(10)] != given
    assert fleet.mean_training() == pytest.approx(0.7 * 2 + 0.3 * 30)
    assert fleet.mean_inference() == pytest.approx(0.7 * 1 + 0.3 * 15)


def test_one_device_alone_is_the_same_as_a_name_and_as_a_mix() -> None:
    by_name = make_fleet(1.0, 1.0, "jetson-tx2", num_clients=4, seed=0, **MODEL)
    as_mix = make_fleet(1.0, 1.0, {"jetson-tx2": 1.0}, num_clients=4, seed=0, **MODEL)
    model = device_cost_model(1.0, 1.0, "jetson-tx2", **MODEL)
    assert by_name is not None
    assert as_mix is not None
    assert (
        [by_name.of(client) for client in range(4)]
        == [as_mix.of(client) for client in range(4)]
        == [model] * 4
    )
    assert model is not None
    assert (by_name.mean_training(), by_name.mean_inference()) == (model.training, model.inference)
    assert (as_mix.mean_training(), as_mix.mean_inference()) == (model.training, model.inference)


@given(fleets(), st.data())
def test_a_round_takes_as_long_as_its_slowest_client_on_its_own_device(
    fleet: Fleet, data: st.DataObject
) -> None:
    cohort = data.draw(st.dictionaries(st.integers(0, len(fleet.kinds) - 1), costs))
    line = round_line(cohort, fleet)
    alone = [round_line({0: cost}, uniform_fleet(fleet.of(client), 1)) for client, cost in cohort.items()]
    assert line["simulated_seconds"] == max((one["simulated_seconds"] for one in alone), default=0.0)
    everyone_known = all(m.watts_computing is not None or m.watts_sending is not None for m in fleet.models)
    assert ("energy_joules" in line) == everyone_known
    if everyone_known:
        assert line["energy_joules"] == pytest.approx(
            sum(one["energy_joules"] for one in alone), rel=1e-9, abs=1e-5
        )


@given(fleets(), st.data())
def test_the_seconds_of_all_clients_are_to_the_bit_those_of_each(fleet: Fleet, data: st.DataObject) -> None:
    amounts = st.lists(st.integers(0, 2**40), min_size=len(fleet.kinds), max_size=len(fleet.kinds))
    examples, down, up = (data.draw(amounts) for _ in range(3))
    found = client_seconds(fleet, examples, down, up)
    assert found.dtype == np.float64
    assert found.tolist() == [
        fleet.of(client).seconds(*numbers)
        for client, numbers in enumerate(zip(down, up, examples, strict=True))
    ]
    same = client_seconds(fleet, examples[0], down[0], up[0])
    assert (
        same.tolist()
        == client_seconds(fleet, *([one[0]] * len(fleet.kinds) for one in (examples, down, up))).tolist()
    )


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 4), st.integers(1, 9), st.integers(-1, 30))
def test_local_examples_are_those_of_the_batches_one_after_another(
    sizes: list[int], epochs: int, batch: int, steps: int
) -> None:
    for size, found in zip(
        sizes, local_examples(sizes, epochs=epochs, batch_size=batch, max_steps=steps), strict=True
    ):
        epoch = [min(batch, size - start) for start in range(0, size, batch)]
        taken = epoch * epochs if steps <= 0 else (epoch * steps)[:steps]
        assert found == sum(taken)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"jetson-tx2": 0.5, "raspberry-pi-4b": 0.4}, "sum to 0.9: make them sum to 1"),
        ({"jetson-tx2": 1.5, "raspberry-pi-4b": -0.5}, "share 1.5: give a share above 0"),
        ({"jetson-tx2": 1.0, "raspberry-pi-4b": 0.0}, "share 0: give a share above 0"),
        ({"jetson-tx2": math.nan}, "share nan: give a share above 0"),
        ({"jetson-tx2": 0.5, "jetson": 0.5}, "there is no device profile jetson"),
        ({"jetson-tx2": 0.5, "pixel-4": 0.5}, "profile pixel-4 does not say how long roberta-large takes"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(mix: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_fleet(1.0, 1.0, mix, num_clients=4, seed=0, **MODEL)


def test_shares_sum_to_one_within_a_millionth() -> None:
    third = 0.3333333
    mix = {"jetson-tx2": third, "raspberry-pi-4b": 1 - third - 9e-7}
    assert make_fleet(None, None, mix, num_clients=3, seed=0, **MODEL) is not None


def test_a_mix_of_which_nothing_is_known_prices_nothing(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.toml" for name in ("one", "two")]
    for path in paths:
        path.write_text(f'name = "{path.stem}"\nsource = "nothing known"\n[watts]\ncomputing = 3\n')
    mix = {str(path): 0.5 for path in paths}
    assert make_fleet(None, None, mix, num_clients=2, seed=0, **MODEL) is None
    wired = make_fleet(1.0, None, mix, num_clients=2, seed=0, **MODEL)
    assert wired is not None
    assert client_seconds(wired, 5, 1_000_000, 3_000_000).tolist() == [3.0, 3.0]


def test_the_energy_of_a_mix_with_unknown_watts_is_not_stated() -> None:
    mix = {"jetson-tx2": 0.5, "raspberry-pi-4b": 0.5}  # nobody states the watts of the Pi
    fleet = make_fleet(1.0, 1.0, mix, num_clients=2, seed=0, **MODEL)
    assert "energy_joules" not in round_line({0: ClientCost(examples=1)}, fleet)
