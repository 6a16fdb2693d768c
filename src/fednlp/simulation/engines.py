"""The engine of a run, and its workers; those on a CPU start before this process imports PyTorch.

Then both import it side by side, so this module imports it only where an engine is opened.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp import config
from fednlp.clock import IMPORTS, timed
from fednlp.config import Experiment
from fednlp.config.sections import GIVEN
from fednlp.errors import ConfigError, FednlpError
from fednlp.plugins import is_own, load, raised
from fednlp.processor import cores
from fednlp.runtime import ENGINES
from fednlp.runtime.launch import rank_of
from fednlp.runtime.worker_process import WorkerCommand, started_ahead

if TYPE_CHECKING:
    from fednlp.runtime.engine import Engine

_FACTORY = "fednlp.simulation.workers:open_worker"
"""What builds a worker in a worker process."""
_PRELOAD = ("fednlp.startup.preloaded",)
"""What a worker process imports while this one prepares."""
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of the systems' drivers of GPUs: NVIDIA's, that of Windows' Linux, AMD's."""
_ENGINE_PARTS = ("start", "publish", "do", "close", "__len__", "__enter__", "__exit__")
"""What is called of an engine."""


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
    workers = _cpu_workers(experiment) if here else 1
    with started_ahead(
        WorkerCommand(number, _FACTORY, runtime.threads, _PRELOAD) for number in range(1, workers)
    ):
        yield


def stays_here(experiment: Experiment) -> bool:
    """Return whether some code of an experiment exists only in this process."""
    own = [name for _, name in config.own_code(experiment)]
    return experiment.algorithm.name == GIVEN or any(name.startswith("__main__:") for name in own)


@timed(IMPORTS)
def open_engine(experiment: Experiment) -> "Engine":
    """Start the workers, which import most dependencies of all models beforehand."""
    name, further = _named(experiment), _further(experiment)
    build = load(ENGINES.get(name, name), "runtime.engine")
    workers = _workers(experiment, elsewhere=name in ("mpi", "ray"))
    try:
        made: Engine = build(workers, _FACTORY, experiment.runtime.threads, _PRELOAD, **further)
    except Exception as error:
        if isinstance(error, FednlpError) or not is_own(name):
            raise
        raise ConfigError(f'runtime.engine = "{name}": making it raised {raised(error)}') from error
    lacking = [part for part in _ENGINE_PARTS if not hasattr(made, part)]
    if lacking:
        raise ConfigError(
            f'runtime.engine = "{name}" is no engine: it has no {lacking[0]} (see fednlp.runtime.engine.Engine)'
        )
    return made


def _named(experiment: Experiment) -> str:
    """Return the engine's name; several ranks of MPI are workers, whether the engine is named or not.

    Raises:
        ConfigError: Ray is named, and ``mpirun`` started this process.
    """
    name, (_, ranks) = experiment.runtime.engine, rank_of()
    if name == "ray" and ranks > 1:
        raise ConfigError(
            f'runtime.engine = "ray" starts its own workers, and the {ranks} ranks of mpirun would be idle: start the '
            "command without mpirun, or leave runtime.engine out, so that the ranks are the workers"
        )
    return "mpi" if name == "pool" and ranks > 1 else name


def _further(experiment: Experiment) -> dict[str, Any]:
    """Return the arguments of an engine that not every engine takes."""
    runtime = experiment.runtime
    further: dict[str, Any] = {} if runtime.address is None else {"address": runtime.address}
    if runtime.engine == "ray":
        further["gpus"] = not runtime.device.startswith("cpu")
    return further


def _workers(experiment: Experiment, elsewhere: bool) -> int:
    """Return the number of workers: as configured, or one a GPU, or one a core up to the clients of a round.

    Args:
        experiment: Resolved.
        elsewhere: Whether no worker, or not every one, is in this process.

    Raises:
        ConfigError: Several are configured, and some code exists only in this process.
    """
    configured = experiment.runtime.workers
    if stays_here(experiment):
        if configured > 1 or elsewhere:
            setting = f"runtime.workers = {configured}" if configured > 1 else "other processes are to work"
            raise ConfigError(
                f"{setting}: what a notebook or a script defines lies in its own process "
                'alone: write it into a file and name it "module:function", or say runtime.workers = 1 with '
                'runtime.engine = "pool"'
            )
        return 1
    import torch

    from fednlp.runtime.placement import workers_by_gpu
    from fednlp.training.worker_spec import pick_device

    runtime = experiment.runtime
    device = pick_device(runtime.device, runtime.workers_per_gpu, runtime.gpu_mapping)
    if device.type == "cuda" and runtime.device in ("auto", "cuda"):
        gpus = torch.cuda.device_count()
        places = sum(workers_by_gpu(gpus, runtime.workers_per_gpu, runtime.gpu_mapping))
        return configured or min(places, experiment.clients_per_round)
    if device.type != "cpu":
        return configured or runtime.workers_per_gpu
    return _cpu_workers(experiment)


def _cpu_workers(experiment: Experiment) -> int:
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
