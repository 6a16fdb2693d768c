"""Use the model of a run: score it on other data, write its predictions, or ask it about a text."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fednlp.assembly import exchange_options, local_training, open_data
from fednlp.config import Experiment
from fednlp.config.sections import REFERENCES
from fednlp.data import CATALOGUE, TextData, load_data
from fednlp.data.csvfile import DELIMITERS
from fednlp.data.features import Features, row_batches, write_features
from fednlp.data.files import suffix_of
from fednlp.data.schema import SCHEMAS
from fednlp.disk import atomic
from fednlp.errors import DataError, RunError
from fednlp.federated.store import ClientStore
from fednlp.models import load_tokenizer, longest_text, pretrained_model
from fednlp.models.peft_options import virtual_tokens
from fednlp.models.prompt_tuning import with_saved_prompt
from fednlp.partition import Partition
from fednlp.rundir import RunDir
from fednlp.tasks import TASKS, task_from
from fednlp.tasks.base import Outcome, Row, Task
from fednlp.training.batches import evaluation_batches
from fednlp.training.client import begin_of, exchange_from, record_fields
from fednlp.training.replica import Replica
from fednlp.training.side import personal_names, pick_device

Step = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Trained:
    """The model that a run ended with, ready to predict."""

    experiment: Experiment
    place: str
    task: Task
    model: nn.Module
    tokenizer: Any
    device: torch.device

    def encode(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Turn rows into features, cut as in training."""
        wanted = self.experiment.model
        readable = longest_text(self.tokenizer.name_or_path, self.tokenizer) - virtual_tokens(wanted.peft)
        limit = min(wanted.max_length, readable)
        return self.task.encode(rows, self.tokenizer, limit)

    def predict(self, features: Features, step: Step = lambda done, of, what: None) -> list[Outcome]:
        """Predict every example, the longest first."""
        numbers = np.arange(len(features))
        batches = evaluation_batches(
            numbers, features.lengths(numbers), self.experiment.evaluation.batch_size
        )
        outcomes = []
        with torch.inference_mode():
            for done, batch in enumerate(batches, 1):
                outcomes.append(self.task.predict(self.model, features, batch, self.device))
                step(done, len(batches), "batches")
        return outcomes


def open_trained(folder: str | Path, client: str | None = None) -> Trained:
    """Load the model of a run, finished or stopped.

    Args:
        folder: The run directory.
        client: Where clients have models of their own: whose to load, by number or name.

    Raises:
        RunError: The folder is no run directory, its run has written no model yet, or there is no such client.
    """
    run = RunDir(Path(folder))
    experiment = run.experiment()
    if not (run.model / "config.json").is_file():
        alone = experiment.algorithm.name == "local"
        why = "clients alone share none" if alone else "its run is not at its end: go on with --resume"
        raise RunError(f"{folder} holds no model: {why}")
    known = run.read_json("task.json")
    fields, source = dict(known["fields"]), str(run.model)
    if "tokenizer" in fields:
        fields["tokenizer"] = source
    task = task_from(known["task"], fields)
    device = pick_device(experiment.runtime.device)
    model = pretrained_model(source, task.model_class, task.settings(), {}, experiment.seed)
    model = with_saved_prompt(model, run.model)
    _become(run, experiment, model.to(device).eval(), client)
    return Trained(experiment, known["task"], task, model, load_tokenizer(source), device)


def _become(run: RunDir, experiment: Experiment, model: nn.Module, client: str | None) -> None:
    """Give a run's model the tensors of one client, where clients have their own."""
    personal = personal_names(model, experiment.model.train, experiment.algorithm.name not in REFERENCES)
    exchange = exchange_from(exchange_options(experiment))
    if not personal and exchange.pull.push == "all":
        if client is not None:
            raise RunError(f"the clients of {run.folder} have no models of their own: leave out --client")
        return
    if client is None:
        raise RunError(f"the clients of {run.folder} have models of their own: say whose, with --client 0")
    if experiment.model.peft is not None:
        raise RunError("a client's own adapters cannot be loaded: evaluate them within a run")
    replica = Replica(model, next(model.parameters()).device, False, personal)
    state = run.load_state(replica.layout)
    if state is None or not run.records.is_file():
        raise RunError(f"{run.folder} holds no records of clients: its run is not begun")
    fields = record_fields(replica, local_training(experiment), exchange)
    number = _client_number(Partition.load(run.partition), client)
    record = ClientStore(run.records, fields).read(number, state.round)
    if record is None:
        raise RunError(f"client {client} never took part in {run.folder}: choose another")
    begin = begin_of(record, exchange, replica.layout, state.x)
    replica.load_for_evaluation(state.x if begin.shared is None else begin.shared, begin.own)


def _client_number(partition: Partition, client: str) -> int:
    names = list(partition.client_names or ())
    if client in names:
        return names.index(client)
    if client.isdecimal() and int(client) < partition.num_clients:
        return int(client)
    raise RunError(f"--client {client}: there are clients 0 to {partition.num_clients - 1}")


def evaluate_run(
    folder: str | Path,
    path: str | Path | None = None,
    out: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    step: Step = lambda done, of, what: None,
    client: str | None = None,
) -> dict[str, float]:
    """Score the model of a run on a file, or on the run's own test set.

    Args:
        folder: The run directory.
        path: A file that the run's own data could be read from; with a known data set one of its published files,
            or one whose columns have the names that its task gives them. None for the run's test set.
        out: Where to write the predictions as JSON lines, if anywhere.
        say: Told what takes time, and what was left out.
        step: Told how far the predictions are.
        client: Whose model, where clients have their own.

    Returns:
        The task's metrics, and the mean loss.

    Raises:
        FednlpError: What was wrong, and what to do about it.
    """
    trained = open_trained(folder, client)
    data, numbers, table = _examples(trained.experiment, trained.place, path)
    for note in data.notes:
        say(note)
    if data.dropped:
        say(f"{data.dropped:,} rows are left out: {data.dropped_why}")
    columns = {name: own for name, own in data.columns.items() if own in table.column_names}
    with tempfile.TemporaryDirectory() as scratch:
        batches = row_batches(table.take(numbers), columns)
        features = write_features(Path(scratch) / "features", (trained.encode(rows) for rows in batches))
        outcomes = trained.predict(features, step)
        found = [n for outcome in outcomes for n in outcome.numbers]
        predictions = [p for outcome in outcomes for p in outcome.predictions]
        order = np.argsort(found, kind="stable")
        predictions = [predictions[place] for place in order]
        everyone = np.arange(len(features))
        scores = trained.task.metrics(predictions, features, everyone)
    weight = sum(outcome.weight for outcome in outcomes)
    scores |= {"loss": sum(outcome.loss for outcome in outcomes) / weight if weight else 0.0}
    if out is not None:
        target = SCHEMAS[data.task].target
        truth = table.column(columns[target]).take(numbers).to_pylist() if target else None
        with atomic(out, "choose another --out") as file:
            for place, line in enumerate(_lines(trained.task, predictions, numbers, target, truth)):
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                step(place + 1, len(predictions), "lines")
    return scores


def _examples(
    experiment: Experiment, place: str, path: str | Path | None
) -> tuple[TextData, np.ndarray, Any]:
    """Return the data, the example numbers to predict, and the table that holds them."""
    if path is None:
        data = open_data(experiment)
        return data, data.test_numbers, data.test
    data = _file_of(experiment, path, place if place in TASKS else None)
    return data, np.arange(data.train.num_rows, dtype=np.int64), data.train


def _file_of(experiment: Experiment, path: str | Path, task: str | None) -> TextData:
    """Load a file as a run's own data are read; for a known data set it may have the canonical columns instead."""
    wanted = experiment.data
    read = partial(load_data, path=path, task=task, invalid=wanted.invalid, test_fraction=None)
    own = partial(read, text=wanted.text, label=wanted.label, columns=wanted.columns)
    if wanted.name is None:
        is_csv = suffix_of(Path(path)) in DELIMITERS or Path(path).is_dir()
        return own(delimiter=wanted.delimiter if is_csv else None)
    try:
        return read()
    except DataError as error:
        if wanted.name not in CATALOGUE:
            raise
        try:
            return own(wanted.name)
        except DataError:
            published = f"nor is it a file of {wanted.name} ({CATALOGUE[wanted.name].files})"
            raise DataError(f"{error}; {published}") from None


def _lines(
    task: Task, predictions: Sequence[Any], numbers: np.ndarray, target: str | None, truth: list[Any] | None
) -> Iterator[dict[str, Any]]:
    for place, prediction in enumerate(predictions):
        line = {"example": int(numbers[place]), "prediction": task.shown(prediction)}
        yield line if truth is None else line | {str(target): truth[place]}


def predict_texts(
    folder: str | Path, texts: Sequence[str], beside: Mapping[str, str], client: str | None = None
) -> list[Any]:
    """Ask the model of a run about texts.

    Args:
        folder: The run directory.
        texts: The text, the words with spaces between them, the question, or the source, one an example.
        beside: Further columns, the same for every text: ``text_pair``, or the ``context`` of questions.
        client: Whose model, where clients have their own.

    Returns:
        A prediction for each text, as a person reads it.

    Raises:
        DataError: A column is missing, or has no part in the task.
        RunError: The folder holds no model.
    """
    trained = open_trained(folder, client)
    rows = [row_of(trained.task.name, text, beside) for text in texts]
    features = Features.in_memory(trained.encode(rows))
    answers: dict[int, Any] = {}
    for outcome in trained.predict(features):
        answers |= dict(zip(outcome.numbers, outcome.predictions, strict=True))
    return [trained.task.shown(answers[number]) for number in range(len(texts))]


def row_of(task: str, text: str, beside: Mapping[str, str]) -> Row:
    """Return the row of a text whose target is not known.

    >>> row_of("token-classification", "Angela Merkel spoke", {})
    {'words': '["Angela", "Merkel", "spoke"]', 'tags': '["O", "O", "O"]'}
    """
    schema = SCHEMAS.get(task, SCHEMAS["text-classification"])
    first = "question" if task == "question-answering" else schema.inputs[0]
    allowed = [name for name in (*schema.inputs, *schema.optional) if name not in (first, "references", "id")]
    strange = [name for name in beside if name not in allowed]
    if strange:
        known = f"there is {', '.join(allowed)}" if allowed else "there is none"
        raise DataError(f"--with {strange[0]}: {task} has no such column beside {first}: {known}")
    lacking = [name for name in schema.inputs if name != first and name not in beside]
    if lacking:
        raise DataError(f"{task} needs {lacking[0]} too: add --with {lacking[0]}=TEXT")
    row: Row = {first: text, **beside}
    if schema.kind == "tags":
        words = text.split()
        row = {first: json.dumps(words), "tags": json.dumps(["O"] * len(words))}
    elif schema.target is not None:
        row[schema.target] = {"answers": "[]", "score": "0"}.get(schema.kind, "")
    return row
