"""A typed experiment: its sections and keys, their defaults, and what goes together."""

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from fednlp.config.chain import check_exchange
from fednlp.config.mistakes import report
from fednlp.costs.devices import load_profile, profile_names
from fednlp.disk import expanded
from fednlp.errors import ConfigError, ModelError, PartitionError
from fednlp.partition.make import check_options, method_named
from fednlp.tasks.names import TASKS

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

AlgorithmName = Literal[
    "fedavg", "fedprox", "fedopt", "fedadagrad", "fedadam", "fedyogi", "centralised", "chained", "local"
]
ServerName = Literal["sgd", "adagrad", "adam", "yogi"]
ClientOptimizer = Literal["sgd", "adam", "adamw", "adagrad"]
Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"]
VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]*$", max_length=40)]
Tracker = Literal["none", "tensorboard", "wandb", "mlflow"]

REFERENCES = ("centralised", "chained", "local")
_ADAPTIVE: dict[str, ServerName] = {"fedadagrad": "adagrad", "fedadam": "adam", "fedyogi": "yogi"}


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), validate_default=True
    )


class Data(_Section):
    """Where the examples come from: a known data set by ``name``, files by ``path``, or both."""

    name: str | None = None
    path: str | None = None
    text: str = "text"
    label: str = "label"
    columns: dict[str, str] = {}
    test_path: str | None = None
    test_fraction: Fraction = 0.2
    invalid: Literal["refuse", "drop"] = "refuse"

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.name is None and self.path is None:
            raise ValueError('say name = "20news" (a known data set) or path = "my.csv" (your own file)')
        return self


class Partition(_Section):
    """How the examples are shared out over the clients."""

    method: str = "uniform"
    clients: PositiveInt | None = None
    alpha: PositiveFloat | None = None
    beta: PositiveFloat | None = None
    field: str | None = None
    seed: int | None = None
    proportions: str | None = None
    clusters: PositiveInt | None = None
    encoder: str | None = None
    file: str | None = None
    part: str | None = None

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str) -> str:
        try:
            return method_named(method)
        except PartitionError as error:
            raise ValueError(str(error)) from None


class Task(_Section):
    """What is learnt: a formulation by ``name``, inferred from the data if left out, and its options."""

    name: str | None = None
    label_smoothing_factor: Decay | None = None
    scheme: Literal["default", "strict"] | None = None
    doc_stride: Annotated[int, Field(ge=0)] | None = None
    max_answer_length: PositiveInt | None = None
    max_target_length: PositiveInt | None = None
    num_beams: PositiveInt | None = None
    source_prefix: str | None = None
    template: str | None = None
    scorer: Literal["rouge", "bleu"] | None = None
    mlm_probability: Fraction | None = None
    pattern: str | None = None
    verbalizer: dict[str, str] | None = None
    options: dict[str, JsonValue] = {}

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str | None) -> str | None:
        if name is None or name in TASKS or ":" in name:
            return name
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f'there is no task "{name}": {hint}known are {", ".join(TASKS)}')

    def given(self) -> dict[str, Any]:
        """Return the options that are said, without the name."""
        named = self.model_dump(exclude_none=True, exclude={"name", "options"})
        return named | dict(self.options)


class Model(_Section):
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


class Algorithm(_Section):
    """What is federated learning here: see docs/methods."""

    name: AlgorithmName = "fedavg"
    mu: NonNegativeFloat | None = None
    weighting: Literal["examples", "uniform"] = "examples"


class Client(_Section):
    """One client's local training; names as Hugging Face's ``TrainingArguments``.

    With ``keep_optimizer`` the optimiser's memory stays with the client from one of its rounds to the next.
    ``final_steps`` is how many steps each client takes by itself after the last round, for its own tests.
    """

    optimizer: ClientOptimizer = "adamw"
    learning_rate: PositiveFloat = 5e-5
    momentum: Decay = 0.0
    num_train_epochs: PositiveInt = 1
    max_steps: Annotated[int, Field(ge=-1)] = -1
    per_device_train_batch_size: PositiveInt = 8
    weight_decay: NonNegativeFloat = 0.0
    lr_scheduler_type: Schedule = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] | Fraction = 0
    max_grad_norm: NonNegativeFloat = 0.0
    group_by_length: bool = True
    keep_optimizer: bool = False
    final_steps: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f'momentum belongs to optimizer = "sgd"; {self.optimizer} has none: leave it out'
            )
        if self.warmup_steps and self.lr_scheduler_type == "constant":
            raise ValueError('warmup_steps needs a schedule: say lr_scheduler_type = "constant_with_warmup"')
        if self.max_steps == 0:
            raise ValueError("max_steps = 0 would train nothing; give a number of steps, or -1 for epochs")
        return self


class Server(_Section):
    """The server optimiser on the pseudo-gradient; what is left out takes the algorithm's default."""

    optimizer: ServerName | None = None
    learning_rate: PositiveFloat | None = None
    momentum: Decay | None = None
    beta1: Decay | None = None
    beta2: Decay | None = None
    tau: PositiveFloat | None = None


class Exchange(_Section):
    """What is done to tensors on their way to the server (``up``) and from it (``down``), in this order.

    With ``error_feedback`` a client adds what the way up lost of an update to its next one.
    """

    up: list[str] = []
    down: list[str] = []
    error_feedback: bool = False


class Pull(_Section):
    """Which of the shared tensors a client sends in a round, by how far they moved since its last one."""

    rule: Literal["all", "low", "high", "random"] = "all"
    share: Fraction = 0.5
    of: Literal["tensors", "parameters"] = "tensors"
    push: Literal["all", "selected"] = "all"


class Costs(_Section):
    """What time and bytes are priced with: bandwidths in MB/s (10^6 bytes), and a device's profile."""

    bandwidth_up: PositiveFloat | None = None
    bandwidth_down: PositiveFloat | None = None
    device: str | None = None


class Runtime(_Section):
    """Where the work is done. ``workers`` changes the speed, never the result.

    ``remember`` keeps what frozen bottom layers make of each text on disk, in place of running them again.
    """

    workers: Annotated[int, Field(ge=0)] = 0
    threads: PositiveInt = 1
    device: str = "auto"
    remember: bool = True


class Evaluation(_Section):
    """When the model is tried on test examples: every so many rounds, and always at the end.

    With ``matrix`` the clients' own models are tried at the end on every client's test examples.
    """

    every: PositiveInt = 1
    personal: bool = True
    batch_size: PositiveInt = 64
    local_models: PositiveInt = 10
    matrix: bool = False


class Report(_Section):
    """Where the numbers go beside the run directory."""

    report_to: list[Tracker] = []

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        return [name for name in names if name != "none"] if isinstance(names, list) else value


class Experiment(_Section):
    """Everything a run depends on; a run is a function of this and nothing else.

    ``variants`` are settings laid over these under a name, for ``fednlp compare``; ``variant`` is the name of
    the one that a run was made with.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)] = "experiment"
    seed: int = 0
    num_rounds: PositiveInt = 10
    clients_per_round: PositiveInt = 10
    min_clients: PositiveInt = 1
    data: Data
    partition: Partition = Partition(clients=10)
    task: Task = Task()
    model: Model = Model()
    algorithm: Algorithm = Algorithm()
    client: Client = Client()
    server: Server = Server()
    exchange: Exchange = Exchange()
    pull: Pull = Pull()
    costs: Costs = Costs()
    runtime: Runtime = Runtime()
    evaluation: Evaluation = Evaluation()
    report: Report = Report()
    variant: str | None = None
    variants: dict[VariantName, dict[str, JsonValue]] = {}

    def resolved(self) -> "Experiment":
        """Return the experiment with every default of its algorithm written out, and paths made absolute.

        Raises:
            ConfigError: The parts cannot work together; the message says which and what to do.
        """
        problems = [
            *_partition_problems(self),
            *_algorithm_problems(self),
            *_cohort_problems(self),
            *_exchange_problems(self),
            *_selection_problems(self),
            *_costs_problems(self),
        ]
        if problems:
            raise ConfigError(report(self.name, problems))
        mu = self.algorithm.mu
        if mu is None:
            mu = 0.01 if self.algorithm.name == "fedprox" else 0.0
        seed = self.seed if self.partition.seed is None else self.partition.seed
        partition = {"seed": seed, **_anchored(self.partition, "proportions", "file")}
        return self.model_copy(
            update={
                "variants": {},
                "algorithm": self.algorithm.model_copy(update={"mu": mu}),
                "server": _server_defaults(self.algorithm.name, self.server),
                "partition": self.partition.model_copy(update=partition),
                "data": self.data.model_copy(update=_anchored(self.data, "path", "test_path")),
                "model": self.model.model_copy(update=_anchored_model(self.model)),
                "costs": self.costs.model_copy(update=_anchored_device(self.costs)),
            }
        )


def _anchored(section: BaseModel, *keys: str) -> dict[str, str]:
    """Return the paths of a section that exist, made absolute: a run may be resumed from another folder."""
    given = {key: getattr(section, key) for key in keys}
    paths = {key: expanded(value) for key, value in given.items() if value is not None}
    return {key: str(path.absolute()) for key, path in paths.items() if path.exists()}


def _anchored_model(model: Model) -> dict[str, str]:
    """Return the model's folder made absolute; a known name stays one, whatever lies in the working folder."""
    from fednlp.models.known import ALL_NAMES

    return {} if model.name_or_path in ALL_NAMES else _anchored(model, "name_or_path")


def _anchored_device(costs: Costs) -> dict[str, str]:
    return {} if costs.device in profile_names() else _anchored(costs, "device")


def _server_defaults(algorithm: str, server: Server) -> Server:
    """Fill in what the algorithm stands for (Reddi et al. 2021 for the adaptive ones)."""
    name = server.optimizer or _ADAPTIVE.get(algorithm, "sgd")
    defaults: dict[str, float | str] = {"optimizer": name}
    if name == "sgd":
        defaults |= {"learning_rate": 1.0, "momentum": 0.9 if algorithm == "fedopt" else 0.0}
    else:
        defaults |= {"learning_rate": 0.01, "beta1": 0.0 if name == "adagrad" else 0.9, "tau": 1e-3}
        if name != "adagrad":
            defaults["beta2"] = 0.99
    return Server(**{**defaults, **server.model_dump(exclude_none=True)})


def _partition_problems(experiment: Experiment) -> list[str]:
    try:
        check_options(experiment.partition)
    except PartitionError as error:
        return [f"[partition] {error}"]
    return []


def _algorithm_problems(experiment: Experiment) -> list[str]:
    algorithm, server = experiment.algorithm, experiment.server
    problems = []
    given = server.model_dump(exclude_none=True)
    plain = {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0}
    has_server_step = algorithm.name in {"fedopt", *_ADAPTIVE}
    if not has_server_step and any(plain.get(key) != value for key, value in given.items()):
        problems.append(
            f"[server] has no part in {algorithm.name} ({', '.join(given)} given): leave it out, or say "
            'algorithm.name = "fedopt"'
        )
    if algorithm.mu and algorithm.name in {"fedavg", *REFERENCES}:
        problems.append(
            f'algorithm.mu = {algorithm.mu} has no part in {algorithm.name}: say algorithm.name = "fedprox"'
        )
    implied = _ADAPTIVE.get(algorithm.name)
    if implied and server.optimizer not in {None, implied}:
        problems.append(
            f'{algorithm.name} means server.optimizer = "{implied}", not "{server.optimizer}": '
            'say algorithm.name = "fedopt" to choose freely'
        )
    if has_server_step:
        name = server.optimizer or implied or "sgd"
        useful = {"sgd": {"momentum"}, "adagrad": {"beta1", "tau"}}.get(name, {"beta1", "beta2", "tau"})
        problems += [
            f"server.{key} has no part in the server optimiser {name}: leave it out"
            for key in given
            if key not in useful | {"optimizer", "learning_rate"}
        ]
    return problems


def _cohort_problems(experiment: Experiment) -> list[str]:
    clients, cohort = experiment.partition.clients, experiment.clients_per_round
    problems = []
    if clients is not None and cohort > clients and experiment.algorithm.name not in REFERENCES:
        problems.append(
            f"clients_per_round = {cohort} is more than partition.clients = {clients}: lower the first"
        )
    if experiment.min_clients > cohort:
        problems.append(
            f"min_clients = {experiment.min_clients} is more than clients_per_round = {cohort}: lower it"
        )
    return problems


def _exchange_problems(experiment: Experiment) -> list[str]:
    exchange, pull, name = experiment.exchange, experiment.pull, experiment.algorithm.name
    problems = []
    for section, given in (("exchange", exchange != Exchange()), ("pull", pull != Pull())):
        if given and name in REFERENCES:
            problems.append(f"[{section}] has no part in {name}, where nothing is exchanged: leave it out")
    if pull.rule == "all" and pull != Pull():
        problems.append(
            '[pull] share, of and push speak of tensors that are chosen: say pull.rule = "low", "high" or "random"'
        )
    try:
        check_exchange(exchange.up, exchange.down, exchange.error_feedback)
    except ConfigError as error:
        problems.append(str(error))
    return problems


def _costs_problems(experiment: Experiment) -> list[str]:
    try:
        if experiment.costs.device is not None:
            load_profile(experiment.costs.device)
    except ConfigError as error:
        return [f"costs.device: {error}"]
    return []


def _selection_problems(experiment: Experiment) -> list[str]:
    from fednlp.models.peft_options import averaging_of, check_peft
    from fednlp.models.terms import parse_train

    model, problems = experiment.model, []
    try:
        parse_train(model.train)
    except ConfigError as error:
        problems.append(f"model.train: {error}")
    try:
        if model.peft is not None:
            check_peft(model.peft)
            if averaging_of(model.peft) == "exact" and experiment.pull.rule != "all":
                problems.append(
                    '[model.peft] averaging = "exact" needs all adapters of all clients: leave [pull] out'
                )
    except ModelError as error:
        problems.append(str(error))
    return problems
