"""Section ``codec``: what making and reading the bytes of the wire costs, against a memory copy of the same bytes.

``frames`` is an upload in frames of 1 MiB: each is made from the file's bytes and read again, as the sender and the
receiver do. ``message`` is a model's tensors made into a message, and read into a flat vector; it has to copy them once
each way, and its bound is two copies into new memory. The copy of ``frames`` is into memory that was written before.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

CHUNK = 1 << 20
BOUND = 1.5


def codec(megabytes: float, repeats: int) -> dict[str, Any]:
    """Return the figures of the section ``codec``."""
    import numpy as np
    import torch

    from fednlp.deployment.links.system import reuse_memory
    from fednlp.deployment.session.messages import UploadChunk, from_client
    from fednlp.deployment.session.messages import pack as frame
    from fednlp.federated.message import pack
    from fednlp.federated.params import Layout
    from fednlp.federated.upload import flat_of

    reuse_memory()  # as both ends of a connection do
    numel = round(megabytes * 1e6) // 4
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(numel, dtype=np.float32))
    side = 1024
    rows = numel // side
    layout = Layout.of(
        {f"layer.{n}": ((min(side, rows - n), side), "parameter") for n in range(0, rows, side)}
    )
    flat = values[: layout.numel]
    data = memoryview(flat.numpy()).cast("B")

    def frames() -> None:
        for start in range(0, len(data), CHUNK):
            from_client(frame(UploadChunk("1.0.train", start), data[start : start + CHUNK]))

    other = bytearray(data)

    def copy() -> None:
        for start in range(0, len(data), CHUNK):
            other[start : start + CHUNK] = data[start : start + CHUNK]

    def message() -> None:
        flat_of(pack(layout.views(flat)), layout)

    def two_copies() -> None:
        flat.clone().clone()

    figures: dict[str, Any] = {"bytes": len(data), "repeats": repeats}
    for name, own, bound in (("frames", frames, copy), ("message", message, two_copies)):
        times = alternated((own, bound), repeats)
        ratios = [one / other for one, other in zip(*times, strict=True)]
        figures[name] = {
            "seconds": round(statistics.median(times[0]), 6),
            "copy": round(statistics.median(times[1]), 6),
            "ratio": round(statistics.median(ratios), 3),
            "bound": BOUND,
        }
    return figures


def alternated(jobs: tuple[Callable[[], None], ...], repeats: int) -> list[list[float]]:
    """Return the seconds of jobs that are done in turn, after a first time that does not count."""
    times: list[list[float]] = [[] for _ in jobs]
    for number in range(repeats + 1):
        for own, job in zip(times, jobs, strict=True):
            begun = time.perf_counter()
            job()
            if number:
                own.append(time.perf_counter() - begun)
    return times
