"""Runs in low precision: the same for every number of workers and after a resume, and near those in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp import config
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.simulation import precision
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Outcome = Callable[[RunDir], dict[str, Any]]
LOW = {"client.bf16": True, "evaluation.bf16_full_eval": True}


@pytest.mark.slow
def test_two_workers_and_a_resume_give_what_one_gives(
    same_for_two_workers_and_a_resume: Callable[..., None],
) -> None:
    """Bit for bit, weights and scores, with dropout."""
    same_for_two_workers_and_a_resume(LOW)


def test_weights_are_near_those_of_float32(experiment: Make, tmp_path: Path) -> None:
    without = {"model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}
    plain, low = (
        load_file(fednlp.run(experiment(without | more), tmp_path / name).model / "model.safetensors")
        for name, more in (("plain", {}), ("low", LOW))
    )
    assert {tensor.dtype for tensor in low.values()} == {torch.float32}
    assert any(not torch.equal(low[name], plain[name]) for name in plain)
    moved = torch.cat([(low[name] - plain[name]).flatten() for name in plain])
    assert float(moved.abs().mean()) < 1e-3


@pytest.mark.parametrize("faster", [True, False])
def test_auto_is_decided_once_and_kept(
    faster: bool,
    experiment: Make,
    outcome: Outcome,
    stopping: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "bf16_is_faster", lambda device: faster)
    auto = experiment({"client.bf16": "auto", "evaluation.bf16_full_eval": "auto"})
    with stopping(rounds=1) as callback:
        fednlp.run(auto, tmp_path / "auto", callback=callback)
    monkeypatch.setattr(precision, "bf16_is_faster", lambda device: not faster)
    found = fednlp.resume(tmp_path / "auto", expected=auto)
    kept = found.experiment()
    assert (kept.client.bf16, kept.evaluation.bf16_full_eval) == (faster, faster)
    plain = fednlp.run(experiment(LOW if faster else {}), tmp_path / "plain")
    assert outcome(found) == outcome(plain)


def test_a_precision_that_differs_is_a_difference(experiment: Make) -> None:
    low, plain, auto = (experiment({"client.bf16": value}) for value in (True, False, "auto"))
    assert config.differences(plain, low) == ["client.bf16: False -> True"]
    assert config.differences(auto, low) == config.differences(plain, auto) == []


def test_fp16_is_refused_without_a_gpu(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"client\.fp16 = true is for GPUs, and this worker has cpu"):
        fednlp.run(experiment({"client.fp16": True, "runtime.device": "cpu"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
