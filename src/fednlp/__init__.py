"""Federated learning of language models: simulate it, compare methods, and run it.

    import fednlp

    run = fednlp.run("experiments/quickstart.toml", "runs/first")

The public names are loaded when they are first used, so that ``import fednlp`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednlp.comparison import compare
    from fednlp.config import Experiment
    from fednlp.config import load as load_experiment
    from fednlp.data import TextData, load_data
    from fednlp.errors import FednlpError
    from fednlp.experiment import resume, run
    from fednlp.exporting import export, export_clients
    from fednlp.federated import Algorithm, ServerOptimizer, fedavg, federate, fedopt, fedprox, run_round
    from fednlp.partition import Partition, PartitionSpec, make_partition

_HOMES = {
    "Algorithm": ("fednlp.federated", "Algorithm"),
    "Experiment": ("fednlp.config", "Experiment"),
    "FednlpError": ("fednlp.errors", "FednlpError"),
    "Partition": ("fednlp.partition", "Partition"),
    "PartitionSpec": ("fednlp.partition", "PartitionSpec"),
    "ServerOptimizer": ("fednlp.federated", "ServerOptimizer"),
    "TextData": ("fednlp.data", "TextData"),
    "compare": ("fednlp.comparison", "compare"),
    "export": ("fednlp.exporting", "export"),
    "export_clients": ("fednlp.exporting", "export_clients"),
    "fedavg": ("fednlp.federated", "fedavg"),
    "federate": ("fednlp.federated", "federate"),
    "fedopt": ("fednlp.federated", "fedopt"),
    "fedprox": ("fednlp.federated", "fedprox"),
    "load_data": ("fednlp.data", "load_data"),
    "load_experiment": ("fednlp.config", "load"),
    "make_partition": ("fednlp.partition", "make_partition"),
    "resume": ("fednlp.experiment", "resume"),
    "run": ("fednlp.experiment", "run"),
    "run_round": ("fednlp.federated", "run_round"),
}

__version__ = "0.1.0"
__all__ = [
    "Algorithm",
    "Experiment",
    "FednlpError",
    "Partition",
    "PartitionSpec",
    "ServerOptimizer",
    "TextData",
    "compare",
    "export",
    "export_clients",
    "fedavg",
    "federate",
    "fedopt",
    "fedprox",
    "load_data",
    "load_experiment",
    "make_partition",
    "resume",
    "run",
    "run_round",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fednlp' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
