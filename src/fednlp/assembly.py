"""From a configuration to its pieces: data, partition, task, features, model, algorithm."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fednlp.config import Experiment
from fednlp.data import TextData, load_data
from fednlp.data.cache import cache_dir
from fednlp.data.features import Features, open_features, row_batches, write_features
from fednlp.disk import writing
from fednlp.errors import ConfigError, DataError
from fednlp.federated.algorithm import Algorithm, by_examples, equally, fedavg, fedopt, fedprox
from fednlp.federated.server import ServerOptimizer
from fednlp.models import find_model, load_tokenizer, longest_text
from fednlp.partition import Partition, make_partition
from fednlp.tasks import TextClassification
from fednlp.training.optimizers import LocalTraining
from fednlp.training.side import Recipe

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pieces:
    """What a run is made of."""

    data: TextData
    source: str
    tokenizer: Any
    task: TextClassification
    train: Features
    test: Features


def gather(experiment: Experiment, say: Say) -> Pieces:
    """Load the data, the tokenizer and the features of an experiment; ``say`` is told what takes time.

    Raises:
        DataError, ModelError, FetchError: Something cannot be had; the message says what to do.
    """
    data = open_data(experiment)
    if not data.label_names or len(data.label_names) < 2:
        raise DataError(
            f"{data.name} has {len(data.label_names)} label in column {data.label}: classification needs two or more"
        )
    source = find_model(experiment.model.name_or_path)
    tokenizer = load_tokenizer(source)
    padding = tokenizer.pad_token_id
    if padding is None:
        padding = tokenizer.eos_token_id or 0
    task = TextClassification(data.label_names, padding, data.text, data.label)
    limit = min(experiment.model.max_length, longest_text(source, tokenizer))
    train = features_of(data, "train", task, tokenizer, limit, say)
    test = train if data.held_out else features_of(data, "test", task, tokenizer, limit, say)
    return Pieces(data, source, tokenizer, task, train, test)


def open_data(experiment: Experiment) -> TextData:
    """Load the data set that an experiment names.

    What is held out where there is no test set does not depend on the experiment's seed: runs of several
    seeds are tried on the same examples.
    """
    wanted = experiment.data
    return load_data(
        wanted.name,
        wanted.path,
        text=wanted.text,
        label=wanted.label,
        test_path=wanted.test_path,
        test_fraction=wanted.test_fraction,
    )


def features_of(
    data: TextData, split: str, task: TextClassification, tokenizer: Any, limit: int, say: Say
) -> Features:
    """Open a split's features, made once for a text, a tokenizer and a length, and kept in the cache."""
    tokenizer.backend_tokenizer.no_truncation()  # what an earlier split set; it is not part of the vocabulary
    vocabulary = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    key = json.dumps(
        [data.fingerprint, split, task.name, list(task.labels), vocabulary, limit, data.text, data.label]
    )
    folder = cache_dir() / "features" / hashlib.sha256(key.encode()).hexdigest()[:32]
    features = open_features(folder)
    if features is not None:
        return features
    table = data.train if split == "train" else data.test
    say(f"tokenising {table.num_rows:,} {split} texts of {data.name} (once; kept in {folder})")
    batches = row_batches(table, [data.text, data.label])
    with writing(folder.parent):
        return write_features(folder, (task.encode(rows, tokenizer, limit) for rows in batches))


def share_out(experiment: Experiment, data: TextData, say: Say) -> Partition:
    """Make the experiment's partition; a function of labels, options and seed alone."""
    wanted = experiment.partition
    train, test = data.train_numbers, data.test_numbers
    fields: dict[str, Any] = {}
    if wanted.method == "natural" and wanted.field is not None:
        fields["train_field"] = data.column("train", wanted.field).take(train).to_pylist()
        fields["test_field"] = data.column("test", wanted.field).take(test).to_pylist()
    if wanted.method == "cluster":
        say(f"embedding the texts of {data.name} for cluster shift (once; kept in the cache)")
        fields["train_texts"] = data.column("train", data.text).take(train).to_pylist()
        fields["test_texts"] = data.column("test", data.text).take(test).to_pylist()
    return make_partition(
        wanted,
        data.labels("train")[train],
        data.labels("test")[test],
        num_labels=len(data.label_names),
        train_numbers=train,
        test_numbers=test,
        label_names=data.label_names,
        **fields,
    )


def recipe(experiment: Experiment, pieces: Pieces, partition: Path, test_numbers: Path) -> Recipe:
    """Write down what a worker needs to build its side."""
    assert pieces.train.folder is not None
    assert pieces.test.folder is not None
    return Recipe(
        source=pieces.source,
        model_config=dict(experiment.model.config),
        labels=list(pieces.task.labels),
        padding=pieces.task.padding,
        train_features=str(pieces.train.folder),
        test_features=str(pieces.test.folder),
        test_numbers=str(test_numbers.resolve()),
        partition=str(partition.resolve()),
        options=asdict(local_training(experiment)),
        seed=experiment.seed,
        device=experiment.runtime.device,
        evaluation_batch=experiment.evaluation.batch_size,
    )


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
        warmup_ratio=client.warmup_ratio,
        max_grad_norm=client.max_grad_norm,
        mu=experiment.algorithm.mu or 0.0,
        by_length=client.group_by_length,
    )


def algorithm_of(experiment: Experiment) -> Algorithm:
    """Return the algorithm's value. The references (centralised, local) are no rounds and have none.

    Raises:
        ConfigError: The name is a reference.
    """
    wanted, size = experiment.algorithm, experiment.clients_per_round
    weigh = by_examples if wanted.weighting == "examples" else equally
    common: dict[str, Any] = {"weigh": weigh, "min_clients": experiment.min_clients}
    match wanted.name:
        case "fedavg":
            return fedavg(size, **common)
        case "fedprox":
            return fedprox(size, wanted.mu or 0.0, **common)
        case "fedopt" | "fedadagrad" | "fedadam" | "fedyogi":
            server = {
                k: v for k, v in experiment.server.model_dump(exclude_none=True).items() if k != "optimizer"
            }
            assert experiment.server.optimizer is not None
            optimizer = ServerOptimizer(experiment.server.optimizer, **server)
            return fedopt(size, optimizer, wanted.mu or 0.0, **common)
    raise ConfigError(f"{wanted.name} is a reference point, not a federated algorithm")


def cohort_examples(experiment: Experiment, partition: Partition) -> float:
    """Return how many examples a round of the federation sees on average: the references' budget."""
    sizes = np.diff(partition.train_offsets)
    clients = min(experiment.clients_per_round, len(sizes))
    options = local_training(experiment)
    if options.max_steps > 0:
        return clients * options.max_steps * options.batch_size
    return float(sizes.mean()) * clients * options.epochs
