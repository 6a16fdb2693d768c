"""Requests that ask what a model predicts: the published one, or one that a client has or trains for itself."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from fednlp.clock import EVALUATION, STEPS, timed
from fednlp.federated.client import ClientLoss, LossRequest, nearest_model
from fednlp.federated.runtime import MODEL
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
    Probabilities,
    ProbabilitiesRequest,
)
from fednlp.tasks.whole_sums import SUM_BITS
from fednlp.training.alone import keep_model, train_alone
from fednlp.training.client import ClientTrainer
from fednlp.training.client_record import ClientInit, model_of
from fednlp.training.evaluator import Evaluator
from fednlp.training.label_probabilities import label_probabilities
from fednlp.training.labelled_examples import labelled_examples


class PredictionRequests:
    """Answers them, with the model of a worker.

    Args:
        trainer: Knows what clients kept, and trains them.
        evaluator: Predicts test examples with the same model.
        partition: Whose examples are whose.

    Attributes:
        handlers: By the type of the request.
        has_global_model: Whether the server's model is a whole one, which clients get as it is.
    """

    def __init__(
        self, trainer: ClientTrainer, evaluator: Evaluator, partition: Partition | OneClient
    ) -> None:
        self.trainer, self.evaluator, self.partition = trainer, evaluator, partition
        self.replica, self.task, self.algorithm = trainer.replica, trainer.task, trainer.algorithm
        self.has_global_model = not self.replica.personal.numel and self.algorithm.uplink.pull.push == "all"
        self.handlers: Mapping[type, Handler] = {
            LossRequest: self.client_loss,
            LabelRequest: self.label,
            ProbabilitiesRequest: self.probabilities,
            EvaluateRequest: self.evaluate,
            ClientModelRequest: self.client_model,
            ClientSumsRequest: self.client_sums,
            LocalOnlyRequest: self.local_only,
        }
        self._loaded: int | None = None

    def forget(self) -> None:
        """Say that the replica's weights were changed by others, so that the next request loads them anew."""
        self._loaded = None

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

    def _probabilities(self, numbers: list[int]) -> np.ndarray:
        """Return what the model that is loaded gives every label for some training texts, (texts, labels)."""
        self._loaded = None
        return label_probabilities(
            self.replica, self.task, self.trainer.features, numbers, self.evaluator.batch_size
        )

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
        init = replace(init, shared=self._own_model(request, init, vectors))
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
    def client_loss(self, request: LossRequest, vectors: Vectors) -> ClientLoss:
        """Return a client's loss by the model that it gets in a round, on its training examples.

        A client that fails is reported, not raised.
        """
        client, number, x, trainer = request.client, request.round, vectors[MODEL], self.trainer
        self._loaded = None
        examples, record = self.partition.train(client), trainer.record(client, number - 1)
        down = trainer.down(record)
        try:
            init = trainer.init(client, number - 1, x)
            loss = trainer.local(client, examples, number, x, init).loss(x)
        except Exception as error:
            return ClientLoss(client, raised(error), 0.0, 0, *down)
        if not math.isfinite(loss):
            return ClientLoss(client, f"its loss is {loss}", 0.0, 0, *down)
        return ClientLoss(client, None, loss, len(examples), *down)

    def _own_model(self, request: ClientModelRequest, init: ClientInit, vectors: Vectors) -> Tensor:
        """Return the shared parameters of a client's model: where the server has several, the one that it fits."""
        x, models = vectors[MODEL], self.algorithm.models
        if not models:
            return model_of(init, self.algorithm, x)
        with labelled_examples(
            self.trainer.features, self.partition, request.client, request.examples, request.labels
        ) as examples:
            if not len(examples):
                return x
            local = self.trainer.local(request.client, examples, request.round, x, init)
            return vectors[nearest_model(local, x, vectors, models)]

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
        options = self.trainer.options.model_copy(update={"max_steps": request.finetune_steps})
        try:
            with labelled_examples(
                self.trainer.features, self.partition, request.client, request.examples, request.labels
            ) as examples:
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
        options = self.trainer.options.model_copy(
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
