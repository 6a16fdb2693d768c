"""The shapes of the files of a run directory: their keys and types. Older and newer runs may have further keys."""

from collections.abc import Mapping, Sized
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0, lt=2**63)]
Number = int | float
Scores = dict[str, dict[str, Number | None]]


class Shape(BaseModel):
    """Keys and types that must fit; other keys are allowed."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class TaskFile(Shape):
    """``task.json``."""

    task: str
    fields: dict[str, Any]


class AlgorithmFile(Shape):
    """``algorithm.json``."""

    name: str
    keeps: list[str]
    personal_model: str | None

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if self.personal_model is not None and self.personal_model not in self.keeps:
            raise ValueError("personal_model is none of keeps")
        return self


TrackerRun = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class TrackersFile(Shape):
    """``trackers.json``."""

    wandb: TrackerRun | None = None
    mlflow: TrackerRun | None = None


class DataFacts(Shape):
    """Facts on the data."""

    name: str | None = None
    source: str | None = None
    fingerprint: str | None = None
    content: str | None = None
    not_told: dict[str, int] | None = None
    task: str | None = None
    metric: str | None = None


class Environment(Shape):
    """``environment.json``."""

    data: DataFacts = DataFacts()


class Dropped(Shape):
    """A client that failed."""

    client: int | None = None
    reason: str | None = None


class SecureFacts(Shape):
    """Costs that secure aggregation added to a round."""

    bytes: Number = 0
    seconds: Number = 0


class Spent(Shape):
    """Costs of a round, or of a whole run."""

    bytes_up: Count = 0
    bytes_down: Count = 0
    tensors_up: Count = 0
    tensors_down: Count = 0
    parameters_up: Count = 0
    labelled: Count = 0
    simulated_seconds: Number = 0
    energy_joules: Number = 0
    seconds_training: Number = 0
    seconds_labelling: Number = 0
    seconds_sending: Number = 0
    joules_training: Number = 0
    joules_labelling: Number = 0
    joules_sending: Number = 0
    bytes_labelling: Count = 0
    seconds: Number = 0


class Interval(Shape):
    """Between what a score lies, for other examples of the same kind."""

    metric: str
    low: Number
    high: Number
    examples: Count


class Round(Spent):
    """A line of ``rounds.jsonl``."""

    round: Annotated[int, Field(ge=1)]
    cohort: list[int] = []
    labelling: list[int] = []
    train_loss: Number | None = None
    steps: Count = 0
    examples: Count = 0
    client_metrics: dict[str, Number] = {}
    evaluation: Scores = {}
    interval: Interval | None = None
    dropped: list[Dropped] = []
    secure: SecureFacts = SecureFacts()


class SavedRound(Round):
    """A line of ``rounds.jsonl`` from which a run is resumed."""

    cohort: list[int]


class TrivialBaseline(Shape):
    """The prediction without a model."""

    name: str


class Staleness(Shape):
    """How many flushes late updates were."""

    mean: Number
    largest: Count


class CheckFacts(Shape):
    """What speaks against a run's result."""

    name: str
    sentence: str
    advice: str


class Summary(Spent):
    """``summary.json``."""

    staleness: Staleness | None = None

    finished: bool
    interval: Interval | None = None
    name: str | None = None
    model: str | None = None
    algorithm: str | None = None
    task: str | None = None
    metric: str | None = None
    data: DataFacts | None = None
    clients: Count | None = None
    evaluation: Scores | None = None
    best: dict[str, Number | None] | None = None
    trivial_baseline: TrivialBaseline | None = None
    baseline: TrivialBaseline | None = None
    """What runs of earlier versions called it."""
    reference: str | None = None
    checks: list[CheckFacts] = []


class SpreadFacts(Shape):
    """Quantiles of a distribution."""

    median: Count
    p95: Count
    longest: Count


class OddityFacts(Shape):
    """A peculiarity of the data."""

    kind: str
    said: str
    remedy: str


class DataLook(Shape):
    """``data.json``."""

    columns: dict[str, str] = {}
    dropped: Count = 0
    tokens: SpreadFacts | None = None
    words: dict[str, SpreadFacts] = {}
    scripts: dict[str, Number] = {}
    oddities: list[OddityFacts] = []


class Labels(Shape):
    """``labels.json``: client x label counts."""

    labels: list[str]
    train: list[list[Count]]
    test: list[list[Count]]


class ByLabel(Shape):
    """``by_label.json``: scores by label."""

    labels: Annotated[list[str], Field(min_length=1)]
    precision: list[Number]
    recall: list[Number]
    f1: list[Number]
    support: list[Count]
    confusion: list[list[Count]] | None = None

    @model_validator(mode="after")
    def _of_each_label(self) -> Self:
        found: list[Sized] = [self.precision, self.recall, self.f1, self.support]
        if self.confusion is not None:
            found += [self.confusion, *self.confusion]
        if any(len(one) != len(self.labels) for one in found):
            raise ValueError("there is not one number for each label")
        return self


class MatrixRow(Shape):
    """One model's scores."""

    model: str
    scores: list[Number | None]


class Matrix(Shape):
    """``cross_client_evaluation.json``."""

    metric: str
    tests: list[str]
    rows: list[MatrixRow]


class Profile(Shape):
    """``profile.json``: seconds by part for each worker, the first of which is the process that ran the experiment."""

    workers: list[dict[str, Number]]


class TrialsColumn(Shape):
    """The scores of trials after a round."""

    key: str
    heading: str
    kind: Literal["share", "plain"]


class TrialScores(Shape):
    """The scores of one trial."""

    values: Annotated[list[Number | None], Field(min_length=1)]


class TrialsRow(Shape):
    """One trial; the further keys are those of the columns."""

    trial: str
    baseline: str | None
    seeds: Count
    __pydantic_extra__: dict[str, TrialScores | None]


class Trials(Shape):
    """``tuning.json``: the trials by which the settings of a comparison were chosen."""

    caption: str
    columns: list[TrialsColumn]
    rows: list[TrialsRow]
    notes: list[str]


SHAPES: Mapping[str, type[Shape]] = {
    "task.json": TaskFile,
    "algorithm.json": AlgorithmFile,
    "trackers.json": TrackersFile,
    "environment.json": Environment,
    "data.json": DataLook,
    "by_label.json": ByLabel,
    "summary.json": Summary,
    "labels.json": Labels,
    "profile.json": Profile,
    "cross_client_evaluation.json": Matrix,
    "tuning.json": Trials,
}
"""Shape of each file by its name."""
