"""Over-selection: more clients are drawn than a round needs, and the fastest count."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.config import Experiment, canonical
from fednlp.config.values import num_drawn
from fednlp.deployment.session.servable import unsupported
from fednlp.errors import ConfigError
from fednlp.federated.cohort import Cohort, Population, fastest, uniform_cohort
from fednlp.simulation.configured_algorithm import build_algorithm

Make = Callable[..., Experiment]
TIMED = {"costs.device": "jetson-tx2", "rounds.over_selection": 1.3}


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 99),
)
def test_those_that_count_are_the_fastest_and_of_equally_fast_ones_the_first(
    seconds: list[int], drawn: int, size: int, seed: int
) -> None:
    population = Population(np.ones(len(seconds), dtype=np.int64), seed, np.array(seconds, dtype=np.float64))
    before = uniform_cohort(drawn)(population, 1)
    cohort = fastest(uniform_cohort(drawn), size)(population, 1)
    counted = [client for client in cohort.clients if client not in cohort.late]
    assert cohort.clients == before.clients
    assert {*cohort.late} <= {*cohort.clients}
    assert len(counted) == min(size, len(before.clients))
    key = [(seconds[client], client) for client in range(len(seconds))]
    assert all(key[one] < key[other] for one in counted for other in cohort.late)
    if cohort.late:
        assert cohort.seconds == max(seconds[client] for client in counted)
    else:
        assert cohort == before


@given(st.integers(1, 400), st.integers(100, 300))
def test_as_many_are_drawn_as_the_decimal_number_says(size: int, percent: int) -> None:
    """1.1 times 10 is 11, though 1.1 * 10 is a little more."""
    document = {
        "data": {"name": "20news"},
        "clients_per_round": size,
        "rounds": {"over_selection": percent / 100},
    }
    assert num_drawn(Experiment(**document)) == -(-percent * size // 100)


def test_how_long_clients_take_has_to_be_known() -> None:
    with pytest.raises(ConfigError, match=r"needs the time that each client takes.*costs\.device"):
        fastest(uniform_cohort(3), 2)(Population(np.ones(4, dtype=np.int64)), 1)


def test_a_cohort_that_is_none_is_left_to_who_asked_for_it() -> None:
    population = Population(np.ones(2, dtype=np.int64), 0, np.ones(2))
    strange = Cohort([0, 7])
    assert fastest(lambda population, number: strange, 1)(population, 1) is strange


def test_an_algorithm_that_is_given_draws_its_own(experiment: Make) -> None:
    made = experiment({})
    with pytest.raises(
        ConfigError,
        match=r"rounds\.over_selection draws more clients.*that is given as a value draws its own cohorts",
    ):
        experiment(TIMED | {"algorithm": {"name": "given-in-python"}}).resolved(build_algorithm(made))


def test_sites_are_as_fast_as_they_are(experiment: Make) -> None:
    """A deployment needs no simulated clock, and draws as many."""
    sites = {
        "data": {"name": "sites", "labels": ["a", "b"]},
        "task.name": "text-classification",
        "partition": None,
    }
    made = experiment(sites | {"rounds.over_selection": 1.5, "clients_per_round": 2}).resolved()
    assert unsupported(made) == []
    cohort = build_algorithm(made).sample(Population(np.ones(9, dtype=np.int64)), 1)
    assert (len(cohort.clients), cohort.late) == (3, ())


def test_it_is_a_setting_of_the_run_and_waiting_is_none(experiment: Make) -> None:
    plain = canonical(experiment({}))
    assert canonical(experiment({"rounds.wait": 5.0, "rounds.over_selection": 1.0})) == plain
    assert canonical(experiment(TIMED | {"costs.device": None})) != plain
