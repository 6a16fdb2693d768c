"""Bytes are counted exactly, and a round takes as long as its slowest client."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.costs import (
    COUNTED,
    ClientCost,
    CostModel,
    Fleet,
    device_cost_model,
    load_profile,
    round_line,
    round_seconds,
    totals,
    uniform_fleet,
)
from fednlp.errors import ConfigError

counts = st.integers(0, 2**40)
clients = st.builds(ClientCost, *[counts] * 7)
cohorts = st.lists(clients, max_size=6).map(lambda costs: dict(enumerate(costs)))
rates = st.none() | st.floats(1e3, 1e9)
seconds = st.none() | st.floats(0, 100)
watts = st.none() | st.floats(0, 100)
models = st.builds(CostModel, rates, rates, seconds, st.none() | st.floats(0, 10), seconds, watts, watts)


def fleet(model: CostModel) -> Fleet:
    return uniform_fleet(model, num_clients=6)


@given(st.lists(cohorts, max_size=6), models)
def test_the_totals_are_the_sums_over_all_clients_to_the_byte(
    rounds: list[dict[int, ClientCost]], at: CostModel
) -> None:
    lines = [round_line(cohort, fleet(at)) for cohort in rounds]
    whole = totals(lines)
    everyone = [client for cohort in rounds for client in cohort.values()]
    for key in COUNTED:
        assert whole.get(key, 0) == sum(getattr(client, key) for client in everyone)
        assert isinstance(whole.get(key, 0), int)
    assert whole.get("simulated_seconds", 0.0) == pytest.approx(
        sum(line["simulated_seconds"] for line in lines)
    )


@given(cohorts, cohorts, models)
@pytest.mark.whole
def test_the_totals_of_two_parts_of_a_run_are_those_of_the_whole(
    one: dict[int, ClientCost], two: dict[int, ClientCost], at: CostModel
) -> None:
    lines = [round_line(one, fleet(at)), round_line(two, fleet(at))]
    assert totals([totals(lines[:1]), totals(lines[1:])]) == totals(lines)


@given(cohorts.filter(bool), models)
def test_a_round_takes_as_long_as_its_slowest_client(cohort: dict[int, ClientCost], at: CostModel) -> None:
    taken = [at.seconds(c.bytes_down, c.bytes_up, c.examples, c.labelled) for c in cohort.values()]
    assert round_seconds(cohort, fleet(at)) in taken
    assert round_seconds(cohort, fleet(at)) >= max(taken)
    assert round_line(cohort, fleet(at))["simulated_seconds"] == pytest.approx(max(taken), abs=1e-6)


@given(counts, counts, counts, counts, models)
def test_the_parts_of_a_clients_time_add_up(
    down: int, up: int, examples: int, labelled: int, at: CostModel
) -> None:
    parts = [
        CostModel(**{key: getattr(at, key)}).seconds(down, up, examples, labelled)
        for key in ("bandwidth_up", "bandwidth_down", "training", "latency", "inference")
    ]
    assert at.seconds(down, up, examples, labelled) == pytest.approx(math.fsum(parts))
    for key in ("bandwidth_up", "bandwidth_down", "training", "latency", "inference"):
        without = replace(at, **{key: None})
        assert without.seconds(down, up, examples, labelled) <= at.seconds(down, up, examples, labelled) * (
            1 + 1e-12
        )


@given(cohorts, models)
def test_the_energy_of_a_round_is_that_of_all_its_clients(
    cohort: dict[int, ClientCost], at: CostModel
) -> None:
    line = round_line(cohort, fleet(at))
    if at.watts_computing is None and at.watts_sending is None:
        assert "energy_joules" not in line
        return
    computing, sending = at.watts_computing or 0.0, at.watts_sending or 0.0
    wire = replace(at, training=None, inference=None, latency=None)
    work = CostModel(training=at.training, inference=at.inference)
    joules = [
        sending * wire.seconds(c.bytes_down, c.bytes_up, 0)
        + computing * work.seconds(0, 0, c.examples, c.labelled)
        for c in cohort.values()
    ]
    assert line["energy_joules"] == pytest.approx(math.fsum(joules), abs=1e-6)


def test_labelling_takes_the_time_and_power_of_inference() -> None:
    """The Jetson TX2 of FeS: 100 texts labelled at 1 s and 12 W, 1 MB each way at 4 W."""
    at = device_cost_model(1.0, 1.0, "jetson-tx2", model="roberta-large", parameters=355_000_000)
    assert at is not None
    client = ClientCost(bytes_up=1_000_000, bytes_down=1_000_000, labelled=100)
    line = round_line({0: client, 1: client}, fleet(at))
    assert (line["labelled"], line["simulated_seconds"], line["energy_joules"]) == (200, 102.0, 2416.0)
    whole = totals([line, round_line({0: ClientCost(examples=1)}, fleet(at))])
    assert (whole["labelled"], whole["simulated_seconds"], whole["energy_joules"]) == (200, 104.0, 2440.0)
    assert "labelled" not in round_line({0: ClientCost(examples=1)}, fleet(at))
    pi = device_cost_model(1.0, 1.0, "raspberry-pi-4b", model="roberta-large", parameters=355_000_000)
    assert pi is not None
    assert "energy_joules" not in round_line({0: client}, fleet(pi))


def test_the_energy_of_a_batch_is_that_of_fes() -> None:
    """The introduction of FeS: a batch of 75.9 s takes 910.8 J."""
    at = CostModel(training=75.9, watts_computing=12.0)
    assert at.joules(0, 0, examples=1) == pytest.approx(910.8)
    assert CostModel(training=75.9).joules(0, 0, examples=1) is None


def test_nothing_priced_is_no_time_and_nothing_counted_no_total() -> None:
    assert device_cost_model(None, None, None, model="bert-tiny", parameters=1) is None
    assert set(round_line({0: ClientCost(1, 2, 3, 4, 5, 6)})) == set(COUNTED)
    assert totals([]) == {}
    assert totals([{"round": 1}]) == {}
    assert round_seconds({}, fleet(CostModel(1.0))) == 0.0


def test_a_client_that_was_dropped_counts_what_was_sent_to_it() -> None:
    line = round_line(
        {0: ClientCost(bytes_up=9, bytes_down=10, examples=5), 1: ClientCost(bytes_down=10)},
        fleet(CostModel(training=2.0)),
    )
    assert (line["bytes_up"], line["bytes_down"], line["simulated_seconds"]) == (9, 20, 10.0)


def test_the_devices_and_bandwidth_of_fes_give_its_seconds() -> None:
    """The scripts of FeS: 1000 MB each way at 1 MB/s is 2000 s; 32 examples at 2 s on the TX2; the Pi times 15."""
    size = 1_000_000_000
    wire = device_cost_model(1.0, 1.0, None, model="roberta-large", parameters=355_000_000)
    assert wire is not None
    assert wire.seconds(size, size, 32) == 2000.0
    for device, seconds in (("jetson-tx2", 64.0), ("raspberry-pi-4b", 960.0)):
        both = device_cost_model(1.0, 1.0, device, model="FacebookAI/roberta-large", parameters=355_000_000)
        assert both is not None
        assert both.seconds(size, size, 32) == 2000.0 + seconds


def test_an_unknown_model_is_priced_by_its_parameters_if_the_profile_says_how(tmp_path: Path) -> None:
    at = device_cost_model(None, None, "jetson-tx2", model="mine", parameters=10_000_000)
    tx2 = load_profile("jetson-tx2")
    assert at == CostModel(
        training=tx2.training.seconds("mine", 10_000_000),
        inference=tx2.inference.seconds("mine", 10_000_000),
        watts_computing=12.0,
        watts_sending=4.0,
        embedding=tx2.inference.seconds("minilm", 22_713_216),
    )
    path = tmp_path / "bare.toml"
    path.write_text('name = "bare"\nsource = "nothing known"\n[watts]\ncomputing = 3\n')
    assert device_cost_model(None, None, str(path), model="mine", parameters=10_000_000) is None
    with pytest.raises(ConfigError, match="there is no device profile"):
        device_cost_model(None, None, "jetsonn", model="mine", parameters=1)


def test_the_parts_of_a_round_are_those_of_its_slowest_client_and_their_energy_that_of_all() -> None:
    """By hand: two clients, of which one trains and one embeds, runs frozen layers once, and labels."""
    at = CostModel(
        bandwidth_up=10.0,
        bandwidth_down=20.0,
        training=2.0,
        latency=1.0,
        inference=0.5,
        watts_computing=12.0,
        watts_sending=4.0,
        first_pass=0.25,
        embedding=0.125,
    )
    cohort = {
        0: ClientCost(bytes_up=20, bytes_down=40, examples=3, first_trained=4),
        1: ClientCost(bytes_down=40, labelled=16, first_labelled=16, embedded=80, bytes_labelling=40),
    }
    line = round_line(cohort, fleet(at))
    # Client 0: 1 + 2 + 2 + 6 + 1 = 12 s. Client 1: 1 + 2 + 8 + 4 + 10 = 25 s.
    assert line["simulated_seconds"] == 25.0
    assert (line["seconds_training"], line["seconds_labelling"], line["seconds_sending"]) == (0.0, 22.0, 3.0)
    assert (line["joules_training"], line["joules_labelling"]) == (12.0 * 7, 12.0 * 22)
    assert line["joules_sending"] == 4.0 * (4 + 2)
    assert line["energy_joules"] == 12.0 * 29 + 4.0 * 6
    assert line["bytes_labelling"] == 40


@given(cohorts.filter(bool), models)
def test_the_parts_sum_to_the_whole(cohort: dict[int, ClientCost], at: CostModel) -> None:
    line = round_line(cohort, fleet(at))
    parts = [line[f"seconds_{part}"] for part in ("training", "labelling", "sending")]
    assert sum(parts) == pytest.approx(line["simulated_seconds"], rel=1e-9, abs=1e-5)
    if "energy_joules" in line:
        joules = [line[f"joules_{part}"] for part in ("training", "labelling", "sending")]
        assert sum(joules) == pytest.approx(line["energy_joules"], rel=1e-9, abs=1e-5)


work = st.tuples(*[st.integers(0, 2**20)] * 9)


@given(work, work, models, st.floats(0, 9), st.floats(0, 9))
def test_more_work_never_takes_less(
    less: tuple[int, ...], more: tuple[int, ...], at: CostModel, first: float, embedding: float
) -> None:
    at = replace(at, first_pass=first, embedding=embedding)
    names = ("bytes_up", "bytes_down", "examples", "labelled", "first_trained", "first_labelled", "embedded")
    one = ClientCost(**dict(zip(names, less, strict=False)))
    both = ClientCost(**{name: a + b for name, a, b in zip(names, less, more, strict=False)})
    assert round_seconds({0: both}, fleet(at)) >= round_seconds({0: one}, fleet(at))
