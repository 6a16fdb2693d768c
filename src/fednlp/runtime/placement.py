"""Which GPU each worker of a machine has.

Workers are laid over the GPUs one after the other: with two workers on each of two GPUs, workers 0 and 1 have the
first, and 2 and 3 the second. ``CUDA_VISIBLE_DEVICES`` is honoured, since the GPUs are counted as torch sees them.
"""

import os
import socket
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from fednlp.errors import ConfigError

WORKER = "FEDNLP_WORKER"
"""The variable in which a worker process is told its number on its machine."""
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")
_MAPPING = TypeAdapter(dict[str, list[NonNegativeInt]])


def worker_number(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this process among the workers of its machine, from 0.

    >>> worker_number({"FEDNLP_WORKER": "3"}), worker_number({"MPI_LOCALRANKID": "1"}), worker_number({})
    (3, 1, 0)
    """
    return next((int(environment[name]) for name in (WORKER, *_LOCAL_RANKS) if name in environment), 0)


def gpu_of(worker: int, workers_by_gpu: Sequence[int]) -> int:
    """Return the GPU of a worker; where there are more workers than places, the places are filled again.

    Args:
        worker: Its number on its machine.
        workers_by_gpu: How many workers each GPU has.

    >>> [gpu_of(worker, [2, 0, 1]) for worker in range(5)]
    [0, 0, 2, 0, 0]
    """
    places = [gpu for gpu, workers in enumerate(workers_by_gpu) for _ in range(workers)]
    return places[worker % len(places)]


def workers_by_gpu(gpus: int, each: int, mapping: str | None, host: str | None = None) -> list[int]:
    """Return how many workers each GPU of this machine has.

    Args:
        gpus: How many GPUs there are.
        each: Workers of each, where no file says otherwise.
        mapping: A TOML file that says so by host: ``node1 = [2, 2]``.
        host: The name of this machine, if it is not the system's.

    Raises:
        ConfigError: The file cannot be read, does not name this machine, or names GPUs that it does not have.
    """
    if mapping is None:
        return [each] * gpus
    name = socket.gethostname() if host is None else host
    found = _read(Path(mapping))
    counts = found.get(name, found.get(name.partition(".")[0]))
    if counts is None:
        raise ConfigError(
            f"{mapping} names the machines {', '.join(found)}, and this one is {name}: add a line such as "
            f'"{name}" = [{", ".join(["1"] * max(1, gpus))}]'
        )
    if len(counts) != gpus or not sum(counts):
        raise ConfigError(
            f"{mapping} gives {name} the workers {counts}, and it has {gpus} GPUs (CUDA_VISIBLE_DEVICES may hide "
            "some): say one number for each GPU, and at least one worker"
        )
    return counts


def _read(path: Path) -> dict[str, list[int]]:
    try:
        return _MAPPING.validate_python(tomllib.loads(path.read_text(encoding="utf-8")), strict=True)
    except FileNotFoundError:
        raise ConfigError(f"runtime.gpu_mapping: there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError):
        raise ConfigError(
            f"{path} is no mapping of workers to GPUs: say for each machine its name and a number for each "
            'GPU, such as "node1" = [2, 2]'
        ) from None
