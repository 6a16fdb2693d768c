"""What rules share that see single updates, which are kept until the last one has arrived.

Rules of :mod:`fednlp.federated.aggregators.coordinate_wise` look at one coordinate of all updates at a time, those of
:mod:`fednlp.federated.aggregators.whole_updates` at how the updates lie to each other. A rule is offered the clients'
weights p_i. Where it does not use them (``weighs`` is False, the default), each client counts once: clients state
themselves how many examples they have.

Memory is O(model) for the result and one update, and a constant, :data:`VALUES_AT_ONCE` values, for the others: updates
lie in a file on disk, and are read back in blocks of coordinates. The file takes 4 bytes for each element, vector and
client of the cohort, and twice as much at most while the updates of several workers are joined.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError, RunError
from fednlp.federated.aggregators.base import (
    AggregatedUpdate,
    Aggregator,
    Collection,
    Mean,
    Room,
    mean_metrics,
)
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.formatting.units import human_bytes, plural
from fednlp.plugins import described, kind_of

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.cohort import RoundPlan
    from fednlp.federated.params import Layout
    from fednlp.federated.update import Update

Values = NDArray[np.float32]
VALUES_AT_ONCE = 1 << 20
"""How many values of all clients together are read at a time: 4 MB."""
_COPIED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class KeptUpdates(Aggregator):
    """A rule that sees single updates: they are kept in a file, and read back in blocks of coordinates."""

    additive: ClassVar[bool] = False
    weighs: ClassVar[bool] = False

    @abstractmethod
    def aggregate(
        self, total: UpdateFile, places: Sequence[int], shares: NDArray[np.float64]
    ) -> Iterator[Tensor]:
        """Yield the aggregate of each vector, flat float32, in the order of ``total.sends``.

        Args:
            places: Where in the file those of the clients begin that came through, in the order of the clients' ids.
            shares: p_i / sum p_i of each of these.
        """

    def init(self, layout: Layout, sends: Sequence[str], room: Room) -> UpdateFile:
        """Return an empty file of updates."""
        return UpdateFile(layout, sends, room.file("updates"))

    def add(self, total: UpdateFile, request: TrainRequest, update: Mapping[str, Update]) -> None:
        """Append a client's update.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
            OSError: The disk is full; nothing was added.
        """
        from fednlp.federated.sums import check_finite

        flat = [update[name].flat(total.layout) for name in total.sends]
        for vector in flat:
            check_finite(vector)
        total.append(request.client, [vector.cpu().numpy() for vector in flat])

    def merge(self, total: UpdateFile, other: UpdateFile) -> None:
        """Append another worker's updates."""
        total.extend(other)

    def finish(self, total: UpdateFile, plan: RoundPlan, results: Sequence[ClientResult]) -> AggregatedUpdate:
        """Return the aggregate of every vector.

        Raises:
            ConfigError: ``aggregate`` yields something else than a flat tensor of floats for each.
        """
        import torch

        layout, records = total.layout, total.records()
        places = [records[result.client] for result in results]
        shares = shares_of(results)
        derived = [layout.entries[one] for one in sorted(layout.derived)]
        unsent = [slice(entry.start, entry.stop) for entry in derived]
        made: Any = self.aggregate(total, places, shares)
        parts = list(made) if isinstance(made, Iterable) and not isinstance(made, torch.Tensor) else [made]
        if len(parts) != len(total.sends):
            raise ConfigError(
                f"{described(self.aggregate)} yielded {plural(len(parts), 'vector')} for {', '.join(total.sends)}: "
                "yield one for each"
            )
        vectors = {}
        for name, part in zip(total.sends, parts, strict=True):
            require_floats(part, torch.Tensor, (layout.numel,), self.aggregate)
            vectors[name] = Mean(part.float(), _nonzero_rows(part, layout), unsent)
        weight = sum(result.weight for result in results) * plan.unit
        return AggregatedUpdate(vectors, weight, len(results), mean_metrics(results), plan)

    def clear(self, total: UpdateFile) -> None:
        """Empty the file."""
        total.clear()

    def open(self, plan: RoundPlan, layout: Layout) -> Collection:
        """Begin to collect a round's updates.

        Raises:
            RunError: The disk has no room for the models' updates.
        """
        needed = 2 * len(plan.cohort.clients) * _record_bytes(layout, 1)
        folder = tempfile.gettempdir()
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise RunError(
                f"the updates of a round need up to {human_bytes(needed)} in {folder}, and {human_bytes(free)} are "
                "free there: set TMPDIR to a folder with more, or lower clients_per_round"
            )
        return super().open(plan, layout)


class UpdateFile:
    """The updates of some clients, one after the other in a file: the client's id, then its vectors.

    Args:
        file: Where they lie. It is closed when this is forgotten.
    """

    def __init__(self, layout: Layout, sends: Sequence[str], file: FileIO) -> None:
        self.layout, self.sends, self._file = layout, tuple(sends), file
        self._record = _record_bytes(layout, len(self.sends))
        weakref.finalize(self, file.close)

    def append(self, client: int, vectors: Sequence[Values]) -> None:
        """Append a client's update; where that fails, the file stays as it was.

        Args:
            vectors: By the order of ``sends``.
        """
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._write(memoryview(np.int64(client).tobytes()))
            for vector in vectors:
                self._write(memoryview(np.ascontiguousarray(vector).view(np.uint8).data))
        except OSError:
            self._file.truncate(end)
            raise

    def extend(self, other: UpdateFile) -> None:
        """Append the updates of another file."""
        self._file.seek(0, os.SEEK_END)
        other._file.seek(0)
        while part := other._file.read(_COPIED_AT_ONCE):
            self._write(memoryview(part))

    def records(self) -> dict[int, int]:
        """Return where in the file each client's vectors begin."""
        size = self._file.seek(0, os.SEEK_END)
        starts = range(0, size, self._record)
        return {int(self._read(start, 1, np.dtype(np.int64))[0]): start + 8 for start in starts}

    def blocks(self, number: int, places: Sequence[int]) -> Iterator[tuple[int, Values]]:
        """Yield the first coordinate of each block, and the block's values, (places, coordinates).

        Args:
            places: Where the updates to read begin; nothing is yielded where there are none.
        """
        if not places:
            return
        numel, width = self.layout.numel, max(1, VALUES_AT_ONCE // len(places))
        for start in range(0, numel, width):
            count = min(width, numel - start)
            values = np.empty((len(places), count), dtype=np.float32)
            for row, place in zip(values, places, strict=True):
                row[:] = self._read(place + 4 * (number * numel + start), count, row.dtype)
            yield start, values

    def combined(self, number: int, places: Sequence[int], combine: Callable[[Values], Values]) -> Tensor:
        """Return what a function makes of one vector of some updates, block by block: flat, zero without any update.

        Args:
            places: Where the updates begin.
            combine: float32 (places, coordinates), which may be overwritten, -> float32 (coordinates,).

        Raises:
            ConfigError: ``combine`` returned something else.
        """
        import torch

        delta = torch.zeros(self.layout.numel)
        for start, values in self.blocks(number, places):
            count = values.shape[1]
            made = combine(values)
            require_floats(made, np.ndarray, (count,), combine)
            with np.errstate(over="ignore"):  # infinity is refused where the aggregate is
                delta.numpy()[start : start + count] = made
        return delta

    def clear(self) -> None:
        """Remove all updates."""
        self._file.truncate(0)

    def _write(self, part: memoryview) -> None:
        while part:
            part = part[self._file.write(part) :]

    def _read(self, place: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        left = count * dtype.itemsize
        parts = []
        while left:
            part = os.pread(self._file.fileno(), left, place)
            if not part:
                raise RunError(
                    "the file of the round's updates was cut short while it was read: start the run again"
                )
            parts.append(part)
            place, left = place + len(part), left - len(part)
        return np.frombuffer(b"".join(parts), dtype=dtype)


def require_floats(made: Any, kind: type[Any], shape: tuple[int, ...], function: Callable[..., Any]) -> None:
    """Check what a function of a rule returned, which may be the user's own.

    Args:
        kind: ``numpy.ndarray`` or ``torch.Tensor``.

    Raises:
        ConfigError: It is no array of this kind, of this shape, of float32 or float64.

    >>> require_floats(np.zeros(1, dtype=np.int64), np.ndarray, (5,), len)
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: the aggregator's len returned ndarray of int64, shape (1,): return ndarray of float32, \
shape (5,)
    """
    floats = str(getattr(made, "dtype", "")).removeprefix("torch.") in ("float32", "float64")
    if not isinstance(made, kind) or tuple(made.shape) != shape or not floats:
        raise ConfigError(
            f"the aggregator's {described(function)} returned {kind_of(made)}: return {kind.__name__} of float32, "
            f"shape {shape}"
        )


def shares_of(results: Sequence[ClientResult]) -> NDArray[np.float64]:
    """Return each client's share of the weight of all that came through; equal ones where none weighs anything.

    >>> shares_of([ClientResult(0, 0.25), ClientResult(1, 0.75)]).tolist()
    [0.25, 0.75]
    """
    weights = np.array([result.weight for result in results])
    total = weights.sum()
    return weights / total if total else np.ones(len(results)) / max(1, len(results))


def _record_bytes(layout: Layout, vectors: int) -> int:
    """Return the bytes of one client's update in the file."""
    return 8 + 4 * layout.numel * vectors


def _nonzero_rows(delta: Tensor, layout: Layout) -> Tensor:
    """Return the numbers of the table's rows that are not all zero, int64."""
    import torch

    from fednlp.federated.sums import nonzero_rows

    if layout.table is None:
        return torch.zeros(0, dtype=torch.int64)
    return nonzero_rows(layout.rows(delta))
