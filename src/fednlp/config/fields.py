"""The sections and keys of an experiment, without the checks of how they go together."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args

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
    Model,
    Partition,
    Pull,
    Report,
    Rounds,
    Runtime,
    Server,
    Task,
)
from fednlp.fewshot.config import Fewshot
from fednlp.option_types import PositiveInt
from fednlp.plugins import load
from fednlp.privacy.config import Privacy
from fednlp.section import Section
from fednlp.secure.config import Secure

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

    def sections(self) -> Iterator[tuple[str, Section]]:
        """Yield the sections that there are, each with its name."""
        for name in type(self).model_fields:
            section = getattr(self, name)
            if isinstance(section, Section):
                yield name, section

    def parts(self, place: str) -> list[Any]:
        """Return what the sections bring to a place (:attr:`Section.places`)."""
        return [
            load(section.places[place], place) for _, section in self.sections() if place in section.places
        ]

    @property
    def partly_labelled(self) -> bool:
        """Whether training examples may lack their label."""
        return self.fewshot is not None

    @property
    def pseudo_labels(self) -> bool:
        """Whether clients give texts labels by the model."""
        return self.fewshot is not None and self.fewshot.pacing != "none"


def section_types() -> Iterator[tuple[str, type[Section]]]:
    """Yield every section that an experiment can have, by its name."""
    for name, field in ExperimentFields.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield name, kind
