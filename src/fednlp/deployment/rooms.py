"""Where a server's vectors and totals lie: the memory of a large model is given back whenever it is not needed."""

from pathlib import Path

from fednlp.federated.aggregators.base import Room
from fednlp.federated.pages import DiskRoom, LeanRoom
from fednlp.runtime.shared import PrivateRoom

_LARGE = 64 << 20
"""Bytes of a large model."""


def rooms(numel: int, folder: Path) -> tuple[Room, Room]:
    """Return the room of a server's totals, and that of its published vectors.

    Args:
        numel: Elements of the model.
        folder: For vectors that need not be in memory while nobody looks at them.
    """
    large = numel * 4 >= _LARGE
    return (LeanRoom(), DiskRoom(folder)) if large else (PrivateRoom(), PrivateRoom())
