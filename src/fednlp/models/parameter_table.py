"""The parameters and bytes of a selection, part by part."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from fednlp.models.groups import groups_of
from fednlp.models.selection import ParameterState, Selection

_BYTES = 4
"""Bytes of a number on its way: 32 bits."""


@dataclass(frozen=True)
class ParameterRow:
    """One part of a model.

    Attributes:
        group: Its name, from :func:`fednlp.models.groups.groups_of`.
        shared: Number of its parameters that are trained and sent.
        personal: Number of its parameters that each client trains and keeps.
        frozen: Number of its parameters that are neither trained nor sent.
        bytes: Of its parameters and buffers that are sent, each way, a client and round; 32 bits a number.
    """

    group: str
    shared: int
    personal: int
    frozen: int
    bytes: int

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.shared + self.personal + self.frozen

    @property
    def tunable(self) -> int:
        """Number of parameters that are trained."""
        return self.shared + self.personal

    @property
    def states(self) -> tuple[ParameterState, ...]:
        """The states of its parameters."""
        counts: dict[ParameterState, int] = {
            "shared": self.shared,
            "personal": self.personal,
            "frozen": self.frozen,
        }
        return tuple(state for state, count in counts.items() if count)


def parameter_table(model: nn.Module, selection: Selection) -> list[ParameterRow]:
    """Count a model's parameters by part and state; the parts in the order in which data go through them.

    Args:
        model: The one that the selection was made for; it may lie on the ``meta`` device.
        selection: From :func:`fednlp.models.selection.apply_selection`.
    """
    buffers = dict(model.named_buffers())
    parameters = dict(model.named_parameters())
    counts: dict[str, dict[str, int]] = {}
    for name, group in groups_of(model).items():
        count = counts.setdefault(group, {"shared": 0, "personal": 0, "frozen": 0, "sent": 0})
        state, tensor = selection.states[name], parameters.get(name)
        if tensor is not None:
            count[state] += tensor.numel()
        if state == "shared":
            count["sent"] += (buffers[name] if tensor is None else tensor).numel()
    return [
        ParameterRow(group, count["shared"], count["personal"], count["frozen"], _BYTES * count["sent"])
        for group, count in sorted(counts.items(), key=lambda item: _place(item[0]))
    ]


def total(rows: Iterable[ParameterRow]) -> ParameterRow:
    """Add up rows; the result is called "total"."""
    rows = list(rows)
    return ParameterRow(
        "total",
        sum(row.shared for row in rows),
        sum(row.personal for row in rows),
        sum(row.frozen for row in rows),
        sum(row.bytes for row in rows),
    )


def _place(group: str) -> tuple[int, int, int]:
    """Return where a part stands: encoder before decoder, embeddings before layers, the head last.

    >>> groups = ["head", "decoder.layer.1", "decoder.embeddings", "encoder.layer.10", "encoder.layer.9", "embeddings"]
    >>> sorted(groups, key=_place)
    ['embeddings', 'encoder.layer.9', 'encoder.layer.10', 'decoder.embeddings', 'decoder.layer.1', 'head']
    """
    stage = 3 if group == "head" else 2 if group.startswith("decoder.") else int(group.startswith("encoder."))
    number = group.rpartition(".")[2]
    return stage, int(number.isdecimal()), int(number) if number.isdecimal() else 0
