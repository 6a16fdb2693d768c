"""One client's local steps: the one loop over batches in which models are trained."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.amp import GradScaler

from fednlp.data.features import Features
from fednlp.federated.client import Gradient
from fednlp.seeds import generator, torch_stream
from fednlp.tasks.base import Batch, Task
from fednlp.training.batches import local_batches, passes
from fednlp.training.kernels.dropout import cheap_dropout
from fednlp.training.local_training import LocalTraining
from fednlp.training.optimizers import (
    make_optimizer,
    make_schedule,
    remember,
    restore,
    set_rate,
)
from fednlp.training.precision import low_dtype, low_precision
from fednlp.training.replica import Replica
from fednlp.training.trained_weights import TrainedWeights

_NO_LABEL = -100
"""PyTorch's cross-entropy leaves targets of this number out."""
_FIRST_SCALE = 2.0**12
"""Of a float16 loss: each client begins with it anew, so a step that overflows must be rare."""


class LocalTrainer:
    """One client's data, model and optimiser for the time of a round (:class:`fednlp.federated.client.Local`).

    Args:
        replica: Trained in place.
        task: Makes batches and losses.
        features: The training set's features, by example number.
        examples: The client's example numbers.
        options: Optimiser, schedule, steps.
        x: The global model, flat: what updates are measured from.
        seed: The experiment's; with round and client it decides order and dropout.
        round_number: From 1.
        client: Its id.

    Attributes:
        personal: The client's personal parameters, flat, when :meth:`steps` begins; None for the first ones.
        begin: Where steps from ``x`` begin in its place: the client's version of the shared tensors; None for ``x``.
        trained_personal: The personal parameters after the first call of :meth:`steps`, flat: the client keeps them.
        memory: The optimiser's state, before the first call of :meth:`steps`, and then after it: the client keeps it.
        all_words: Load the whole word embedding, so that the trained model can be evaluated as it stands.
        rate: The learning rate is multiplied by this.
        staleness: How many rounds ago the server had ``x``.
        momentum: Of the client's SGD; 0 for none.
        batches: Of the next call, in place of the client's epochs.
        span: The number of the next call's first step, and how many steps the schedule is for; None for the call's own.
        dropout: The name of the random stream of dropout, and its numbers.
        num_steps: Of the last call.
        rate_sum: The learning rates of the last call, summed.
        total_steps: Of all calls.
        total_examples: Seen in all calls, once per epoch.
        total_loss: Sum over all steps of the mean loss of the step's examples, times their number.
        gradient_examples: Seen in all calls of :meth:`gradient`.
        ahead: What the client's steps end with, where they were taken with those of others
            (:mod:`fednlp.training.at_once`); None for steps of its own.
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
    ) -> None:
        self.replica, self.task, self.features, self.examples = replica, task, features, examples
        self.options, self.x, self.seed, self.round, self.client = options, x, seed, round_number, client
        self.personal: Tensor | None = None
        self.trained_personal: Tensor | None = None
        self.begin: Tensor | None = None
        self.memory: Mapping[str, Tensor] = {}
        self.all_words = False
        self.rate, self.staleness, self.momentum = 1.0, 0, options.momentum
        self.batches: list[np.ndarray] | None = None
        self.span: tuple[int, int] | None = None
        self.dropout: tuple[str, tuple[int, ...]] = ("dropout", (round_number, client))
        self.num_steps, self.rate_sum = 0, 0.0
        self.total_steps, self.total_examples, self.total_loss = 0, 0, 0.0
        self.gradient_examples = 0
        self.ahead: TrainedWeights | None = None
        self.dtype = low_dtype(replica.device, options.bf16 is True, options.fp16)
        self._calls = 0
        self._last: TrainedWeights | None = None

    def steps(
        self,
        start: Tensor,
        gradient: Gradient | None = None,
        *vectors: Tensor,
        sparse: bool = False,
        on_step: Callable[[int], None] = lambda done: None,
    ) -> "TrainedWeights":
        """Take the client's local steps (see :meth:`fednlp.federated.client.Local.steps`).

        Args:
            start: Where they start, flat.
            gradient: Changes the loss's gradient before each step; None leaves it.
            vectors: Flat vectors that ``gradient`` needs.
            sparse: Whether ``gradient`` leaves rows of the word embedding alone that the client does not use.
            on_step: Told how many steps are taken.
        """
        if self.ahead is not None:
            return self.ahead
        replica, options = self.replica, self.options
        self._load(start, by_rows=gradient is None or sparse)
        optimizer = make_optimizer(options, replica.groups)
        restore(optimizer, {} if self._calls else self.memory)
        batches = self.next_batches()
        first, last = self.span or (0, len(batches))
        rate = make_schedule(options, last, self.rate)
        parts = replica.stretches(vectors)
        losses: list[Tensor] = []
        scaler = GradScaler(replica.device.type, _FIRST_SCALE) if options.fp16 else None
        replica.train(True)
        with (
            replica.caching_activations(),
            torch_stream(self.seed, self.dropout[0], *self.dropout[1], *self._again()),
            cheap_dropout(),
        ):
            for step, numbers in enumerate(batches):
                loss = self._backward(numbers, scaler)
                if scaler is not None:
                    scaler.unscale_(optimizer)
                if gradient is not None:
                    replica.change_gradient(gradient, parts, sparse)
                if options.max_grad_norm:
                    torch.nn.utils.clip_grad_norm_(
                        [g.parameter for g in replica.groups], options.max_grad_norm
                    )
                if rate is not None:
                    set_rate(optimizer, rate(first + step))
                with replica.flat.unreached_kept():
                    if scaler is None:
                        optimizer.step()
                    else:
                        scaler.step(optimizer)
                        scaler.update()
                losses.append(loss * len(numbers))
                on_step(step + 1)
        self.count(batches, losses, rate, first)
        if self.trained_personal is None:
            self.trained_personal = replica.own()
            self.memory = remember(optimizer) if options.keep_optimizer or self.span else {}
        self._last = TrainedWeights(replica, self.x)
        return self._last

    def _backward(self, numbers: np.ndarray, scaler: GradScaler | None = None) -> Tensor:
        """Compute the gradient of a step's mean loss in passes over some of its examples; return the loss.

        The passes are weighted as one over all the examples would weight them, so that the gradient is the same.
        """
        replica, batches = self.replica, self._collated(numbers)
        replica.zero_grad()
        if len(batches) == 1:
            loss = self._loss(batches[0])
            (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        total = torch.zeros((), device=replica.device)
        for batch, share in zip(batches, _shares(batches), strict=True):
            loss = self._loss(batch) * share
            (loss if scaler is None else scaler.scale(loss)).backward()
            total += loss.detach()
        return total

    def _loss(self, batch: Batch) -> Tensor:
        with low_precision(self.replica.model, self.dtype):
            return self.task.loss(self.replica.model, batch)

    def gradient(self, at: Tensor) -> Tensor:
        """Return the gradient of the client's mean loss over all labels of its examples, flat, without dropout."""
        replica = self.replica
        self._load(at, by_rows=False)
        replica.train(False)
        replica.zero_grad()
        with torch_stream(self.seed, "gradient", self.round, self.client, *self._again()):
            batches = self._collated(self.examples)
            for batch, share in zip(batches, _shares(batches), strict=True):
                loss = self.task.loss(replica.model, batch) * share
                loss.backward()
        self.gradient_examples += len(self.examples)
        return replica.gradient()

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
        self.gradient_examples += len(self.examples) // 3  # a pass without its way back
        return float(torch.stack(losses).double().sum())

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
        if start is not self.x:
            self.replica.load(self.x, None, self.personal, start)
            return
        rows = by_rows and self.replica.by_rows and not self.all_words
        words = self.features.words(self.examples) if rows else None
        self.replica.load(self.x, words, self.personal, self.begin)

    def next_batches(self) -> list[np.ndarray]:
        """Return the batches of the next call of :meth:`steps`."""
        if self.batches is not None:
            return self.batches
        options, examples = self.options, self.examples
        order = generator(self.seed, "batches", self.round, self.client, *self._again())
        lengths, steps = self.features.lengths(examples), options.steps(len(examples))
        return list(
            local_batches(examples, lengths, options.examples_per_step, steps, order, options.group_by_length)
        )

    def _again(self) -> tuple[int, ...]:
        """Return what tells the random streams of later calls in a round from those of the first."""
        return (self._calls,) if self._calls else ()

    def count(
        self,
        batches: list[np.ndarray],
        losses: list[Tensor],
        rate: Callable[[int], float] | None,
        first: int,
    ) -> None:
        """Count the steps of a call.

        Args:
            batches: Of the steps.
            losses: Of each, times its examples.
            rate: The learning rate of each; None for that of the options throughout.
            first: The number of the first step, for ``rate``.
        """
        self._calls += 1
        self.num_steps = len(batches)
        self.rate_sum = (
            len(batches) * self.options.learning_rate
            if rate is None
            else sum(rate(first + step) for step in range(len(batches)))
        )
        self.total_steps += len(batches)
        self.total_examples += sum(map(len, batches))
        self.total_loss += float(torch.stack(losses).double().sum())


def _shares(batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the weight of each batch's mean loss in the mean over all of them: its share of what is predicted.

    That is the number of labels, as Hugging Face's Trainer counts them, or of rows where a batch has no ``labels``.
    """
    counts = torch.stack([_predicted(batch) for batch in batches])
    return counts / counts.sum().clamp(min=1)


def _predicted(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the number of a batch's labels, or of its rows, on its device: reading it would wait for a GPU."""
    if "labels" in batch:
        return (batch["labels"] != _NO_LABEL).sum()
    rows = next(iter(batch.values()))
    return torch.tensor(len(rows), device=rows.device)
