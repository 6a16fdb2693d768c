"""The sections of an experiment: their keys, types and defaults.

How they go together: :mod:`fednlp.config.compatibility`.
"""

from fednlp.config.sections.base import BASELINES, GIVEN, SITES, WITHOUT_MODEL, Section, with_options
from fednlp.config.sections.data import Data, DataFiles, Partition
from fednlp.config.sections.exchange import LARGEST_CLIP, Exchange, Privacy, Pull, Secure
from fednlp.config.sections.fewshot import Fewshot
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
    "LARGEST_CLIP",
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
    "Fewshot",
    "Model",
    "NamedFunction",
    "Partition",
    "Privacy",
    "Pull",
    "Report",
    "Rounds",
    "Runtime",
    "Section",
    "Secure",
    "Server",
    "Task",
    "with_options",
]
