"""The sections of an experiment: their keys, types and defaults (how they go together: :mod:`.cross_checks`)."""

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fednlp.errors import PartitionError
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS
from fednlp.federated.schedules import ScheduleName
from fednlp.formulations import TASKS, option_types
from fednlp.option_types import Count, Decay, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from fednlp.partition.make import PartitionSpec, method_named
from fednlp.partition.methods import METHODS
from fednlp.plugins import is_own
from fednlp.runtime import ENGINES
from fednlp.training.local_training import LocalTraining

ServerName = Literal["sgd", "adagrad", "adam", "yogi"]
VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$", max_length=40)]
Tracker = Literal["none", "tensorboard", "wandb", "mlflow"]

BASELINES = ("centralised", "chained", "local")
"""What federated algorithms are compared with; no algorithms themselves."""
SITES = "sites"
"""The name of data that are at the sites of a deployment."""
GIVEN = "given-in-python"
"""The name of an algorithm that is given as a value, in Python."""
LARGEST_CLIP = 1024.0
"""Of an element of an update in a secure sum."""


class Section(BaseModel):
    """Strict and frozen, without other keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), validate_default=True
    )


S = TypeVar("S", bound=Section)


def with_options(types: Mapping[str, Any]) -> Callable[[type[S]], type[S]]:
    """Return a decorator that gives a section a key for each option; one that is left out is None.

    Args:
        types: The type of each option. A key that the section has already stays as it is.
    """

    def decorate(section: type[S]) -> type[S]:
        keys: dict[str, Any] = {
            name: (kind | None, None) for name, kind in types.items() if name not in section.model_fields
        }
        return create_model(
            section.__name__, __base__=section, __doc__=section.__doc__, __module__=section.__module__, **keys
        )

    return decorate


def _one_or_several(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    raise ValueError('give a file, a folder, a pattern such as "silos/*.csv", or a list of these')


class DataFiles(Section):
    """Files of examples, and how they are read: the arguments of :func:`fednlp.data.load_data`.

    ``path`` names silos, each the examples of one client, where it is a list, a pattern, or a folder of files or of
    folders that are a data set each.
    """

    path: Annotated[str | list[str] | None, PlainValidator(_one_or_several)] = None
    text: str = "text"
    label: str = "label"
    columns: dict[str, str] = {}
    test_path: str | None = None
    test_fraction: Fraction = 0.2
    delimiter: str | None = None
    on_invalid_row: Literal["refuse", "drop"] = "refuse"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of :func:`fednlp.data.load_data` that say which files these are."""
        return self.model_dump(include=set(DataFiles.model_fields))


class Data(DataFiles):
    """Where the examples come from: a known data set by ``name``, files by ``path``, or both.

    ``name = "sites"`` is for a deployment: the examples are at the sites, and the server knows the ``labels`` and a
    test set at most. For a search for a pace it also has labelled texts of its own, ``validation_path``.
    """

    name: str | None = None
    labels: Annotated[list[str] | None, Field(min_length=2)] = None
    validation_path: str | None = None

    @property
    def at_sites(self) -> bool:
        """Whether the examples are at the sites of a deployment."""
        return self.name == SITES

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.labels is not None and not self.at_sites:
            raise ValueError('labels are for name = "sites": other data bring theirs; leave labels out')
        if self.labels is not None and len({*self.labels}) < len(self.labels):
            raise ValueError("labels: each is to be named once")
        if self.validation_path is not None and not self.at_sites:
            raise ValueError(
                'validation_path is for name = "sites": say fewshot.validation, and leave it out'
            )
        if self.at_sites and self.path is not None:
            raise ValueError('name = "sites" has no path: each site names its own files')
        if self.name is None and self.path is None:
            raise ValueError('say name = "20news" (a known data set) or path = "my.csv" (your own file)')
        return self


@with_options(METHODS.option_types())
class Partition(Section):
    """How the examples are shared out over the clients.

    ``"auto"`` is ``"silos"`` where ``data.path`` names silos, and otherwise ``"uniform"``. The further keys are the
    options of all methods: the parameters of their functions (:mod:`fednlp.partition.methods`).
    """

    method: str = "auto"
    clients: PositiveInt | None = None
    seed: int | None = None
    options: dict[str, JsonValue] = {}

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str) -> str:
        try:
            return method if method == "auto" else method_named(method)
        except PartitionError as error:
            raise ValueError(str(error)) from None

    @field_validator("options")
    @classmethod
    def _keys_stay(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key in ("method", "seed"):
            if key in options:
                raise ValueError(f"{key} is no option of a partitioner: say partition.{key}")
        return options

    def given(self) -> dict[str, Any]:
        """Return the options that are set, without the method and the seed."""
        named = self.model_dump(exclude_none=True, exclude={"method", "seed", "options"})
        return named | dict(self.options)

    def spec(self) -> PartitionSpec:
        """Return what the partition is made of."""
        return PartitionSpec(self.method, seed=self.seed, **self.given())


@with_options(option_types())
class Task(Section):
    """What is learnt: a formulation by ``name``, inferred from the data if left out, and its options.

    The further keys are the options of all tasks (:mod:`fednlp.formulations`).
    """

    name: str | None = None
    options: dict[str, JsonValue] = {}

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str | None) -> str | None:
        if name is None or name in TASKS or ":" in name:
            return name
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f'there is no task "{name}": {hint}known are {", ".join(TASKS)}')

    @property
    def configured(self) -> str | None:
        """The task that is named, or prompt classification where only a prompt is; None for the data set's own."""
        return self.name or ("prompt-classification" if self.given().get("prompt") else None)

    def given(self) -> dict[str, Any]:
        """Return the options that are set, without the name."""
        named = self.model_dump(exclude_none=True, exclude={"name", "options"})
        return named | dict(self.options)


class Model(Section):
    """The starting point: a name known here, a folder, or a hub name; ``config`` overrides its settings.

    ``peft`` puts adapters on it; ``vocabulary_size`` and ``vocabulary`` (of source and target) are for
    models that are built over the texts at hand;
    ``train`` says which parameters are shared, personal or frozen (:mod:`fednlp.models.selection`).
    """

    name_or_path: str = "bert-tiny"
    max_length: Annotated[int, Field(ge=4)] = 128
    config: dict[str, JsonValue] = {}
    vocabulary_size: Annotated[int, Field(ge=300)] | None = None
    vocabulary: Literal["shared", "separate"] = "shared"
    peft: dict[str, JsonValue] | None = None
    train: JsonValue = "all"


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


class Algorithm(NamedFunction):
    """The method: see docs/methods. Its options are parameters of its function (:mod:`fednlp.federated.algorithms`)."""

    name: str = "fedavg"
    weighting: Literal["examples", "uniform"] = "examples"

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        return name if name == GIVEN else ALGORITHMS.check_name(name, BASELINES)


class Aggregator(NamedFunction):
    """How updates become one, in place of the algorithm's own rule (:mod:`fednlp.federated.aggregators`)."""

    name: str = "mean"

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        return AGGREGATORS.check_name(name)


class Attack(NamedFunction):
    """Which ``fraction`` of all clients send something else than what they trained, and what.

    The attacks: :mod:`fednlp.federated.attacks`.
    """

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


class Exchange(Section):
    """What is done to tensors on their way to the server (``up``) and from it (``down``), in this order.

    With ``error_feedback`` a client adds what the way up lost of an update to its next one.
    """

    up: list[str] = []
    down: list[str] = []
    error_feedback: bool = False

    @field_validator("up", "down", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class Pull(Section):
    """Which of the shared tensors a client sends in a round, by how far they moved since its last one."""

    rule: Literal["all", "low", "high", "random"] = "all"
    share: Fraction = 0.5
    of: Literal["tensors", "parameters"] = "tensors"
    push: Literal["all", "selected"] = "all"


class Secure(Section):
    """Secure aggregation: the server learns the sum of the clients' weighted updates, and no one's.

    ``dropout`` and ``max_colluding`` are the largest fractions of a cohort that may drop out, or collude with the
    server; the protocol's thresholds follow from them. An update's elements are cut at ``clip`` and rounded to
    ``bits`` bits. ``malicious_server`` is for a server that may lie: clients sign what they were shown.
    ``simulated_dropout`` makes each client drop out with that probability, in a phase drawn at random. With
    ``sum_reports`` the training loss, the examples seen and the local steps of each client are summed with its update.
    """

    protocol: Literal["none", "secagg", "secagg+", "lightsecagg"] = "none"
    dropout: Decay = 0.1
    max_colluding: Decay = 0.1
    clip: Annotated[float, Field(gt=0, le=LARGEST_CLIP)] = 1.0
    bits: Annotated[int, Field(ge=2, le=31)] | None = None
    stochastic: bool = False
    malicious_server: bool = False
    simulated_dropout: Decay = 0.0
    sum_reports: bool = False


class Privacy(Section):
    """Differential privacy of clients: the norm that an update is cut to, and noise on the sum.

    ``noise`` is the standard deviation of the sum's noise over ``clip``; or say which ``epsilon`` the whole run may
    cost at ``delta``, and the noise follows. With secure aggregation the clients add the noise, and ``epsilon`` is
    against the server, which knows the cohorts; else the server adds it, against whoever sees the models.
    """

    clip: PositiveFloat
    noise: NonNegativeFloat | None = None
    epsilon: PositiveFloat | None = None
    delta: Fraction = 1e-5
    sampling: Literal["fixed", "poisson"] = "fixed"

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError("say either noise = 1.0 (over clip) or epsilon = 8.0 (of the whole run)")
        return self


class Fewshot(Section):
    """Few labels: ``gold`` of them in the whole federation, everything else unlabelled.

    ``gamma`` says how evenly they lie on the clients: small puts them on few. With ``pacing``, clients give their
    texts pseudo labels: a fixed number of them (``static``), ever more of them (``curriculum``), or at a pace that
    is searched for while the run goes on (``search``). ``f``, ``n`` and ``k`` are the pace: every f rounds n
    clients label, and k percent more of their texts each time; the surest of all, or of each label with
    ``class_balanced``. A search tries the paces of ``pace_grid``, and is repeated ``max_searches`` times at most.
    ``filter_ratio`` is the share of each client's texts that representational filtering leaves to be labelled.
    ``noisy_client_fraction`` of the clients with gold labels have wrong ones; ``detect_label_noise`` takes the gold
    labels of suspected clients for unlabelled.
    """

    gold: Count = 64
    gamma: PositiveFloat = 1.0
    pacing: Literal["none", "static", "curriculum", "search"] = "curriculum"
    f: PositiveInt = 5
    n: PositiveInt = 2
    k: Annotated[float, Field(gt=0, le=100)] = 1.0
    per_client: PositiveInt = 100
    class_balanced: bool = False
    pace_grid: Literal["laptop", "paper"] = "laptop"
    validation: PositiveInt = 128
    trial_rounds: Annotated[int, Field(ge=2)] = 2
    candidates: PositiveInt = 8
    threshold: float = 0.0
    window: PositiveInt = 5
    max_searches: Count = 2
    filter_ratio: Fraction | None = None
    neighbours: PositiveInt | None = None
    rho: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10.0
    noisy_client_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    detect_label_noise: bool = False


def _one_or_mixed(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and value and all(type(name) is str for name in value):
        shares = [1.0 if type(share) is int and share == 1 else share for share in value.values()]
        if all(type(share) is float for share in shares):
            return dict(zip(value, shares, strict=True))
    wanted = 'give a profile, or a mix with its shares: { "jetson-tx2" = 0.5, "raspberry-pi-4b" = 0.5 }'
    raise PydanticCustomError("device_type", wanted)


class Costs(Section):
    """What time and bytes are priced with: bandwidths in MB/s (10^6 bytes), and a device's profile.

    ``device`` is one profile for all clients, or a mix: shares of the clients by profile.
    """

    bandwidth_up: PositiveFloat | None = None
    bandwidth_down: PositiveFloat | None = None
    device: Annotated[str | dict[str, float] | None, PlainValidator(_one_or_mixed)] = None


class Runtime(Section):
    """Where the work is done. ``engine``, ``address`` and ``workers`` change the speed, never the result.

    ``address`` is that of a cluster of Ray. ``workers_per_gpu`` and ``gpu_mapping``, a file, lay the workers over GPUs.
    ``cache_activations`` keeps what frozen bottom layers make of each text on disk, in place of running them again.
    """

    engine: str = "pool"
    address: str | None = None
    workers: Count = 0
    threads: PositiveInt = 1
    device: str = "auto"
    workers_per_gpu: PositiveInt = 1
    gpu_mapping: str | None = None
    cache_activations: bool = True

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        if name in ENGINES or is_own(name):
            return name
        raise ValueError(
            f'there is no engine "{name}": known are {", ".join(ENGINES)}, or "module:Class" of your own'
        )


class Rounds(Section):
    """When a round goes on without a client.

    ``wait`` is in seconds, and is for deployments; without it a round waits for as long as it takes. With
    ``over_selection`` a round draws so many times ``clients_per_round``, and the first ``clients_per_round`` of them to
    deliver count; in a simulation they are the fastest by the simulated clock.
    """

    wait: PositiveFloat | None = None
    over_selection: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0


class Evaluation(Section):
    """When the model is tried on test examples: every so many rounds, and always at the end.

    With ``federated`` the clients evaluate the global model on their own test examples, and its metrics are made of
    sums over all clients. With ``cross_client_evaluation`` the clients' own models are tried at the end on every
    client's test examples. The models after ``client.finetune_steps`` are kept where there are at most
    ``keep_client_models`` clients. With ``bf16_full_eval`` predictions are made in bfloat16.
    """

    every: PositiveInt = 1
    personal: bool = True
    federated: bool = False
    batch_size: PositiveInt = 64
    bf16_full_eval: bool | Literal["auto"] = False
    local_models: PositiveInt = 10
    cross_client_evaluation: bool = False
    keep_client_models: Count = 100


class Report(Section):
    """Where the numbers go beside the run directory."""

    report_to: list[Tracker] = []

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        return [name for name in names if name != "none"] if isinstance(names, list) else value
