"""Whether ``mpirun`` started this process, and which of its processes this is."""

import os
from collections.abc import Mapping

_LAUNCHERS = ("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
"""What launchers tell a process of its place, by the names of variables."""


def rank_of(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return this process's rank and the number of ranks, as the launcher says; 0 and 1 without one.

    >>> rank_of({"PMI_RANK": "2", "PMI_SIZE": "5"}), rank_of({})
    ((2, 5), (0, 1))
    """
    for rank, size in _LAUNCHERS:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1
