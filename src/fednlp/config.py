"""A typed experiment, from and to TOML: unknown keys get their nearest match, all mistakes come at once."""

import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fednlp.errors import ConfigError, PartitionError
from fednlp.partition.make import check_options, method_named
from fednlp.partition.methods import METHODS

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

AlgorithmName = Literal[
    "fedavg", "fedprox", "fedopt", "fedadagrad", "fedadam", "fedyogi", "centralised", "local"
]
ServerName = Literal["sgd", "adagrad", "adam", "yogi"]
ClientOptimizer = Literal["sgd", "adam", "adamw", "adagrad"]
Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"]
Tracker = Literal["none", "tensorboard", "wandb", "mlflow"]

_ADAPTIVE: dict[str, ServerName] = {"fedadagrad": "adagrad", "fedadam": "adam", "fedyogi": "yogi"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), validate_default=True)


class Data(_Section):
    """Where the examples come from: a known data set by ``name``, files by ``path``, or both."""

    name: str | None = None
    path: str | None = None
    text: str = "text"
    label: str = "label"
    test_path: str | None = None
    test_fraction: Fraction = 0.2

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

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str) -> str:
        try:
            return method_named(method)
        except PartitionError as error:
            raise ValueError(str(error)) from None


class Model(_Section):
    """The starting point: a name known here, a folder, or a hub name; ``config`` overrides its settings."""

    name_or_path: str = "bert-tiny"
    max_length: Annotated[int, Field(ge=4)] = 128
    config: dict[str, bool | int | float | str] = {}


class Algorithm(_Section):
    """What is federated learning here: see docs/methods."""

    name: AlgorithmName = "fedavg"
    mu: NonNegativeFloat | None = None
    weighting: Literal["examples", "uniform"] = "examples"


class Client(_Section):
    """One client's local training; names as Hugging Face's ``TrainingArguments``."""

    optimizer: ClientOptimizer = "adamw"
    learning_rate: PositiveFloat = 5e-5
    momentum: Decay = 0.0
    num_train_epochs: PositiveInt = 1
    max_steps: Annotated[int, Field(ge=-1)] = -1
    per_device_train_batch_size: PositiveInt = 8
    weight_decay: NonNegativeFloat = 0.0
    lr_scheduler_type: Schedule = "constant"
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_grad_norm: NonNegativeFloat = 0.0
    group_by_length: bool = True

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f'momentum belongs to optimizer = "sgd"; {self.optimizer} has none: leave it out'
            )
        if self.warmup_ratio and self.lr_scheduler_type == "constant":
            raise ValueError('warmup_ratio needs a schedule: say lr_scheduler_type = "constant_with_warmup"')
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


class Runtime(_Section):
    """Where the work is done. ``workers`` changes the speed, never the result."""

    workers: Annotated[int, Field(ge=0)] = 0
    threads: PositiveInt = 1
    device: str = "auto"


class Evaluation(_Section):
    """When the model is tried on test examples: every so many rounds, and always at the end."""

    every: PositiveInt = 1
    personal: bool = True
    batch_size: PositiveInt = 64
    local_models: PositiveInt = 10


class Report(_Section):
    """Where the numbers go beside the run directory."""

    report_to: list[Tracker] = []

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        return [name for name in names if name != "none"] if isinstance(names, list) else value


class Experiment(_Section):
    """Everything a run depends on; a run is a function of this and nothing else."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)] = "experiment"
    seed: int = 0
    num_rounds: PositiveInt = 10
    clients_per_round: PositiveInt = 10
    min_clients: PositiveInt = 1
    data: Data
    partition: Partition = Partition(clients=10)
    model: Model = Model()
    algorithm: Algorithm = Algorithm()
    client: Client = Client()
    server: Server = Server()
    runtime: Runtime = Runtime()
    evaluation: Evaluation = Evaluation()
    report: Report = Report()

    def resolved(self) -> "Experiment":
        """Return the experiment with every default of its algorithm written out.

        Raises:
            ConfigError: The parts cannot work together; the message says which and what to do.
        """
        problems = [*_partition_problems(self), *_algorithm_problems(self), *_cohort_problems(self)]
        if problems:
            raise ConfigError(_report(self.name, problems))
        mu = self.algorithm.mu
        if mu is None:
            mu = 0.01 if self.algorithm.name == "fedprox" else 0.0
        seed = self.seed if self.partition.seed is None else self.partition.seed
        return self.model_copy(
            update={
                "algorithm": self.algorithm.model_copy(update={"mu": mu}),
                "server": _server_defaults(self.algorithm.name, self.server),
                "partition": self.partition.model_copy(update={"seed": seed}),
            }
        )


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
    if algorithm.mu and algorithm.name in {"fedavg", "centralised", "local"}:
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
    if clients is not None and cohort > clients and experiment.algorithm.name not in {"centralised", "local"}:
        problems.append(
            f"clients_per_round = {cohort} is more than partition.clients = {clients}: lower the first"
        )
    if experiment.min_clients > cohort:
        problems.append(
            f"min_clients = {experiment.min_clients} is more than clients_per_round = {cohort}: lower it"
        )
    return problems


def with_algorithm(experiment: Experiment, name: str, seed: int) -> Experiment:
    """Return the experiment with another algorithm and seed, as ``fednlp compare`` runs it.

    The server's options are kept for the algorithm they were written for, and mu where it has a part.

    Raises:
        ConfigError: The algorithm is unknown.
    """
    algorithm: dict[str, Any] = experiment.algorithm.model_dump() | {"name": name}
    if name in {"fedavg", "centralised", "local"}:
        algorithm["mu"] = None
    server = experiment.server if name == experiment.algorithm.name else Server()
    update = {"algorithm": algorithm, "server": server.model_dump(), "seed": seed}
    return parse(experiment.model_dump(exclude_none=True) | update, experiment.name)


def load(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment file and apply ``a.b=c`` overrides.

    Args:
        path: A TOML file, or the name of an experiment that comes with fednlp, e.g. ``"quickstart"``.
        overrides: Texts such as ``"client.learning_rate=3e-4"``; the value is read as TOML, else as text. One
            that replaces the partition method, or the algorithm, drops the file's options of the old one.

    Raises:
        ConfigError: The file cannot be read, or says something wrong; every mistake is listed.
    """
    path = _shipped(Path(path))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        nearby = difflib.get_close_matches(path.stem, [p.stem for p in path.parent.glob("*.toml")], n=1)
        hint = f"; did you mean {path.parent / nearby[0]}.toml?" if nearby else ""
        raise ConfigError(f"there is no experiment file {path}{hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path} is not readable as TOML: {error}") from None
    document.setdefault("name", path.stem)
    overrides = list(overrides)
    _make_way(document, overrides)
    problems = [problem for override in overrides if (problem := _apply(document, override))]
    return parse(document, str(path), problems)


def _shipped(path: Path) -> Path:
    """Return the file of an experiment that comes with fednlp, unless there is a file of that path."""
    inside = Path(__file__).parent / "experiments" / f"{path.stem}.toml"
    is_name = path in {Path(path.stem), Path("experiments") / inside.name}
    return inside if is_name and not path.is_file() and inside.is_file() else path


def _make_way(document: dict[str, Any], overrides: list[str]) -> None:
    """Drop options of the file that belong to a data set, partition method or algorithm that overrides replace."""
    changes = {key.strip(): _value(text.strip()) for key, _, text in (o.partition("=") for o in overrides)}
    data, partition, algorithm = (document.get(name) for name in ("data", "partition", "algorithm"))
    if isinstance(data, dict) and "data.path" in changes and Path(str(changes["data.path"])).is_file():
        data.pop("name", None)
    if isinstance(data, dict) and "data.name" in changes:
        data.pop("path", None)
    method = METHODS.get(str(changes.get("partition.method")))
    if isinstance(partition, dict) and method is not None:
        for option in set(partition) - {"method", "seed", *method.needs}:
            del partition[option]
    if isinstance(algorithm, dict) and changes.get("algorithm.name", algorithm.get("name")) != algorithm.get(
        "name"
    ):
        document.pop("server", None)
        algorithm.pop("mu", None)


def parse(
    document: Mapping[str, Any], where: str = "the experiment", problems: Iterable[str] = ()
) -> Experiment:
    """Check a nested mapping and return the experiment.

    Raises:
        ConfigError: Every mistake, one a line.

    >>> parse({"data": {"name": "20news"}, "num_rounds": 3}).num_rounds
    3
    >>> parse({"data": {"name": "20news"}, "num_round": 3})
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: the experiment: unknown key num_round; did you mean num_rounds?
    """
    found = list(problems)
    try:
        experiment = Experiment.model_validate(dict(document))
    except ValidationError as error:
        found += [_explain(dict(detail)) for detail in error.errors()]
        raise ConfigError(_report(where, found)) from None
    if found:
        raise ConfigError(_report(where, found))
    return experiment


def dump(experiment: Experiment) -> str:
    """Return the experiment as TOML; :func:`parse` reads it back to an equal value."""
    return tomli_w.dumps(experiment.model_dump(exclude_none=True))


def canonical(experiment: Experiment) -> dict[str, Any]:
    """Return what decides a run's result: neither its name, nor how many workers, nor where it reports."""
    document = experiment.model_dump(exclude_none=True)
    for key in ("name", "report"):
        document.pop(key)
    document["runtime"].pop("workers")
    return document


def differences(one: Experiment, other: Experiment) -> list[str]:
    """List the settings in which two experiments differ, as ``key: 1 -> 2``."""
    a, b = (dict(_flatten(canonical(e))) for e in (one, other))
    return [f"{key}: {a.get(key)} -> {b.get(key)}" for key in sorted(a | b) if a.get(key) != b.get(key)]


def _flatten(document: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _apply(document: dict[str, Any], override: str) -> str | None:
    """Set one ``a.b=c`` in a nested mapping; return what is wrong with it, if anything."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return f"--set {override}: write key=value, for example --set client.learning_rate=3e-4"
    table = document
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return f"--set {override}: {part} is a value, not a section"
    table[parts[-1]] = _value(text.strip())
    return None


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return str(value) if not isinstance(value, (bool, int, float, str, list, dict)) else value


def _report(where: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"{where}: {problems[0]}"
    return "\n".join([f"{where}: {len(problems)} mistakes", *(f"  - {problem}" for problem in problems)])


def _explain(detail: dict[str, Any]) -> str:
    """Turn one of pydantic's findings into a sentence with the key in the user's own words."""
    path = [str(part) for part in detail["loc"]]
    key, kind, value = ".".join(path), detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "missing":
        return f'{key} is missing: add a [{key}] section, for example name = "20news"'
    if kind == "literal_error":
        options = detail["ctx"]["expected"].replace("'", '"')
        near = difflib.get_close_matches(
            str(value).lower(), options.replace('"', "").replace(" or ", ", ").split(", "), n=1
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{key} = {_shown(value)} is none of {options}{hint}"
    if kind == "value_error":
        place = f"[{key}]" if len(path) == 1 else f"{key}:"
        return f"{place} {detail['ctx']['error']}" if key else str(detail["ctx"]["error"])
    return f"{key} = {_shown(value)}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _shown(value: Any) -> str:
    return (
        str(value)
        if isinstance(value, float) and not math.isfinite(value)
        else json.dumps(value, default=str)
    )


def _unknown(path: list[str]) -> str:
    section: Any = Experiment
    for part in path[:-1]:
        section = _model_of(section.model_fields[part].annotation)
    key = ".".join(path)
    near = difflib.get_close_matches(path[-1].lower(), list(section.model_fields), n=1)
    if near:
        return f"unknown key {key}; did you mean {'.'.join([*path[:-1], near[0]])}?"
    elsewhere = [f"{name}.{path[-1]}" for name, sub in _sections() if path[-1] in sub.model_fields]
    if elsewhere:
        return f"unknown key {key}; did you mean {elsewhere[0]}?"
    return f"unknown key {key}; known here: {', '.join(section.model_fields)}"


def _model_of(annotation: Any) -> Any:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(arg for arg in typing.get_args(annotation) if hasattr(arg, "model_fields"))
    return annotation


def _sections() -> Iterable[tuple[str, Any]]:
    for name, field in Experiment.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield name, field.annotation
