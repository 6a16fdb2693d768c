"""A worker: the clients whose texts lie on this machine, one model, and what is done with them on request."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fednlp.clock import SUMS, timed
from fednlp.federated.aggregators.base import Room
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL
from fednlp.hubs.cache import cache_dir
from fednlp.models.adapters import ADAPTER, lora_layers
from fednlp.models.checkpointing import checkpoint_layers
from fednlp.models.groups import groups_of
from fednlp.partition import OneClient, Partition
from fednlp.runtime.engine import Handler, Vectors
from fednlp.tasks import task_from
from fednlp.tasks.base import Task
from fednlp.training.activation_cache import ActivationCache, activation_cache_folder
from fednlp.training.client import ClientTrainer
from fednlp.training.client_stack import ClientStack
from fednlp.training.evaluator import Evaluator
from fednlp.training.kernels.onednn import use_onednn
from fednlp.training.local_training import LocalTraining
from fednlp.training.precision import low_dtype
from fednlp.training.replica import Replica
from fednlp.training.requests import HANDLERS
from fednlp.training.worker_spec import (
    UNLABELLED,
    WorkerSpec,
    adapters_of,
    opened_features,
    personal_names,
    pick_device,
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
        adapters = adapters_of(model, spec.peft, spec.federated)
        groups = groups_of(model) if algorithm.uplink.pull.rule != "all" else {}
        self.replica = _open_replica(spec, model, self.task, self.options, adapters.derived)
        self.layout: Layout = self.replica.layout
        pull = algorithm.uplink.pull
        stacks = stacks_of([groups.get(e.name, "") for e in self.layout.entries], pull.embeddings)
        pull = replace(pull, groups=stacks)
        uplink = replace(algorithm.uplink, pull=pull, adapters=adapters)
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
            kind: partial(handler.answer, self) for kind, handler in HANDLERS.items()
        }
        self._stack: ClientStack | None = None
        self._loaded: int | None = None

    @property
    def has_global_model(self) -> bool:
        """Whether the server's model is a whole one, which clients get as it is."""
        return not self.replica.personal.numel and self.algorithm.uplink.pull.push == "all"

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
        return HANDLERS[type(request)].work(self, request)

    def begin(self) -> None:
        """Look at what other workers have cached."""
        if self.replica.activation_cache is not None:
            self.replica.activation_cache.refresh()

    def stack(self, clients: int) -> ClientStack:
        """Return room for the weights of clients that train at once.

        Raises:
            ConfigError: The model or the task does not allow it.
        """
        if self._stack is None or len(self._stack) < clients:
            self._stack = ClientStack(self.replica, self.task, clients)
        return self._stack

    @timed(SUMS)
    def receive(self, request: Any, answer: Any, vectors: Vectors, total: Any) -> Any:
        """Put what came with an answer into the total, and return the rest: the server's half."""
        return HANDLERS[type(request)].receive(self, request, answer, vectors, total)

    @contextmanager
    def labelled_examples(self, request: Any) -> Iterator[np.ndarray]:
        """Yield the examples that a request has its client train on; its labels hold for the time of a block.

        Args:
            request: With the ``examples``, None for all that the client has, and their ``labels``, None for those of
                the data set.
        """
        if request.examples is None:
            yield self.partition.train(request.client)
            return
        numbers = np.array(request.examples, dtype=np.int64)
        if request.labels is None:
            yield numbers
            return
        known = self.train_features.values("label")
        known[numbers] = np.array(request.labels, dtype=np.int64)
        try:
            yield numbers
        finally:
            known[numbers] = UNLABELLED

    @contextmanager
    def scaled(self, client: int) -> Iterator[None]:
        """Let the model's low-rank adapters have a client's scale inside the ``with`` block."""
        factor = self.algorithm.uplink.adapters.scale(client)
        layers = [] if factor == 1.0 else lora_layers(self.replica.model)
        before = [layer.scaling[ADAPTER] for layer in layers]
        for layer in layers:
            layer.scaling[ADAPTER] *= factor
        try:
            yield
        finally:
            for layer, scaling in zip(layers, before, strict=True):
                layer.scaling[ADAPTER] = scaling

    def weight(self, update: Any, x: Tensor) -> float:
        """Return what the weight of a client's update is multiplied by, by the rule of the adapters.

        Args:
            update: Its vectors by name, as they arrived.
            x: The server's model, flat.
        """
        adapters = self.algorithm.uplink.adapters
        return adapters.weight(self.layout, x, update[MODEL].flat(self.layout)) if adapters.weighs else 1.0

    def load_once(self, x: Tensor, key: int) -> None:
        """Load the published model for evaluation, unless it is loaded under this key already.

        Args:
            key: Changes when the model does.
        """
        if self._loaded != key:
            self.replica.load_for_evaluation(x)
            self._loaded = key

    def forget(self) -> None:
        """Say that the replica's weights are changed by others, so that the next evaluation loads them anew."""
        self._loaded = None


def _open_replica(
    spec: WorkerSpec, model: nn.Module, task: Task, options: LocalTraining, derived: Collection[str]
) -> Replica:
    """Make the replica of a model: on the worker's device, with what the options of training ask of the model.

    Args:
        model: The architecture; changed in place.
        derived: Names of frozen parameters that the server sets.

    Raises:
        ModelError: The architecture does not allow gradient checkpointing, or batches without padding.
        RunError: There is no such device.
    """
    by_rows = options.leaves_zero_gradients_alone and task.uses_only_input_ids
    personal = personal_names(model, spec.train, spec.federated, spec.peft)
    if options.gradient_checkpointing:
        checkpoint_layers(model)
    if spec.onednn:
        use_onednn(model)
    padding_free = None
    if options.padding_free:
        from fednlp.training.kernels.padding_free import find_padding_free

        padding_free = find_padding_free(model)
    device = pick_device(spec.device, spec.workers_per_gpu, spec.gpu_mapping)
    replica = Replica(model, device, by_rows, personal, derived, options.weight_decay > 0)
    if padding_free is not None:
        padding_free.install(len(replica.frozen_prefix.blocks) if replica.frozen_prefix else 0)
    usual = not (options.bf16 is True or options.fp16 or spec.evaluation_bf16)
    steady = usual and not getattr(task, "draws_inputs", False)
    if replica.frozen_prefix is not None and steady:
        prefix = replica.frozen_prefix
        folder = activation_cache_folder(prefix, cache_dir()) if spec.cache_activations else None
        replica.activation_cache = ActivationCache(prefix, folder, 0)
    return replica
