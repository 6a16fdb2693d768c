"""A client's update on its way into a secure sum: clipped, rounded and masked; and the masks that are left in it."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.federated.transforms import Clip, RngKey
from fednlp.privacy.noise import discrete_gaussian
from fednlp.secure.encoding import Encoding
from fednlp.secure.field import PRIME, add
from fednlp.secure.masks import MaskSeeds, add_masks, field_mask, masks_from_json
from fednlp.seeds import generator


@dataclass(frozen=True)
class MaskedUpdate:
    """An update as the server gets it.

    Attributes:
        residues: uint32 (parameters + 1): the masked update, and the masked weight.
        seconds: What clipping, rounding, noise and masks took.
    """

    residues: NDArray[np.uint32]
    seconds: float


def mask_update(update: Tensor, masking: dict[str, Any], key: RngKey) -> MaskedUpdate:
    """Return a client's update clipped, rounded and masked.

    Args:
        update: Flat float32.
        masking: As :meth:`fednlp.secure.round.SecureRound.begin` returns it: the ``encoding``, the client's
            ``weight``, the standard deviation of its noise in steps of the encoding (``noise_std``), and the
            ``seeds`` of its masks with their signs; and ``clip``, the norm that the update is cut to first, or None.
        key: Seed, round and client, which rounding and noise are drawn from.

    Raises:
        SecureAbort: The update or the weight cannot be encoded.
    """
    begun = time.perf_counter()
    if masking["clip"] is not None:
        update = Clip(masking["clip"]).encode({"": update}, key)[""]
    encoding = Encoding(**masking["encoding"])
    rounding, noise = None, None
    if encoding.stochastic:
        rounding = generator(key.seed, "secure rounding", key.round, key.client)
    if masking["noise_std"]:
        rng = generator(key.seed, "privacy", key.round, key.client)
        noise = discrete_gaussian(masking["noise_std"], update.numel() + 1, rng)
        noise[-1] = 0  # under differential privacy all clients weigh the same
    residues = encoding.encode(update.numpy(), masking["weight"], rounding, noise)
    masks = masks_from_json(masking["seeds"])
    if encoding.modulus == PRIME:
        add(residues, field_mask(masks[0].seed, len(residues)))
    else:
        add_masks(residues, masks)
    return MaskedUpdate(residues, time.perf_counter() - begun)


def mask_values(start: int, stop: int, seeds: MaskSeeds) -> NDArray[np.uint32]:
    """Return the sum of masks in a slice of a masked vector, modulo 2^32.

    Args:
        start: The slice's first element, a multiple of 4.
        stop: Behind the slice's last element.
        seeds: The masks as JSON values.
    """
    values = np.zeros(stop - start, dtype=np.uint32)
    add_masks(values, masks_from_json(seeds), start)
    return values
