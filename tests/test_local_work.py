"""The time that is predicted for a client's round, by what a method declares, is the time of what clients did."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Cohort, Population, uniform_cohort

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
SETTINGS = {
    "num_rounds": 2,
    "clients_per_round": 2,
    "client.optimizer": "sgd",
    "client.num_train_epochs": 2,
    "evaluation.every": 2,
    "evaluation.personal": False,
    "costs": {"bandwidth_up": 1.0, "bandwidth_down": 2.0, "device": "jetson-tx2"},
}
METHODS: dict[str, Algorithm] = {
    "fedavg": fednlp.fedavg(2),
    "fedprox": fednlp.fedprox(2, mu=0.1),
    "fednova": fednlp.fednova(2),
    "scaffold I": fednlp.scaffold(2, option="I"),
    "scaffold II": fednlp.scaffold(2),
    "ditto": fednlp.ditto(2),
    "moon": fednlp.moon(2),
    "qfedavg": fednlp.qfedavg(2),
    "apfl": fednlp.apfl(2),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_clock_says_beforehand_what_the_accounts_say_afterwards(
    name: str, experiment: Make, tmp_path: Path
) -> None:
    foretold: list[float] = []
    drawn = uniform_cohort(2)

    def sample(population: Population, round_number: int) -> Cohort:
        cohort = drawn(population, round_number)
        assert population.seconds is not None
        if round_number > len(foretold):
            foretold.append(max(float(population.seconds[client]) for client in cohort.clients))
        return cohort

    method = replace(METHODS[name], sample=sample)
    lines = fednlp.run(experiment(SETTINGS), tmp_path / "run", algorithm=method).round_lines()
    assert [line["simulated_seconds"] for line in lines] == pytest.approx(foretold, abs=1e-6)


def test_a_pass_for_a_gradient_takes_the_time_of_an_epoch(experiment: Make, tmp_path: Path) -> None:
    """Two epochs of local steps, and a third pass over the examples; nothing is sent at a price."""
    spent = {}
    for option in ("I", "II"):
        changes = SETTINGS | {
            "algorithm": {"name": "scaffold", "option": option},
            "costs": {"device": "jetson-tx2"},
        }
        spent[option] = fednlp.run(experiment(changes), tmp_path / option).round_lines()
    for one, two in zip(spent["I"], spent["II"], strict=True):
        assert one["examples"] == two["examples"]
        assert one["simulated_seconds"] == pytest.approx(1.5 * two["simulated_seconds"], abs=2e-6)
