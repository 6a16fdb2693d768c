"""Builds what an experiment configures: data, partition, task, features, model, algorithm."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.config.sections import Partition as PartitionOptions
from fednlp.config.values import aggregator_of, algorithm_of, attack_of
from fednlp.costs import Fleet, TrainingDepth, make_fleet
from fednlp.data import TextData, load_data
from fednlp.data.features import Features, open_features, row_batches, write_features
from fednlp.data.schema import SCHEMAS
from fednlp.data.textdata import Split
from fednlp.disk import writing
from fednlp.errors import ConfigError, DataError, PartitionError
from fednlp.federated.aggregators.noisy_mean import NoisyMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.attacks import draw_attackers, with_attackers
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.pulling import Pull
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import make_chain
from fednlp.formatting.units import plural
from fednlp.hubs.cache import cache_dir
from fednlp.models.from_scratch import VOCABULARY_SIZE, from_scratch_folder
from fednlp.models.peft_options import virtual_tokens
from fednlp.models.pretrained import has_weights, load_tokenizer, longest_text
from fednlp.models.registry import FROM_SCRATCH_NAMES
from fednlp.models.resolve import resolve_model
from fednlp.models.trainable_depth import trainable_depth
from fednlp.partition import Partition, make_partition
from fednlp.plugins import is_own
from fednlp.simulation.partition_file import read_partition_file
from fednlp.tasks import TASKS, task_class
from fednlp.tasks.base import Task
from fednlp.training.optimizers import LocalTraining
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import WorkerSpec, load_model

Log = Callable[[str], None]
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class RunComponents:
    """Data, tokenizer, task and features of a run.

    Attributes:
        data: The data set.
        source: Folder or hub name of the model.
        tokenizer: The model's tokenizer.
        task_spec: Name of the task, or ``"module:Class"``.
        task: The task itself.
        train: Features of the training table, by row number.
        test: Features of the test table; the training table's where the test set was held out of it.
        longest: Maximum number of tokens of a row.
    """

    data: TextData
    source: str
    tokenizer: Any
    task_spec: str
    task: Task
    train: Features
    test: Features
    longest: int


def build_components(experiment: Experiment, log: Log) -> RunComponents:
    """Load the data, the tokenizer and the features of an experiment.

    Args:
        experiment: Resolved.
        log: Called with a message before each slow step.

    Raises:
        ConfigError: An option of ``[task]`` is not supported by the task, or does not fit the model.
        DataError: The data cannot be loaded.
        ModelError: The model or its tokenizer cannot be loaded.
        FetchError: A download failed.
    """
    data = open_data(experiment)
    for note in data.notes:
        log(note)
    if data.dropped:
        log(f"{plural(data.dropped, 'row')} of {data.name} left out: {data.dropped_why}")
    source = model_source(experiment, data, log)
    tokenizer = load_tokenizer(source)
    task_spec = experiment.task.configured or data.task
    task = make_task(task_spec, data, tokenizer, experiment.task.given())
    readable = longest_text(source, tokenizer, experiment.model.config) - virtual_tokens(
        experiment.model.peft
    )
    written = getattr(task, "max_target_length", 0)
    if written > readable:
        raise ConfigError(
            f"task.max_target_length = {written} is more than the {readable} positions of "
            f"{experiment.model.name_or_path}: lower it"
        )
    limit = min(experiment.model.max_length, readable)
    train = features_of(data, "train", task_spec, task, tokenizer, limit, log)
    test = train if data.held_out else features_of(data, "test", task_spec, task, tokenizer, limit, log)
    return RunComponents(data, source, tokenizer, task_spec, task, train, test, limit)


def model_source(experiment: Experiment, data: TextData, log: Log) -> str:
    """Return the model's folder or hub name.

    The vocabulary of a model that is built from scratch is made of the training texts.

    Args:
        experiment: Resolved.
        data: The data set.
        log: Called with a message before each slow step, and for a model without weights.

    Raises:
        ConfigError: A vocabulary setting does not fit the model or the data.
        ModelError: There is no such model, or no such setting of it.
    """
    model = experiment.model
    if model.name_or_path in FROM_SCRATCH_NAMES:
        size = model.vocabulary_size or VOCABULARY_SIZE
        identity = [data.fingerprint, sorted(data.columns)]
        texts, targets = partial(training_texts, data), None
        if model.vocabulary == "separate":
            if SCHEMAS[data.task].kind != "text":
                raise ConfigError(
                    f'model.vocabulary = "separate" is for sources and targets; {data.task} has no written target: '
                    "leave it out"
                )
            texts = partial(training_texts, data, SCHEMAS[data.task].inputs)
            targets = partial(training_texts, data, ["target"])
        return from_scratch_folder(model.name_or_path, model.config, texts, identity, size, log, targets)
    if model.vocabulary_size is not None or model.vocabulary != "shared":
        key = "vocabulary_size" if model.vocabulary_size is not None else "vocabulary"
        raise ConfigError(
            f"model.{key} is for models that are built ({', '.join(FROM_SCRATCH_NAMES)}); "
            f"{model.name_or_path} brings its vocabulary: leave it out"
        )
    source = resolve_model(model.name_or_path)
    if not has_weights(source):
        log(f"{model.name_or_path} has no weights: training begins from random ones, drawn by the seed")
    return source


def training_texts(data: TextData, only: Sequence[str] | None = None) -> Iterator[str]:
    """Yield the texts of the training examples, inputs and targets or some of these columns, in bounded memory."""
    schema = SCHEMAS[data.task]
    names = only or [*schema.inputs, *(["target"] if schema.kind == "text" else [])]
    table = data.train.select([data.columns[name] for name in names])
    for start in range(0, len(data.train_numbers), _ROWS_AT_ONCE):
        for column in table.take(data.train_numbers[start : start + _ROWS_AT_ONCE]).to_pydict().values():
            yield from (" ".join(json.loads(text)) for text in column) if schema.kind == "tags" else column


def make_task(task_spec: str, data: TextData, tokenizer: Any, options: dict[str, Any]) -> Task:
    """Build the task for a data set.

    Args:
        task_spec: Name of the task, or ``"module:Class"``.
        data: The data set; its label names become the task's.
        tokenizer: The model's tokenizer.
        options: ``[task]`` without the name.

    Raises:
        ConfigError: The task does not support an option.
        DataError: Classification has fewer than two labels.
    """
    known = TASKS.get(task_spec)
    strange = [key for key in options if known is not None and key not in known.options]
    if known is not None and strange:
        takes = f"it takes {', '.join(known.options)}" if known.options else "it takes no options"
        raise ConfigError(f"task.{strange[0]} is not supported by {task_spec}: leave it out ({takes})")
    if SCHEMAS[data.task].kind == "class" and len(data.label_names) < 2:
        raise DataError(
            f"{data.name} has {len(data.label_names)} label in column {data.columns['label']}: "
            "classification needs two or more"
        )
    if "prompt" in options:
        from fednlp.fewshot.prompt_sets import with_prompt

        options = with_prompt(options, data.label_names, tokenizer)
    cls = task_class(task_spec)
    try:
        return cls.build(data.label_names, tokenizer, **options)
    except TypeError as error:  # the options of a user's own task are not known here
        raise ConfigError(f"[task.options] do not fit {task_spec}: {error}") from None


def open_data(experiment: Experiment) -> TextData:
    """Load the data set that an experiment names.

    Examples held out for testing do not depend on the experiment's seed: runs of several seeds are evaluated on
    the same examples.

    Raises:
        DataError: The data cannot be loaded.
    """
    configured, task = experiment.data, experiment.task.configured
    return load_data(
        configured.name,
        configured.path,
        task=task if task in TASKS else None,
        text=configured.text,
        label=configured.label,
        columns=configured.columns,
        test_path=configured.test_path,
        test_fraction=configured.test_fraction,
        delimiter=configured.delimiter,
        on_invalid_row=configured.on_invalid_row,
    )


def features_of(
    data: TextData, split: Split, task_spec: str, task: Task, tokenizer: Any, limit: int, log: Log
) -> Features:
    """Open the features of a split; they are made once for the same texts, task, tokenizer and length, and cached.

    Args:
        data: The data set.
        split: ``"train"`` or ``"test"``.
        task_spec: Name of the task, or ``"module:Class"``.
        task: The task, which encodes the rows.
        tokenizer: The model's tokenizer.
        limit: Maximum number of tokens of a row.
        log: Called with a message before texts are tokenised.

    Raises:
        RunError: The disk is full, or the cache cannot be written.
    """
    columns, vocabulary = data.columns_in(split), _vocabulary(tokenizer)
    key = json.dumps([data.fingerprint, split, task_spec, asdict(task), vocabulary, limit, columns])  # type: ignore[call-overload]
    folder = cache_dir() / "features" / hashlib.sha256(key.encode()).hexdigest()[:32]
    features = open_features(folder)
    if features is not None:
        return features
    table = data.train if split == "train" else data.test
    which = "training and test" if data.held_out else {"train": "training", "test": "test"}[split]
    log(f"tokenising {plural(table.num_rows, f'{which} example')} of {data.name} (once; kept in {folder})")
    batches = row_batches(table, columns)
    with writing(folder.parent):
        return write_features(folder, (task.encode(rows, tokenizer, limit) for rows in batches))


def _vocabulary(tokenizer: Any) -> str:
    """Return a digest of how a tokenizer splits texts, without padding and truncation, which every call sets."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return hashlib.sha256(json.dumps(state | {"padding": None, "truncation": None}).encode()).hexdigest()


def build_partition(experiment: Experiment, data: TextData, log: Log) -> Partition:
    """Build the experiment's partition, a function of labels, options and seed only.

    Args:
        experiment: Resolved.
        data: The data set whose examples are assigned to clients.
        log: Called with a message before each slow step.

    Raises:
        PartitionError: The method does not fit the data.
    """
    configured, kind = experiment.partition, SCHEMAS[data.task].kind
    if configured.method == "file":
        return read_partition_file(configured, data, experiment.data.path)
    train, test = data.train_numbers, data.test_numbers
    if configured.method == "proportions" and kind not in ("class", "score"):
        raise PartitionError(
            f"{data.name} has neither labels nor scores, which proportions speak of: "
            'say partition.method = "uniform", "quantity", "cluster" or "natural"'
        )
    fields: dict[str, Any] = {}
    own = is_own(configured.method)
    field = _client_field(configured, data, log)
    if field is not None:
        train_field, names = data.groups("train", field)
        test_field, _ = data.groups("test", field, names)
        fields = {"train_field": train_field[train], "test_field": test_field[test], "field_names": names}
    if configured.method == "cluster":
        log(f"embedding the texts of {data.name} for cluster shift (once; kept in the cache)")
    if own or configured.method == "cluster":
        fields |= {
            "train_texts": data.input_texts("train", train),
            "test_texts": data.input_texts("test", test),
        }
    labels = data.scores if kind == "score" else data.labels
    return make_partition(
        configured,
        labels("train")[train],
        labels("test")[test],
        num_labels=len(data.label_names) if kind == "class" else None,
        train_numbers=train,
        test_numbers=test,
        label_names=data.label_names if kind == "class" else None,
        **fields,
    )


def _client_field(configured: PartitionOptions, data: TextData, log: Log) -> str | None:
    """Return the column whose values are the clients, None for methods that use none."""
    if configured.method == "silos":
        if data.silo is None:
            raise PartitionError(
                f'{data.name} is one data set, and partition.method = "silos" makes a client of each of several: give '
                'data.path a folder of files or of folders, a pattern such as "silos/*.csv" or a list; or, where a '
                'column says whose an example is, say partition.method = "natural" and partition.field'
            )
        return data.silo
    if data.silo is not None and configured.method != "natural":
        log(
            f'the silos are pooled and shared out again by "{configured.method}"; "silos" has each as a client'
        )
    return configured.field if configured.method == "natural" or is_own(configured.method) else None


def worker_spec(
    experiment: Experiment, components: RunComponents, partition: Path, test_numbers: Path, records: Path
) -> WorkerSpec:
    """Return the specification of a run's workers, without the algorithm.

    Args:
        experiment: Resolved.
        components: Data, task and features of the run.
        partition: File of the partition.
        test_numbers: File of the example numbers of the global test set, int64.
        records: File of the clients' records.
    """
    assert components.train.folder is not None
    assert components.test.folder is not None
    return WorkerSpec(
        source=components.source,
        model_config=dict(experiment.model.config),
        peft=experiment.model.peft,
        train=experiment.model.train,
        task=components.task_spec,
        task_fields=asdict(components.task),  # type: ignore[call-overload]
        train_features=str(components.train.folder),
        test_features=str(components.test.folder),
        test_numbers=str(test_numbers.resolve()),
        partition=str(partition.resolve()),
        options=asdict(local_training(experiment)),
        federated=experiment.algorithm.name not in BASELINES,
        records=str(records.resolve()),
        unlabelled=experiment.fewshot is not None,
        seed=experiment.seed,
        device=experiment.runtime.device,
        cache_activations=experiment.runtime.cache_activations,
        evaluation_batch=experiment.evaluation.batch_size,
        longest=components.longest,
    )


def client_side(algorithm: Algorithm, experiment: Experiment) -> Algorithm:
    """Return an algorithm with the worker's half of its aggregator: it adds updates, and cannot finish.

    Args:
        algorithm: The method.
        experiment: Resolved.
    """
    privacy = experiment.privacy
    if experiment.secure.protocol != "none":
        from fednlp.secure.aggregator import MaskedSum

        return replace(algorithm, aggregator=MaskedSum())
    if privacy is not None:
        return replace(algorithm, aggregator=NoisyMean(privacy.clip, 0.0, 0.0, experiment.seed))
    return algorithm


def open_worker(spec: dict[str, Any], experiment: dict[str, Any]) -> ClientWorker:
    """Build the worker of a worker process.

    Args:
        spec: The fields of :class:`WorkerSpec`.
        experiment: The sections of the resolved experiment.
    """
    built, made = WorkerSpec(**spec), Experiment(**experiment)
    clients = Partition.load(Path(built.partition)).num_clients
    algorithm = client_side(attacked(build_algorithm(made), made, clients), made)
    return ClientWorker(built, load_model(built), algorithm)


def local_training(experiment: Experiment) -> LocalTraining:
    """Return how a client of the experiment trains."""
    client = experiment.client
    return LocalTraining(
        optimizer=client.optimizer,
        learning_rate=client.learning_rate,
        momentum=client.momentum,
        epochs=client.num_train_epochs,
        max_steps=client.max_steps,
        batch_size=client.per_device_train_batch_size,
        weight_decay=client.weight_decay,
        schedule=client.lr_scheduler_type,
        warmup_steps=client.warmup_steps,
        max_grad_norm=client.max_grad_norm,
        by_length=client.group_by_length,
        keep_memory=client.keep_optimizer,
    )


def build_algorithm(experiment: Experiment, given: Algorithm | None = None) -> Algorithm:
    """Return the experiment's algorithm, with the compression and tensor selection of ``[exchange]`` and ``[pull]``.

    Args:
        experiment: Resolved.
        given: A method as a value, which replaces the one that the experiment names.

    Raises:
        ConfigError: The method or the rule does not take its options, or cannot be imported.
    """
    exchange = experiment.exchange
    value = given or algorithm_of(experiment)
    pull = Pull(**experiment.pull.model_dump())
    uplink = Uplink(make_chain(parse_chain(exchange.up, "up")), exchange.error_feedback, pull)
    downlink = Downlink(make_chain(parse_chain(exchange.down, "down"), nearest=True))
    return replace(value, uplink=uplink, downlink=downlink, aggregator=aggregator_of(experiment, value))


def attackers_of(experiment: Experiment, clients: int) -> list[int]:
    """Return the ids of the clients that ``[attack]`` makes attackers; none without the section.

    Args:
        experiment: Resolved.
        clients: How many clients the partition has.
    """
    attack = experiment.attack
    return [] if attack is None else draw_attackers(clients, attack.fraction, experiment.seed)


def attacked(algorithm: Algorithm, experiment: Experiment, clients: int) -> Algorithm:
    """Return an algorithm with the attackers of ``[attack]`` among the clients; the same without the section.

    Args:
        algorithm: The method.
        experiment: Resolved.
        clients: How many clients the partition has.
    """
    section = experiment.attack
    if section is None:
        return algorithm
    return with_attackers(algorithm, attack_of(section), attackers_of(experiment, clients))


def fleet_of(experiment: Experiment, model: nn.Module, num_clients: int) -> Fleet | None:
    """Return the clients' devices and their cost models; None where ``[costs]`` configures none.

    Args:
        experiment: Resolved.
        model: The model, of which the frozen parameters are marked.
        num_clients: Number of clients of the partition.
    """
    costs, depth = experiment.costs, trainable_depth(model)
    return make_fleet(
        costs.bandwidth_up,
        costs.bandwidth_down,
        costs.device,
        model=experiment.model.name_or_path,
        parameters=sum(p.numel() for p in model.parameters()),
        num_clients=num_clients,
        seed=experiment.seed,
        depth=None if depth is None else TrainingDepth(*depth, cached=experiment.runtime.cache_activations),
    )


def cohort_examples(experiment: Experiment, partition: Partition) -> float:
    """Return the mean number of examples of a federated round, with repetitions: the budget of a baseline's round."""
    sizes = np.diff(partition.train_offsets)
    clients = min(experiment.clients_per_round, len(sizes))
    options = local_training(experiment)
    if options.max_steps > 0:
        return clients * options.max_steps * options.batch_size
    return float(sizes.mean()) * clients * options.epochs
