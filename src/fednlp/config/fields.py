"""The sections and keys of an experiment, without the checks of how they go together."""

from typing import Annotated

from pydantic import Field, JsonValue

from fednlp.config.sections import (
    Aggregator,
    Algorithm,
    Attack,
    Client,
    Cohort,
    Costs,
    Data,
    Evaluation,
    Exchange,
    Fewshot,
    Model,
    Partition,
    Privacy,
    Pull,
    Report,
    Rounds,
    Runtime,
    Section,
    Secure,
    Server,
    Task,
)
from fednlp.option_types import PositiveInt

VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$", max_length=40)]


class ExperimentFields(Section):
    """The sections and keys of an experiment.

    ``variants`` are settings laid over these under a name, for ``fednlp compare``; ``variant`` is the name of
    the one that a run was made with.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)] = "experiment"
    seed: int = 0
    num_rounds: PositiveInt = 10
    clients_per_round: PositiveInt = 10
    min_clients: PositiveInt = 1
    data: Data
    partition: Partition = Partition()
    task: Task = Task()
    model: Model = Model()
    algorithm: Algorithm = Algorithm()
    aggregator: Aggregator | None = None
    attack: Attack | None = None
    cohort: Cohort | None = None
    client: Client = Client()
    server: Server = Server()
    exchange: Exchange = Exchange()
    pull: Pull = Pull()
    secure: Secure = Secure()
    privacy: Privacy | None = None
    fewshot: Fewshot | None = None
    costs: Costs = Costs()
    runtime: Runtime = Runtime()
    rounds: Rounds = Rounds()
    evaluation: Evaluation = Evaluation()
    report: Report = Report()
    variant: str | None = None
    variants: Annotated[dict[VariantName, dict[str, JsonValue]], Field(default_factory=dict)]
