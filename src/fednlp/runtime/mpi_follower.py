"""What every rank but the first does: it answers the requests of rank 0 (:mod:`fednlp.runtime.mpi`)."""

import sys
from contextlib import suppress
from typing import Any

import torch

from fednlp.plugins import raised
from fednlp.runtime.mpi_messages import (
    ANSWERS,
    BUILT,
    NAP,
    ORDER,
    end_all,
    next_number,
    received,
    send,
    world,
)
from fednlp.runtime.mpi_totals import merge_below, send_up
from fednlp.runtime.travelling import Arriving, RemoteWorker, import_all


def follow() -> None:
    """Answer rank 0's requests until it lets this rank go: all that the other ranks do."""
    comm = world()
    try:
        _follow(comm)
    except Exception as error:  # the others would wait for this rank for ever
        print(f"error: rank {comm.Get_rank()}: {raised(error)}", file=sys.stderr)
        end_all(comm)


def _follow(comm: Any) -> None:
    worker: RemoteWorker | None = None
    arriving: Arriving | None = None
    while True:
        order = received(comm, 0, ORDER, NAP)
        if "end" in order:
            return
        if "preload" in order:
            torch.set_num_threads(order["threads"])
            with suppress(Exception):  # the factory says what it lacks
                import_all(order["preload"])
        elif "factory" in order:
            worker = arriving = None
            built = {}
            try:
                worker = RemoteWorker(order["factory"], order["arguments"], order["threads"])
                arriving = Arriving(worker.worker)
            except Exception as error:
                built = {"error": f"rank {comm.Get_rank()}: {raised(error)}"}
            send(comm, 0, built, BUILT)
        elif worker is not None and arriving is not None:
            _take_part(comm, order, worker, arriving)


def _take_part(comm: Any, order: dict[str, Any], worker: RemoteWorker, arriving: Arriving) -> None:
    """Answer requests of a round until none is left, then send the answers and the total."""
    requests, answers = order["requests"], dict[str, Any]()
    for name in order["changed"]:
        comm.Bcast(worker.vectors[name].numpy(), root=0)
    worker.worker.begin()
    while (number := next_number(comm)) < len(requests):
        try:
            if "error" not in answers:
                answers[str(number)] = worker.answer(requests[number])
        except Exception as error:
            answers = {"error": f"rank {comm.Get_rank()}: {raised(error)}"}
    send(comm, 0, answers, ANSWERS)
    merge_below(comm, arriving, worker.total)
    send_up(comm, worker.hand_over())
