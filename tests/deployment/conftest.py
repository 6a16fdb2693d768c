"""A federation of two sites."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fednlp.config import Experiment
from fednlp.deployment.operate.shards import Shards, split_out


@pytest.fixture
def made(experiment: Callable[..., Experiment]) -> Experiment:
    """An experiment of one round over two clients."""
    settings = {"clients_per_round": 2, "partition.clients": 2, "task.name": "text-classification"}
    return experiment(settings | {"num_rounds": 1})


@pytest.fixture
def shards(made: Experiment, tmp_path: Path) -> Shards:
    """Each client's own data."""
    return split_out(made.resolved(), tmp_path / "shards", lambda line: None)
