"""``client.max_tokens_per_batch`` and ``client.gradient_checkpointing`` in runs: less memory, the same steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fednlp
from fednlp.config import Experiment
from fednlp.costs import TrainingDepth
from fednlp.errors import ModelError
from fednlp.models.checkpointing import checkpoint_layers
from fednlp.simulation.run_dir import RunDir

from .test_client_memory import ONE, by_hand, summary_of

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
SETTINGS = {
    "num_rounds": 2,
    "clients_per_round": 3,
    "client.optimizer": "sgd",
    "client.learning_rate": 0.2,
    "client.per_device_train_batch_size": 6,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
METHODS = pytest.mark.parametrize(
    "method",
    [
        {"client.num_train_epochs": 2, "client.gradient_accumulation_steps": 2},
        {"algorithm.name": "fedprox", "algorithm.mu": 0.1, "client.max_steps": 3},
        {"algorithm.name": "fednova", "client.num_train_epochs": 2},
        {"algorithm.name": "scaffold", "algorithm.option": "I"},
        {"model.train": {"shared": ["layer.1", "head"], "rest": "frozen"}},
        {"model.peft": {"method": "lora", "r": 2}},
    ],
    ids=["fedavg", "fedprox", "fednova", "scaffold", "frozen", "lora"],
)


def outcome_of(run: RunDir) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Return the lines of the rounds, and the weights by file and name."""
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    files = sorted(run.model.glob("*.safetensors"))
    assert files
    return lines, {f"{path.name} {name}": value for path in files for name, value in load_file(path).items()}


@METHODS
@pytest.mark.variants(3)
def test_passes_of_so_many_tokens_make_the_same_steps(
    experiment: Make, tmp_path: Path, method: dict[str, Any]
) -> None:
    made = SETTINGS | {"model.config": NO_DROPOUT} | method
    expected, found = (
        outcome_of(fednlp.run(experiment(made | tokens), tmp_path / name))
        for name, tokens in (("texts", {}), ("tokens", {"client.max_tokens_per_batch": 25}))
    )
    for one, other in zip(expected[0], found[0], strict=True):
        assert (one["steps"], one["examples"]) == (other["steps"], other["examples"])
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
    for name, value in found[1].items():
        torch.testing.assert_close(value, expected[1][name], rtol=0, atol=2e-5, msg=name)


@METHODS
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.variants(4)
def test_layers_that_are_computed_again_change_no_bit(
    experiment: Make, tmp_path: Path, method: dict[str, Any], dropout: float
) -> None:
    made = SETTINGS | {"model.config": dict.fromkeys(NO_DROPOUT, dropout)} | method
    kept, again = (
        outcome_of(fednlp.run(experiment(made | {"client.gradient_checkpointing": on}), tmp_path / str(on)))
        for on in (False, True)
    )
    assert [line["train_loss"] for line in kept[0]] == [line["train_loss"] for line in again[0]]
    assert kept[1].keys() == again[1].keys()
    assert all(torch.equal(value, again[1][name]) for name, value in kept[1].items())


def test_layers_are_computed_again(experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bert.modeling_bert import BertSelfAttention

    calls: list[int] = []
    forward = BertSelfAttention.forward

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self.training)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(BertSelfAttention, "forward", counted)
    for on in (False, True):
        fednlp.run(experiment(ONE | {"client.gradient_checkpointing": on}), tmp_path / str(on))
        calls.append(-1)
    kept, again = (part for part in " ".join(map(str, map(int, calls))).split("-1")[:2])
    assert again.count("1") == 2 * kept.count("1") > 0


def test_a_model_without_layers_to_compute_again_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="Linear does not support gradient checkpointing: remove client"):
        checkpoint_layers(nn.Linear(2, 2))


def test_memory_is_predicted_of_the_largest_pass(experiment: Make, tiny_model: Path, tmp_path: Path) -> None:
    def took(name: str, **changes: Any) -> Any:
        step = {"client.per_device_train_batch_size": 16, "client.gradient_accumulation_steps": 4}
        return summary_of(fednlp.run(experiment(ONE | step | changes), tmp_path / name))[
            "client_memory_bytes"
        ]

    whole = TrainingDepth(2, 2)
    assert took("texts") == by_hand(tiny_model, whole, batch=16)
    assert took("tokens", **{"client.max_tokens_per_batch": 96}) == by_hand(tiny_model, whole, batch=3)
    assert took("many", **{"client.max_tokens_per_batch": 10**6}) == by_hand(tiny_model, whole, batch=64)
    again = by_hand(tiny_model, whole, batch=16, checkpointing=True)
    assert took("again", **{"client.gradient_checkpointing": True}) == again
