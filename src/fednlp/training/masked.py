"""A client's update on its way into a secure sum: cut, rounded, hidden under masks, and added up unopened."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.federated.sums import ExactSum
from fednlp.federated.transforms import Key
from fednlp.privacy.noise import discrete_gaussian
from fednlp.secure.encoding import Encoding
from fednlp.secure.field import PRIME, add
from fednlp.secure.masks import Mask, add_masks, field_mask
from fednlp.seeds import generator

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Hidden:
    """An update as the server gets it.

    Attributes:
        residues: uint32 (parameters + 1): the masked update, and the masked weight.
        seconds: What cutting, rounding, noise and masks took.
    """

    residues: NDArray[np.uint32]
    seconds: float

    def add_to(self, total: ExactSum) -> dict[str, Any]:
        """Add the update to the sum of masked updates; return what the reply says of it."""
        storage = total.storage.numpy()
        for start in range(0, len(storage), _CHUNK):
            storage[start : start + _CHUNK] += self.residues[start : min(start + _CHUNK, len(storage))]
        total.touched.fill_(True)
        return {"masked_weight": int(self.residues[-1]), "hiding_seconds": self.seconds}


def hide(update: Tensor, how: dict[str, Any], key: Key) -> Hidden:
    """Hide a client's update.

    Args:
        update: Flat float32.
        how: As :mod:`fednlp.simulation.secure_round` writes it: ``encoding``, the client's ``weight``, the standard
            deviation of its ``noise`` in units of the encoding, and its masks: ``seeds`` with their signs.
        key: Seed, round, client: what rounding and noise are drawn from.

    Raises:
        SecureAbort: The update or the weight cannot be encoded.
    """
    begun = time.perf_counter()
    encoding = Encoding(**how["encoding"])
    rounding, noise = None, None
    if encoding.stochastic:
        rounding = generator(key.seed, "secure rounding", key.round, key.client)
    if how["noise"]:
        rng = generator(key.seed, "privacy", key.round, key.client)
        noise = discrete_gaussian(how["noise"], update.numel() + 1, rng)
        noise[-1] = 0  # the weight is the same for all
    residues = encoding.encode(update.numpy(), how["weight"], rounding, noise)
    masks = [Mask(bytes.fromhex(seed), sign) for seed, sign in how["seeds"]]
    if encoding.modulus == PRIME:
        add(residues, field_mask(masks[0].seed, len(residues)))
    else:
        add_masks(residues, masks)
    return Hidden(residues, time.perf_counter() - begun)


def unmask(total: ExactSum, start: int, stop: int, seeds: list[list[Any]]) -> None:
    """Add masks to a stretch of the sum of masked updates: those that are left in it, their signs turned."""
    values = np.zeros(stop - start, dtype=np.uint32)
    add_masks(values, [Mask(bytes.fromhex(seed), sign) for seed, sign in seeds], start)
    total.storage.numpy()[start:stop] += values
    total.touched.fill_(True)
