"""Use the model of a run: score it on other data, write its predictions, or ask it about a text."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fednlp.assembly import open_data
from fednlp.clientmodels import load_client
from fednlp.config import Experiment
from fednlp.data import TextData, load_data
from fednlp.data.features import Features, row_batches, write_features
from fednlp.data.schema import SCHEMAS
from fednlp.disk import atomic
from fednlp.errors import DataError, RunError
from fednlp.models import find_model, load_tokenizer, longest_text, pretrained_model
from fednlp.models.peft_options import virtual_tokens
from fednlp.models.prompt_tuning import with_saved_prompt
from fednlp.rundir import RunDir
from fednlp.startmodel import check_start, start_fingerprints, start_model
from fednlp.tasks import TASKS, task_from
from fednlp.tasks.base import Outcome, Row, Task
from fednlp.training.batches import evaluation_batches
from fednlp.training.side import pick_device

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


def open_trained(folder: str | Path, client: str | int | None = None) -> Trained:
    """Load the model of a run, finished or stopped.

    Args:
        folder: The run directory.
        client: Where clients have models of their own: whose to load, by name or number.

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
    adapted = client is not None and experiment.model.peft is not None
    model = (_adapted_model if adapted else _shared_model)(run, experiment, task).to(device).eval()
    load_client(run, experiment, model, client)
    return Trained(experiment, known["task"], task, model, load_tokenizer(source), device)


def _shared_model(run: RunDir, experiment: Experiment, task: Task) -> nn.Module:
    """Load the model that a run ended with; adapters are merged into it."""
    model = pretrained_model(str(run.model), task.model_class, task.settings(), {}, experiment.seed)
    return with_saved_prompt(model, run.model)


def _adapted_model(run: RunDir, experiment: Experiment, task: Task) -> nn.Module:
    """Load the model that a run began with, with its adapters apart: a client's own belong on it."""
    source = find_model(experiment.model.name_or_path)
    model = start_model(experiment, source, task)
    found = start_fingerprints(experiment, model, load_tokenizer(source))
    check_start(run, experiment, run.read_json("environment.json"), found, lambda text: None)
    return model


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
        path: A file of the task, with the columns that the run's own data have; None for the run's test set.
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
    wanted = experiment.data
    named = wanted.path is not None
    data = load_data(
        path=path,
        task=place if place in TASKS else None,
        text=wanted.text if named else "text",
        label=wanted.label if named else "label",
        columns=wanted.columns if named else None,
        invalid=wanted.invalid,
    )
    return data, np.arange(data.train.num_rows, dtype=np.int64), data.train


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
