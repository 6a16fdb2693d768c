"""Several clients at once: each ends with the weights that it has alone, but for rounding."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.upload import Trained
from fednlp.models.pretrained import pretrained_model
from fednlp.partition import Partition
from fednlp.runtime.messages import to_json
from fednlp.simulation.components import build_components
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.workers import worker_spec
from fednlp.training.requests.train import TrainTogetherRequest, train, train_together
from fednlp.training.worker import ClientWorker

Make = Callable[..., Experiment]
STILL = {"model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}}
LORA = {"model.peft": {"method": "lora", "r": 3, "target_modules": "all-linear"}}
HEAD: dict[str, Any] = {"model.train": "head"}
PERSONAL = {
    "model.train": {
        "shared": r"re:layer\.1.*(query|value|dense|LayerNorm)",
        "personal": "head",
        "rest": "frozen",
    }
}
"""Without the biases of keys, whose gradient is nothing but rounding: Adam makes a step of it."""
TRAINED = [
    LORA,
    LORA | {"model.peft": {"method": "lora", "averaging": "ffa"}},
    HEAD,
    {"model.train": ["head", r"re:(query|value|dense|LayerNorm)\.bias"]},
    PERSONAL,
]
OPTIMIZERS: list[dict[str, Any]] = [
    {"client.optimizer": "adamw", "client.weight_decay": 0.1, "client.max_grad_norm": 0.5},
    {"client.optimizer": "sgd", "client.momentum": 0.9, "client.lr_scheduler_type": "linear"},
    {"client.optimizer": "adam", "client.keep_optimizer": True},
    {"client.optimizer": "sgd", "client.padding_free": True},
]
SIZES = [17, 3, 8, 1, 24]
"""Examples of the clients: their numbers of batches differ, and so do those of their last batches."""


def worker_of(experiment: Make, folder: Path, changes: dict[str, Any]) -> ClientWorker:
    """Return the worker of a run whose clients have :data:`SIZES` examples each."""
    folder.mkdir(exist_ok=True)
    made = experiment({"client.learning_rate": 0.01, **changes}).resolved()
    components = build_components(made, lambda text: None)
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    numbers = components.data.train_numbers[: offsets[-1]]
    nobody = np.zeros(len(SIZES) + 1, dtype=np.int64)
    Partition(offsets, numbers, nobody, numbers[:0], np.arange(len(SIZES))).save(folder / "partition.npz")
    np.save(folder / "test.npy", components.data.test_numbers)
    spec = worker_spec(made, components, folder / "partition.npz", folder / "test.npy", folder / "records")
    task = components.task
    model = pretrained_model(
        components.source,
        task.model_class,
        task.settings(),
        dict(made.model.config),
        made.seed,
        made.model.peft,
    )
    return ClientWorker(spec, model, build_algorithm(made))


@dataclass(frozen=True)
class Answer:
    """A client's result, and its update as a vector of its own; None where it failed."""

    result: ClientResult
    update: torch.Tensor | None


def answers(worker: ClientWorker, x: torch.Tensor, round_number: int, together: bool) -> list[Any]:
    """Return what the clients of a round answer, one after the other or together."""

    def kept(answer: Trained) -> Answer:
        if answer.upload is None:
            return Answer(answer.result, None)
        assert answer.upload.model is not None
        return Answer(answer.result, answer.upload.model.flat(worker.layout))

    requests = [TrainRequest(client, round_number, 0.2) for client in range(len(SIZES))]
    if not together:
        return [kept(train(worker, request, {"model": x})) for request in requests]
    joined = TrainTogetherRequest([to_json(one) for one in requests])
    return [kept(answer) for answer in train_together(worker, joined, {"model": x})]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether updates are equal but for rounding; it is Adam that makes it matter."""
    return torch.allclose(one, other, rtol=2e-3, atol=2e-6)


@pytest.mark.parametrize("trained", TRAINED, ids=["lora", "ffa", "head", "biases", "personal"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["adamw", "sgd", "kept", "without padding"])
def test_weights_are_those_of_one_client_after_the_other(
    experiment: Make, tmp_path: Path, trained: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    """Updates, losses, counts and records, in two rounds, whatever is trained and however."""
    workers = [worker_of(experiment, tmp_path / str(i), STILL | trained | optimizer) for i in range(2)]
    x = 0.2 * torch.randn(workers[0].layout.numel, generator=torch.Generator().manual_seed(0))
    for number in (1, 2):
        alone, together = (answers(worker, x, number, i == 1) for i, worker in enumerate(workers))
        for client, (one, other) in enumerate(zip(alone, together, strict=True)):
            assert one.update.abs().max() > 1e-4
            assert close(one.update, other.update)
            assert (one.result.steps, one.result.examples) == (other.result.steps, other.result.examples)
            assert one.result.loss == pytest.approx(other.result.loss, rel=1e-4)
            records = [worker.trainer.record(client, number) for worker in workers]
            assert records[0].keys() == records[1].keys()
            assert all(close(records[0][name], records[1][name]) for name in records[0])


def test_precision_is_kept_and_the_replica_is_left_as_it_was(experiment: Make, tmp_path: Path) -> None:
    """After clients at once, a client alone trains as before: nothing of the stack is left in the model."""
    worker = worker_of(experiment, tmp_path, STILL | LORA | {"client.bf16": True})
    x = 0.2 * torch.randn(worker.layout.numel, generator=torch.Generator().manual_seed(0))
    before = answers(worker, x, 1, together=False)
    together = answers(worker, x, 1, together=True)
    after = answers(worker, x, 1, together=False)
    for one, both, other in zip(before, together, after, strict=True):
        assert torch.equal(one.update, other.update)
        assert torch.nn.functional.cosine_similarity(one.update, both.update, dim=0) > 0.9


@pytest.mark.whole
def test_dropout_has_the_same_distribution(experiment: Make, tmp_path: Path) -> None:
    """Masks are others; over many rounds the mean update and its spread are the same."""
    changes = {"client.optimizer": "sgd", "client.learning_rate": 0.1, "client.max_steps": 1}
    worker = worker_of(experiment, tmp_path, HEAD | changes)
    x = 0.2 * torch.randn(worker.layout.numel, generator=torch.Generator().manual_seed(0))
    drawn = [
        torch.stack([answers(worker, x, number, kind)[2].update for number in range(1, 61)])
        for kind in (False, True)
    ]
    assert not torch.equal(*drawn)
    (mean, other_mean), (spread, other_spread) = ([d.mean(0) for d in drawn], [d.std(0) for d in drawn])
    assert spread.max() > 0
    assert ((mean - other_mean).abs() <= 5 * spread / 60**0.5 * 2**0.5 + 1e-7).all()
    assert other_spread.norm() / spread.norm() == pytest.approx(1, abs=0.2)


def test_masks_are_a_function_of_the_round_and_the_clients(experiment: Make, tmp_path: Path) -> None:
    worker = worker_of(experiment, tmp_path, LORA)
    x = 0.2 * torch.randn(worker.layout.numel, generator=torch.Generator().manual_seed(0))
    first, again, other = ([one.update for one in answers(worker, x, number, True)] for number in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_a_client_that_fails_is_dropped_alone(experiment: Make, tmp_path: Path) -> None:
    """NaN in the layers that one client keeps ends in its failure, and in that of no other."""
    worker = worker_of(experiment, tmp_path, STILL | PERSONAL)
    x = 0.2 * torch.randn(worker.layout.numel, generator=torch.Generator().manual_seed(0))
    assert all(one.update is not None for one in answers(worker, x, 1, together=True))
    assert worker.trainer.store is not None
    worker.trainer.store.write(3, 1, {"personal": torch.full((worker.replica.personal.numel,), torch.nan)})
    found = answers(worker, x, 2, together=True)
    assert [one.update is None for one in found] == [False, False, False, True, False]
    assert "NaN" in found[3].result.error


def test_what_the_model_does_not_allow_is_refused_by_name(experiment: Make, tmp_path: Path) -> None:
    worker = worker_of(experiment, tmp_path, {"model.train": ["embeddings", "head"]})
    with pytest.raises(ConfigError, match="freeze the word embedding"):
        worker.stack(2)
