"""A worker: the clients whose texts lie on this machine, one model, and what is done with them on request."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fednlp.clock import STEPS, SUMS, timed
from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import Room
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult, TrainRequest, failed
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL
from fednlp.federated.transforms import RngKey
from fednlp.federated.upload import Trained, received, require_reported
from fednlp.models.groups import groups_of
from fednlp.partition import OneClient, Partition
from fednlp.runtime.engine import Handler, Vectors
from fednlp.runtime.message_json import from_json, to_json
from fednlp.runtime.messages import MaskValues, TrainedTogether, TrainTogetherRequest, UnmaskRequest
from fednlp.tasks import task_from
from fednlp.training.at_once import take_steps
from fednlp.training.client import ClientTrainer
from fednlp.training.client_stack import ClientStack
from fednlp.training.evaluator import Evaluator
from fednlp.training.labelled_examples import labelled_examples
from fednlp.training.local_training import LocalTraining
from fednlp.training.open_replica import open_replica
from fednlp.training.participation import Participation, begin, fail
from fednlp.training.precision import low_dtype
from fednlp.training.prediction_requests import PredictionRequests
from fednlp.training.sending import encode
from fednlp.training.work import predicted_work
from fednlp.training.worker_spec import (
    WorkerSpec,
    exact_adapters,
    opened_features,
    stacks_of,
    without_labels,
)


class ClientWorker:
    """Trains and evaluates clients whose texts lie on this machine, one after the other, in one model.

    Args:
        spec: Where everything is.
        model: The architecture; its weights are overwritten.
        algorithm: The method. What depends on the model is filled in: the groups and adapters of its uplink.
        partition: Whose examples are whose; by default what the file holds that ``spec`` names.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        model: nn.Module,
        algorithm: Algorithm,
        partition: Partition | OneClient | None = None,
    ) -> None:
        self.spec = spec
        self.task = task_from(spec.task, spec.task_fields)
        self.options = LocalTraining(**spec.options)
        adapters = exact_adapters(model, spec.peft, spec.federated)
        groups = groups_of(model) if algorithm.uplink.pull.rule != "all" else {}
        self.replica = open_replica(spec, model, self.task, self.options, [pair.base for pair in adapters])
        self.layout: Layout = self.replica.layout
        pull = algorithm.uplink.pull
        stacks = stacks_of([groups.get(e.name, "") for e in self.layout.entries], pull.embeddings)
        pull = replace(pull, groups=stacks)
        uplink = replace(algorithm.uplink, pull=pull, adapters=tuple(adapters))
        self.algorithm = replace(algorithm, uplink=uplink)
        self.train_features = opened_features(spec.train_features)
        same = spec.test_features == spec.train_features
        self.test_features = self.train_features if same else opened_features(spec.test_features)
        if spec.unlabelled:
            self.train_features = without_labels(self.train_features)
        self.partition = Partition.load(Path(spec.partition)) if partition is None else partition
        self.trainer = ClientTrainer(
            self.replica,
            self.task,
            self.train_features,
            self.options,
            self.algorithm,
            Path(spec.records) if spec.federated else None,
            spec.seed,
        )
        self.evaluator = Evaluator(
            self.replica,
            self.task,
            self.test_features,
            self.partition,
            spec.test_numbers,
            spec.evaluation_batch,
            low_dtype(self.replica.device, spec.evaluation_bf16),
        )
        self.predictions = PredictionRequests(self.trainer, self.evaluator, self.partition)
        self.receives, self.sends = algorithm.receives, algorithm.sends
        self.handlers: Mapping[type, Handler] = {
            TrainRequest: self.train,
            TrainTogetherRequest: self.train_together,
            UnmaskRequest: self.unmask,
            **self.predictions.handlers,
        }
        self._stack: ClientStack | None = None

    @property
    def has_global_model(self) -> bool:
        """Whether the server's model is a whole one, which clients get as it is."""
        return self.predictions.has_global_model

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own after a round."""
        own = self.algorithm.personal_model is not None or bool(self.algorithm.models)
        return not self.has_global_model or own

    def new_total(self, room: Room) -> Any:
        """Return an empty total of updates."""
        return self.algorithm.aggregator.init(self.layout, self.algorithm.sends, room)

    @timed(SUMS)
    def merge(self, total: Any, other: Any) -> None:
        """Add another worker's total to one, and empty the other."""
        self.algorithm.aggregator.merge(total, other)
        self.clear(other)

    def clear(self, total: Any) -> None:
        """Empty a total."""
        self.algorithm.aggregator.clear(total)

    def work(self, request: Any) -> float:
        """Return how much work a request is, in tokens that are trained on; 0 where it is not known."""
        return predicted_work(request, self.options, self.train_features, self.partition, self.evaluator)

    def begin(self) -> None:
        """Look at what other workers have cached."""
        if self.replica.activation_cache is not None:
            self.replica.activation_cache.refresh()

    @timed(STEPS)
    def train(
        self, request: TrainRequest, vectors: Vectors, begun: Participation | None = None
    ) -> Trained | ClientResult:
        """Let one client take its part in a round, up to its upload: the client's half.

        A client that fails is reported, not raised.

        Args:
            request: What it was told.
            vectors: What was published.
            begun: What it trains with, where that is prepared already.

        Raises:
            ConfigError: The algorithm's client does not fit what the algorithm declares.
        """
        self.predictions.forget()
        trainer = self.trainer
        told = request.client, request.examples, request.labels
        with labelled_examples(self.train_features, self.partition, *told) as examples:
            part = begun or begin(trainer, request, examples, vectors)
            try:
                result = self.algorithm.client(part.local, vectors[MODEL], vectors, part.init.method)
                with timed(SUMS):
                    sent = encode(self.algorithm, request, part.local, result, part.record)
            except ConfigError:  # it would be the same for every client
                raise
            except Exception as error:
                return fail(trainer, part, error)
        trainer.keep(request, part.local, result, sent)
        return Trained(trainer.result(request, part.local, result, sent, part.record), sent.upload)

    @timed(STEPS)
    def train_together(self, request: TrainTogetherRequest, vectors: Vectors) -> list[Trained | ClientResult]:
        """Let several clients take their part in a round, with their local steps at once.

        Raises:
            ConfigError: The model or the task does not allow it.
        """
        self.predictions.forget()
        requests: list[TrainRequest] = [from_json(one) for one in request.clients]
        parts = [begin(self.trainer, one, self.partition.train(one.client), vectors) for one in requests]
        try:
            take_steps(self.stack(len(parts)), [part.local for part in parts])
        except ConfigError:
            raise
        except Exception as error:
            return [fail(self.trainer, part, error) for part in parts]
        return [self.train(part.request, vectors, part) for part in parts]

    def stack(self, clients: int) -> ClientStack:
        """Return room for the weights of clients that train at once.

        Args:
            clients: How many.

        Raises:
            ConfigError: The model or the task does not allow it.
        """
        if self._stack is None or len(self._stack) < clients:
            self._stack = ClientStack(self.replica, self.task, clients)
        return self._stack

    @timed(SUMS)
    def receive(self, request: Any, answer: Any, vectors: Vectors, total: Any) -> Any:
        """Put what came with an answer into the total, and return the rest: the server's half.

        An update that cannot be added drops its client.

        Args:
            request: What was asked.
            answer: What a handler returned.
            vectors: What was published.
            total: Of updates.
        """
        if isinstance(answer, MaskValues):
            total["model"].add_residues(answer.values, request.start)
            return None
        if isinstance(answer, list):
            requests = [from_json(one) for one in request.clients]
            pairs = zip(requests, answer, strict=True)
            return TrainedTogether([to_json(self.receive(*pair, vectors, total)) for pair in pairs])
        if not isinstance(answer, Trained):
            return answer
        key, result = RngKey(self.spec.seed, request.began, request.client), answer.result
        try:
            require_reported(result, self.algorithm)
            update = received(answer.upload, self.algorithm, self.layout, vectors[MODEL], key)
            if isinstance(update, dict) and result.model != MODEL:
                update[result.model] = update.pop(MODEL)
            self.algorithm.aggregator.add(total, request, update)
        except Exception as error:
            self.trainer.forget(request)
            return failed(request, error, result.bytes_down, result.tensors_down)
        return result

    @timed(SUMS)
    def unmask(self, request: UnmaskRequest, vectors: Vectors) -> MaskValues:
        """Return the masks of a slice of the sum of masked updates."""
        from fednlp.secure.upload import mask_values

        return MaskValues(mask_values(request.start, request.stop, request.seeds))

    def forget(self) -> None:
        """Say that the replica's weights were changed by hand, so that the next request loads them anew."""
        self.predictions.forget()
