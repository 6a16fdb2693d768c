"""The workers of a run: how their clients train, what they are told, and the method as they have it."""

import atexit
import shutil
import socket
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fednlp.clock import DATA, timed
from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.data.features import Features
from fednlp.errors import RunError
from fednlp.federated.aggregators.noisy_mean import NoisyMean
from fednlp.federated.algorithm import Algorithm
from fednlp.partition import Partition
from fednlp.simulation.components import Log, RunComponents, as_tested, build_components
from fednlp.simulation.configured_algorithm import attacked, build_algorithm
from fednlp.simulation.start_model import start_model
from fednlp.training.local_training import LocalTraining
from fednlp.training.reference import has_reference, with_reference
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import WorkerSpec, load_model, pick_device


@timed(DATA)
def with_references(
    experiment: Experiment, components: RunComponents, model: nn.Module, log: Log
) -> RunComponents:
    """Return a run's components with what its starting model says of the examples, where the task asks for it.

    Args:
        experiment: Resolved.
        model: That the run begins with.
        log: Told before it is computed.

    Raises:
        RunError: The disk is full, or the cache cannot be written.
    """
    if not has_reference(components.task):
        return components
    runtime, data, peft = experiment.runtime, components.data, experiment.model.peft
    device = pick_device(runtime.device, runtime.workers_per_gpu, runtime.gpu_mapping)

    def made(features: Features, numbers: np.ndarray) -> Features:
        return with_reference(components.task, model, features, numbers, device, peft, log)

    if components.test.folder == components.train.folder:
        both = made(components.train, np.concatenate([data.train_numbers, data.test_numbers]))
        return replace(components, train=both, test=both)
    train, test = made(components.train, data.train_numbers), made(components.test, data.test_numbers)
    return replace(components, train=train, test=test)


def worker_spec(
    experiment: Experiment, components: RunComponents, partition: Path, test_numbers: Path, records: Path
) -> WorkerSpec:
    """Return the specification of a run's workers, without the algorithm.

    Args:
        experiment: Resolved.
        components: Data, task and features of the run.
        partition: File of the partition.
        test_numbers: File of the example numbers of the global test set, int64.
        records: File of the clients' records.
    """
    assert components.train.folder is not None
    assert components.test.folder is not None
    return WorkerSpec(
        source=components.source,
        model_config=dict(experiment.model.config),
        peft=experiment.model.peft,
        train=experiment.model.train,
        task=components.task_spec,
        task_fields=asdict(components.task),  # type: ignore[call-overload]
        train_features=str(components.train.folder),
        test_features=str(components.test.folder),
        test_numbers=str(test_numbers.resolve()),
        partition=str(partition.resolve()),
        options=experiment.client.model_dump(include={*LocalTraining.model_fields}),
        federated=experiment.algorithm.name not in BASELINES,
        records=str(records.resolve()),
        unlabelled=experiment.partly_labelled,
        seed=experiment.seed,
        device=experiment.runtime.device,
        workers_per_gpu=experiment.runtime.workers_per_gpu,
        gpu_mapping=experiment.runtime.gpu_mapping,
        cache_activations=experiment.runtime.cache_activations,
        evaluation_batch=experiment.evaluation.batch_size,
        longest=components.longest,
        evaluation_bf16=experiment.evaluation.bf16_full_eval is True,
        onednn=experiment.runtime.onednn is True,
    )


def open_worker(spec: dict[str, Any], experiment: dict[str, Any]) -> ClientWorker:
    """Build the worker of a worker process.

    Args:
        spec: The fields of :class:`WorkerSpec`.
        experiment: The sections of the resolved experiment.
    """
    made = Experiment(**experiment)
    built, partition = _as_found_here(WorkerSpec(**spec), made)
    return ClientWorker(built, load_model(built), client_algorithm(made, partition.num_clients), partition)


def _as_found_here(spec: WorkerSpec, experiment: Experiment) -> tuple[WorkerSpec, Partition]:
    """Return the specification and the partition; where their files are not on this machine, they are made again.

    Raises:
        RunError: What is made here of the experiment is not what the first machine has, or clients keep something.
    """
    if Path(spec.partition).is_file() and Path(spec.train_features).is_dir():
        return spec, Partition.load(Path(spec.partition))
    from fednlp.simulation.assignment import build_partition

    algorithm = build_algorithm(experiment)
    if algorithm.keeps or spec.train != "all" or algorithm.uplink.error_feedback:
        raise RunError(
            f"{Path(spec.records).parent} is not on the machine {socket.gethostname()}, and the clients keep their "
            "records there: give --out a folder on a disk that all machines share"
        )
    components = build_components(experiment, _say_nothing)
    partition = build_partition(experiment, components.data, _say_nothing)
    components = as_tested(experiment, components, partition)
    model = start_model(experiment, components.source, components.task)
    components = with_references(experiment, components, model, _say_nothing)
    folder = Path(tempfile.mkdtemp(prefix="fednlp-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    np.save(folder / "test-numbers.npy", components.data.test_numbers)
    made = worker_spec(
        experiment, components, folder / "partition", folder / "test-numbers.npy", folder / "records"
    )
    found, wanted = Path(made.train_features).name, Path(spec.train_features).name
    if found != wanted:
        raise RunError(
            f"the data, the tokenizer or fednlp's version on the machine {socket.gethostname()} differ from the first "
            "machine's: use the same on all"
        )
    return made, partition


def _say_nothing(line: str) -> None:
    pass


def client_algorithm(experiment: Experiment, clients: int) -> Algorithm:
    """Return the method as a worker has it that is not the server's.

    Args:
        experiment: Resolved.
    """
    return client_side(attacked(build_algorithm(experiment), experiment, clients), experiment)


def client_side(algorithm: Algorithm, experiment: Experiment) -> Algorithm:
    """Return an algorithm with the worker's half of its aggregator: it adds updates, and cannot finish.

    Args:
        experiment: Resolved.
    """
    privacy = experiment.privacy
    if experiment.secure.protocol != "none":
        from fednlp.secure.aggregator import MaskedSum

        return replace(algorithm, aggregator=MaskedSum())
    if privacy is not None:
        return replace(algorithm, aggregator=NoisyMean(privacy.clip, 0.0, 0.0, experiment.seed))
    return algorithm
