"""What a worker does with a piece of a job: which stretch, which batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fednlp.training.masked import unmask

from fednlp.config import Experiment
from fednlp.federated.sums import ExactSum
from fednlp.models import new_model
from fednlp.simulation.build import gather, recipe, share_out
from fednlp.training.worker import ClientWorker

Make = Callable[..., Experiment]


@pytest.fixture(scope="module")
def side(experiment: Make, tmp_path_factory: pytest.TempPathFactory) -> ClientWorker:
    """The side of a run on the tiny model, with batches of seven test examples."""
    folder = tmp_path_factory.mktemp("side")
    made = experiment({"evaluation.batch_size": 7}).resolved()
    pieces = gather(made, lambda text: None)
    share_out(made, pieces.data, lambda text: None).save(folder / "partition.npz")
    np.save(folder / "test.npy", pieces.data.test_numbers)
    how = recipe(made, pieces, folder / "partition.npz", folder / "test.npy", folder / "records")
    model = new_model(pieces.source, pieces.task.model_class, pieces.task.settings(), {}, made.seed)
    return ClientWorker(how, model)


@pytest.mark.parametrize("stretch", [4, 64, 1 << 16])
def test_stretches_are_unmasked_as_the_whole_is(side: ClientWorker, stretch: int) -> None:
    """Each value once, up to the last, however long the stretches are."""
    numel, stretch = side.layout.numel, max(stretch, 4 * (side.layout.numel // 200))
    seeds = [["01" * 32, 1], ["02" * 32, -1], ["03" * 32, 1]]
    x, whole, pieces = torch.zeros(numel), ExactSum(side.layout), ExactSum(side.layout)
    unmask(whole, 0, numel, seeds)
    for piece in range(-(-numel // stretch)):
        side.work({"kind": "unmask", "stretch": stretch, "seeds": seeds}, piece, x, pieces)
    assert torch.equal(pieces.storage, whole.storage)
    assert int((whole.storage != 0).sum()) > numel // 2


def test_batches_of_the_global_test_set_are_kept_and_not_mixed_with_a_clients(side: ClientWorker) -> None:
    def numbers(batches: list[np.ndarray]) -> list[int]:
        return sorted(number for batch in batches for number in batch.tolist())

    everyone = numbers(side.test_batches())
    kept = side.test_batches()
    assert side.test_batches() is kept
    assert everyone == sorted(np.load(Path(side.recipe.test_numbers)).tolist())
    assert [len(batch) for batch in kept] == [7] * (len(everyone) // 7) + [len(everyone) % 7]
    own = [numbers(side.test_batches(client)) for client in range(side.partition.num_clients)]
    assert own == [sorted(side.partition.test(client).tolist()) for client in range(len(own))]
    assert sorted(number for one in own for number in one) == everyone
    assert side.test_batches() is kept


def test_a_client_asked_first_does_not_become_the_global_test_set(side: ClientWorker) -> None:
    side._global_batches = []
    assert len(side.test_batches(0)) < len(side.test_batches())


def test_examples_of_a_batch_are_predicted_and_unknown_jobs_refused(side: ClientWorker) -> None:
    x = torch.zeros(side.layout.numel)
    side.replica.store(x)
    total = ExactSum(side.layout)
    job = {"kind": "evaluate", "key": 1}
    batches = side.test_batches()
    for piece in (0, len(batches) - 1):
        assert side.work(job, piece, x, total)["indices"] == batches[piece].tolist()
    with pytest.raises(ValueError, match="unknown kind of job: dance"):
        side.work({"kind": "dance"}, 0, x, total)
