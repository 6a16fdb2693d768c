"""A warm round of other frameworks on the work of ``engine.py``: Apple's pfl, and Flower with Ray.

    python -m pip install -e . psutil "flwr[simulation]" "pfl[pytorch]"   # in an environment of its own
    python benchmarks/engine.py --peers

The model, texts, SGD, clients and batches are those of ``engine.py``, without evaluation and with one torch
thread a process. A framework's round and a bare one alternate within one process, as they do there. Each
framework is set up to its advantage: models and tensors stay in memory, and two warm rounds come first.
"""

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine import BATCH, CLIENTS, RATE, bare_model, bare_round, client_texts, prepare

WARM_UP = 2


class Turns:
    """Let a framework's rounds and bare rounds alternate; keep the seconds of both."""

    def __init__(self, bare: Callable[[], float]) -> None:
        self.bare = bare
        self.rounds: list[float] = []
        self.bares: list[float] = []

    def begin(self) -> None:
        """Start the clock of a round."""
        self.start = time.perf_counter()

    def end(self) -> None:
        """Stop the clock, do a bare round, and start the clock of the next round."""
        self.rounds.append(time.perf_counter() - self.start)
        self.bares.append(self.bare())
        self.begin()

    def result(self, processes: int, library: str) -> dict[str, Any]:
        """Return the medians of the warm rounds and their ratio."""
        round_s, bare_s = (statistics.median(seconds[WARM_UP:]) for seconds in (self.rounds, self.bares))
        return {
            "ratio": round(round_s * processes / bare_s, 3),
            "round_s": round(round_s, 4),
            "bare_s": round(bare_s, 4),
            "version": version(library),
        }


def client_tensors(client: int, steps: int) -> dict[str, Any]:
    """Return all of a client's model inputs."""
    import torch

    ids, labels = client_texts(client, steps)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@cache
def equipment(folder: Path, steps: int) -> tuple[Any, list[list[tuple[Any, Any, Any]]]]:
    """Return this process's model and the batches of every client, made once a process."""
    import torch

    torch.set_num_threads(1)
    parts = [[t.split(BATCH) for t in client_tensors(c, steps).values()] for c in range(CLIENTS)]
    return bare_model(folder), [list(zip(*tensors, strict=True)) for tensors in parts]


def bare_rounds(folder: Path, cohort: int, steps: int) -> Callable[[], float]:
    """Return a function that does a bare round with the next ``cohort`` clients and returns its seconds."""
    model, batches = equipment(folder, steps)
    clients = itertools.cycle(range(CLIENTS))
    return lambda: bare_round(model, [batches[next(clients)] for _ in range(cohort)])


def under_torchrun(processes: int, measure: list[Any]) -> dict[str, Any]:
    """Start ``engine.py --measure`` in several processes that know each other; return what the first prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["--local-ranks-filter=0", str(Path(__file__).with_name("engine.py"))]
    done = subprocess.run(
        [*command, "--measure", json.dumps(measure)], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure_pfl(cohort: int, steps: int, rounds: int, processes: int) -> dict[str, Any]:
    """Measure pfl's SimulatedBackend with FederatedAveraging; several processes are started by torchrun."""
    if find_spec("pfl") is None:
        return {"missing": 'pip install "pfl[pytorch]"'}
    if processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        return under_torchrun(processes, ["pfl", cohort, steps, rounds, processes])
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "PFL_PYTORCH_DEVICE": "cpu"}
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    torch.manual_seed(0)  # every process must draw the same weights
    np.random.seed(0)  # noqa: NPY002 - and the same cohorts, which pfl draws from NumPy's global state
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, steps)
        network = bare_model(folder)
        bare = bare_rounds(folder, cohort, steps)
    network.loss = lambda **batch: network(**batch).loss
    network.metrics = lambda **batch: {}
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    users = {c: PyTorchTensorDataset(client_tensors(c, steps), user_id=str(c)) for c in range(CLIENTS)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))

    rank = int(os.environ.get("RANK", 0))

    def bare_once() -> float:
        seconds = bare() if rank == 0 else math.nan
        if processes > 1:
            torch.distributed.barrier()  # the others wait for the first, which alone does the bare round
        return seconds

    turns = Turns(bare_once)

    class Clock(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            turns.begin()
            return Metrics()

        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
            turns.end()
            return False, Metrics()

    FederatedAveraging().run(
        # pfl cannot leave out the evaluation of its first iteration, which is one of the warm-up
        NNAlgorithmParams(WARM_UP + rounds, 10**9, train_cohort_size=cohort, val_cohort_size=None),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return turns.result(processes, "pfl")


def measure_flower(cohort: int, steps: int, rounds: int, actors: int) -> dict[str, Any]:
    """Measure Flower's ``run_simulation`` with Ray and FedAvg, one model cached per actor."""
    if find_spec("flwr") is None or find_spec("ray") is None:
        return {"missing": 'pip install "flwr[simulation]"'}
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, steps)
        turns = Turns(bare_rounds(folder, cohort, steps))

        class Timed(FedAvg):
            def configure_train(self, server_round: int, *arguments: Any) -> Any:
                if server_round == 1:
                    turns.begin()
                else:
                    turns.end()
                return super().configure_train(server_round, *arguments)

            def aggregate_train(self, server_round: int, replies: Any) -> Any:
                replies = list(replies)
                answered = [reply for reply in replies if not reply.has_error()]
                if len(answered) != cohort:
                    raise RuntimeError(
                        f"{len(answered)} of {cohort} clients answered in round {server_round}"
                    )
                return super().aggregate_train(server_round, replies)

        @client.train()
        def train(message: Message, context: Any) -> Message:
            model, batches = equipment(folder, steps)
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            bare_round(model, [batches[int(context.node_config["partition-id"])]])
            metrics = MetricRecord({"num-examples": steps * BATCH})
            content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
            return Message(content=content, reply_to=message)

        @server.main()
        def serve(grid: Any, context: Any) -> None:
            import torch

            torch.set_num_threads(1)  # this is a thread of its own
            strategy = Timed(
                fraction_train=cohort / CLIENTS,
                fraction_evaluate=0.0,
                min_train_nodes=cohort,
                min_available_nodes=CLIENTS,
            )
            arrays = ArrayRecord(bare_model(folder).state_dict())
            strategy.start(grid=grid, initial_arrays=arrays, num_rounds=WARM_UP + rounds)
            turns.end()

        resources = {"num_cpus": 1, "num_gpus": 0.0}
        run_simulation(
            server,
            client,
            CLIENTS,
            backend_config={"init_args": {"num_cpus": actors}, "client_resources": resources},
        )
    return turns.result(actors, "flwr")
