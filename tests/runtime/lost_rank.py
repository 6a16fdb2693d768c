"""A command line under ``mpirun`` whose rank 1 is killed in its third round.

mpirun -n 2 python lost_rank.py run EXPERIMENT --out DIR
"""

import os
import signal
from typing import Any

from fednlp import cli
from fednlp.runtime import mpi
from fednlp.runtime.launch import rank_of

if __name__ == "__main__":
    take_part, rounds = mpi._take_part, []

    def mortal(comm: Any, order: dict[str, Any], *others: Any) -> None:
        rounds.append(order)
        if len(rounds) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        take_part(comm, order, *others)

    if rank_of()[0]:
        mpi._take_part = mortal
    cli.main()
