"""Runs whose linear layers oneDNN computes: the same for any workers, and those without it but for rounding."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment, canonical

Make = Callable[..., Experiment]
ON = {"runtime.onednn": True}


def test_two_workers_and_a_resume_give_what_one_gives(
    same_for_two_workers_and_a_resume: Callable[..., None],
) -> None:
    """Bit for bit, weights and scores, with dropout."""
    same_for_two_workers_and_a_resume(ON)


def test_weights_are_those_without_but_for_rounding(experiment: Make, tmp_path: Path) -> None:
    sgd = {"client.optimizer": "sgd", "client.learning_rate": 0.3}
    plain, fast = (
        load_file(fednlp.run(experiment(sgd | more), tmp_path / name).model / "model.safetensors")
        for name, more in (("plain", {}), ("fast", ON))
    )
    assert any(not torch.equal(fast[name], plain[name]) for name in plain)
    assert all(torch.allclose(fast[name], plain[name], rtol=1e-4, atol=1e-5) for name in plain)


def test_a_run_without_goes_by_its_old_name(experiment: Make) -> None:
    made: Any = experiment()
    assert "onednn" not in canonical(made)["runtime"]
    assert canonical(experiment(ON))["runtime"]["onednn"] is True
