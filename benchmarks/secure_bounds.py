"""How fast the costly steps of secure aggregation are, each against a bound measured in the same run.

Measured by ``python benchmarks/secure.py``. A step and its bound alternate within one process, so that both
meet the same machine; the figure is the median of their ratios, with the smallest and the largest beside it.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from fednlp.secure import lightsecagg, messages
from fednlp.secure.coding import encode, piece_length
from fednlp.secure.keys import KEY_BYTES
from fednlp.secure.masks import SEED_BYTES, Mask, add_masks, field_mask
from fednlp.secure.plan import ProtocolPlan
from fednlp.secure.shamir import LIMBS, combine, share

NEIGHBOURS = (8, 22)
"""What SecAgg+ gives 10 clients of which a third may collude and as many drop out, and 100 at a tenth."""
CODED = (10, 8, 3)
"""N, U and T of LightSecAgg."""
SHARED = (100, 51)
"""Shares of a secret, and how many of them give it back."""
MASK_BOUND, ENCODING_BOUND, SHAMIR_BOUND_MS = 1.5, 12, 2
_AT_ONCE = 1 << 17  # bytes that are encrypted at once: they and the result stay in a core's own cache
_SHAMIR_CALLS = 20


def seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def against(work: Callable[[], Any], least: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Alternate a step with what bounds it, once unmeasured; return seconds of both and their ratio."""
    pairs = [(seconds(work), seconds(least)) for _ in range(repeats + 1)][1:]
    ratios = [took / bound for took, bound in pairs]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "took_s": round(statistics.median(took for took, _ in pairs), 6),
        "least_s": round(statistics.median(bound for _, bound in pairs), 6),
    }


def raw_key_stream(count: int) -> None:
    """Draw so many bytes of AES-256-CTR key stream, and do nothing with them."""
    stream = Cipher(AES256(os.urandom(SEED_BYTES)), CTR(bytes(16))).encryptor()
    zeros, drawn = memoryview(bytes(_AT_ONCE)), memoryview(bytearray(_AT_ONCE))
    for start in range(0, count, _AT_ONCE):
        stop = min(_AT_ONCE, count - start)
        stream.update_into(zeros[:stop], drawn[:stop])


def measure_masks(parameters: int, neighbours: int, repeats: int) -> dict[str, Any]:
    """Mask a vector as a client does: its own mask, and one a neighbour; against the key stream alone."""
    values = np.zeros(parameters, dtype=np.uint32)
    masks = [Mask(os.urandom(SEED_BYTES), 1 - 2 * (number % 2)) for number in range(neighbours + 1)]
    count = values.nbytes * len(masks)
    figures = against(lambda: add_masks(values, masks), lambda: raw_key_stream(count), repeats)
    return figures | {"bound": MASK_BOUND, "key_stream_bytes": count}


def stream_once(drawn: NDArray[np.uint32], coded: NDArray[np.uint32]) -> None:
    """Read the pieces and write as many coded ones as there are, once each, with nothing between."""
    for index, row in enumerate(coded):
        if index < len(drawn):
            np.copyto(row, drawn[index])
        else:
            row.fill(index)


def measure_encoding(parameters: int, repeats: int) -> dict[str, Any]:
    """Code a mask as a client of LightSecAgg does, against memory read and written once."""
    clients, pieces, privacy = CODED
    length = piece_length(parameters, pieces, privacy)
    drawn = field_mask(os.urandom(SEED_BYTES), pieces * length).reshape(pieces, length)
    coded = np.zeros((clients, length), dtype=np.uint32)
    points = range(1, clients + 1)
    figures = against(lambda: encode(drawn, clients, points), lambda: stream_once(drawn, coded), repeats)
    return figures | {"bound": ENCODING_BOUND, "streamed_bytes": drawn.nbytes + coded.nbytes}


def measure_shamir(repeats: int) -> dict[str, Any]:
    """Share one secret and combine it, in milliseconds; of all the shares, too, which are held against each other."""
    count, threshold = SHARED
    points = range(1, count + 1)
    secret = np.frombuffer(os.urandom(SEED_BYTES), dtype=np.uint8).reshape(1, -1)
    shares = share(secret, threshold, points)
    steps: dict[str, Callable[[], Any]] = {
        "share": lambda: share(secret, threshold, points),
        f"combine {threshold}": lambda: combine(shares[:threshold], points[:threshold], threshold),
        f"combine {count}": lambda: combine(shares, points, threshold),
    }
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_SHAMIR_CALLS * repeats):
        for name, step in steps.items():
            took[name].append(1000 * seconds(step))
    return {
        name: {"ms": round(statistics.median(times), 3), "bound_ms": SHAMIR_BOUND_MS}
        for name, times in took.items()
    }


def bytes_up(plan: ProtocolPlan, parameters: int) -> int:
    """Return what a client sends in a round from which nobody drops out, from the shapes of its messages."""
    peers, length = plan.neighbours, parameters + 1

    def blank(*shape: int, dtype: type = np.uint8) -> NDArray[Any]:
        return np.broadcast_to(dtype(0), shape)  # of any size, in no memory

    made: list[Any]
    if plan.protocol == "lightsecagg":
        dropped = plan.clients - plan.threshold
        ids = tuple(range(plan.clients))
        rules = lightsecagg.LightSecAggRoundSpec(ids, plan.threshold, plan.max_colluding, dropped, 0, length)
        made = [
            messages.AdvertiseSealKey(blank(1, KEY_BYTES)),
            messages.SealedPieces(blank(peers, dtype=np.uint32), tuple(blank(peers, rules.sealed_bytes))),
            messages.CodedSum(blank(rules.piece, dtype=np.uint32)),
        ]
    else:
        owners = peers + (plan.protocol == "secagg")  # whose shares it holds
        sealed = blank(peers, messages.SEALED_BYTES)
        shares = blank(owners, LIMBS, dtype=np.uint32)
        made = [
            messages.AdvertiseKeys(blank(1, KEY_BYTES), blank(1, KEY_BYTES)),
            messages.SealedShares(blank(peers, dtype=np.uint32), sealed),
            messages.Revealed(blank(owners, dtype=np.uint32), blank(owners), shares),
        ]
    return sum(messages.size(message) for message in made) + messages.HEADER_BYTES + 4 * length


def measure_bounds(parameters: int, repeats: int) -> dict[str, Any]:
    """Measure every step that has a bound."""
    clients, pieces, privacy = CODED
    result = {
        f"masks of {k} neighbours, {parameters} parameters": measure_masks(parameters, k, repeats)
        for k in NEIGHBOURS
    }
    name = f"encoding, N={clients} U={pieces} T={privacy}, {parameters} elements"
    result[name] = measure_encoding(parameters, repeats)
    for step, figures in measure_shamir(repeats).items():
        result[f"Shamir, n={SHARED[0]} t={SHARED[1]}, {step}"] = figures
    return result
