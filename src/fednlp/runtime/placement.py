"""Which GPU each worker of a machine has.

Workers are laid over the GPUs in turn: with two workers on each of two GPUs, workers 0 and 2 have the first, and 1 and
3 the second. So no GPU has two workers while another one that has room for one stands idle. ``CUDA_VISIBLE_DEVICES`` is
honoured, since the GPUs are counted as torch sees them.
"""

import os
import socket
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from pydantic import NonNegativeInt, TypeAdapter

from fednlp.disk import read_whole
from fednlp.errors import ConfigError
from fednlp.formatting.units import plural

WORKER = "FEDNLP_WORKER"
"""The variable in which a worker process is told its number on its machine."""
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
"""What launchers tell a process; ``mpirun`` within a job of Slurm comes before Slurm's own."""
_LONGEST = 1 << 20
"""Bytes of a file of machines at most."""
_MAPPING = TypeAdapter(dict[str, list[NonNegativeInt]])
_MAPPINGS = TypeAdapter(dict[str, dict[str, list[NonNegativeInt]]])


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
    [0, 2, 0, 0, 2]
    """
    places = sorted((turn, gpu) for gpu, workers in enumerate(workers_by_gpu) for turn in range(workers))
    return places[worker % len(places)][1]


def gpu_share(workers: int, gpus: int) -> float:
    """Return how much of a GPU each worker of a cluster asks for, so that all of them find a place.

    A share is of one GPU and no sum of rests of several; it is a multiple of 0.0001, as Ray counts.

    >>> gpu_share(2, 4), gpu_share(6, 4), gpu_share(3, 1), gpu_share(2, 0)
    (1.0, 0.5, 0.3333, 0.0)
    """
    if not gpus:
        return 0.0
    most_on_one = -(-workers // gpus)
    return 10_000 // most_on_one / 10_000


def most_workers(machines: Sequence[tuple[int, int]], threads: int, share: float) -> int:
    """Return how many workers find a place in a cluster: each has its cores and its share of a GPU on one machine.

    Args:
        machines: Cores and GPUs of each.
        share: Of a GPU; 0 where a worker needs none.

    >>> most_workers([(6, 0), (6, 0)], 4, 0.0), most_workers([(2, 4), (16, 0)], 1, 1.0)
    (2, 2)
    """
    return sum(
        min(cores // threads, gpus * int(1 / share)) if share else cores // threads
        for cores, gpus in machines
    )


def workers_by_gpu(gpus: int, each: int, mapping: str | None, host: str | None = None) -> list[int]:
    """Return how many workers each GPU of this machine has.

    Args:
        gpus: How many GPUs there are.
        each: Workers of each, where no file says otherwise.
        mapping: A TOML file that says so by host: ``node1 = [2, 2]``, or ``node2 = []`` for one without a GPU. A YAML
            file says the same, ``node1: [2, 2]``, or has such mappings by their names, of which one names this machine.
        host: The name of this machine, if it is not the system's.

    Raises:
        ConfigError: The file cannot be read, does not name this machine, or names GPUs that it does not have.
    """
    if mapping is None:
        return [each] * gpus
    name = socket.gethostname() if host is None else host
    found = _read(Path(mapping), name)
    counts = _of_host(found, name)
    if counts is None:
        raise ConfigError(
            f"{mapping} names the machines {', '.join(found) or '(none)'}, and this one is {name}: add a line such as "
            f'"{name}" = {[1] * gpus}'
        )
    if len(counts) != gpus or (gpus and not sum(counts)):
        raise ConfigError(
            f"{mapping} gives {name} the workers {counts}, and it has {plural(gpus, 'GPU')} "
            "(CUDA_VISIBLE_DEVICES may hide some): say one number for each GPU, and at least one worker"
        )
    return counts


def _of_host(mapping: Mapping[str, list[int]], host: str) -> list[int] | None:
    return mapping.get(host, mapping.get(host.partition(".")[0]))


def _read(path: Path, host: str) -> dict[str, list[int]]:
    """Return the mapping of a file; of several in it, the one that names this machine.

    Raises:
        ConfigError: The file cannot be read, or several of its mappings name this machine.
    """
    try:
        text = read_whole(path, _LONGEST).decode("utf-8-sig")
        if path.suffix.lower() not in (".yaml", ".yml"):
            return _MAPPING.validate_python(tomllib.loads(text), strict=True)
        document = yaml.safe_load(text)
        if not isinstance(document, dict) or any(isinstance(one, list) for one in document.values()):
            return _MAPPING.validate_python(document, strict=True)
        named = _MAPPINGS.validate_python(document, strict=True)
    except FileNotFoundError:
        raise ConfigError(f"runtime.gpu_mapping: there is no file {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; each machine has one line") from None
    except OSError as error:
        raise ConfigError(f"runtime.gpu_mapping: {path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise ConfigError(
            f"{path} is no mapping of workers to GPUs: say for each machine its name, in quotes, and a number for each "
            'GPU, such as "node1" = [2, 2]'
        ) from None
    here = [one for one, mapping in named.items() if _of_host(mapping, host) is not None]
    if len(here) > 1:
        raise ConfigError(f"{path} names {host} in {' and '.join(here)}: keep it in the one that is meant")
    return (
        named[here[0]] if here else {name: counts for one in named.values() for name, counts in one.items()}
    )
