"""One model a worker: weights swapped in place through one flat buffer, and words loaded only as needed.

All trainable tensors of the model but the word embedding are views of one flat buffer, and so are
their gradients. Loading the global model is one copy, an update is one subtraction, and an optimiser
sees two or three long tensors in place of a hundred short ones.

Frozen parameters (``requires_grad`` is False) have no place in the buffer and no gradient: they stay as
the model was built with them, and so do the buffers of frozen parts.

Personal tensors lie behind the shared ones in the same buffer, in a layout of their own: they are trained
alike, come from the client's own record, and go back into it. The global model has no part in them.

The word embedding is not in the buffer: a client may use few of its rows (:mod:`fednlp.training.word_rows`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fednlp.federated.client import Gradient
from fednlp.federated.gradients import changed_gradient
from fednlp.federated.pages import lazy_zeros
from fednlp.federated.sums import count_nonfinite
from fednlp.federated.update import Update
from fednlp.runtime.allocator import keep_freed_memory
from fednlp.training.activation_cache import ActivationCache
from fednlp.training.frozen_prefix import find_frozen_prefix
from fednlp.training.model_layout import (
    Personal,
    buffer_names,
    decayed_names,
    layout_of,
    personal_layout,
    special_words,
    word_embedding,
)
from fednlp.training.word_rows import WordRows


@dataclass(frozen=True)
class Group:
    """A stretch of parameters that an optimiser treats alike."""

    parameter: Tensor
    decayed: bool


@dataclass(frozen=True)
class Place:
    """Where a trained tensor lies in the flat buffer, and its shape."""

    span: slice
    shape: tuple[int, ...]


class Replica:
    """A model whose weights are loaded, trained and compared with the global model in place.

    Args:
        model: Any module; its trainable parameters become views of the replica's flat buffer.
        device: Where it lives.
        by_rows: Whether rows of the word embedding that a client does not use may be left out.
        personal: Names of the parameters and buffers that each client keeps to itself.
        derived: Names of frozen parameters that the server sets.
        decaying: Whether the optimiser has weight decay, so that :meth:`unreached_kept` must see what has a gradient.

    Attributes:
        layout: Of the shared tensors, which the flat global model is made of.
        personal: Of each client's own tensors.
        frozen_prefix: The frozen layers from the embeddings up, if any.
        activation_cache: Of what these compute of texts; None to run them batch by batch.
        places: Of the trained tensors but the word embedding, by name.
        spans: The stretches of the flat buffer that an optimiser treats alike, each with whether it decays them.
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
        live = self.layout.dense + self.personal.numel
        self._live, self._gradient = _zeros(live, device), _zeros(live, device)
        self._shared, self._own = self._live[: self.layout.dense], self._live[self.layout.dense :]
        self._start = self._shared
        self._reached: set[int] = set()
        self._watched: list[Tensor] = []
        self._pulled: set[int] = set()
        self.first_own = self._adopt(decaying)
        """The personal tensors of a client that has none yet: as the model was built with them, flat."""

    def _adopt(self, decaying: bool) -> Tensor:
        """Make every tensor of the model a view of the flat buffers; return the personal ones as they were."""
        tensors = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        first_own = self.personal.flatten({e.name: tensors[e.name] for e in self.personal.entries})
        stretches: dict[tuple[bool, bool], list[int]] = {}
        decayed_ones = decayed_names(self.model)
        entries = [(False, 0, e) for e in self.layout.entries if e.name != self.layout.table]
        entries += [(True, self.layout.dense, e) for e in self.personal.entries]
        for own, offset, entry in entries:
            tensor, place = tensors[entry.name], slice(entry.start + offset, entry.stop + offset)
            tensor.data = self._live[place].view(entry.shape)
            if entry.kind == "parameter":
                tensor.grad = self._gradient[place].view(entry.shape)
                decayed = entry.name in decayed_ones
                stretch = stretches.setdefault((own, decayed), [place.start, place.stop])
                stretch[1] = place.stop
                if decaying and decayed:
                    tensor.register_post_accumulate_grad_hook(self._reach)  # type: ignore[no-untyped-call]
                    self._watched.append(tensor)
                    if not own:
                        self._pulled.add(id(tensor))
        self.places = {
            entry.name: Place(slice(entry.start + offset, entry.stop + offset), entry.shape)
            for _, offset, entry in entries
            if entry.kind == "parameter"
        }
        self.spans = [(slice(start, stop), decayed) for (_, decayed), (start, stop) in stretches.items()]
        self._groups = self.groups_in(self._live, self._gradient)
        return first_own

    def groups_in(self, live: Tensor, gradient: Tensor) -> list[Group]:
        """Return what an optimiser is to train of flat weights as this replica has them, the word embedding left out.

        Args:
            live: The weights, of the shared layout without its table, then of the personal one.
            gradient: Theirs.
        """
        groups = []
        for span, decayed in self.spans:
            flat = nn.Parameter(live[span])
            flat.grad = gradient[span]
            groups.append(Group(flat, decayed))
        return groups

    @property
    def groups(self) -> list[Group]:
        """What the optimiser is to train; valid until the next :meth:`load`."""
        if self._words is None:
            return self._groups
        return [*self._groups, Group(self._words.weight, True)]

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
        self._shared.copy_(self._start if begin is None else begin[: self.layout.dense])
        self._own.copy_(self.first_own if own is None else own)
        self._put_back()
        if self._words is not None:
            self._words.load(x, words if self.by_rows else None, begin)

    def load_for_evaluation(self, x: Tensor, own: Tensor | None = None) -> None:
        """Take over the global model to look at it only: the word embedding is not copied."""
        self._shared.copy_(x[: self.layout.dense])
        self._own.copy_(self.first_own if own is None else own)
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

    def _reach(self, tensor: Tensor) -> None:
        self._reached.add(id(tensor))

    @contextmanager
    def unreached_kept(self) -> Iterator[None]:
        """Keep the parameters that no gradient has reached as they are, for the time of an optimiser's step.

        PyTorch passes over a parameter without a gradient. In the flat buffer it has one of zeros, and weight decay
        would shrink it.
        """
        kept = [(t, t.detach().clone()) for t in self._watched if id(t) not in self._reached]
        yield
        for tensor, before in kept:
            tensor.data.copy_(before)

    def zero_grad(self) -> None:
        """Forget the gradients, in place."""
        self._reached.clear()
        self._gradient.zero_()
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
        found = changed_gradient(hook, self._gradient[trained], self._shared[trained], *dense)
        if found.data_ptr() != self._gradient.data_ptr():
            self._gradient[trained].copy_(found)
        self._reached |= self._pulled
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

    def count_nonfinite(self) -> int:
        """Return how many of the weights as they stand are no numbers, or huge ones."""
        words = 0 if self._words is None else count_nonfinite(self._words.weight.detach())
        return count_nonfinite(self._live) + words

    @torch.no_grad()
    def take_update(self) -> Update:
        """Return what was trained less what was loaded, in place; the replica must be loaded anew after."""
        dense = self._shared.sub_(self._start).cpu()
        if self._words is None:
            return Update(dense)
        return Update(dense, self._words.rows, self._words.change())

    @torch.no_grad()
    def gradient(self) -> Tensor:
        """Return the gradient of the shared tensors, flat; zero for buffers."""
        flat = torch.zeros(self.layout.numel)
        flat[: self.layout.dense] = self._gradient[: self.layout.dense]
        if self._words is not None and self._words.weight.grad is not None:
            self._words.put(flat, self._words.weight.grad)
        return flat

    @torch.no_grad()
    def update(self) -> Tensor:
        """Return what was trained less what was loaded, flat, with zeros in the rows that were not loaded."""
        flat = torch.zeros(self.layout.numel)
        flat[: self.layout.dense] = self._shared - self._start
        if self._words is not None:
            self._words.put(flat, self._words.change())
        return flat

    def own(self) -> Tensor:
        """Return the client's personal tensors as they stand, flat, copied."""
        return self._own.detach().cpu().clone()

    @torch.no_grad()
    def weights(self, x: Tensor) -> Tensor:
        """Return the shared weights as they stand, flat, copied; those of ``x`` in the rows that are not loaded."""
        flat = x.clone()
        flat[: self.layout.dense] = self._shared
        if self._words is not None:
            self._words.put(flat, self._words.weight.detach())
        return flat

    def store(self, x: Tensor) -> None:
        """Write the shared weights as they stand into a flat tensor of the layout (all words must be loaded)."""
        x[: self.layout.dense].copy_(self._shared)
        if self._words is not None:
            self._words.put(x, self._words.weight.detach())


def _zeros(numel: int, device: torch.device) -> Tensor:
    """Return zeros; on a CPU they take no memory until they are written: a server that does not train needs none."""
    return lazy_zeros(numel) if device.type == "cpu" else torch.zeros(numel, device=device)
