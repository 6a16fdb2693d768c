"""The steps of FedBuff between machines, computed once more from the server's record of arrivals, in plain numpy."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fednlp.config import Experiment
from fednlp.deployment.operate.shards import split_out
from fednlp.training import sending
from fednlp.training.requests import train as train_requests

from .test_arrivals import CLIENTS, FLUSHES, Gate, K, M, buffered, events, serve
from .test_federation import quiet

__all__ = ["buffered"]
Make = Callable[..., Experiment]


class InAnyOrder(Gate):
    """Once all who may train wait to answer, lets one of them that is drawn, so that some updates are late."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def is_open(self, call: tuple[int, int]) -> bool:
        answered = [one["arrived"] for one in events(self.folder)]
        if len(answered) == FLUSHES * K:
            return True  # those who still train are asked to evaluate next
        waiting = list[tuple[int, int]]()
        for client in range(CLIENTS):
            waiting += sorted(one for one in self.worked if one[1] == client)[answered.count(client) :]
        return len(waiting) == M and call == Random(len(answered)).choice(waiting)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.variants(1)
@pytest.mark.whole
def test_each_flush_is_the_weighted_mean_of_what_arrived_by_its_age(
    weighting: str, buffered: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s(age) = (1 + age)^(-1/2), over the sum of the weights alone (Nguyen et al. 2022, Algorithm 1)."""
    starts, updates, sizes = dict[Any, Any](), dict[Any, Any](), dict[int, int]()

    def noted(algorithm: Any, request: Any, local: Any, result: Any, record: Any) -> Any:
        call = local.round, local.client
        starts[call] = local.x.numpy().astype(np.float64)
        updates[call] = result.update["model"].flat().numpy().astype(np.float64)
        sizes[local.client] = len(local.examples)
        return sending.encode(algorithm, request, local, result, record)

    monkeypatch.setattr(train_requests, "encode", noted)
    method = {"algorithm": {"name": "fedbuff", "buffer_size": K, "weighting": weighting}}
    made, gate = buffered(method), InAnyOrder(tmp_path)
    deployed = serve(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, gate)
    order = [one["arrived"] for one in events(tmp_path)]
    begun = {client: iter(sorted(n for n, one in gate.worked if one == client)) for client in order}
    x, ages = next(start for (number, _), start in starts.items() if number == 1).copy(), set[int]()
    for flush in range(1, FLUSHES + 1):
        change, total = np.zeros_like(x), 0.0
        for client in order[(flush - 1) * K : flush * K]:
            call = next(begun[client]), client
            age, weight = flush - call[0], float(sizes[client] if weighting == "examples" else 1)
            change += weight * (1 + age) ** -0.5 * updates[call]
            total += weight
            ages.add(age)
        x += change / total
        for (number, _), start in starts.items():
            if number == flush + 1:
                np.testing.assert_allclose(start, x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(load_file(deployed.state)["params"], x, rtol=0, atol=1e-6)
    assert max(ages) > 1
