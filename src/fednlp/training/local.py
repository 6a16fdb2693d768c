"""One client's local steps: the one loop over batches in which models are trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.amp import GradScaler

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.federated.client import Gradient, Objective
from fednlp.federated.params import Layout
from fednlp.federated.update import Update
from fednlp.plugins import described, require_takes
from fednlp.seeds import generator, torch_stream
from fednlp.tasks.base import Batch, Task
from fednlp.training.batches import local_batches, passes
from fednlp.training.client_record import ClientInit
from fednlp.training.flat_tensors import Group
from fednlp.training.kernels.dropout import cheap_dropout
from fednlp.training.local_training import LocalTraining
from fednlp.training.optimizers import Descent
from fednlp.training.outputs import BatchOutputs, called_with, watching
from fednlp.training.precision import low_dtype, low_precision
from fednlp.training.replica import Replica

_NO_LABEL = -100
"""PyTorch's cross-entropy leaves targets of this number out."""
_FIRST_SCALE = 2.0**12
"""Of a float16 loss: each client begins with it anew, so a step that overflows must be rare."""


@dataclass(frozen=True)
class GivenSteps:
    """The steps of a longer training that are taken now, in place of a client's epochs.

    Attributes:
        batches: The example numbers of each.
        first: The number of the first.
        last: How many steps the schedule is for.
        stream: The name of the random stream of dropout, and its numbers.
    """

    batches: list[np.ndarray]
    first: int
    last: int
    stream: tuple[str, tuple[int, ...]]


class LocalTrainer:
    """One client's data, model and optimiser for the time of a round (:class:`fednlp.federated.client.Local`).

    Args:
        features: The training set's features, by example number.
        examples: The client's example numbers.
        x: The global model, flat: what updates are measured from.
        seed: The experiment's; with round and client it decides order and dropout.
        round_number: From 1.
        init: What it has of its own: its personal parameters, where steps from ``x`` begin in its place, and its
            optimiser's memory.
        rate: The learning rate is multiplied by this.
        staleness: How many rounds ago the server had ``x``.
        all_words: Load the whole word embedding, so that the trained model can be evaluated as it stands.
        given: The steps of the next call; None for the client's epochs.
        held: Names of shared tensors that are not trained in this round.

    Attributes:
        trained_personal: The personal parameters after the first call of :meth:`steps`, flat: the client keeps them.
        memory: The optimiser's state, before the first call of :meth:`steps`, and then after it: the client keeps it.
        momentum: Of the client's SGD; 0 for none.
        rate_sum: The learning rates of the last call, summed.
        total_examples: Seen in all calls, once per epoch.
        total_loss: Sum over all steps of the mean loss of the step's examples, times their number.
        dtype: The low precision of forward passes; None for float32.
    """

    def __init__(
        self,
        replica: Replica,
        task: Task,
        features: Features,
        examples: np.ndarray,
        options: LocalTraining,
        x: Tensor,
        seed: int,
        round_number: int,
        client: int,
        *,
        init: ClientInit | None = None,
        rate: float = 1.0,
        staleness: int = 0,
        all_words: bool = False,
        given: GivenSteps | None = None,
        held: frozenset[str] = frozenset(),
    ) -> None:
        self.replica, self.task, self.features, self.examples = replica, task, features, examples
        self.options, self.x, self.seed, self.round, self.client = options, x, seed, round_number, client
        self.init = init or ClientInit()
        self.rate, self.staleness, self.momentum = rate, staleness, options.momentum
        self.memory = self.init.optimizer
        self.trained_personal: Tensor | None = None
        self.num_steps, self.rate_sum = 0, 0.0
        self.total_steps, self.total_examples, self.total_loss = 0, 0, 0.0
        self._gradients, self._forwards = 0, 0
        self.dtype = low_dtype(replica.device, options.bf16 is True, options.fp16)
        self._all_words, self._given, self._held = all_words, given, held
        self._calls = 0
        self._precomputed: TrainedWeights | None = None
        self._last: TrainedWeights | None = None

    @property
    def layout(self) -> Layout:
        """What lies where in flat vectors of the shared parameters."""
        return self.replica.layout

    @property
    def gradient_examples(self) -> int:
        """Examples seen besides :meth:`steps`; a pass without its way back counts a third."""
        return self._gradients + self._forwards // 3

    def steps(
        self,
        start: Tensor,
        gradient: Gradient | None = None,
        *vectors: Tensor,
        sparse: bool = False,
        objective: Objective | None = None,
        before_step: Callable[[np.ndarray, Tensor], None] | None = None,
        on_step: Callable[[int], None] = lambda done: None,
    ) -> "TrainedWeights":
        """Take the client's local steps (see :meth:`fednlp.federated.client.Local.steps`).

        Args:
            start: Where they start, flat.
            gradient: Changes the loss's gradient before each step; None leaves it.
            vectors: Flat vectors that ``gradient`` needs.
            sparse: Whether ``gradient`` leaves rows of the word embedding alone that the client does not use.
            objective: Makes of a batch's loss the one that is minimised; None leaves it.
            before_step: Gets the step's examples, and the weights that it starts from, flat.
            on_step: Told how many steps are taken.

        Raises:
            ConfigError: The steps were taken already, with those of other clients, and not from this start or not with
                this gradient and objective; or one of the two functions does not fit.
        """
        if self._precomputed is not None:
            return self._take_precomputed(start, gradient or objective or before_step)
        if objective is not None:
            require_takes(objective, "the objective", "loss", "out", "batch", "at")
        replica, options = self.replica, self.options
        self._load(start, by_rows=gradient is None or sparse)
        batches, given = self.next_batches(), self._given
        first, last = (given.first, given.last) if given else (0, len(batches))
        stream, numbers_of_stream = given.stream if given else ("dropout", (self.round, self.client))
        scaler = GradScaler(replica.device.type, _FIRST_SCALE) if options.fp16 else None
        memory = {} if self._calls else self.memory
        descent = Descent(options, replica.groups, last, self.rate, memory, scaler)
        parts = replica.stretches(vectors)
        losses: list[Tensor] = []
        replica.train(True)
        with (
            replica.caching_activations(),
            torch_stream(self.seed, stream, *numbers_of_stream, *self._again()),
            cheap_dropout(),
            replica.flat.holding(self._held),
        ):
            for step, numbers in enumerate(batches):
                if before_step is not None:
                    before_step(numbers, replica.weights(self.x))
                loss = self._backward(numbers, scaler, objective)
                descent.unscale()
                if gradient is not None:
                    replica.change_gradient(gradient, parts, sparse)
                descent.prepare(first + step)
                with replica.flat.unreached_kept():
                    descent.move()
                losses.append(loss * len(numbers))
                on_step(step + 1)
        keeps = options.keep_optimizer or given is not None
        self._count(batches, losses, descent, first, replica.own, keeps)
        self._last = TrainedWeights(replica, self.x)
        return self._last

    def taken(
        self,
        batches: list[np.ndarray],
        losses: list[Tensor],
        descent: Descent,
        shared: Tensor,
        personal: Tensor,
    ) -> None:
        """Take note of the client's steps from ``x``, which were taken with those of others: the next call has them.

        Args:
            losses: Of each, times its examples.
            shared: The weights after them, flat.
            personal: Its personal parameters after them, flat.
        """
        self._count(batches, losses, descent, 0, lambda: personal, self.options.keep_optimizer)
        self._precomputed = TrainedWeights(self.replica, self.x, shared)

    def _take_precomputed(self, start: Tensor, function: Any) -> "TrainedWeights":
        """Return the weights of the steps that were taken already, once, if they are those that are asked for."""
        if start is not self.x or function is not None or self._precomputed is None:
            raise ConfigError(
                "runtime.clients_at_once takes the local steps of several clients from the global model as they are, "
                "and this method's start elsewhere or do more: leave clients_at_once out"
            )
        weights, self._precomputed = self._precomputed, None
        return weights

    def _backward(
        self, numbers: np.ndarray, scaler: GradScaler | None, objective: Objective | None
    ) -> Tensor:
        """Compute the gradient of a step's mean loss in passes over some of its examples; return the task's loss.

        The passes are weighted as one over all the examples would weight them, so that the gradient is the same.
        """
        replica, batches = self.replica, self._collated(numbers)
        replica.zero_grad()
        if len(batches) == 1:
            loss, minimised = self._loss(batches[0], objective)
            (minimised if scaler is None else scaler.scale(minimised)).backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        total = torch.zeros((), device=replica.device)
        for batch, share in zip(batches, _shares(batches), strict=True):
            loss, minimised = (part * share for part in self._loss(batch, objective))
            (minimised if scaler is None else scaler.scale(minimised)).backward()
            total += loss.detach()
        return total

    def _loss(self, batch: Batch, objective: Objective | None) -> tuple[Tensor, Tensor]:
        """Return the task's mean loss of a batch, and what is minimised."""
        model = self.replica.model
        if objective is None:
            with low_precision(model, self.dtype):
                loss = self.task.loss(model, batch)
            return loss, loss
        out = self._outputs(model, batch)
        minimised = objective(out.loss, out, batch, lambda vector: self._outputs_at(vector, batch))
        if not isinstance(minimised, Tensor) or minimised.dim():
            what = (
                f"a tensor of shape {tuple(minimised.shape)}"
                if isinstance(minimised, Tensor)
                else "no tensor"
            )
            raise ConfigError(
                f"the objective {described(objective)} returned {what}: return one number, the loss to minimise"
            )
        return out.loss, minimised

    def _outputs(self, model: torch.nn.Module, batch: Batch) -> BatchOutputs:
        """Return what a model computes of a batch."""
        with (
            low_precision(self.replica.model, self.dtype),
            watching(self.replica.model, self.task, batch) as out,
        ):
            out.loss = self.task.loss(model, batch)
        return out

    def _outputs_at(self, vector: Tensor, batch: Batch) -> BatchOutputs:
        """Return what the model computes of a batch with other shared weights, without gradients and dropout."""
        replica = self.replica
        tensors = replica.tensors_of(*replica.cut(vector))
        self._forwards += len(next(iter(batch.values())))
        with torch.no_grad(), self._evaluating():
            made: BatchOutputs = called_with(
                replica.model, tensors, lambda model: self._outputs(model, batch)
            )
        return made

    def another(self, start: Tensor) -> "AnotherModel":
        """Return another model of the client, which takes steps with gradients that it is given.

        Args:
            start: Where it starts, flat.
        """
        steps = len(self.next_batches())
        return AnotherModel(self.replica, self.options, start, steps, self.rate)

    def gradient(self, at: Tensor, batch: np.ndarray | None = None) -> Tensor:
        """Return the gradient of the client's mean loss over all labels of some examples, flat, without dropout.

        Args:
            at: Where, flat.
            batch: The examples, within :meth:`steps`, whose model is not touched; None for all, before or after.
        """
        if batch is not None:
            return self._gradient_beside(at, batch)
        replica = self.replica
        self._load(at, by_rows=False)
        replica.train(False)
        replica.zero_grad()
        with torch_stream(self.seed, "gradient", self.round, self.client, *self._again()):
            batches = self._collated(self.examples)
            for one, share in zip(batches, _shares(batches), strict=True):
                loss = self.task.loss(replica.model, one) * share
                loss.backward()
        self._gradients += len(self.examples)
        return replica.gradient()

    def _gradient_beside(self, at: Tensor, batch: np.ndarray) -> Tensor:
        """Return the gradient of a batch's mean loss with other weights than the replica's."""
        replica, task = self.replica, self.task
        leaves = [part.detach().requires_grad_() for part in replica.cut(at) if part is not None]
        tensors = replica.tensors_of(leaves[0], leaves[1] if len(leaves) > 1 else None)
        found = [torch.zeros_like(leaf) for leaf in leaves]
        with torch_stream(self.seed, "gradient", self.round, self.client, *self._again()):
            batches = self._collated(batch)
            for one, share in zip(batches, _shares(batches), strict=True):

                def parts(
                    model: torch.nn.Module, one: Batch = one, share: Tensor = share
                ) -> Sequence[Tensor | None]:
                    loss = task.loss(model, one) * share
                    return torch.autograd.grad(loss, leaves, allow_unused=True)

                with self._evaluating():
                    made = called_with(replica.model, tensors, parts)
                for total, part in zip(found, made, strict=True):
                    if part is not None:
                        total += part
        self._gradients += len(batch)
        return replica.joined(*found)

    @torch.no_grad()
    def loss(self, at: Tensor) -> float:
        """Return the client's mean loss over all labels of its examples, without dropout."""
        replica = self.replica
        self._load(at, by_rows=True)
        replica.train(False)
        with (
            replica.caching_activations(),
            torch_stream(self.seed, "loss", self.round, self.client, *self._again()),
        ):
            batches = self._collated(self.examples)
            shares = _shares(batches)
            losses = [
                self.task.loss(replica.model, one) * share for one, share in zip(batches, shares, strict=True)
            ]
        self._forwards += len(self.examples)
        return float(torch.stack(losses).double().sum())

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Let the model compute without dropout inside the ``with`` block, in the midst of its steps."""
        self.replica.train(False)
        try:
            yield
        finally:
            self.replica.train(True)

    def _collated(self, numbers: np.ndarray) -> list[Batch]:
        """Return the passes over some examples."""
        options, features = self.options, self.features
        size, tokens = options.per_device_train_batch_size, options.max_tokens_per_batch
        return [
            self.task.collate(features, some, self.replica.device, training=True)
            for some in passes(numbers, features.lengths, size, tokens)
        ]

    def _load(self, start: Tensor, by_rows: bool) -> None:
        """Load the weights that steps begin with, and let go of those of the call before."""
        if self._last is not None:
            self._last.detach()
            self._last = None
        own = self.init.personal
        if start is not self.x:
            self.replica.load(self.x, None, own, start)
            return
        rows = by_rows and self.replica.by_rows and not self._all_words
        words = self.features.words(self.examples) if rows else None
        self.replica.load(self.x, words, own, self.init.shared)

    def next_batches(self) -> list[np.ndarray]:
        """Return the batches of the next call of :meth:`steps`."""
        if self._given is not None:
            return self._given.batches
        options, examples = self.options, self.examples
        order = generator(self.seed, "batches", self.round, self.client, *self._again())
        lengths, steps = self.features.lengths(examples), options.steps(len(examples))
        return list(
            local_batches(examples, lengths, options.examples_per_step, steps, order, options.group_by_length)
        )

    def _again(self) -> tuple[int, ...]:
        """Return what tells the random streams of later calls in a round from those of the first."""
        return (self._calls,) if self._calls else ()

    def _count(
        self,
        batches: list[np.ndarray],
        losses: list[Tensor],
        descent: Descent,
        first: int,
        personal: Callable[[], Tensor],
        keeps_optimizer: bool,
    ) -> None:
        """Count the steps of a call; the client keeps what the first one ends with.

        Args:
            losses: Of each, times its examples.
            first: The number of the first step, for the schedule.
            personal: Returns the personal parameters after the last.
            keeps_optimizer: Whether it keeps the optimiser's state too.
        """
        self._calls += 1
        self.num_steps = len(batches)
        self.rate_sum = (
            len(batches) * self.options.learning_rate
            if descent.rate is None
            else sum(descent.rate(first + step) for step in range(len(batches)))
        )
        self.total_steps += len(batches)
        self.total_examples += sum(map(len, batches))
        self.total_loss += float(torch.stack(losses).double().sum())
        if self.trained_personal is None:
            self.trained_personal = personal()
            self.memory = descent.memory() if keeps_optimizer else {}


class TrainedWeights:
    """The weights that local steps ended with: they lie in the replica until it is loaded anew.

    Args:
        x: The global model that the client got, flat.
        flat: The weights, where the replica does not hold them.
    """

    def __init__(self, replica: Replica, x: Tensor, flat: Tensor | None = None) -> None:
        self._replica, self.x, self._flat = replica, x, flat

    def detach(self) -> None:
        """Copy the weights out of the replica, which is about to be used for others."""
        if self._flat is None:
            self._flat = self._replica.weights(self.x)

    def flat(self) -> Tensor:
        """Return the weights as a flat vector of their own."""
        return self._replica.weights(self.x) if self._flat is None else self._flat

    def take(self) -> Update:
        """Return the change from the global model, in place where the weights are still in the replica."""
        if self._flat is None:
            return self._replica.take_update()
        return Update.of(self._flat - self.x, self._replica.layout)

    def change(self) -> Tensor:
        """Return the change from the global model, flat."""
        return self._replica.update() if self._flat is None else self._flat - self.x

    def __sub__(self, other: Tensor) -> "_WeightsChange":
        if other is not self.x:
            raise TypeError("y - x is for the global model x: for another vector say y.flat() - vector")
        return _WeightsChange(self)

    def __rsub__(self, other: Tensor) -> Tensor:
        return -self.change() if other is self.x else other - self.flat()


class _WeightsChange:
    """``y - x``, computed when it is sent (:class:`fednlp.federated.client.Change`).

    Args:
        divisor: What the change is divided by.
    """

    def __init__(self, weights: TrainedWeights, divisor: float = 1.0) -> None:
        self._weights, self._divisor = weights, divisor

    def take(self) -> Update:
        """Return the update; the trained weights are used up."""
        update = self._weights.take()
        if self._divisor != 1.0:
            update.dense.div_(self._divisor)
            if update.table is not None:
                update.table.div_(self._divisor)
        return update

    def flat(self) -> Tensor:
        """Return the update as a flat vector of its own."""
        change = self._weights.change()
        return change if self._divisor == 1.0 else change / self._divisor

    def __truediv__(self, number: float) -> "_WeightsChange":
        return _WeightsChange(self._weights, self._divisor * number)


class AnotherModel:
    """A model of a client beside the one that takes its local steps, with an optimiser of its own.

    Args:
        start: Where it starts, flat.
        steps: That it will take, for the schedule.
        rate: The learning rate is multiplied by this.
    """

    def __init__(
        self, replica: Replica, options: LocalTraining, start: Tensor, steps: int, rate: float
    ) -> None:
        layout = replica.layout
        self._dense, self._taken, self._x, self._layout = layout.dense, 0, start, layout
        self._live = torch.zeros_like(replica.flat.live)
        self._gradient = torch.zeros_like(self._live)
        self._live[: layout.dense] = start[: layout.dense]
        groups = replica.flat.groups_in(self._live, self._gradient)
        self._table = torch.nn.Parameter(layout.rows(start).to(replica.device, copy=True))
        if layout.table is not None:
            groups.append(Group(self._table, True))
        self._descent = Descent(options, groups, steps, rate)

    def step(self, gradient: Tensor) -> None:
        """Take a step of the optimiser with a gradient, flat."""
        self._gradient[: self._dense] = gradient[: self._dense]
        if self._layout.table is not None:
            self._table.grad = self._layout.rows(gradient).to(self._table.device)
        self._descent.prepare(self._taken)
        self._descent.move()
        self._taken += 1

    @torch.no_grad()
    def flat(self) -> Tensor:
        """Return the weights as they stand, as a flat vector of their own."""
        flat = self._x.clone()
        flat[: self._dense] = self._live[: self._dense]
        if self._layout.table is not None:
            self._layout.rows(flat).copy_(self._table)
        return flat


def _shares(batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the weight of each batch's mean loss in the mean over all of them: its share of what is predicted.

    That is the number of labels, as Hugging Face's Trainer counts them, their ``weights`` where they have some, or the
    number of rows where a batch has no ``labels``.
    """
    counts = torch.stack([_predicted(batch) for batch in batches])
    return counts / counts.sum().clamp(min=1)


def _predicted(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the number of a batch's labels, or of its rows, on its device: reading it would wait for a GPU."""
    if "weights" in batch:
        return batch["weights"].sum()
    if "labels" in batch:
        return (batch["labels"] != _NO_LABEL).sum()
    rows = next(iter(batch.values()))
    return torch.tensor(len(rows), device=rows.device)
