"""Secure sums between machines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.shards import split_out

from .test_federation import deploy, quiet, rounds

Make = Callable[..., Experiment]
PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
SETTINGS: dict[str, Any] = {
    "num_rounds": 2,
    "clients_per_round": 4,
    "partition.clients": 5,
    "task.name": "text-classification",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_deployment_is_the_simulation(protocol: str, experiment: Make, tmp_path: Path) -> None:
    made = experiment(SETTINGS | {"secure.protocol": protocol})
    simulated = fednlp.run(made, tmp_path / "simulated")
    deployed = deploy(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path)
    assert rounds(deployed) == rounds(simulated)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]
