"""A model's trained tensors in one flat buffer, and their gradients in another.

The tensors of the model are views of the buffer. So an optimiser sees two or three long tensors in place of a hundred
short ones. The word embedding and frozen parameters have no place in it.

Personal tensors lie behind the shared ones, in a layout of their own: they are trained alike, come from the client's
own record, and go back into it. They are no part of the global model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fednlp.federated.pages import lazy_zeros
from fednlp.federated.params import Layout
from fednlp.training.model_layout import decayed_names


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


class FlatTensors:
    """The flat buffers of one model, of which its trained tensors are views from now on.

    Args:
        personal: Of each client's own tensors.
        device: Where the model lives.
        decaying: Whether the optimiser has weight decay, so that :meth:`unreached_kept` must see what has a gradient.

    Attributes:
        live: The weights: those of the shared layout without its table, then the personal ones.
        shared: The part of ``live`` that is shared.
        own: The part of ``live`` that is personal.
        first_own: The personal tensors of a client that has none yet: as the model was built with them, flat.
        places: Of the trained tensors, by name.
        groups: What an optimiser is to train.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, personal: Layout, device: torch.device, decaying: bool
    ) -> None:
        live = layout.dense + personal.numel
        self.live, self.gradient = _zeros(live, device), _zeros(live, device)
        self.shared, self.own = self.live[: layout.dense], self.live[layout.dense :]
        self._reached: set[int] = set()
        self._watched: list[Tensor] = []
        self._watched_shared: set[int] = set()
        self._held: list[Tensor] = []
        tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
        self.first_own = personal.flatten({entry.name: tensors[entry.name] for entry in personal.entries})
        self.places: dict[str, Place] = {}
        self._trained: dict[str, Tensor] = {}
        stretches: dict[tuple[bool, bool], list[int]] = {}
        decayed_ones = decayed_names(model)
        entries = [(False, 0, entry) for entry in layout.entries if entry.name != layout.table]
        entries += [(True, layout.dense, entry) for entry in personal.entries]
        for own, offset, entry in entries:
            tensor, span = tensors[entry.name], slice(entry.start + offset, entry.stop + offset)
            tensor.data = self.live[span].view(entry.shape)
            if entry.kind != "parameter":
                continue
            tensor.grad = self.gradient[span].view(entry.shape)
            self.places[entry.name] = Place(span, entry.shape)
            self._trained[entry.name] = tensor
            decayed = entry.name in decayed_ones
            stretches.setdefault((own, decayed), [span.start, span.stop])[1] = span.stop
            if decaying and decayed:
                self._watch(tensor, own)
        self._spans = [(slice(start, stop), decayed) for (_, decayed), (start, stop) in stretches.items()]
        self.groups = self.groups_in(self.live, self.gradient)

    def groups_in(self, live: Tensor, gradient: Tensor) -> list[Group]:
        """Return what an optimiser is to train of other flat weights, laid out as these are."""
        groups = []
        for span, decayed in self._spans:
            flat = nn.Parameter(live[span])
            flat.grad = gradient[span]
            groups.append(Group(flat, decayed))
        return groups

    def zero_grad(self) -> None:
        """Forget the gradients, in place."""
        self._reached.clear()
        self.gradient.zero_()

    def _watch(self, tensor: Tensor, own: bool) -> None:
        """Take note of each gradient that reaches a tensor."""
        tensor.register_post_accumulate_grad_hook(self._reach)  # type: ignore[no-untyped-call]
        self._watched.append(tensor)
        if not own:
            self._watched_shared.add(id(tensor))

    def _reach(self, tensor: Tensor) -> None:
        self._reached.add(id(tensor))

    def reach_shared(self) -> None:
        """Take note that all shared tensors have a gradient now: a method's own."""
        self._reached |= self._watched_shared

    @contextmanager
    def holding(self, names: frozenset[str]) -> Iterator[None]:
        """Compute no gradients for some trained tensors inside the ``with`` block, and keep them as they are."""
        self._held = [self._trained[name] for name in sorted(names)]
        for tensor in self._held:
            tensor.requires_grad_(False)
        try:
            yield
        finally:
            for tensor in self._held:
                tensor.requires_grad_(True)
            self._held = []

    @contextmanager
    def unreached_kept(self) -> Iterator[None]:
        """Keep the parameters that no gradient has reached as they are, for the time of an optimiser's step.

        PyTorch passes over a parameter without a gradient. In the flat buffer it has one of zeros, and weight decay or
        the optimiser's memory would move it. What is held stays, whatever a method makes of its gradient.
        """
        unreached = [t for t in self._watched if id(t) not in self._reached]
        kept = [(t, t.detach().clone()) for t in (*unreached, *self._held)]
        yield
        for tensor, before in kept:
            tensor.data.copy_(before)


def _zeros(numel: int, device: torch.device) -> Tensor:
    """Return zeros; on a CPU they take no memory until they are written: a server that does not train needs none."""
    return lazy_zeros(numel) if device.type == "cpu" else torch.zeros(numel, device=device)
