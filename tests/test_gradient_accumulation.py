"""``client.gradient_accumulation_steps`` in runs: as Hugging Face's Trainer has it, whatever the method."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fednlp
from fednlp.config import Experiment
from fednlp.models.pretrained import pretrained_model
from fednlp.partition import Partition
from fednlp.seeds import generator
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
LABELS = ("arts", "economy", "science", "sports")
SETTINGS = {
    "num_rounds": 2,
    "clients_per_round": 3,
    "partition.method": "quantity",
    "partition.clients": 6,
    "partition.alpha": None,
    "partition.beta": 2.0,
    "model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "client.optimizer": "sgd",
    "client.learning_rate": 0.2,
    "costs": {"bandwidth_up": 1.0, "bandwidth_down": 1.0},
}
"""Six clients of unlike sizes, which end their epochs with incomplete steps."""
LARGE = {"client.per_device_train_batch_size": 12}
PASSES = {"client.per_device_train_batch_size": 3, "client.gradient_accumulation_steps": 4}


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "method",
    [
        {"algorithm.name": "fedavg", "client.num_train_epochs": 2},
        {"algorithm.name": "fedavg", "client.max_steps": 3, "client.finetune_steps": 2},
        {"algorithm.name": "fedprox", "algorithm.mu": 0.1},
        {"algorithm.name": "fednova", "client.num_train_epochs": 2},
        {"algorithm.name": "scaffold", "client.num_train_epochs": 2},
        {"algorithm.name": "centralised", "costs": None, "client.keep_optimizer": True},
        {"algorithm.name": "local", "costs": None},
        {"model.train": {"shared": ["layer.1", "head"], "rest": "frozen"}},
    ],
    ids=["fedavg", "max_steps", "fedprox", "fednova", "scaffold", "centralised", "local", "frozen"],
)
@pytest.mark.variants(2)
def test_a_run_is_the_one_with_batches_that_many_times_larger(
    experiment: Make, tmp_path: Path, method: dict[str, Any]
) -> None:
    large, passes = (
        fednlp.run(experiment(SETTINGS | method | size), tmp_path / name)
        for name, size in (("large", LARGE), ("passes", PASSES))
    )
    for one, other in zip(lines_of(large), lines_of(passes), strict=True):
        assert one["steps"] == other["steps"]
        assert one["examples"] == other["examples"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
        assert one.get("simulated_seconds") == other.get("simulated_seconds")
    if (large.model / "model.safetensors").exists():
        expected = load_file(large.model / "model.safetensors")
        for name, value in load_file(passes.model / "model.safetensors").items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-5, msg=name)


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_workers_change_nothing(
    experiment: Make,
    tmp_path: Path,
    outcome: Callable[..., Any],
    stopping: Callable[..., AbstractContextManager[Any]],
) -> None:
    made = SETTINGS | PASSES | {"model.config": {}, "client.keep_optimizer": True, "client.momentum": 0.9}
    whole = fednlp.run(experiment(made), tmp_path / "whole")
    with stopping(rounds=1) as callback:
        fednlp.run(experiment(made), tmp_path / "stopped", callback=callback)
    resumed = fednlp.resume(tmp_path / "stopped")
    two = fednlp.run(experiment(made | {"runtime.workers": 2}), tmp_path / "two")
    assert outcome(whole) == outcome(resumed) == outcome(two)


def test_a_client_is_trained_as_by_the_trainer_of_transformers(
    experiment: Make, tiny_model: Path, texts: Path, tmp_path: Path
) -> None:
    """The same steps, of the same examples, at the same rates, with the same last incomplete step."""
    pytest.importorskip("accelerate")
    import csv

    from torch.utils.data import SequentialSampler
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

    alone = {
        "num_rounds": 1,
        "clients_per_round": 1,
        "partition": {"method": "uniform", "clients": 1},
        "client.optimizer": "adamw",
        "client.learning_rate": 1e-3,
        "client.lr_scheduler_type": "linear",
        "client.warmup_steps": 2,
        "client.max_grad_norm": 0.5,
        "client.group_by_length": False,
    }
    run = fednlp.run(experiment(SETTINGS | alone | PASSES), tmp_path / "run")
    with texts.open(newline="") as file:
        rows = list(csv.DictReader(file))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    examples = Partition.load(run.folder / "partition.npz").train(0)
    order = examples[generator(0, "batches", 1, 0).permutation(len(examples))]
    data: Any = [
        tokenizer(rows[number]["text"], truncation=True, max_length=32)
        | {"labels": LABELS.index(rows[number]["label"])}
        for number in np.asarray(order).tolist()
    ]
    assert len(data) % 12 > 3, "the last step is incomplete, and has more than one pass"

    def mean_loss(output: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.logits, labels, reduction="sum") / num_items_in_batch

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(data)

    settings = {"num_labels": 4, "id2label": dict(enumerate(LABELS))}
    model = pretrained_model(
        str(tiny_model), "AutoModelForSequenceClassification", settings, SETTINGS["model.config"], 0
    )
    trainer = InOrder(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path / "trainer"),
            num_train_epochs=1,
            per_device_train_batch_size=3,
            gradient_accumulation_steps=4,
            learning_rate=1e-3,
            lr_scheduler_type="linear",
            warmup_steps=2,
            max_grad_norm=0.5,
            optim="adamw_torch",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=data,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_loss_func=mean_loss,  # BERT's own leaves the number of items out
    )
    done = trainer.train()
    assert lines_of(run)[0]["steps"] == done.global_step
    expected = model.state_dict()
    for name, value in load_file(run.model / "model.safetensors").items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=5e-5, msg=name)
