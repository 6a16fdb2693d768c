"""Runs whose linear layers oneDNN computes: the same for any workers, and those without it but for rounding."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment, canonical, differences
from fednlp.errors import ConfigError
from fednlp.simulation import precision
from fednlp.simulation.precision import with_precision
from fednlp.simulation.run_dir import settings_hash

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
ON, OFF = {"runtime.onednn": True}, {"runtime.onednn": False}


@pytest.mark.slow
def test_two_workers_and_a_resume_give_what_one_gives(
    same_for_two_workers_and_a_resume: Callable[..., None],
) -> None:
    """Bit for bit, weights and scores, with dropout."""
    same_for_two_workers_and_a_resume(ON)


def test_weights_are_those_without_but_for_rounding(experiment: Make, tmp_path: Path) -> None:
    sgd = {"client.optimizer": "sgd", "client.learning_rate": 0.3}
    plain, fast = (
        load_file(fednlp.run(experiment(sgd | more), tmp_path / name).model / "model.safetensors")
        for name, more in (("plain", OFF), ("fast", ON))
    )
    assert any(not torch.equal(fast[name], plain[name]) for name in plain)
    assert all(torch.allclose(fast[name], plain[name], rtol=1e-4, atol=1e-5) for name in plain)


def test_frozen_layers_run_once_as_they_would_run_each_time(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, and states that MKL computed are not taken for those of oneDNN."""
    monkeypatch.setenv("FEDNLP_CACHE", str(tmp_path / "cache"))
    frozen = {"model.train": {"frozen": ["embeddings", "layer.0"]}}
    made = {
        name: load_file(fednlp.run(experiment(frozen | more), tmp_path / name).model / "model.safetensors")
        for name, more in {
            "plain": OFF,
            "first": ON,
            "again": ON,
            "uncached": ON | {"runtime.cache_activations": False},
        }.items()
    }
    assert all(torch.equal(made["first"][name], made["again"][name]) for name in made["first"])
    assert all(torch.equal(made["first"][name], made["uncached"][name]) for name in made["first"])
    assert any(not torch.equal(made["first"][name], made["plain"][name]) for name in made["first"])


@pytest.mark.parametrize("faster", [True, False])
def test_the_machine_decides_once(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    monkeypatch.setattr(precision, "onednn_is_faster", lambda: faster)
    made = fednlp.run(experiment(), tmp_path / "run")
    assert made.experiment().runtime.onednn is faster
    same = fednlp.run(experiment({"runtime.onednn": faster}), tmp_path / "told")
    assert (made.model / "model.safetensors").read_bytes() == (same.model / "model.safetensors").read_bytes()
    assert not differences(made.experiment(), experiment().resolved())


def test_a_gpu_leaves_linear_layers_alone(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "onednn_is_faster", lambda: True)
    assert with_precision(experiment({"runtime.device": "cuda"})).runtime.onednn is False
    assert with_precision(experiment({"runtime.device": "cpu"})).runtime.onednn is True


def test_a_pytorch_without_onednn_is_named(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_onednn", lambda: False)
    with pytest.raises(ConfigError, match="built without oneDNN"):
        with_precision(experiment(ON))


def test_a_run_has_one_name_on_all_machines(experiment: Make) -> None:
    names = {settings_hash(experiment(more)) for more in ({}, ON, OFF)}
    assert len(names) == 1


def test_runs_with_and_without_are_told_apart(experiment: Make) -> None:
    assert differences(experiment(ON), experiment(OFF)) == ["runtime.onednn: True -> False"]
    assert not differences(experiment(OFF), experiment())
    made: Any = experiment()
    assert "onednn" not in canonical(made)["runtime"]
