"""A run in which the other rank fails, then one in which it does not; what each came to, as JSON.

mpirun -n 2 python failing_rank.py
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from counting import Counting

from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.runtime.launch import rank_of
from fednlp.runtime.mpi import Mpi, follow, leading
from fednlp.training.requests.predict import ProbabilitiesRequest


class Slow(Counting):
    """Leaves requests for the other rank."""

    def begin(self) -> None:
        time.sleep(0.5)


def run(factory: str, requests: Sequence[Any]) -> str:
    """Return what some requests come to."""
    try:
        with Mpi(2, factory) as engine:
            engine.start(Slow(os.getpid()), {"here": os.getpid()})
            engine.do(requests)
            return str(int(engine.total))
    except RunError as error:
        return str(error)


if rank_of()[0]:
    follow()
else:
    clients = [TrainRequest(client, 1, 1.0) for client in range(40)]
    with leading():
        found = [
            run("counting:missing", clients),
            run("counting:build", [ProbabilitiesRequest([1])] * 40),
            run("counting:build", clients),
        ]
    print(json.dumps(found))
