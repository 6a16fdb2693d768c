"""An update: one vector that a client sends, as a change of the model or of a vector of the method's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fednlp.errors import ConfigError
from fednlp.federated.message import SparseRows

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.sums import ExactSum


class AnyUpdate(Protocol):
    """An update as an aggregator takes it: in memory (:class:`Update`), or in a file as it travelled."""

    def flat(self, layout: Layout) -> Tensor:
        """Return it as one flat vector."""

    def check_finite(self) -> None:
        """Check its numbers.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number.
        """

    def add_to(self, total: ExactSum, factor: float) -> None:
        """Add ``factor`` times the update to a sum.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
        """


@dataclass(frozen=True)
class Update:
    """One vector that a client sends: a change of the model, or of a vector of the method's own.

    Attributes:
        dense: float32 (layout.dense,): everything before the table.
        rows: int64, the rows of the table that ``table`` holds; None for all of them.
        table: float32 (rows, width), or None where the layout has no table.
    """

    dense: Tensor
    rows: Tensor | None = None
    table: Tensor | None = None

    @staticmethod
    def of(flat: Tensor, layout: Layout) -> Update:
        """Return a flat vector of a layout as an update of all its rows.

        Raises:
            ConfigError: It is not as long as the layout.
        """
        if flat.shape != (layout.numel,):
            raise ConfigError(
                f"a vector of shape {(*flat.shape,)} where the model's are ({layout.numel},): send what local.steps "
                "gives, or a flat tensor of that length"
            )
        table = layout.rows(flat) if layout.table is not None else None
        return Update(flat[: layout.dense], None, table)

    def flat(self, layout: Layout) -> Tensor:
        """Return the update as one flat vector, with zeros in the rows that it lacks."""
        flat = self.dense.new_zeros(layout.numel)
        flat[: layout.dense] = self.dense
        if self.table is not None:
            if self.rows is None:
                layout.rows(flat).copy_(self.table)
            else:
                layout.rows(flat)[self.rows] = self.table
        return flat

    def views(self, layout: Layout) -> dict[str, Tensor | SparseRows]:
        """Return its named tensors, which are views of it."""
        entries = layout.entries if self.table is None else layout.entries[:-1]
        found: dict[str, Tensor | SparseRows] = {
            e.name: self.dense[e.start : e.stop].view(e.shape) for e in entries
        }
        if self.table is None:
            return found
        last = layout.entries[-1]
        table = self.table if self.rows is None else SparseRows(last.shape, self.rows, self.table)
        return found | {last.name: table}

    def check_finite(self) -> None:
        """Check its numbers.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number.
        """
        from fednlp.federated.sums import check_finite

        check_finite(self.dense)
        if self.table is not None:
            check_finite(self.table)

    def add_to(self, total: ExactSum, factor: float) -> None:
        """Add ``factor`` times the update to a sum.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
        """
        total.add(factor, self.dense, self.rows, self.table)
