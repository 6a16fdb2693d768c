"""Federated learning of language models: simulate it, compare methods, and run it.

    import fednlp

    run = fednlp.run("experiments/quickstart.toml", "runs/first")

The public names are loaded when they are first used, so that ``import fednlp`` costs nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednlp.config import Experiment
    from fednlp.config import load as load_experiment
    from fednlp.data import TextData, load_data
    from fednlp.errors import FednlpError
    from fednlp.federated.algorithm import Algorithm
    from fednlp.federated.algorithms.fedavg import fedavg
    from fednlp.federated.algorithms.fedopt import fedopt
    from fednlp.federated.algorithms.fedprox import fedprox
    from fednlp.federated.client import Local, Result
    from fednlp.federated.cohort import Cohort, Population, Selection
    from fednlp.federated.round import run_round
    from fednlp.federated.server import ServerOptimizer
    from fednlp.federated.trainer import federate
    from fednlp.inference.export import export, export_clients
    from fednlp.inference.predict import predict_texts as predict
    from fednlp.inference.score import evaluate_run as evaluate
    from fednlp.partition import Partition, PartitionSpec, make_partition
    from fednlp.reports import write_report as report
    from fednlp.simulation.run import resume, run
    from fednlp.studies.compare import compare
    from fednlp.studies.hyperparameters import tune

_HOMES = {
    "Algorithm": ("fednlp.federated.algorithm", "Algorithm"),
    "Cohort": ("fednlp.federated.cohort", "Cohort"),
    "Selection": ("fednlp.federated.cohort", "Selection"),
    "Experiment": ("fednlp.config", "Experiment"),
    "FednlpError": ("fednlp.errors", "FednlpError"),
    "Local": ("fednlp.federated.client", "Local"),
    "Partition": ("fednlp.partition", "Partition"),
    "PartitionSpec": ("fednlp.partition", "PartitionSpec"),
    "Population": ("fednlp.federated.cohort", "Population"),
    "Result": ("fednlp.federated.client", "Result"),
    "ServerOptimizer": ("fednlp.federated.server", "ServerOptimizer"),
    "TextData": ("fednlp.data", "TextData"),
    "compare": ("fednlp.studies.compare", "compare"),
    "evaluate": ("fednlp.inference.score", "evaluate_run"),
    "export": ("fednlp.inference.export", "export"),
    "export_clients": ("fednlp.inference.export", "export_clients"),
    "fedavg": ("fednlp.federated.algorithms.fedavg", "fedavg"),
    "federate": ("fednlp.federated.trainer", "federate"),
    "fedopt": ("fednlp.federated.algorithms.fedopt", "fedopt"),
    "fedprox": ("fednlp.federated.algorithms.fedprox", "fedprox"),
    "load_data": ("fednlp.data", "load_data"),
    "load_experiment": ("fednlp.config", "load"),
    "make_partition": ("fednlp.partition", "make_partition"),
    "predict": ("fednlp.inference.predict", "predict_texts"),
    "report": ("fednlp.reports", "write_report"),
    "resume": ("fednlp.simulation.run", "resume"),
    "run": ("fednlp.simulation.run", "run"),
    "run_round": ("fednlp.federated.round", "run_round"),
    "tune": ("fednlp.studies.hyperparameters", "tune"),
}

_USED_BY_COMMANDS = (
    "compare",
    "evaluate",
    "export",
    "export_clients",
    "predict",
    "report",
    "resume",
    "run",
    "tune",
)
"""Functions that commands call too: their errors and messages advise in the words of the command line."""
_METHODS = "fednlp.federated.algorithms"
"""Every method of this package is a name here too: ``fednlp.scaffold``."""
_OF_FEDOPT = ("fedadagrad", "fedadam", "fedavgm", "fedyogi")
"""Methods that share FedOpt's file; the others have one of their own."""

__version__ = "0.2.0"
__all__ = [
    "Algorithm",
    "Cohort",
    "Experiment",
    "FednlpError",
    "Local",
    "Partition",
    "PartitionSpec",
    "Population",
    "Result",
    "Selection",
    "ServerOptimizer",
    "TextData",
    "compare",
    "evaluate",
    "export",
    "export_clients",
    "fedavg",
    "federate",
    "fedopt",
    "fedprox",
    "load_data",
    "load_experiment",
    "make_partition",
    "predict",
    "report",
    "resume",
    "run",
    "run_round",
    "tune",
]


def __getattr__(name: str) -> Any:
    file = "fedopt" if name in _OF_FEDOPT else name
    module, attribute = _HOMES.get(name, (f"{_METHODS}.{file}", name))
    if name not in _HOMES and (name.startswith("_") or find_spec(module) is None):
        raise AttributeError(f"module 'fednlp' has no attribute '{name}'")
    value = getattr(import_module(module), attribute)
    if name in _USED_BY_COMMANDS:
        from fednlp.python_words import advising_in_python

        value = advising_in_python(
            value, lambda: import_module("fednlp.simulation.callback").default_callback()
        )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
