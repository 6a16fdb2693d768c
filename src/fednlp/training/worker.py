"""A worker: the clients whose texts lie on this machine, one model, and what is done with them on request."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fednlp.clock import EVALUATION, STEPS, SUMS, timed
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
from fednlp.plugins import raised
from fednlp.runtime.engine import Handler, Vectors
from fednlp.runtime.messages import (
    BatchPredictions,
    ClientModelRequest,
    ClientModelResult,
    ClientSums,
    ClientSumsRequest,
    EvaluateRequest,
    LabelRequest,
    Labels,
    LocalOnlyRequest,
    LocalOnlyResult,
    MaskValues,
    Probabilities,
    ProbabilitiesRequest,
    TrainedTogether,
    TrainTogetherRequest,
    UnmaskRequest,
    from_json,
    to_json,
)
from fednlp.tasks import task_from
from fednlp.tasks.whole_sums import SUM_BITS
from fednlp.training.alone import keep_model, train_alone
from fednlp.training.at_once import take_steps
from fednlp.training.client import ClientInit, ClientTrainer, model_of
from fednlp.training.client_stack import ClientStack
from fednlp.training.evaluator import Evaluator
from fednlp.training.label_probabilities import label_probabilities
from fednlp.training.local_training import LocalTraining
from fednlp.training.open_replica import open_replica
from fednlp.training.participation import Participation, begin, fail
from fednlp.training.precision import low_dtype
from fednlp.training.work import predicted_work
from fednlp.training.worker_spec import (
    UNLABELLED,
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
        self.receives, self.sends = algorithm.receives, algorithm.sends
        self.handlers: Mapping[type, Handler] = {
            TrainRequest: self.train,
            TrainTogetherRequest: self.train_together,
            LabelRequest: self.label,
            ProbabilitiesRequest: self.probabilities,
            UnmaskRequest: self.unmask,
            EvaluateRequest: self.evaluate,
            ClientModelRequest: self.client_model,
            ClientSumsRequest: self.client_sums,
            LocalOnlyRequest: self.local_only,
        }
        self._loaded: int | None = None
        self._stack: ClientStack | None = None

    @property
    def has_global_model(self) -> bool:
        """Whether the server's model is a whole one, which clients get as it is."""
        return not self.replica.personal.numel and self.algorithm.uplink.pull.push == "all"

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own after a round."""
        return not self.has_global_model or self.algorithm.personal_model is not None

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
        self._loaded = None
        trainer = self.trainer
        with self._labelled(request.client, request.examples, request.labels) as examples:
            part = begun or begin(trainer, request, examples, vectors)
            try:
                result = self.algorithm.client(part.local, vectors[MODEL], vectors, part.init.method)
                with timed(SUMS):
                    sent = trainer.encode(request, part.local, result, part.record)
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
        self._loaded = None
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
            self.algorithm.aggregator.add(total, request, update)
        except Exception as error:
            self.trainer.forget(request)
            return failed(request, error, result.bytes_down, result.tensors_down)
        return result

    @contextmanager
    def _labelled(
        self, client: int, examples: list[int] | None, labels: list[int] | None
    ) -> Iterator[np.ndarray]:
        """Yield the examples that a client trains on; labels of a request hold for the time of a block.

        Args:
            client: Its id.
            examples: Of the request; None for all that the client has.
            labels: Theirs; None for those of the data set.
        """
        if examples is None:
            yield self.partition.train(client)
            return
        numbers = np.array(examples, dtype=np.int64)
        if labels is None:
            yield numbers
            return
        known = self.train_features.values("label")
        known[numbers] = np.array(labels, dtype=np.int64)
        try:
            yield numbers
        finally:
            known[numbers] = UNLABELLED

    @timed(EVALUATION)
    def label(self, request: LabelRequest, vectors: Vectors) -> Labels:
        """Return the likeliest label of each text of a client, and its probability, by the model that it has."""
        x = vectors[MODEL]
        init = self.trainer.init(request.client, request.round - 1, x)
        self.replica.load_for_evaluation(model_of(init, self.algorithm, x), init.personal)
        found = self._probabilities(request.texts)
        return Labels(found.argmax(1).tolist(), found.max(1).astype(float).tolist())

    @timed(EVALUATION)
    def probabilities(self, request: ProbabilitiesRequest, vectors: Vectors) -> Probabilities:
        """Return what the published model gives every label for some training texts."""
        self.replica.load_for_evaluation(vectors[MODEL])
        return Probabilities(self._probabilities(request.texts).astype(float).tolist())

    @timed(SUMS)
    def unmask(self, request: UnmaskRequest, vectors: Vectors) -> MaskValues:
        """Return the masks of a slice of the sum of masked updates."""
        from fednlp.secure.upload import mask_values

        return MaskValues(mask_values(request.start, request.stop, request.seeds))

    def _probabilities(self, numbers: list[int]) -> np.ndarray:
        """Return what the model that is loaded gives every label for some training texts, (texts, labels)."""
        self._loaded = None
        return label_probabilities(
            self.replica, self.task, self.train_features, numbers, self.spec.evaluation_batch
        )

    def forget(self) -> None:
        """Say that the replica's weights were changed by hand, so that the next job loads them anew."""
        self._loaded = None

    @timed(EVALUATION)
    def evaluate(self, request: EvaluateRequest, vectors: Vectors) -> BatchPredictions:
        """Predict one batch of the test set with the published model."""
        if self._loaded != request.key:
            self.replica.load_for_evaluation(vectors[MODEL])
            self._loaded = request.key
        found = self.evaluator.predict(self.evaluator.test_batches()[request.batch])
        return BatchPredictions(**asdict(found))

    @timed(EVALUATION)
    def client_model(self, request: ClientModelRequest, vectors: Vectors) -> ClientModelResult:
        """Evaluate the model that one client has after a round, or after some more steps by itself.

        A client that fails in these steps is reported, not raised.
        """
        client, x, evaluator = request.client, vectors[MODEL], self.evaluator
        self._loaded = None
        init = self.trainer.init(client, request.round, x)
        init = replace(init, shared=model_of(init, self.algorithm, x))
        if request.finetune_steps:
            error = self._finetune(request, x, init)
            if error is not None:
                return ClientModelResult(client, error)
        else:
            assert init.shared is not None
            self.replica.load_for_evaluation(init.shared, init.personal)
        if not request.on_all:
            own = evaluator.scored(evaluator.predict_all(client)) if request.on_own else None
            return ClientModelResult(client, own=None if own is None else own[self.task.metric])
        everyone = evaluator.predict_all()
        by_owner = evaluator.by_owner(everyone)
        return ClientModelResult(
            client, own=by_owner[client], everyone=evaluator.scored(everyone), by_owner=by_owner
        )

    @timed(EVALUATION)
    def client_sums(self, request: ClientSumsRequest, vectors: Vectors) -> ClientSums:
        """Return sums over a client's own test examples, by the global model and the layers of its own."""
        client, x = request.client, vectors[MODEL]
        if not self.has_global_model:
            init = self.trainer.init(client, request.round, x)
            shared = model_of(init, self.algorithm, x)
            self._loaded = None
            self.replica.load_for_evaluation(shared, init.personal)
        elif self._loaded != request.round:
            self.replica.load_for_evaluation(x)
            self._loaded = request.round
        sums = self.evaluator.sums(self.evaluator.predict_all(client))
        if request.masking is not None:
            from fednlp.secure.number_sum import masked_numbers

            sums = masked_numbers(sums, SUM_BITS, request.masking).tolist()
        return ClientSums(client, None, sums)

    def _finetune(self, request: ClientModelRequest, x: Tensor, init: ClientInit) -> str | None:
        """Let a client train on by itself, with nothing but its loss, and keep its model if configured.

        Returns:
            Why it failed; None if it did not.
        """
        options = self.options.model_copy(update={"max_steps": request.finetune_steps})
        try:
            with self._labelled(request.client, request.examples, request.labels) as examples:
                train_alone(self.trainer, request.client, examples, options, request.round + 1, x, init)
        except Exception as error:
            return raised(error)
        if request.save_to is not None:
            keep_model(self.replica, Path(request.save_to), request.client, request.round)
        return None

    @timed(STEPS)
    def local_only(self, request: LocalOnlyRequest, vectors: Vectors) -> LocalOnlyResult:
        """Train one client by itself from the start; evaluate its model on its own and the global test set."""
        client = request.client
        self._loaded = None
        options = self.options.model_copy(
            update={"num_train_epochs": request.epochs, "max_steps": request.max_steps}
        )
        examples = self.partition.train(client)
        try:
            local = train_alone(self.trainer, client, examples, options, 0, vectors[MODEL], ClientInit())
        except Exception as error:
            return LocalOnlyResult(client, raised(error))
        evaluator = self.evaluator
        with timed(EVALUATION):
            own = evaluator.predict_all(client) if request.on_own else []
            everyone = evaluator.predict_all() if request.on_all else []
        return LocalOnlyResult(
            client,
            None,
            local.total_examples,
            local.total_steps,
            local.total_loss,
            evaluator.scored(own),
            evaluator.scored(everyone),
        )
