"""A model from one rank of MPI to another, against a copy over TCP between the same two processes, in turns.

The copy is chunks of 1 MiB by ``sendall``, received into one buffer as large as the model. The broadcast is that of
:mod:`fednlp.runtime.mpi`, of the same bytes. A copy ends when the receiver has said so.
"""

import socket
import statistics
import time
from typing import Any

CHUNK = 1 << 20


def broadcast(megabytes: float, repeats: int) -> dict[str, Any] | None:
    """Return the figures at the first rank, and None at the second.

    Args:
        megabytes: Of the model.
        repeats: Of each.
    """
    import numpy as np
    from mpi4py import MPI

    comm, size = MPI.COMM_WORLD, round(megabytes * 1e6)
    model, first = np.random.default_rng(0).integers(0, 256, size, np.uint8), comm.rank == 0
    if first:
        with socket.create_server(("127.0.0.1", 0)) as server:
            comm.send(server.getsockname()[1], 1)
            line, _ = server.accept()
    else:
        model[:] = 0
        line = socket.create_connection(("127.0.0.1", comm.recv(source=0)))
    view, times = memoryview(model), {"tcp": list[float](), "mpi": list[float]()}

    def copy() -> None:
        if first:
            for at in range(0, size, CHUNK):
                line.sendall(view[at : at + CHUNK])
            line.recv(1)
            return
        left = size
        while left:
            left -= line.recv_into(view[size - left :], left)
        line.sendall(b"+")

    def bcast() -> None:
        comm.Bcast(model, root=0)
        comm.Barrier()

    for _ in range(repeats + 1):
        for name, send in (("tcp", copy), ("mpi", bcast)):
            comm.Barrier()
            begin = time.monotonic()
            send()
            times[name].append(time.monotonic() - begin)
    line.close()
    if not first:
        return None
    warm = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    return {
        "bytes": size,
        "seconds": {name: round(seconds, 4) for name, seconds in warm.items()},
        "of_tcp": round(warm["tcp"] / warm["mpi"], 3),
        "bound": 1.0,
    }
