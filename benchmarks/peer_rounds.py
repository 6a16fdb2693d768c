"""A side of ``peers.py``: rounds of one framework, each when it is asked for by a line of standard input.

    python benchmarks/peer_rounds.py pfl COHORT STEPS PROCESSES ROUNDS

It prints the seconds of each round. Of fednlp, only the side of fednlp is imported here.
"""

import itertools
import os
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from bare import Batch, as_batches, build, take_steps
from engine import BATCH, CLIENTS, RATE, client_texts


class Clock:
    """Begins a round when it is asked for, and says how long it took; what others print goes to standard error."""

    def __init__(self) -> None:
        self._said = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._start = 0.0

    def begin(self) -> None:
        """Wait until a round is asked for, and start the clock."""
        sys.stdin.readline()
        self._start = time.perf_counter()

    def end(self) -> None:
        """Say how long the round took."""
        print(time.perf_counter() - self._start, file=self._said, flush=True)


@cache
def clients_batches(steps: int) -> list[list[Batch]]:
    """Return the batches of every client, made once a process."""
    return [as_batches(*client_texts(client, steps), BATCH) for client in range(CLIENTS)]


@cache
def own_model() -> Any:
    """Return this process's model."""
    torch.set_num_threads(1)
    return build("bert-tiny").train()


def train(model: Any, batches: list[Batch]) -> None:
    """Take a client's local steps."""
    take_steps(model, torch.optim.SGD(model.parameters(), lr=RATE), batches)


def bare(clock: Clock, cohort: int, steps: int, rounds: int) -> None:
    """Do nothing but the local steps."""
    model, batches = own_model(), clients_batches(steps)
    clients = itertools.cycle(range(CLIENTS))
    for _ in range(rounds):
        clock.begin()
        for client in itertools.islice(clients, cohort):
            train(model, batches[client])
        clock.end()


def fednlp(clock: Clock, cohort: int, steps: int, processes: int, rounds: int) -> None:
    """Do rounds of FedAvg as ``fednlp run`` does them."""
    from engine import Federation

    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name), cohort, steps, processes)
        for _ in range(rounds):
            clock.begin()
            federation.round()
            clock.end()
        federation.pool.close()


def pfl(clock: Clock, cohort: int, steps: int, processes: int, rounds: int) -> None:
    """Do rounds of pfl's SimulatedBackend with FederatedAveraging; torchrun starts several processes."""
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    import numpy as np
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

    np.random.seed(0)  # noqa: NPY002 - pfl draws cohorts from NumPy's global state, the same in every process
    network = own_model()
    network.loss = lambda **batch: network(**batch).loss
    network.metrics = lambda **batch: {}  # pfl evaluates in its first round, whatever it is told
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))

    def dataset(client: int) -> Any:
        ids, labels = client_texts(client, steps)
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        return PyTorchTensorDataset(tensors, user_id=str(client))

    users = {client: dataset(client) for client in range(CLIENTS)}
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    first = int(os.environ.get("RANK", "0")) == 0

    def begin() -> None:
        if first:
            clock.begin()
        if processes > 1:
            torch.distributed.barrier()

    class Rounds(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            begin()
            return Metrics()

        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if first:
                clock.end()
            if central_iteration + 1 < rounds:
                begin()
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(rounds, 10**9, train_cohort_size=cohort, val_cohort_size=None),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )


def flower(clock: Clock, cohort: int, steps: int, processes: int, rounds: int) -> None:
    """Do rounds of Flower's FedAvg in its simulation by Ray; an actor keeps its model and its texts."""
    import peer_rounds  # Ray copies what is defined in the main module, and its caches, into each message
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()

    class Timed(FedAvg):
        def configure_train(self, *arguments: Any) -> Any:
            clock.begin()
            return super().configure_train(*arguments)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            answered = [reply for reply in replies if not reply.has_error()]
            if len(answered) != cohort:
                raise RuntimeError(f"{len(answered)} of {cohort} clients answered in round {server_round}")
            result = super().aggregate_train(server_round, answered)
            clock.end()
            return result

    @client.train()
    def train_client(message: Any, context: Any) -> Any:
        model = peer_rounds.own_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        peer_rounds.train(model, peer_rounds.clients_batches(steps)[int(context.node_config["partition-id"])])
        metrics = MetricRecord({"num-examples": steps * BATCH})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        torch.set_num_threads(1)  # this is a thread of its own
        strategy = Timed(
            fraction_train=cohort / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=CLIENTS,
        )
        arrays = ArrayRecord(build("bert-tiny").state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)

    config = {
        "init_args": {"num_cpus": processes},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, CLIENTS, backend_config=config)


def main() -> None:
    """Serve the rounds of a framework."""
    framework, *numbers = sys.argv[1:]
    cohort, steps, processes, rounds = map(int, numbers)
    torch.set_num_threads(1)
    clock = Clock()
    if framework == "bare":
        bare(clock, cohort, steps, rounds)
    else:
        {"fednlp": fednlp, "pfl": pfl, "flower": flower}[framework](clock, cohort, steps, processes, rounds)


if __name__ == "__main__":
    main()
