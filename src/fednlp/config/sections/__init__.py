"""The sections of an experiment: their keys, types and defaults.

How they go together: :mod:`fednlp.config.compatibility`.
"""

from fednlp.config.sections.base import BASELINES, GIVEN, SITES, WITHOUT_MODEL, with_options
from fednlp.config.sections.data import Data, DataFiles, Partition
from fednlp.config.sections.exchange import Exchange, Pull
from fednlp.config.sections.methods import (
    Aggregator,
    Algorithm,
    Attack,
    Client,
    Cohort,
    NamedFunction,
    Rounds,
    Server,
)
from fednlp.config.sections.running import Costs, Evaluation, Report, Runtime
from fednlp.config.sections.task import Model, Task

__all__ = [
    "BASELINES",
    "GIVEN",
    "SITES",
    "WITHOUT_MODEL",
    "Aggregator",
    "Algorithm",
    "Attack",
    "Client",
    "Cohort",
    "Costs",
    "Data",
    "DataFiles",
    "Evaluation",
    "Exchange",
    "Model",
    "NamedFunction",
    "Partition",
    "Pull",
    "Report",
    "Rounds",
    "Runtime",
    "Server",
    "Task",
    "with_options",
]
