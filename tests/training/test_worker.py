"""What a worker does with a request: which stretch, which batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fednlp.config import Experiment
from fednlp.federated.algorithms.fedavg import fedavg
from fednlp.federated.sums import ExactSum
from fednlp.fewshot.deployment.site import KeepLabelsRequest
from fednlp.models.pretrained import new_model
from fednlp.runtime.messages import KINDS
from fednlp.secure.unmasking import UnmaskRequest
from fednlp.secure.upload import mask_values
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.components import build_components
from fednlp.simulation.workers import worker_spec
from fednlp.training.requests.predict import EvaluateRequest, evaluate
from fednlp.training.worker import ClientWorker

Make = Callable[..., Experiment]


@pytest.fixture(scope="module")
def worker(experiment: Make, tmp_path_factory: pytest.TempPathFactory) -> ClientWorker:
    """The worker of a run on the tiny model, with batches of seven test examples."""
    folder = tmp_path_factory.mktemp("worker")
    made = experiment({"evaluation.batch_size": 7}).resolved()
    components = build_components(made, lambda text: None)
    build_partition(made, components.data, lambda text: None).save(folder / "partition.npz")
    np.save(folder / "test.npy", components.data.test_numbers)
    spec = worker_spec(made, components, folder / "partition.npz", folder / "test.npy", folder / "records")
    model = new_model(
        components.source, components.task.model_class, components.task.settings(), {}, made.seed
    )
    return ClientWorker(spec, model, fedavg(4))


@pytest.mark.parametrize("stretch", [4, 64, 1 << 16])
def test_stretches_are_unmasked_as_the_whole_is(worker: ClientWorker, stretch: int) -> None:
    """Each value once, up to the last, however long the stretches are."""
    numel, stretch = worker.layout.numel, max(stretch, 4 * (worker.layout.numel // 200))
    seeds = [["01" * 32, 1], ["02" * 32, -1], ["03" * 32, 1]]
    whole, pieces = ExactSum(worker.layout), ExactSum(worker.layout)
    whole.add_residues(mask_values(0, numel, seeds))
    for start in range(0, numel, stretch):
        request = UnmaskRequest(start, min(start + stretch, numel), seeds)
        answer = worker.handlers[UnmaskRequest](request, {})
        assert worker.receive(request, answer, {}, {"model": pieces}) is None
    assert torch.equal(pieces.storage, whole.storage)
    assert int((whole.storage != 0).sum()) > numel // 2


def test_batches_of_the_global_test_set_are_kept_and_not_mixed_with_a_clients(worker: ClientWorker) -> None:
    def numbers(batches: list[np.ndarray]) -> list[int]:
        return sorted(number for batch in batches for number in batch.tolist())

    everyone = numbers(worker.evaluator.test_batches())
    kept = worker.evaluator.test_batches()
    assert worker.evaluator.test_batches() is kept
    assert everyone == sorted(np.load(Path(worker.spec.test_numbers)).tolist())
    assert [len(batch) for batch in kept] == [7] * (len(everyone) // 7) + [len(everyone) % 7]
    own = [numbers(worker.evaluator.test_batches(client)) for client in range(worker.partition.num_clients)]
    assert own == [sorted(worker.partition.test(client).tolist()) for client in range(len(own))]
    assert sorted(number for one in own for number in one) == everyone
    assert worker.evaluator.test_batches() is kept


def test_a_client_asked_first_does_not_become_the_global_test_set(worker: ClientWorker) -> None:
    worker.evaluator._global_batches = []
    assert len(worker.evaluator.test_batches(0)) < len(worker.evaluator.test_batches())


def test_examples_of_a_batch_are_predicted(worker: ClientWorker) -> None:
    x = torch.zeros(worker.layout.numel)
    batches = worker.evaluator.test_batches()
    for number in (0, len(batches) - 1):
        found = evaluate(worker, EvaluateRequest(number, 1), {"model": x})
        assert found.indices == batches[number].tolist()


def test_a_model_is_loaded_once_for_a_key(worker: ClientWorker) -> None:
    """Other weights count from the next key on, or once the replica was used for something else."""
    x = 0.1 * torch.randn(worker.layout.numel, generator=torch.Generator().manual_seed(0))

    def loss(key: int, vector: torch.Tensor) -> float:
        return evaluate(worker, EvaluateRequest(0, key), {"model": vector}).loss

    first = loss(5, x)
    assert loss(5, 3.0 * x) == first
    other = loss(6, 3.0 * x)
    assert other != first
    worker.forget()
    assert loss(6, x) == first


def test_every_kind_of_request_has_a_handler(worker: ClientWorker) -> None:
    of_sites = {KeepLabelsRequest}  # which keep their own labels
    assert set(worker.handlers) == set(KINDS) - of_sites
