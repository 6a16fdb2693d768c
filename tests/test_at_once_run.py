"""Runs that train several clients at once: the same for every number of workers, and near those of one at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment
from fednlp.simulation.run_dir import RunDir

Make = Callable[..., Experiment]
Outcome = Callable[[RunDir], dict[str, Any]]
LORA = {"model.peft": {"method": "lora", "r": 2}, "partition.alpha": 100.0}
AT_ONCE = LORA | {"runtime.clients_at_once": 3}


@pytest.mark.slow
def test_two_workers_and_a_resume_give_what_one_gives(
    same_for_two_workers_and_a_resume: Callable[..., None],
) -> None:
    """Bit for bit: which clients are a group does not depend on the workers, nor do the masks of dropout."""
    same_for_two_workers_and_a_resume(AT_ONCE)


@pytest.mark.whole
def test_weights_are_near_those_of_one_client_at_a_time(experiment: Make, tmp_path: Path) -> None:
    still = {"model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}
    still |= {"client.optimizer": "sgd", "client.learning_rate": 0.3}
    plain, joint = (
        load_file(fednlp.run(experiment(changes | still), tmp_path / name).model / "model.safetensors")
        for name, changes in (("plain", LORA), ("joint", AT_ONCE))
    )
    assert all(torch.allclose(joint[name], plain[name], rtol=1e-4, atol=1e-6) for name in plain)


@pytest.mark.whole
def test_more_at_once_than_train_in_a_round_is_all_of_them(
    experiment: Make, outcome: Outcome, tmp_path: Path
) -> None:
    """And takes no memory for the others."""
    four, many = (
        fednlp.run(experiment(AT_ONCE | {"runtime.clients_at_once": n, "num_rounds": 1}), tmp_path / str(n))
        for n in (4, 10**9)
    )
    assert outcome(four) == outcome(many)
