"""Sparsification: a share of each tensor's values, the largest ones or random ones."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.message import Shapes
from fednlp.federated.transforms.base import PerTensor, RngKey, stream


@dataclass(frozen=True)
class TopK(PerTensor):
    """Keep the values largest in absolute size, exactly k of them; of equal ones the first.

    Stich et al. 2018, *Sparsified SGD with Memory*, definition 2.1. NaN counts as largest, then infinity, so
    that both are always sent.

    Args:
        share: Share of each tensor's values to keep, above 0 and at most 1; at least one value is kept.
    """

    share: float

    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return the shapes of the kept values, and of their positions in the flattened tensor."""
        kept = count_kept(shape, self.share)
        return {"": ((kept,), torch.float32), "#index": ((kept,), torch.int32)}

    def pack(self, tensor: Tensor, name: str, key: RngKey) -> dict[str, Tensor]:
        """Return the largest values and their positions, in ascending order of position."""
        values = tensor.reshape(-1)
        index = torch.from_numpy(largest(values.numpy(), count_kept(tensor.shape, self.share)))
        return {"": values[index], "#index": index.int()}

    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        """Return a tensor with the values at their positions, and zeros elsewhere.

        Raises:
            RunError: The positions are not ascending, or not within the tensor.
        """
        index = parts["#index"].long()
        count = torch.Size(shape).numel()
        if len(index) and (
            int(index[0]) < 0 or int(index[-1]) >= count or bool((index[1:] <= index[:-1]).any())
        ):
            raise RunError(f"the message's places in {name} are not ascending within its {count} values")
        return torch.zeros(count).index_copy_(0, index, parts[""]).view(shape)


@dataclass(frozen=True)
class RandomK(PerTensor):
    """Keep k random values of each tensor; both sides draw the same positions, so these are not sent.

    Stich et al. 2018, definition 2.1. The mean of what arrives is ``k / n`` times the update of ``n`` values;
    ``unbiased`` multiplies by ``n / k`` (Wangni et al. 2018), which also increases the variance.

    Args:
        share: Share of each tensor's values to keep, above 0 and at most 1; at least one value is kept.
        unbiased: Multiply the received values by n / k. Not for error feedback, which sends the rest later.
    """

    share: float
    unbiased: bool = False

    def parts(self, shape: tuple[int, ...]) -> Shapes:
        """Return the shape of the kept values."""
        return {"": ((count_kept(shape, self.share),), torch.float32)}

    def pack(self, tensor: Tensor, name: str, key: RngKey) -> dict[str, Tensor]:
        """Return the values at the key's positions; all are NaN where any value of the tensor is not finite."""
        kept = tensor.reshape(-1)[self._places(tensor.shape, name, key)]
        if tensor.numel() and not all(torch.isfinite(torch.stack(torch.aminmax(tensor)))):
            kept = torch.full_like(kept, torch.nan)
        return {"": kept}

    def unpack(self, parts: dict[str, Tensor], shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        """Return a tensor with the values at the key's positions, and zeros elsewhere."""
        count, kept = torch.Size(shape).numel(), parts[""]
        values = kept * (count / len(kept)) if self.unbiased and len(kept) else kept
        return torch.zeros(count).index_copy_(0, self._places(shape, name, key), values).view(shape)

    def _places(self, shape: tuple[int, ...], name: str, key: RngKey) -> Tensor:
        places = draw(torch.Size(shape).numel(), count_kept(shape, self.share), stream(key, "random-k", name))
        return torch.from_numpy(places)


def count_kept(shape: tuple[int, ...], share: float) -> int:
    """Return the number of values of a tensor that are kept: the rounded share, at least one if there is any.

    >>> count_kept((10, 20), 0.01), count_kept((3,), 0.01), count_kept((0,), 0.01)
    (2, 1, 0)
    """
    count = torch.Size(shape).numel()
    return min(count, max(1, round(count * share)))


def largest(values: NDArray[np.float32], kept: int) -> NDArray[np.int64]:
    """Return the positions of the values largest in absolute size, ascending; of equal ones the first.

    >>> largest(np.array([1, -3, 2, 3, -2], dtype=np.float32), 3).tolist()
    [1, 2, 3]
    """
    if kept == 0:
        return np.empty(0, dtype=np.int64)
    # Without their sign bit, the patterns of floats are ordered as the floats are, with NaN above infinity.
    sizes = np.ascontiguousarray(values).view(np.int32) & np.int32(0x7FFFFFFF)
    threshold = np.partition(sizes, len(sizes) - kept)[len(sizes) - kept]
    above = np.flatnonzero(sizes > threshold)
    level = np.flatnonzero(sizes == threshold)[: kept - len(above)]
    return np.sort(np.concatenate([above, level]))


def draw(count: int, kept: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return ``kept`` distinct positions below ``count``, ascending; every such set is equally likely.

    Only raw bits are drawn, since NumPy guarantees them across versions, unlike ``choice``, and the two sides of a
    message may have different versions.

    Args:
        count: Number of positions.
        kept: Number of positions to draw, at most ``count``.
    """
    if kept > count // 2:
        mask = np.ones(count, dtype=bool)
        mask[draw(count, count - kept, generator)] = False
        return np.flatnonzero(mask)
    drawn = np.empty(0, dtype=np.uint64)
    while True:
        places, first = np.unique(drawn, return_index=True)
        if len(places) >= kept:
            return np.sort(places[np.argsort(first)[:kept]]).astype(np.int64)
        more = generator.bit_generator.random_raw(2 * (kept - len(places)))
        drawn = np.concatenate([drawn, more % np.uint64(count)])
