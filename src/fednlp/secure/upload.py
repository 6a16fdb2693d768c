"""A client's update on its way into a secure sum: clipped, rounded and masked; and the masks that are left in it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import SecureAbort
from fednlp.federated.transforms import Clip, RngKey
from fednlp.privacy.noise import discrete_gaussian
from fednlp.secure.encoding import Encoding
from fednlp.secure.field import PRIME, add
from fednlp.secure.masks import Mask, MaskSeeds, add_masks, field_mask, masks_from_json
from fednlp.seeds import generator

REPORTS = ("loss", "examples", "steps")
"""What clients report of their training, where it is summed with their updates."""
REPORT_BITS = 128
"""Of such a number at most; the loss is counted in steps of 2^-40."""


@dataclass(frozen=True)
class _MaskedUpdate:
    """An update as the server gets it.

    Attributes:
        residues: uint32 (parameters + 1): the masked update, and the masked weight; the digits of what is reported, if
            it is summed too, are between the two.
        seconds: What clipping, rounding, noise and masks took.
    """

    residues: NDArray[np.uint32]
    seconds: float


def mask_update(
    update: Tensor, masking: dict[str, Any], key: RngKey, reported: Sequence[int] = ()
) -> _MaskedUpdate:
    """Return a client's update clipped, rounded and masked.

    Args:
        update: Flat float32.
        masking: As :meth:`fednlp.secure.round.SecureRound.begin` returns it: the ``encoding``, the client's
            ``weight``, the standard deviation of its noise in steps of the encoding (``noise_std``), and the
            ``seeds`` of its masks with their signs, none to mask it later (:func:`add_own_masks`); and ``clip``, the
            norm that the update is cut to first, or None.
        key: Seed, round and client, which rounding and noise are drawn from.
        reported: Whole numbers that are summed with the update, in the order of :data:`REPORTS`; they are added if
            ``masking`` has ``reports``.

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
    if masking.get("reports"):
        residues = np.insert(residues, len(residues) - 1, encoding.encode_numbers(reported, REPORT_BITS))
    add_own_masks(residues, masks_from_json(masking["seeds"]), encoding.modulus)
    return _MaskedUpdate(residues, time.perf_counter() - begun)


def masked_numbers(numbers: Sequence[int], bits: int, masking: Mapping[str, Any]) -> NDArray[np.uint32]:
    """Return a client's whole numbers as masked residues: nothing is clipped, rounded or weighed.

    Args:
        bits: Of a number at most.
        masking: As :meth:`~fednlp.secure.round.NumberSum.begin` returns it.
    """
    encoding = Encoding(**masking["encoding"])
    residues = encoding.encode_numbers(numbers, bits)
    add_own_masks(residues, masks_from_json(masking["seeds"]), encoding.modulus)
    return residues


def add_own_noise(
    residues: NDArray[np.uint32], encoding: Encoding, noise_std: float, rng: np.random.Generator
) -> None:
    """Add a client's noise to its encoded update, in place; the weight, its last residue, gets none.

    Args:
        residues: uint32 (parameters + 1).
        noise_std: Standard deviation, in steps of the encoding.
        rng: Where the noise is drawn from; :func:`fednlp.privacy.noise.os_generator` where nobody may know it.

    Raises:
        SecureAbort: A number is larger than the sum has room for.
    """
    noise = discrete_gaussian(noise_std, len(residues) - 1, rng)
    if np.abs(noise).max(initial=0) > encoding.noise_bound:
        raise SecureAbort(f"a client's noise is beyond {encoding.noise_bound} steps")
    noise += residues[:-1]
    residues[:-1] = noise % encoding.modulus


def add_own_masks(residues: NDArray[np.uint32], masks: Sequence[Mask], modulus: int) -> None:
    """Add a client's masks to its encoded update, in place.

    Args:
        residues: uint32 (parameters + 1).
        masks: As the client's state machine gives them.
    """
    if modulus == PRIME:
        for mask in masks:
            add(residues, field_mask(mask.seed, len(residues)))
    else:
        add_masks(residues, masks)


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
