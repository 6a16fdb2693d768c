"""Runs on a GPU: near those on a CPU, and the same for every number of workers and after a resume on one kind of GPU.

Skipped where there is none.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment
from fednlp.errors import RunError

Make = Callable[..., Experiment]

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is False"
)

STILL = {
    "model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "client.optimizer": "sgd",
    "client.learning_rate": 0.3,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulating": {"client.per_device_train_batch_size": 2, "client.gradient_accumulation_steps": 3},
    "frozen": {"model.train": {"frozen": "embeddings"}},
    "lora": {"model.peft": {"method": "lora", "r": 2}},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.1}},
    "scaffold": {"algorithm": {"name": "scaffold"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_near_that_on_a_cpu(kind: str, experiment: Make, tmp_path: Path) -> None:
    """Sums on a GPU have another order, so the weights differ by rounding alone."""
    here, there = (
        load_file(
            fednlp.run(experiment(STILL | KINDS[kind] | {"runtime.device": device}), tmp_path / folder).model
            / "model.safetensors"
        )
        for folder, device in (("here", "cpu"), ("there", "cuda"))
    )
    assert here.keys() == there.keys()
    assert all(torch.allclose(there[name], here[name], rtol=1e-3, atol=1e-4) for name in here)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_moves_the_weights_as_float32_does(
    precision: str, experiment: Make, tmp_path: Path
) -> None:
    """The update of four rounds has nearly the direction and the length that it has in float32."""
    before = load_file(Path(experiment().model.name_or_path) / "model.safetensors")
    moves = []
    for name, change in (("whole", {}), ("low", {f"client.{precision}": True})):
        run = fednlp.run(experiment(STILL | {"runtime.device": "cuda"} | change), tmp_path / name)
        after = load_file(run.model / "model.safetensors")
        moves.append(torch.cat([(after[f"bert.{one}"] - before[one]).flatten() for one in before]))
    assert torch.nn.functional.cosine_similarity(*moves, dim=0) > 0.99
    assert moves[1].norm() / moves[0].norm() == pytest.approx(1, abs=0.05)


def test_two_workers_of_one_gpu_and_a_resume_give_what_one_gives(
    same_for_two_workers_and_a_resume: Callable[..., None],
) -> None:
    """Bit for bit on one kind of GPU, with dropout."""
    same_for_two_workers_and_a_resume({"runtime.device": "cuda"})


def test_workers_per_gpu_are_the_workers(experiment: Make, tmp_path: Path) -> None:
    changes = {
        "runtime.device": "auto",
        "runtime.workers": None,
        "runtime.workers_per_gpu": 3,
        "num_rounds": 1,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    assert len(run.read_json("profile.json")["workers"]) == min(3 * torch.cuda.device_count(), 4)


def test_a_gpu_that_is_not_there_is_refused(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no device"):
        fednlp.run(experiment({"runtime.device": "cuda:99"}), tmp_path / "run")


def test_a_run_says_which_gpu_trained(experiment: Make, tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        run = fednlp.run(experiment({"num_rounds": 1, "runtime.device": device}), tmp_path / device)
        named = run.read_json("environment.json").get("gpu")
        assert named == (torch.cuda.get_device_name() if device == "cuda" else None)
