"""The clients' side of a run on one machine: their texts, one model, and what a worker does with them."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features, open_features
from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.federated.round import Reply, failed
from fednlp.federated.sums import BURST, ExactSum, NotFinite, count_bad
from fednlp.models import new_model
from fednlp.partition import Partition
from fednlp.tasks import task_from
from fednlp.tasks.base import Outcome
from fednlp.training.batches import evaluation_batches
from fednlp.training.local import train_client
from fednlp.training.optimizers import LocalTraining
from fednlp.training.replica import Replica


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs to build its side: JSON values and paths of files on this machine."""

    source: str
    model_config: dict[str, Any]
    peft: dict[str, Any] | None
    task: str
    task_fields: dict[str, Any]
    train_features: str
    test_features: str
    test_numbers: str
    partition: str
    options: dict[str, Any]
    seed: int
    device: str
    evaluation_batch: int


def pick_device(name: str) -> torch.device:
    """Return the device by name; ``"auto"`` is the GPU where there is one.

    Raises:
        RunError: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise RunError(f'there is no device "{name}" here: say runtime.device = "cpu" or "auto"') from None
    return device


def open_side(**recipe: Any) -> "LocalSide":
    """Build a side in a worker process; the weights come with the first job."""
    built = Recipe(**recipe)
    task = task_from(built.task, built.task_fields)
    model = new_model(
        built.source, task.model_class, task.settings(), built.model_config, built.seed, built.peft
    )
    return LocalSide(built, model)


class LocalSide:
    """Trains and evaluates clients whose texts lie on this machine, one after the other, in one model.

    Args:
        recipe: Where everything is.
        model: The architecture; its weights are overwritten.
    """

    def __init__(self, recipe: Recipe, model: nn.Module) -> None:
        self.recipe = recipe
        self.task = task_from(recipe.task, recipe.task_fields)
        self.options = LocalTraining(**recipe.options)
        by_rows = self.options.leaves_zero_gradients_alone and self.task.own_words_only
        self.replica = Replica(model, pick_device(recipe.device), by_rows)
        self.layout: Layout = self.replica.layout
        self.train_features = _opened(recipe.train_features)
        same = recipe.test_features == recipe.train_features
        self.test_features = self.train_features if same else _opened(recipe.test_features)
        self.partition = Partition.load(Path(recipe.partition))
        self._loaded: Any = None
        self._global_batches: list[np.ndarray] = []

    def work(self, job: dict[str, Any], piece: int, x: Tensor, total: ExactSum) -> Any:
        """Do one piece of a job: train one client, evaluate one batch, or train one client for itself."""
        match job["kind"]:
            case "train":
                return self._train(job, piece, x, total)
            case "evaluate":
                return self._evaluate(job, piece, x)
            case "alone":
                return self._alone(job, piece, x)
        raise ValueError(f"unknown kind of job: {job['kind']}")

    def forget(self) -> None:
        """Say that the replica's weights were changed by hand, so that the next job loads them anew."""
        self._loaded = None

    def _train(self, job: dict[str, Any], piece: int, x: Tensor, total: ExactSum) -> dict[str, Any]:
        """Train one client and add its update; a client that fails is reported, not raised."""
        client, factor = job["clients"][piece], job["factors"][piece]
        self._loaded = None
        try:
            trained = train_client(
                self.replica,
                self.task,
                self.train_features,
                self.partition.train(client),
                self.options,
                x,
                self.recipe.seed,
                job["round"],
                client,
            )
            self.replica.add_update(total, factor)
        except Exception as error:
            return asdict(failed(client, factor, error))
        return asdict(Reply(client, factor, trained.examples, trained.steps, trained.loss))

    def test_batches(self, client: int | None = None) -> list[np.ndarray]:
        """Return the batches of the global test set, or of one client's own, the longest first."""
        if client is None and self._global_batches:
            return self._global_batches
        numbers = np.load(self.recipe.test_numbers) if client is None else self.partition.test(client)
        lengths = self.test_features.lengths(numbers)
        batches = evaluation_batches(numbers, lengths, self.recipe.evaluation_batch)
        if client is None:
            self._global_batches = batches
        return batches

    def _evaluate(self, job: dict[str, Any], piece: int, x: Tensor) -> dict[str, Any]:
        """Predict one batch of a test set with the global model."""
        if self._loaded != job["key"]:
            self.replica.load_for_evaluation(x)
            self._loaded = job["key"]
        return asdict(self.predict(self.test_batches()[piece]))

    def predict(self, numbers: np.ndarray) -> Outcome:
        """Predict one batch of test examples with the weights as they stand."""
        self.replica.train(False)
        with torch.inference_mode():
            return self.task.predict(self.replica.model, self.test_features, numbers, self.replica.device)

    def _alone(self, job: dict[str, Any], piece: int, x: Tensor) -> dict[str, Any]:
        """Train one client by itself from the start; try its model on its own and the global test set."""
        client = job["clients"][piece]
        self._loaded = None
        options = replace(self.options, epochs=job["epochs"], max_steps=job["max_steps"])
        examples = self.partition.train(client)
        try:
            trained = train_client(
                self.replica,
                self.task,
                self.train_features,
                examples,
                options,
                x,
                self.recipe.seed,
                0,
                client,
                all_words=True,
            )
            if self.replica.count_bad() > count_bad(x):
                raise NotFinite(BURST)
        except Exception as error:
            return {"client": client, "error": failed(client, 1.0, error).error}
        own = [self.predict(batch) for batch in self.test_batches(client)] if job["try_own"] else []
        everyone = (
            [self.predict(batch) for batch in self.test_batches()] if client in job["try_global"] else []
        )
        return {
            "client": client,
            "error": None,
            "examples": trained.examples,
            "steps": trained.steps,
            "loss": trained.loss,
            "own": self.scored(own),
            "global": self.scored(everyone) if everyone else None,
        }

    def scored(self, outcomes: list[Outcome]) -> dict[str, float] | None:
        """Return the task's metrics and the mean loss over outcomes; None where there are no examples."""
        numbers = np.array([n for outcome in outcomes for n in outcome.numbers], dtype=np.int64)
        if not len(numbers):
            return None
        predictions = [p for outcome in outcomes for p in outcome.predictions]
        metrics = self.task.metrics(predictions, self.test_features, numbers)
        weight = sum(outcome.weight for outcome in outcomes)
        loss = sum(outcome.loss for outcome in outcomes)
        return metrics | {"loss": loss / weight if weight else 0.0}


def _opened(folder: str) -> Features:
    features = open_features(Path(folder))
    if features is None:
        raise RunError(f"the features in {folder} are gone: start the run again, they are made anew")
    return features
