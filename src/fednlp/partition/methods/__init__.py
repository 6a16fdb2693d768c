"""The partition methods: one file for each.

A file holds a function of the file's name, from a :class:`~fednlp.partition.request.Request` and the method's options
to an :class:`~fednlp.partition.request.Assignment`. Its parameters behind the request are the options, with their types
and defaults: they are the keys of ``[partition]``. ``@partitioner`` gives the title. A user's own partitioner is the
same, named ``"module:function"``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from pydantic import Field

from fednlp.option_types import PositiveFloat, PositiveInt
from fednlp.partition.request import Assignment
from fednlp.registry import Plugin, Registry, mark

Clients = Annotated[PositiveInt, Field(examples=[100])]
Alpha = Annotated[PositiveFloat, Field(examples=[1.0])]
"""The concentration of label and cluster shift."""
Beta = Annotated[PositiveFloat, Field(examples=[5.0])]
"""The concentration of quantity shift."""

Partitioner = Callable[..., Assignment]


@dataclass(frozen=True)
class Method(Plugin):
    """A partition method as experiments see it.

    Attributes:
        reads_texts: Whether the request holds the examples' texts.
    """

    reads_texts: bool = False

    section = "partition"
    key = "method"
    noun = "partition method"

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters behind the request: the options."""
        behind = islice(super().parameters.items(), 1, None)
        return {name: one for name, one in behind if one.kind is not inspect.Parameter.VAR_KEYWORD}

    @property
    def needs(self) -> tuple[str, ...]:
        """The options without a default."""
        return tuple(name for name, one in self.parameters.items() if one.default is inspect.Parameter.empty)


def partitioner(
    title: str, *, name: str | None = None, reads_texts: bool = False
) -> Callable[[Partitioner], Partitioner]:
    """Give a partitioner's function its title.

    Args:
        title: What people read of the clients' data.
        name: As it is typed, where that is not the file's name.
        reads_texts: Whether the function reads the examples' texts.
    """
    named: dict[str, Any] = {} if name is None else {"name": name}
    return mark(title, reads_texts=reads_texts, **named)


METHODS = Registry(__name__, Method)
"""The partition methods that come with fednlp, and those of the user's own."""

ALIASES = {"niid_label": "label", "niid_quantity": "quantity", "niid_cluster": "cluster"}
"""Names of the methods in the original FedNLP partition files (``niid_label_clients=100_alpha=1``)."""

COMMON_NAMES = {"iid": "uniform", "noniid": "label", "niid": "label", "dirichlet": "label"}
"""Names of some methods in other software, in lower case, for hints."""
