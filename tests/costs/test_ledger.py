"""Bytes are counted exactly, and a round takes as long as its slowest client."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.costs import (
    COUNTED,
    Prices,
    Spent,
    client_seconds,
    load_profile,
    prices,
    round_line,
    round_seconds,
    totals,
)
from fednlp.errors import ConfigError

counts = st.integers(0, 2**40)
clients = st.builds(Spent, *[counts] * 6)
cohorts = st.lists(clients, max_size=6)
rates = st.none() | st.floats(1e3, 1e9)
priced = st.builds(Prices, rates, rates, st.none() | st.floats(0, 100), st.none() | st.floats(0, 10))


@given(st.lists(cohorts, max_size=6), priced)
def test_the_totals_are_the_sums_over_all_clients_to_the_byte(rounds: list[list[Spent]], at: Prices) -> None:
    lines = [round_line(cohort, at) for cohort in rounds]
    whole = totals(lines)
    everyone = [client for cohort in rounds for client in cohort]
    for key in COUNTED:
        assert whole.get(key, 0) == sum(getattr(client, key) for client in everyone)
        assert isinstance(whole.get(key, 0), int)
    assert whole.get("simulated_seconds", 0.0) == pytest.approx(
        sum(line["simulated_seconds"] for line in lines)
    )


@given(cohorts, cohorts, priced)
def test_the_totals_of_two_parts_of_a_run_are_those_of_the_whole(
    one: list[Spent], two: list[Spent], at: Prices
) -> None:
    lines = [round_line(one, at), round_line(two, at)]
    assert totals([totals(lines[:1]), totals(lines[1:])]) == totals(lines)


@given(st.lists(clients, min_size=1, max_size=6), priced)
def test_a_round_takes_as_long_as_its_slowest_client(cohort: list[Spent], at: Prices) -> None:
    taken = [client_seconds(c.bytes_down, c.bytes_up, c.examples, at) for c in cohort]
    assert round_seconds(cohort, at) in taken
    assert round_seconds(cohort, at) >= max(taken)
    assert round_line(cohort, at)["simulated_seconds"] == pytest.approx(max(taken), abs=1e-6)


@given(counts, counts, counts, priced)
def test_the_parts_of_a_clients_time_add_up(down: int, up: int, examples: int, at: Prices) -> None:
    parts = [
        client_seconds(down, up, examples, Prices(**{key: getattr(at, key)}))
        for key in ("bandwidth_up", "bandwidth_down", "training", "latency")
    ]
    assert client_seconds(down, up, examples, at) == pytest.approx(math.fsum(parts))
    for key in ("bandwidth_up", "bandwidth_down", "training", "latency"):
        assert client_seconds(down, up, examples, replace(at, **{key: None})) <= client_seconds(
            down, up, examples, at
        ) * (1 + 1e-12)


def test_nothing_priced_is_no_time_and_nothing_counted_no_total() -> None:
    assert prices(None, None, None, model="bert-tiny", parameters=1) is None
    assert set(round_line([Spent(1, 2, 3, 4, 5, 6)])) == set(COUNTED)
    assert totals([]) == {}
    assert totals([{"round": 1}]) == {}
    assert round_seconds([], Prices(1.0)) == 0.0


def test_a_client_that_was_dropped_counts_what_was_sent_to_it() -> None:
    line = round_line(
        [Spent(bytes_up=9, bytes_down=10, examples=5), Spent(bytes_down=10)], Prices(training=2.0)
    )
    assert (line["bytes_up"], line["bytes_down"], line["simulated_seconds"]) == (9, 20, 10.0)


def test_the_devices_and_bandwidth_of_fes_give_its_seconds() -> None:
    """The scripts of FeS: 1000 MB each way at 1 MB/s is 2000 s; 32 examples at 2 s on the TX2; the Pi times 15."""
    size = 1_000_000_000
    wire = prices(1.0, 1.0, None, model="roberta-large", parameters=355_000_000)
    assert wire is not None
    assert client_seconds(size, size, 32, wire) == 2000.0
    for device, seconds in (("jetson-tx2", 64.0), ("raspberry-pi-4b", 960.0)):
        both = prices(1.0, 1.0, device, model="FacebookAI/roberta-large", parameters=355_000_000)
        assert both is not None
        assert client_seconds(size, size, 32, both) == 2000.0 + seconds


def test_an_unknown_model_is_priced_by_its_parameters_if_the_profile_says_how(tmp_path: Path) -> None:
    at = prices(None, None, "jetson-tx2", model="mine", parameters=10_000_000)
    assert at == Prices(training=load_profile("jetson-tx2").training.seconds("mine", 10_000_000))
    path = tmp_path / "bare.toml"
    path.write_text('name = "bare"\nsource = "nothing known"\n')
    assert prices(None, None, str(path), model="mine", parameters=10_000_000) is None
    with pytest.raises(ConfigError, match="there is no device profile"):
        prices(None, None, "jetsonn", model="mine", parameters=1)
