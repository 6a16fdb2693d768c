"""One model a worker: weights swapped in place through one flat buffer, and words loaded only as needed.

What is trained lies in :mod:`fednlp.training.flat_tensors`, but for the word embedding: a client may use few of its
rows (:mod:`fednlp.training.word_rows`). Loading the global model is one copy, and an update is one subtraction.

Frozen parameters (``requires_grad`` is False) stay as the model was built with them, and so do the buffers of frozen
parts.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fednlp.federated.client import Gradient
from fednlp.federated.gradients import changed_gradient
from fednlp.federated.sums import count_nonfinite
from fednlp.federated.update import Update
from fednlp.runtime.allocator import keep_freed_memory
from fednlp.training.activation_cache import ActivationCache
from fednlp.training.flat_tensors import FlatTensors, Group
from fednlp.training.frozen_prefix import find_frozen_prefix
from fednlp.training.model_layout import (
    Personal,
    buffer_names,
    layout_of,
    personal_layout,
    special_words,
    word_embedding,
)
from fednlp.training.word_rows import WordRows


class Replica:
    """A model whose weights are loaded, trained and compared with the global model in place.

    Args:
        model: Any module; its trainable parameters become views of the replica's flat buffer.
        device: Where it lives.
        by_rows: Whether rows of the word embedding that a client does not use may be left out.
        personal: Names of the parameters and buffers that each client keeps to itself.
        derived: Names of frozen parameters that the server sets.
        decaying: Whether the optimiser has weight decay.

    Attributes:
        layout: Of the shared tensors, which the flat global model is made of.
        personal: Of each client's own tensors.
        frozen_prefix: The frozen layers from the embeddings up, if any.
        activation_cache: Of what these compute of texts; None to run them batch by batch.
        flat: The trained tensors but the word embedding.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        by_rows: bool,
        personal: Personal = frozenset(),
        derived: Collection[str] = frozenset(),
        decaying: bool = False,
    ) -> None:
        self.frozen_prefix = find_frozen_prefix(model)
        self.activation_cache: ActivationCache | None = None
        self.layout = layout_of(model, personal, derived)
        self.personal = personal_layout(model, personal)
        self.device = device
        self.by_rows = by_rows and self.layout.table is not None
        self.model = model.to(device)
        self.model.train(False)  # every module alike, whatever mode its loader left it in
        tensors = dict(self.model.named_buffers())
        self._still = [tensors[name] for name in buffer_names(self.model)[1]]
        self._still_start = [tensor.clone() for tensor in self._still]
        words = word_embedding(model, personal)
        special = special_words(model, self.layout.table_shape[0])
        self._words = WordRows(words[1], self.layout, special, device) if words else None
        self.flat = FlatTensors(self.model, self.layout, self.personal, device, decaying)
        self._start = self.flat.shared
        self._on_host: Tensor | None = None

    @property
    def groups(self) -> list[Group]:
        """What the optimiser is to train; valid until the next :meth:`load`."""
        if self._words is None:
            return self.flat.groups
        return [*self.flat.groups, Group(self._words.weight, True)]

    def load(
        self,
        x: Tensor,
        words: Iterable[int] | Tensor | None = None,
        own: Tensor | None = None,
        begin: Tensor | None = None,
    ) -> None:
        """Take over the global model, and a client's own tensors.

        Args:
            x: Flat float32 tensor in this replica's layout; updates are measured from it.
            words: Token ids that the client uses; None for all.
            own: Flat float32 tensor in the personal layout; None for the first ones.
            begin: Where training begins in place of ``x``, of the same layout; all words are needed then.
        """
        self._start = x[: self.layout.dense].to(self.device)  # on a CPU this is x itself, not a copy
        self.flat.shared.copy_(self._start if begin is None else begin[: self.layout.dense])
        self.flat.own.copy_(self.flat.first_own if own is None else own)
        self._put_back()
        if self._words is not None:
            self._words.load(x, words if self.by_rows else None, begin)

    def load_for_evaluation(self, x: Tensor, own: Tensor | None = None) -> None:
        """Take over the global model to look at it only: the word embedding is not copied."""
        self.flat.shared.copy_(x[: self.layout.dense])
        self.flat.own.copy_(self.flat.first_own if own is None else own)
        self._put_back()
        if self._words is not None:
            self._words.load_for_evaluation(x)

    def _put_back(self) -> None:
        """Undo what training did to the buffers of frozen parts: no client sees another's."""
        for tensor, start in zip(self._still, self._still_start, strict=True):
            tensor.copy_(start)

    def train(self, training: bool) -> None:
        """Switch dropout and the like on or off, but never in a frozen prefix: its activations never change.

        A process that trains keeps freed memory for the next step.

        Walking a model's modules takes long, so only at a change.
        """
        if self.model.training is not training:
            self.model.train(training)
            if training and self.device.type == "cpu":
                keep_freed_memory()
            if self.frozen_prefix is not None:
                self.frozen_prefix.eval_mode()

    def caching_activations(self) -> AbstractContextManager[None]:
        """Keep and reuse the activations of the frozen prefix inside the ``with`` block."""
        return nullcontext() if self.activation_cache is None else self.activation_cache.attached()

    def zero_grad(self) -> None:
        """Forget the gradients, in place."""
        self.flat.zero_grad()
        if self._words is not None:
            self._words.weight.grad = None

    @torch.no_grad()
    def change_gradient(
        self, hook: Gradient, vectors: tuple[Sequence[Tensor], Sequence[Tensor]], sparse: bool
    ) -> None:
        """Replace the gradient of the shared parameters by what a method makes of it.

        Args:
            hook: (g, y, *vectors) -> the new gradient, for one stretch at a time.
            vectors: From :meth:`stretches`.
            sparse: Whether the word embedding's gradient may be absent.

        Raises:
            ConfigError: The method's function does not fit the vectors.
        """
        trained = slice(0, self.layout.buffers.start or self.layout.dense)
        dense, tables = vectors
        found = changed_gradient(hook, self.flat.gradient[trained], self.flat.shared[trained], *dense)
        if found.data_ptr() != self.flat.gradient.data_ptr():
            self.flat.gradient[trained].copy_(found)
        self.flat.reach_shared()
        if self._words is None:
            return
        weight = self._words.weight
        if weight.grad is None and sparse:
            return
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = changed_gradient(hook, gradient, weight.detach(), *tables)

    def stretches(self, vectors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return flat vectors of the layout, cut to the trained parameters and to the rows that are loaded."""
        trained = slice(0, self.layout.buffers.start or self.layout.dense)
        dense = [vector[trained].to(self.device) for vector in vectors]
        return dense, [] if self._words is None else [self._words.cut(vector) for vector in vectors]

    def cut(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a flat vector of the layout on the device: all but the table, and the rows of it that are loaded."""
        dense = vector[: self.layout.dense].to(self.device)
        return dense, None if self._words is None else self._words.cut(vector)

    def tensors_of(self, dense: Tensor, table: Tensor | None) -> dict[str, Tensor]:
        """Return the tensors of the model that a vector of the layout stands for, by name, as views.

        Args:
            dense: From :meth:`cut`.
            table: From :meth:`cut`.
        """
        entries = [entry for entry in self.layout.entries if entry.name != self.layout.table]
        tensors = {entry.name: dense[entry.start : entry.stop].view(entry.shape) for entry in entries}
        if self.layout.table is not None and table is not None:
            tensors[self.layout.table] = table
        return tensors

    @torch.no_grad()
    def joined(self, dense: Tensor, table: Tensor | None = None) -> Tensor:
        """Return a flat vector of the layout of its parts, as :meth:`cut` gives them; 0 in rows that are not loaded."""
        flat = torch.zeros(self.layout.numel)
        flat[: self.layout.dense] = dense
        if self._words is not None and table is not None:
            self._words.put(flat, table)
        return flat

    def count_nonfinite(self) -> int:
        """Return how many of the weights as they stand are no numbers, or huge ones."""
        words = 0 if self._words is None else count_nonfinite(self._words.weight.detach())
        return count_nonfinite(self.flat.live) + words

    @torch.no_grad()
    def take_update(self) -> Update:
        """Return what was trained less what was loaded, in place; the replica must be loaded anew after."""
        dense = self._to_host(self.flat.shared.sub_(self._start))
        if self._words is None:
            return Update(dense)
        return Update(dense, self._words.rows, self._words.change())

    def _to_host(self, dense: Tensor) -> Tensor:
        """Return a GPU's tensor in memory that the next update is written to as well: fresh memory takes longer."""
        if dense.device.type == "cpu":
            return dense
        if self._on_host is None:
            self._on_host = torch.empty(dense.shape)
        return self._on_host.copy_(dense)

    @torch.no_grad()
    def gradient(self) -> Tensor:
        """Return the gradient of the shared tensors, flat; zero for buffers."""
        return self.joined(
            self.flat.gradient[: self.layout.dense], None if self._words is None else self._words.weight.grad
        )

    @torch.no_grad()
    def update(self) -> Tensor:
        """Return what was trained less what was loaded, flat, with zeros in the rows that were not loaded."""
        change = None if self._words is None else self._words.change()
        return self.joined(self.flat.shared - self._start, change)

    def own(self) -> Tensor:
        """Return the client's personal tensors as they stand, flat, copied."""
        return self.flat.own.detach().cpu().clone()

    @torch.no_grad()
    def weights(self, x: Tensor) -> Tensor:
        """Return the shared weights as they stand, flat, copied; those of ``x`` in the rows that are not loaded."""
        flat = x.clone()
        flat[: self.layout.dense] = self.flat.shared
        if self._words is not None:
            self._words.put(flat, self._words.weight.detach())
        return flat

    def store(self, x: Tensor) -> None:
        """Write the shared weights as they stand into a flat tensor of the layout (all words must be loaded)."""
        x[: self.layout.dense].copy_(self.flat.shared)
        if self._words is not None:
            self._words.put(x, self._words.weight.detach())
