"""Which part of a flat vector travels: whole tensors, and stretches of others.

A stretch is a run of consecutive elements of one flattened tensor. It may begin anywhere and goes on at the tensor's
beginning after its last element, so that a tensor never needs more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Entry, Layout


@dataclass(frozen=True)
class Sent:
    """What of a layout travels.

    Attributes:
        entries: Numbers of the entries that travel whole, rising.
        slices: ``[entry, first, last]`` of each entry of which a part travels, rising by entry: the elements from
            ``first`` to before ``last``; where ``last`` is not above ``first``, those from ``first`` to the end and
            those before ``last``.

    >>> from fednlp.federated.params import Layout
    >>> layout = Layout.of({"a": ((2, 2), "parameter"), "b": ((6,), "parameter")})
    >>> sent = Sent((0,), ((1, 4, 1),))
    >>> sent.stretches(layout), sent.numel(layout)
    ([(0, 4), (4, 5), (8, 10)], 7)
    """

    entries: tuple[int, ...]
    slices: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def marked(cls, chosen: Sequence[bool] | NDArray[np.bool_]) -> Sent:
        """Return the whole entries that are marked, of one mark for each."""
        return cls(tuple(int(number) for number in np.flatnonzero(chosen)))

    @classmethod
    def reported(
        cls, entries: Sequence[int] | None, slices: Sequence[Sequence[int]] | None = None
    ) -> Sent | None:
        """Return what a client says that it sent; None where it sent everything."""
        if entries is None:
            return None
        return cls(tuple(entries), tuple((number, first, last) for number, first, last in slices or ()))

    def pieces(self, layout: Layout) -> list[Piece]:
        """Return the tensors that travel, in the order of the layout; derived ones never do."""
        slices = {number: (first, last) for number, first, last in self.slices}
        whole, found = {*self.entries}, []
        for number, entry in enumerate(layout.entries):
            if number in layout.derived or not (number in whole or number in slices):
                continue
            found.append(Piece.whole(entry) if number in whole else _part(entry, *slices[number]))
        return found

    def stretches(self, layout: Layout) -> list[tuple[int, int]]:
        """Return first and last element, exclusive, of all that travels, in the flat vector."""
        return sorted(stretch for piece in self.pieces(layout) for stretch in piece.stretches)

    def numel(self, layout: Layout) -> int:
        """Return the number of elements that travel."""
        return sum(stop - start for start, stop in self.stretches(layout))

    def bounds(self, layout: Layout) -> NDArray[np.int64]:
        """Return ``first`` and ``last`` of each entry, int64 (entries, 2): 0 and 0 of one that does not travel."""
        found = np.zeros((len(layout.entries), 2), dtype=np.int64)
        for number in self.entries:
            found[number] = 0, layout.entries[number].numel
        for number, first, last in self.slices:
            found[number] = first, last
        return found

    @classmethod
    def bounded(cls, bounds: NDArray[np.int64], layout: Layout) -> Sent:
        """Return what :meth:`bounds` describes.

        Args:
            bounds: int64 (entries, 2).
        """
        entries, slices = [], []
        for number, (first, last) in enumerate(bounds.tolist()):
            if (first, last) == (0, layout.entries[number].numel):
                entries.append(number)
            elif (first, last) != (0, 0):
                slices.append((number, first, last))
        return cls(tuple(entries), tuple(slices))


@dataclass(frozen=True)
class Piece:
    """One tensor as it travels.

    Attributes:
        shape: The tensor's where it is whole; else one-dimensional.
        stretches: Of the flat vector, in the order in which they travel.
    """

    name: str
    shape: tuple[int, ...]
    stretches: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, entry: Entry) -> Piece:
        """Return a whole tensor."""
        return cls(entry.name, entry.shape, ((entry.start, entry.stop),))

    def read(self, flat: Tensor) -> Tensor:
        """Return its values in a flat vector, in its shape: a view where it is one stretch."""
        import torch

        parts = [flat[start:stop] for start, stop in self.stretches]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(self.shape)

    def write(self, flat: Tensor, values: Tensor) -> None:
        """Write values of its shape to their places in a flat vector."""
        values, taken = values.reshape(-1), 0
        for start, stop in self.stretches:
            flat[start:stop] = values[taken : taken + stop - start]
            taken += stop - start


def _part(entry: Entry, first: int, last: int) -> Piece:
    start = entry.start
    if first < last:
        return Piece(entry.name, (last - first,), ((start + first, start + last),))
    both = (start + first, entry.stop), (start, start + last)
    return Piece(entry.name, (entry.numel - first + last,), both)


def require_sent(entries: Any, slices: Any, layout: Layout, *, sliced: bool) -> None:
    """Check what an untrusted client says that it sent.

    Args:
        entries: Numbers of whole entries; None for all.
        slices: ``[entry, first, last]`` of others; None for none.
        sliced: Whether the method's clients send parts of tensors.

    Raises:
        RunError: They are not tensors of the layout and parts of others, each once, in their order.
    """
    if slices and (entries is None or not sliced):
        raise RunError("the client sends parts of tensors, and it was to send whole ones")
    numbers = [-1, *(entries or ()), len(layout.entries)]
    if any(first >= second for first, second in pairwise(numbers)):
        raise RunError(
            "the upload's entries are not numbers of this model's tensors, each once, in their order"
        )
    before, whole = -1, {*(entries or ())}
    for one in slices or ():
        if len(one) != 3 or not before < one[0] < len(layout.entries) or one[0] in whole:
            raise RunError(
                "the upload's slices are not parts of this model's other tensors, each once, in order"
            )
        before, first, last = one
        size = layout.entries[before].numel
        if not (0 <= first < size and 0 < last <= size) or first == last or (first, last) == (0, size):
            raise RunError(
                f"the upload's slice of {layout.entries[before].name} is no part of its {size} elements"
            )
