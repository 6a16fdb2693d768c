"""The sections of an experiment that say by which method: the algorithm, its parts, clients, server and rounds."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, PlainValidator, field_validator, model_validator

from fednlp.config.sections.base import BASELINES, GIVEN
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS
from fednlp.federated.cohorts import COHORTS
from fednlp.federated.schedules import ScheduleName
from fednlp.formulations import TASKS
from fednlp.option_types import Count, Decay, Fraction, PositiveFloat, PositiveInt
from fednlp.section import IN_ROUNDS, Feature, Section
from fednlp.training.local_training import LocalTraining

ServerName = Literal["sgd", "adagrad", "adam", "yogi"]


class NamedFunction(Section):
    """A section whose ``name`` stands for a function, and whose further keys are options: the function's parameters.

    A name ``"module:function"`` is the user's own function, whose options are in ``options``
    (:mod:`fednlp.registry`).
    """

    model_config = ConfigDict(extra="allow")

    name: str
    options: dict[str, JsonValue] = {}

    @property
    def function_options(self) -> dict[str, Any]:
        """The function's options that are given."""
        return {**(self.model_extra or {}), **self.options}


def _an_order(value: Any) -> Any:
    if value in (None, "exhaustive", "greedy"):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    raise ValueError('give "greedy", "exhaustive", or a list of the names of all clients')


WEIGHED_BY_TOKENS = (
    'algorithm.weighting = "tokens" weighs clients by the tokens of the answers that they learn, and {} has none: say '
    '"examples", or task.name = "chat"'
)


class Algorithm(NamedFunction):
    """The method: see docs/methods. Its options are parameters of its function (:mod:`fednlp.federated.algorithms`).

    ``weighting`` is what a client's weight is: its training examples, the tokens of chats that it learns, or 1.
    ``order`` is of the baseline ``chained``: the names of the clients, or how their order is searched for.
    ``most_examples`` is the most examples that a client's weight counts, whatever number it has or claims.
    ``clients`` is of the baseline ``centralised``: the names of those whose examples it has; all if left out.
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            'algorithm.weighting = "tokens"',
            {"simulation": "needs the number of tokens that each client learns, which no site tells"},
            remedy='say algorithm.weighting = "examples"',
        ),
    )

    name: str = "fedavg"
    weighting: Literal["examples", "tokens", "uniform"] = "examples"
    most_examples: PositiveInt | None = None
    order: Annotated[Literal["exhaustive", "greedy"] | list[str] | None, PlainValidator(_an_order)] = None
    clients: Annotated[list[str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _weights_go_together(self) -> Self:
        if self.most_examples is not None and self.weighting != "examples":
            raise ValueError(
                f'most_examples bounds weights by examples, and weighting = "{self.weighting}" has none: leave one of '
                "them out"
            )
        return self

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield that weights are to be by tokens, and the task has none."""
        task = experiment.task.configured
        if self.weighting == "tokens" and task in TASKS and TASKS[task].schema.kind != "messages":
            yield WEIGHED_BY_TOKENS.format(task)

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        return name if name == GIVEN else ALGORITHMS.check_name(name, BASELINES)


class Aggregator(NamedFunction):
    """How updates become one, in place of the algorithm's own rule (:mod:`fednlp.federated.aggregators`)."""

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature("[aggregator]", {**IN_ROUNDS, "replaceable_rule": "takes the place of the weighted mean"}),
    )

    name: str = "mean"

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        return AGGREGATORS.check_name(name)


class Cohort(NamedFunction):
    """By which rule a round's clients are drawn, in place of the algorithm's own (:mod:`fednlp.federated.cohorts`)."""

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature("[cohort]", {**IN_ROUNDS, "waits": "draws the clients of a round"}),
    )

    name: str = "uniform"

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        return COHORTS.check_name(name)


class Attack(NamedFunction):
    """Which ``fraction`` of all clients send something else than what they trained, and what.

    The attacks: :mod:`fednlp.federated.attacks`.
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "[attack]",
            {**IN_ROUNDS, "simulation": "has clients send false updates, which no site does for a server"},
            {"plain_steps": "has some of them send something else"},
        ),
    )

    fraction: Fraction

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        return ATTACKS.check_name(name)


class Client(LocalTraining, Section):
    """One client's local training, and how it changes over the rounds and after the last.

    ``finetune_steps`` is how many steps each client takes by itself after the last round, for its own tests.
    ``round_schedule``, ``warmup_rounds`` and ``minimum_rate`` change the learning rate over the rounds: they multiply
    it by a factor between ``minimum_rate`` and 1 (:class:`fednlp.federated.schedules.RateSchedule`).
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "client.keep_optimizer",
            {
                "one_training": "keeps the state of one optimiser",
                "one_model": "keeps that of steps on one model",
            },
        ),
        Feature(
            "client.padding_free",
            {"encoder": "computes the layers of an encoder"},
            remedy="leave it out (client.max_tokens_per_batch and client.group_by_length pad little)",
        ),
        *(
            Feature(f"client.{key}", breaks={"plain_steps": "changes how a step is computed"})
            for key in (
                "gradient_accumulation_steps",
                "max_tokens_per_batch",
                "gradient_checkpointing",
                "fp16",
            )
        ),
    )

    finetune_steps: Count = 0
    round_schedule: ScheduleName = "constant"
    warmup_rounds: Count = 0
    minimum_rate: Annotated[float, Field(ge=0, le=1)] = 0.0


class Server(Section):
    """The server optimiser on the pseudo-gradient; what is left out takes the algorithm's default.

    ``round_schedule``, ``warmup_rounds`` and ``minimum_rate`` are as in ``[client]``, for the server's learning rate.
    """

    optimizer: ServerName | None = None
    learning_rate: PositiveFloat | None = None
    momentum: Decay | None = None
    beta1: Decay | None = None
    beta2: Decay | None = None
    tau: PositiveFloat | None = None
    round_schedule: ScheduleName = "constant"
    warmup_rounds: Count = 0
    minimum_rate: Annotated[float, Field(ge=0, le=1)] = 0.0


class Rounds(Section):
    """When a round goes on without a client, and what follows the last one.

    ``wait`` is in seconds, and is for deployments; without it a round waits for as long as it takes. With
    ``over_selection`` a round draws so many times ``clients_per_round``, and the first ``clients_per_round`` of them to
    deliver count; in a simulation they are the fastest by the simulated clock. With ``send_model`` the sites of a
    deployment get the final model after the last round.
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "rounds.over_selection",
            {
                **IN_ROUNDS,
                "clock": "needs the time that each client takes",
                "all_drawn": "draws more clients among all",
                "foreseen": "draws more clients than the round needs",
                "waits": "draws more clients, and waits for the fastest of them",
            },
            {"all_counted": "withdraws updates that arrive late, so that fast clients decide who counts"},
            remedy="say rounds.over_selection = 1.0",
        ),
    )

    wait: PositiveFloat | None = None
    over_selection: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    send_model: bool = True
