"""The clients' side of a run on one machine: their texts, one model, and what a worker does with them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features, open_features
from fednlp.errors import RunError
from fednlp.federated.lora import LoraPair
from fednlp.federated.params import Layout
from fednlp.federated.round import failed
from fednlp.federated.store import ClientStore
from fednlp.federated.sums import BURST, ExactSum, NotFinite, count_bad
from fednlp.hubs.cache import cache_dir
from fednlp.models import new_model, pretrained_model
from fednlp.models.adapters import lora_pairs
from fednlp.models.groups import groups_of
from fednlp.models.peft_options import averaging_of
from fednlp.models.selection import apply_selection
from fednlp.models.terms import parse_train
from fednlp.partition import Partition
from fednlp.tasks import task_from
from fednlp.tasks.base import Outcome
from fednlp.tasks.labels import LabelScores, by_label
from fednlp.training.batches import evaluation_batches
from fednlp.training.client import Participant, exchange_from
from fednlp.training.local import Begin, Trained, train_client
from fednlp.training.memory import Memory, memory_folder
from fednlp.training.optimizers import LocalTraining
from fednlp.training.replica import Replica
from fednlp.training.scores import Scores, joined, scored, scores_by_owner

_HIDDEN = -1
"""The label of a text that nobody has labelled."""
_DRAWN = {"masked-lm"}
"""Tasks whose inputs are drawn anew each time, so that there is nothing to remember of them."""


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs to build its side: JSON values and paths of files on this machine.

    ``longest`` is how many tokens the model reads of a text at most, 0 where nobody asked.
    """

    source: str
    model_config: dict[str, Any]
    peft: dict[str, Any] | None
    train: Any
    task: str
    task_fields: dict[str, Any]
    train_features: str
    test_features: str
    test_numbers: str
    partition: str
    options: dict[str, Any]
    federated: bool
    exchange: dict[str, Any]
    records: str
    clip: float | None
    hidden_labels: bool
    seed: int
    device: str
    cache_activations: bool
    evaluation_batch: int
    longest: int = 0


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
    # Nobody else fills in frozen and personal weights.
    load = new_model if built.train == "all" else pretrained_model
    model = load(built.source, task.model_class, task.settings(), built.model_config, built.seed, built.peft)
    return LocalSide(built, model)


def personal_names(model: nn.Module, train: Any, federated: bool) -> frozenset[str]:
    """Freeze what the selection freezes, and return the names of what each client keeps to itself.

    Outside a federation nobody exchanges anything, and personal tensors are trained like all others.
    """
    if train == "all":
        return frozenset()
    selection = apply_selection(model, parse_train(train))
    return selection.personal if federated else frozenset()


def exact_adapters(model: nn.Module, peft: dict[str, Any] | None, federated: bool) -> list[LoraPair]:
    """Return the low-rank adapters whose products are averaged exactly; none by default."""
    return lora_pairs(model) if federated and averaging_of(peft) == "exact" else []


def model_fields(replica: Replica) -> dict[str, int]:
    """Return what the record of a client's whole model holds: names and numbers of float32 values."""
    return {"shared": replica.layout.numel, "own": replica.personal.numel}


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
        personal = personal_names(model, recipe.train, recipe.federated)
        groups = groups_of(model) if recipe.exchange["pull"].get("rule", "all") != "all" else {}
        adapters = exact_adapters(model, recipe.peft, recipe.federated)
        derived = [pair.base for pair in adapters]
        decaying = self.options.weight_decay > 0
        self.replica = Replica(model, pick_device(recipe.device), by_rows, personal, derived, decaying)
        self.layout: Layout = self.replica.layout
        if self.replica.bottom is not None and self.task.name not in _DRAWN:
            folder = memory_folder(self.replica.bottom, cache_dir()) if recipe.cache_activations else None
            self.replica.memory = Memory(self.replica.bottom, folder, 0)
        self.train_features = _opened(recipe.train_features)
        same = recipe.test_features == recipe.train_features
        self.test_features = self.train_features if same else _opened(recipe.test_features)
        if recipe.hidden_labels:
            self.train_features = _without_labels(self.train_features)
        self.partition = Partition.load(Path(recipe.partition))
        self.exchange = exchange_from(
            recipe.exchange, _stacks([groups.get(e.name, "") for e in self.layout.entries]), adapters
        )
        self.participant = Participant(
            self.replica,
            self.task,
            self.train_features,
            self.options,
            self.exchange,
            Path(recipe.records) if recipe.federated else None,
            recipe.seed,
            recipe.clip,
        )
        self._loaded: Any = None
        self._job: Any = None
        self._global_batches: list[np.ndarray] = []

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own after a round."""
        return self.replica.personal.numel > 0 or self.exchange.pull.push != "all"

    def work(self, job: dict[str, Any], piece: int, x: Tensor, total: ExactSum) -> Any:
        """Do one piece of a job: one client's part in a round, one batch of a test, one client's own model."""
        self._refresh(job)
        match job["kind"]:
            case "train":
                if piece >= len(job["clients"]):
                    return self._label(job, piece - len(job["clients"]), x)
                return self._train(job, piece, x, total)
            case "guess":
                self.replica.load_for_evaluation(x)
                return self._probabilities(job["unlabelled"][piece]).astype(float).tolist()
            case "unmask":
                from fednlp.training.masked import unmask

                start = piece * job["stretch"]
                return unmask(total, start, min(start + job["stretch"], self.layout.numel), job["seeds"])
            case "evaluate":
                return self._evaluate(job, piece, x)
            case "engine":
                return self._engine(job, piece, x)
            case "alone":
                return self._alone(job, piece, x)
        raise ValueError(f"unknown kind of job: {job['kind']}")

    def _train(self, job: dict[str, Any], piece: int, x: Tensor, total: ExactSum) -> dict[str, Any]:
        """Let one client take its part in a round, on all its examples or on those that have labels."""
        self._loaded = None
        client, factor, number = job["clients"][piece], job["factors"][piece], job["round"]
        hiding = job["hiding"][piece] if "hiding" in job else None
        with self._examples(job, piece) as examples:
            return self.participant.take_part(client, examples, factor, number, x, total, hiding)

    @contextmanager
    def _examples(self, job: dict[str, Any], piece: int) -> Iterator[np.ndarray]:
        """Yield the examples that a client trains on; those of a job with labels have these for the time of a block."""
        if "labelled" not in job:
            yield self.partition.train(job["clients"][piece])
            return
        examples, labels = (np.array(part, dtype=np.int64) for part in job["labelled"][piece])
        known = self.train_features.values("label")
        known[examples] = labels
        try:
            yield examples
        finally:
            known[examples] = _HIDDEN

    def _label(self, job: dict[str, Any], place: int, x: Tensor) -> list[list[Any]]:
        """Return the likeliest label of each text of a client, and its probability, by the model that it has."""
        begin = self.participant.begin(self.participant.record(job["labelling"][place], job["round"] - 1), x)
        self.replica.load_for_evaluation(x if begin.shared is None else begin.shared, begin.own)
        probabilities = self._probabilities(job["unlabelled"][place])
        return [probabilities.argmax(1).tolist(), probabilities.max(1).astype(float).tolist()]

    def _probabilities(self, numbers: list[int]) -> np.ndarray:
        """Return what the model that is loaded gives every label for some training texts, (texts, labels)."""
        self._loaded = None
        examples = np.array(numbers, dtype=np.int64)
        lengths = self.train_features.lengths(examples)
        places = np.argsort(-lengths, kind="stable")
        probabilities = np.empty((len(examples), len(self.task.labels)), dtype=np.float32)  # type: ignore[attr-defined]
        self.replica.train(False)
        with torch.inference_mode(), self.replica.recalling():
            for start in range(0, len(places), self.recipe.evaluation_batch):
                some = places[start : start + self.recipe.evaluation_batch]
                arguments = self.replica.model, self.train_features, examples[some], self.replica.device
                probabilities[some] = self.task.probabilities(*arguments)  # type: ignore[attr-defined]
        return probabilities

    def _refresh(self, job: dict[str, Any]) -> None:
        """Look, once a job, at what other workers have remembered."""
        if job is not self._job:
            self._job = job
            if self.replica.memory is not None:
                self.replica.memory.refresh()

    def forget(self) -> None:
        """Say that the replica's weights were changed by hand, so that the next job loads them anew."""
        self._loaded = None

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
        with torch.inference_mode(), self.replica.recalling():
            return self.task.predict(self.replica.model, self.test_features, numbers, self.replica.device)

    def _engine(self, job: dict[str, Any], piece: int, x: Tensor) -> dict[str, Any]:
        """Try the model that one client has after a round, or after some more steps by itself.

        A client that fails in these steps is reported, not raised.
        """
        client = job["clients"][piece]
        self._loaded = None
        begin = self.participant.begin(self.participant.record(client, job["round"]), x)
        result = {"client": client, "error": None, "own": None, "global": None, "by_owner": None}
        if job["finetune_steps"]:
            result["error"] = self._finetune(job, piece, x, begin)
            if result["error"] is not None:
                return result
        else:
            self.replica.load_for_evaluation(x if begin.shared is None else begin.shared, begin.own)
        if client not in job["everyone"]:
            own = self.scored(self._tried(client)) if job["own"] else None
            return result | {"own": own and own[self.task.metric]}
        everyone = self._tried()
        found = scores_by_owner(self.task, self.test_features, self.partition, everyone)
        by_owner = [None if np.isnan(score) else float(score) for score in found]  # JSON knows no NaN
        return result | {"own": by_owner[client], "global": self.scored(everyone), "by_owner": by_owner}

    def _finetune(self, job: dict[str, Any], piece: int, x: Tensor, begin: Begin) -> str | None:
        """Let a client train on by itself, without a pull towards the global model, and keep its model if configured.

        Returns:
            Why it failed; None if it did not.
        """
        client, options = (
            job["clients"][piece],
            replace(self.options, max_steps=job["finetune_steps"], mu=0.0),
        )
        try:
            with self._examples(job, piece) as examples:
                self._train_alone(client, examples, options, job["round"] + 1, x, begin)
        except Exception as error:
            return failed(client, 1.0, error).error
        if job["models"] is not None:
            shared = torch.empty(self.layout.numel)
            self.replica.store(shared)
            with closing(ClientStore(Path(job["models"]), model_fields(self.replica))) as store:
                store.write(client, job["round"], {"shared": shared, "own": self.replica.own()})
        return None

    def _tried(self, client: int | None = None) -> list[Outcome]:
        """Predict the whole test set, or a client's own, with the weights as they stand."""
        return [self.predict(batch) for batch in self.test_batches(client)]

    def _train_alone(
        self,
        client: int,
        examples: np.ndarray,
        options: LocalTraining,
        round_number: int,
        x: Tensor,
        begin: Begin | None = None,
    ) -> Trained:
        """Train one client for itself, so that its model can be tried as it stands.

        Raises:
            NotFinite: Training ended in NaN, infinity or huge numbers.
        """
        trained = train_client(
            self.replica,
            self.task,
            self.train_features,
            examples,
            options,
            x,
            self.recipe.seed,
            round_number,
            client,
            all_words=True,
            begin=begin,
        )
        if self.replica.count_bad() > count_bad(x):
            raise NotFinite(BURST)
        return trained

    def _alone(self, job: dict[str, Any], piece: int, x: Tensor) -> dict[str, Any]:
        """Train one client by itself from the start; try its model on its own and the global test set."""
        client = job["clients"][piece]
        self._loaded = None
        options = replace(self.options, epochs=job["epochs"], max_steps=job["max_steps"])
        try:
            trained = self._train_alone(client, self.partition.train(client), options, 0, x)
        except Exception as error:
            return {"client": client, "error": failed(client, 1.0, error).error}
        own = self._tried(client) if job["try_own"] else []
        everyone = self._tried() if client in job["try_global"] else []
        return {
            "client": client,
            "error": None,
            "examples": trained.examples,
            "steps": trained.steps,
            "loss": trained.loss,
            "own": self.scored(own),
            "global": self.scored(everyone),
        }

    def scored(self, outcomes: list[Outcome]) -> Scores | None:
        """Return the task's metrics and the mean loss over outcomes; None where there are no examples."""
        return scored(self.task, self.test_features, outcomes)

    def by_label(self, outcomes: list[Outcome]) -> LabelScores | None:
        """Return the scores by label over outcomes; None where there are no examples, or no labels."""
        numbers, predictions = joined(outcomes)
        return by_label(self.task, predictions, self.test_features, numbers) if len(numbers) else None


def _stacks(groups: list[str]) -> tuple[str, ...]:
    """Return for each tensor which half of an encoder-decoder it belongs to; nothing for other models.

    >>> _stacks(["embeddings", "encoder.layer.0", "decoder.layer.0", "head"])
    ('encoder', 'encoder', 'decoder', 'decoder')
    """
    if not any(group.startswith("decoder.") for group in groups):
        return ()
    return tuple("decoder" if group.startswith(("decoder.", "head")) else "encoder" for group in groups)


def _without_labels(features: Features) -> Features:
    """Return features in which no example has a label: those that are known come with a job."""
    hidden = np.full(len(features), _HIDDEN, dtype=np.int64)
    return replace(features, arrays={**features.arrays, "label": hidden})


def _opened(folder: str) -> Features:
    features = open_features(Path(folder))
    if features is None:
        raise RunError(f"the features in {folder} are gone: start the run again, they are made anew")
    return features
