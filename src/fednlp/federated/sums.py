"""The weighted sum of updates, exact: in whole numbers, so that no order of adding changes it.

Floating-point addition depends on the order, and the order depends on which client is done first
and on how many workers there are. Here every weighted update is rounded once to a multiple of 2^-40
and added as a 64-bit integer. Integers add exactly, so the sum is the same for every order, every
number of workers and every grouping, and memory is O(model), whatever the size of the cohort.
2^-40 is about 1e-12, far below the spacing of float32 weights (1e-9 and more for weights above 0.01).

The mean divides the sum by the share of the weights that went into it, so it is known to 2^-40 / share. Where
all clients send a tensor, the share is above 1/2. Where clients choose what they send
(:mod:`fednlp.federated.pulling`), a tensor that only a client with 1e-5 of the cohort's weight sends is known to
1e-7. Who will send what is not known when the first update is added, so no finer unit can be chosen beforehand.
"""

import math
import mmap
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import DIVERGED
from fednlp.federated.pages import give_back, lazy_zeros
from fednlp.federated.params import Layout

FRACTION_BITS = 40
LARGEST = 2.0**20
"""No element of an update may be larger: the sum of weighted means then stays below 2^60."""
_CHUNK = 1 << 16
_PAGE = mmap.PAGESIZE // 8
_FEW = 4
"""A table of which at most one row in so many is not zero is added row by row, which is faster then."""


class NonFiniteUpdate(ValueError):
    """An update holds NaN, infinity, or a number beyond ``LARGEST``."""


def weight_unit(total: float) -> float:
    """Return the power of two that weights are divided by: not below the cohort's total weight.

    >>> weight_unit(1130)
    2048.0
    """
    return 2.0 ** math.ceil(math.log2(total)) if total > 0 else 1.0


class ExactSum:
    """Sum of weight * update over clients, as 64-bit integers in the layout's flat order.

    Args:
        layout: The layout of the updates.
        storage: int64 (``layout.numel``,), zeros to sum into, for example in shared memory; made if left out.
        touched: bool (table rows,), all False, set for rows that are not zero; made if left out.
        lean: Whether memory is given back as soon as it is not needed, at the price of taking it anew in the next
            round; ``storage`` is then from :func:`fednlp.federated.pages.lazy_zeros`.
    """

    def __init__(
        self,
        layout: Layout,
        storage: Tensor | None = None,
        touched: Tensor | None = None,
        lean: bool = False,
    ) -> None:
        self.layout, self.lean = layout, lean
        self.storage = torch.zeros(layout.numel, dtype=torch.int64) if storage is None else storage
        self.touched_rows = (
            torch.zeros(layout.table_shape[0], dtype=torch.bool) if touched is None else touched
        )
        room = max(_CHUNK, layout.table_shape[1])
        self._scratch = torch.empty(room, dtype=torch.float64)
        self._whole = torch.empty(room, dtype=torch.int64)
        self._mean: Tensor | None = None

    def add(
        self, factor: float, dense: Tensor, rows: Tensor | None = None, table: Tensor | None = None
    ) -> None:
        """Add ``factor * update``.

        Args:
            factor: The client's weight over :func:`weight_unit`, in [0, 1].
            dense: float32 (``layout.dense``,), the update before the table.
            rows: int64, the rows of the table that the client changed; None for all of them.
            table: float32 (rows, width), the update of those rows.

        Raises:
            NonFiniteUpdate: The update holds NaN, infinity or a number beyond ``LARGEST``; nothing was added.
        """
        check_finite(dense)
        if table is not None:
            check_finite(table)
        scale = factor * 2.0**FRACTION_BITS
        self._add_at(0, dense, scale)
        if table is None:
            return
        if rows is None:
            self._add_at(self.layout.dense, table.reshape(-1), scale)
            self.touched_rows.fill_(True)
            return
        step = self._rows_at_once
        for some, part in zip(torch.split(rows, step), torch.split(table, step), strict=True):
            self._add_rows(some, part, scale)
        self.touched_rows[rows] = True

    def add_stretches(self, factor: float, stretches: Callable[[], Iterable[tuple[int, Tensor]]]) -> None:
        """Add ``factor * update``, of an update of all rows that comes stretch by stretch.

        Rows of the table that are zero are passed over, as a client leaves most words as they are.

        Args:
            factor: The client's weight over :func:`weight_unit`, in [0, 1].
            stretches: Returns (first element, float32 values), flat, of all the layout, the table as one stretch; it is
                called twice.

        Raises:
            NonFiniteUpdate: The update holds NaN, infinity or a number beyond ``LARGEST``; nothing was added.
        """
        for _, values in stretches():
            check_finite(values)
        scale = factor * 2.0**FRACTION_BITS
        for start, values in stretches():
            if start + len(values) <= self.layout.dense:
                self._add_at(start, values, scale)
                continue
            table = values.view(self.layout.table_shape)
            changed = nonzero_rows(table)
            self.touched_rows[changed] = True
            if len(changed) > len(table) // _FEW:
                self._add_at(start, values, scale)
                continue
            for rows in torch.split(changed, self._rows_at_once):
                self._add_rows(rows, table[rows], scale)

    @property
    def _rows_at_once(self) -> int:
        """How many rows of the table fit in scratch memory."""
        return max(1, _CHUNK // self.layout.table_shape[1])

    def _add_rows(self, rows: Tensor, values: Tensor, scale: float) -> None:
        """Add some rows of the table, at most as many as are added at once."""
        fixed = self._fixed(values.reshape(-1), scale).view(values.shape)
        self.layout.rows(self.storage).index_add_(0, rows, fixed)

    def _add_at(self, first: int, values: Tensor, scale: float) -> None:
        for start in range(0, values.numel(), _CHUNK):
            part = values[start : start + _CHUNK]
            self.storage[first + start : first + start + len(part)] += self._fixed(part, scale)

    def add_residues(self, values: NDArray[np.uint32], start: int = 0) -> None:
        """Add whole numbers as they are, for sums under masks.

        Args:
            values: uint32, one for each element of a stretch.
        """
        storage = self.storage.numpy()[start : start + len(values)]
        for first in range(0, len(values), _CHUNK):
            storage[first : first + _CHUNK] += values[first : first + _CHUNK]
        self.touched_rows.fill_(True)

    def merge(self, other: "ExactSum") -> None:
        """Add another sum of the same layout."""
        dense = self.layout.dense
        self.storage[:dense] += other.storage[:dense]
        rows = other.touched_rows.nonzero().squeeze(1)
        if len(rows):
            mine, theirs = self.layout.rows(self.storage), self.layout.rows(other.storage)
            step = max(1, _CHUNK // mine.shape[1])
            for start in range(0, len(rows), step):
                part = rows[start : start + step]
                mine.index_add_(0, part, theirs[part])
            self.touched_rows[rows] = True

    def mean(self, share: float | Sequence[tuple[int, int, float]]) -> tuple[Tensor, Tensor]:
        """Return the weighted mean of the updates, and the nonzero rows of the table.

        Args:
            share: Sum of the factors that were added; or, where clients sent different elements, first and last
                element, exclusive, of stretches that cover the layout in their order, and such a sum of each. 0 gives
                zeros.

        Returns:
            A flat float32 buffer (``layout.numel``,), and int64 numbers of the table rows that any client changed;
            both are valid until the next :meth:`clear`. A lean sum is used up: only :meth:`clear` may follow.
        """
        if self._mean is None:
            self._mean = lazy_zeros(self.layout.numel) if self.lean else torch.zeros(self.layout.numel)
        stretches = [(0, self.layout.dense, share)] if isinstance(share, (int, float)) else share
        for first, last, part in stretches:
            scale = _scale(part)
            for start in range(first, last, _CHUNK):
                stop = min(start + _CHUNK, last)
                scratch = self._scratch[: stop - start]
                self._mean[start:stop].copy_(scratch.copy_(self.storage[start:stop]).mul_(scale))
                self._used_up(self.storage[start:stop])
        rows = self.touched_rows.nonzero().squeeze(1)
        if len(rows) and isinstance(share, (int, float)):
            scale = _scale(share)
            sums, means = self.layout.rows(self.storage), self.layout.rows(self._mean)
            step = max(1, _CHUNK // means.shape[1])
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                means[some] = (sums[some].double() * scale).float()
                self._used_up(sums[int(some[0]) : int(some[-1]) + 1])
        return self._mean, rows

    def clear(self) -> None:
        """Reset the sum to zero."""
        if self.lean:
            give_back(self.storage)
            self.storage[-_PAGE:].zero_()
            self.touched_rows.zero_()
            self._mean = None
            return
        self.storage[: self.layout.dense].zero_()
        rows = self.touched_rows.nonzero().squeeze(1)
        if len(rows):
            self.layout.rows(self.storage).index_fill_(0, rows, 0)
            if self._mean is not None:
                self.layout.rows(self._mean).index_fill_(0, rows, 0)
            self.touched_rows.zero_()

    def _used_up(self, stretch: Tensor) -> None:
        if self.lean:
            give_back(stretch)

    def _fixed(self, values: Tensor, scale: float) -> Tensor:
        """Return values * scale rounded to whole numbers (half to even), in scratch memory."""
        scratch, whole = self._scratch[: values.numel()], self._whole[: values.numel()]
        return whole.copy_(scratch.copy_(values).mul_(scale).round_())


def nonzero_rows(table: Tensor) -> Tensor:
    """Return the numbers of the rows that are not all zero, int64.

    Args:
        table: (rows, width).
    """
    # table.any(1) takes three times as long.
    return ((table.amin(1) != 0) | (table.amax(1) != 0)).nonzero().squeeze(1)


def _scale(share: float) -> float:
    return 2.0**-FRACTION_BITS / share if share > 0 else 0.0


def count_nonfinite(values: Tensor) -> int:
    """Return the number of values that are NaN, infinite or beyond ``LARGEST``."""
    return 0 if _is_sound(values) else values.numel() - int((values.abs() <= LARGEST).sum())


def check_finite(values: Tensor) -> None:
    """Check that values are finite and within ``LARGEST``.

    Raises:
        NonFiniteUpdate: One of them is not.
    """
    if not _is_sound(values):
        raise NonFiniteUpdate(DIVERGED)


def _is_sound(values: Tensor) -> bool:
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)  # NaN where any value is NaN
    return float(low) >= -LARGEST and float(high) <= LARGEST
