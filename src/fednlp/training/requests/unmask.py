"""The masks that are left in a sum of masked updates: work of the server's own, shared out among the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fednlp.clock import SUMS, timed
from fednlp.runtime.engine import Vectors
from fednlp.secure.unmasking import UnmaskRequest
from fednlp.training.handling import handles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fednlp.training.worker import ClientWorker


def _receive(
    worker: ClientWorker, request: UnmaskRequest, masks: NDArray[np.uint32], vectors: Vectors, total: Any
) -> None:
    total["model"].add_residues(masks, request.start)


@handles(UnmaskRequest, receive=_receive)
@timed(SUMS)
def unmask(worker: ClientWorker, request: UnmaskRequest, vectors: Vectors) -> NDArray[np.uint32]:
    """Return the sum of masks, one number for each element of the stretch."""
    from fednlp.secure.upload import mask_values

    return mask_values(request.start, request.stop, request.seeds)
