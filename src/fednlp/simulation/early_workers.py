"""The worker processes of a run, started before this process imports PyTorch, so that both import it side by side.

This module needs no PyTorch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.sections import GIVEN
from fednlp.processor import cores
from fednlp.runtime.launch import rank_of
from fednlp.runtime.worker_process import WorkerCommand, started_ahead

FACTORY = "fednlp.simulation.workers:open_worker"
"""What builds a worker in a worker process."""
PRELOAD = ("fednlp.startup.preloaded",)
"""What a worker process imports while this one prepares."""
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of the systems' drivers of GPUs: NVIDIA's, that of Windows' Linux, AMD's."""


@contextmanager
def early_workers(experiment: Experiment) -> Iterator[None]:
    """Start the worker processes that the run of the block will need, if that is known without PyTorch.

    It is known for the pool on a CPU. A run that takes fewer leaves the others to be stopped.

    Args:
        experiment: Resolved.
    """
    runtime = experiment.runtime
    on_cpu = runtime.device == "cpu" or (
        runtime.device == "auto" and not any(Path(driver).exists() for driver in _DRIVERS)
    )
    here = on_cpu and runtime.engine == "pool" and rank_of()[1] == 1 and not stays_here(experiment)
    workers = cpu_workers(experiment) if here else 1
    with started_ahead(
        WorkerCommand(number, FACTORY, runtime.threads, PRELOAD) for number in range(1, workers)
    ):
        yield


def stays_here(experiment: Experiment) -> bool:
    """Return whether some code of an experiment exists only in this process."""
    own = [name for _, name in config.own_code(experiment)]
    return experiment.algorithm.name == GIVEN or any(name.startswith("__main__:") for name in own)


def cpu_workers(experiment: Experiment) -> int:
    """Return the number of workers on a CPU: as configured, or one a core up to the clients of a round.

    Args:
        experiment: Resolved.
    """
    if experiment.algorithm.name == "majority":
        return 1
    if experiment.algorithm.name == "centralised" and experiment.evaluation.every >= experiment.num_rounds:
        return 1
    each = min(len(cores()) // experiment.runtime.threads, experiment.clients_per_round)
    return experiment.runtime.workers or max(1, each)
