"""The federated round. Nothing in this package knows of text, tasks, models or transports."""

from fednlp.federated.algorithm import (
    Algorithm,
    by_examples,
    equally,
    fedavg,
    fedopt,
    fedprox,
    uniform_cohort,
)
from fednlp.federated.params import Layout
from fednlp.federated.round import Reply, RoundReport, Runtime, run_round
from fednlp.federated.server import ServerOptimizer, server_step
from fednlp.federated.state import State
from fednlp.federated.sums import ExactSum
from fednlp.federated.trainer import Federation, Trainer, federate

__all__ = [
    "Algorithm",
    "ExactSum",
    "Federation",
    "Layout",
    "Reply",
    "RoundReport",
    "Runtime",
    "ServerOptimizer",
    "State",
    "Trainer",
    "by_examples",
    "equally",
    "fedavg",
    "federate",
    "fedopt",
    "fedprox",
    "run_round",
    "server_step",
    "uniform_cohort",
]
