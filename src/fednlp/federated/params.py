"""The layout of a model's named tensors in one flat buffer.

Every floating-point tensor of a model has a name, a kind and a position:

* a *parameter* is trained by the clients and updated by the server optimiser;
* a *buffer* (for example a batch-norm mean) is averaged over the clients and set, never optimised;
* a *derived* tensor is never trained: the server computes it from others.

Integer buffers (position ids) belong to the architecture and are never sent.
One parameter, the *table*, can be processed by rows: a client changes few rows of a word embedding, and the others
need not be loaded, subtracted or added. It is the last entry.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fednlp.formatting.units import plural

Kind = Literal["parameter", "buffer", "derived"]


@dataclass(frozen=True)
class Entry:
    """One named tensor of the flat buffer.

    Attributes:
        name: The tensor's name in the model.
        shape: The tensor's shape.
        kind: ``"parameter"``, ``"buffer"`` or ``"derived"``.
        start: Position of its first element in the flat buffer.
        stop: Position after its last element.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """The positions of named tensors in a flat buffer: parameters, buffers, derived tensors, and the table, if any.

    Attributes:
        entries: The tensors in their order.
        table: Name of the tensor that is processed by rows, which is the last; None without one.
    """

    entries: tuple[Entry, ...]
    table: str | None = None

    def __repr__(self) -> str:
        return f"<Layout of {plural(len(self.entries), 'tensor')}, {plural(self.numel, 'element')}>"

    @classmethod
    def of(cls, tensors: Mapping[str, tuple[tuple[int, ...], Kind]], table: str | None = None) -> "Layout":
        """Lay out named shapes in the order given: parameters, buffers, derived tensors, and the table last."""
        kinds: tuple[Kind, ...] = ("parameter", "buffer", "derived")
        order = sorted(tensors, key=lambda name: (name == table, kinds.index(tensors[name][1])))
        entries, start = [], 0
        for name in order:
            shape, kind = tensors[name]
            stop = start + torch.Size(shape).numel()
            entries.append(Entry(name, tuple(shape), kind, start, stop))
            start = stop
        return cls(tuple(entries), table)

    @cached_property
    def numel(self) -> int:
        """Number of elements of the whole buffer."""
        return self.entries[-1].stop if self.entries else 0

    @cached_property
    def dense(self) -> int:
        """Number of elements before the table."""
        return self.entries[-1].start if self.table is not None else self.numel

    @cached_property
    def table_shape(self) -> tuple[int, int]:
        """Rows and width of the table; (0, 0) without one."""
        if self.table is None:
            return (0, 0)
        rows, width = self.entries[-1].shape
        return rows, width

    @cached_property
    def buffers(self) -> slice:
        """The range of the flat buffer that holds buffers."""
        spans = [(e.start, e.stop) for e in self.entries if e.kind == "buffer"]
        return slice(spans[0][0], spans[-1][1]) if spans else slice(0, 0)

    @cached_property
    def derived(self) -> frozenset[int]:
        """Positions in ``entries`` of the derived tensors."""
        return frozenset(number for number, e in enumerate(self.entries) if e.kind == "derived")

    def zeros(self) -> Tensor:
        """Return a flat float32 buffer of ``numel`` zeros."""
        return torch.zeros(self.numel)

    def rows(self, flat: Tensor) -> Tensor:
        """Return the table of a flat buffer as a (rows, width) view."""
        return flat[self.dense :].view(self.table_shape)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the named tensors of a flat buffer, as views of it."""
        return {e.name: flat[e.start : e.stop].view(e.shape) for e in self.entries}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return named tensors as one new flat float32 buffer.

        Raises:
            KeyError: A name of the layout is missing.
        """
        flat = torch.empty(self.numel, dtype=torch.float32)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name].detach())
        return flat

    @cached_property
    def message_bytes(self) -> int:
        """Length in bytes of all tensors as one safetensors message, the wire format; 0 if there is none to send."""
        if not self.entries:
            return 0
        return message_length({e.name: (e.shape, "F32", 4) for e in self.entries})

    def describe(self) -> str:
        """Return the layout as canonical JSON, to be compared on resume."""
        return json.dumps([[e.name, list(e.shape), e.kind] for e in self.entries])


def message_length(tensors: Mapping[str, tuple[Iterable[int], str, int]]) -> int:
    """Return the length in bytes of a safetensors message that holds named tensors.

    Args:
        tensors: Name -> (shape, dtype name as safetensors writes it, bytes an element).

    >>> message_length({"w": ((2, 3), "F32", 4)})
    96
    """
    header, offset = {}, 0
    for name, (shape, dtype, size) in sorted(tensors.items(), key=lambda item: (-item[1][2], item[0])):
        end = offset + torch.Size(shape).numel() * size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8 + offset
