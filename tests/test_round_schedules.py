"""Learning rates over the rounds in experiments: what uses them, and which settings mean nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.errors import ConfigError
from fednlp.simulation.configured_algorithm import build_algorithm

Make = Callable[..., Experiment]
FALLING = {"client.round_schedule": "cosine", "client.warmup_rounds": 1, "client.minimum_rate": 0.1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"client.minimum_rate": 0.5},
            'client.round_schedule is "constant": say client.round_schedule = "linear" or "cosine", or leave '
            "client.minimum_rate out",
        ),
        (
            {"algorithm.name": "fedopt", "server.minimum_rate": 0.5, "server.warmup_rounds": 1},
            'server.round_schedule is "constant": say server.round_schedule = "linear" or "cosine"',
        ),
        (
            {"client.round_schedule": "linear", "client.warmup_rounds": 3},
            "client.warmup_rounds = 3 leaves none of the 3 rounds for the whole learning rate: give at most 2, "
            "or raise num_rounds",
        ),
        (
            {"algorithm.name": "fedadam", "server.warmup_rounds": 4},
            "server.warmup_rounds = 4 leaves none of the 3 rounds",
        ),
        (
            FALLING | {"algorithm.name": "chained"},
            "client.round_schedule is over the rounds of a federation, and in chained each client trains once",
        ),
        ({"algorithm.name": "local", "client.warmup_rounds": 1}, "client.warmup_rounds is over the rounds"),
        (
            {"algorithm.name": "centralised", "server.round_schedule": "linear"},
            "[server] is not supported by centralised (round_schedule given)",
        ),
        (
            {"algorithm.name": "given-in-python", "server.round_schedule": "linear"},
            "server.round_schedule is not read beside an algorithm that is given as a value",
        ),
        (
            {"algorithm.name": "given-in-python", "client.round_schedule": "linear"},
            "give the algorithm its schedule, fednlp.Algorithm(client_rate=...)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_schedule_that_means_nothing_is_refused(
    changes: dict[str, Any], message: str, experiment: Make
) -> None:
    with pytest.raises(ConfigError) as refused:
        experiment({"num_rounds": 3} | changes).resolved()
    assert message in str(refused.value)


def test_a_warm_up_of_all_rounds_but_the_last_is_accepted(experiment: Make) -> None:
    resolved = experiment(FALLING | {"num_rounds": 2}).resolved()
    rate = build_algorithm(resolved).client_rate
    assert [rate.factor(number) for number in (1, 2)] == [0.5, 1.0]


@pytest.mark.parametrize("name", BASELINES)
def test_a_comparison_leaves_the_schedule_out_of_baselines_without_rounds(
    name: str, experiment: Make
) -> None:
    made = config.with_algorithm(experiment(FALLING | {"num_rounds": 3}), name, 0).resolved()
    assert made.client.round_schedule == ("cosine" if name == "centralised" else "constant")
