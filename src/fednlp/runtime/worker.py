"""A worker process: ``python -m fednlp.runtime.worker FACTORY THREADS MODULE...``, started by the pool.

It reads requests as JSON lines from standard input and answers each line with one. It ends when its input does.
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from fednlp.clock import IDLE, IMPORTS, MESSAGES, MODEL, Clock, process_began, running, timed
from fednlp.runtime.allocator import release_freed_memory
from fednlp.runtime.child import answers_to_parent, function_named, write_line
from fednlp.runtime.engine import Worker, answered, vectors_in
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.shared import Counter, SharedRoom


def _messages(parent: int) -> Iterator[dict[str, Any]]:
    while True:
        with timed(IDLE):
            line = sys.stdin.buffer.readline()
        if not line or os.getppid() != parent:
            return
        yield json.loads(line)


def main(factory: str, threads: int, preload: Sequence[str]) -> None:
    """Answer the requests of one run after the other until the pool closes the pipe."""
    clock = Clock(IMPORTS, process_began())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = answers_to_parent()
    torch.set_num_threads(threads)
    parent = os.getppid()
    build = function_named(factory)
    for module in preload:
        importlib.import_module(module)
    clock.switch(MESSAGES)
    messages = _messages(parent)
    with running(clock):
        setup = next(messages, None)
    while setup is not None:
        with running(clock):
            _serve(setup, messages, clock, build, answers, parent)
        release_freed_memory()
        setup = next(messages, None)
        clock = Clock(MESSAGES)


def _serve(
    setup: dict[str, Any],
    messages: Iterator[dict[str, Any]],
    clock: Clock,
    build: Callable[..., Worker],
    answers: IO[bytes],
    parent: int,
) -> None:
    """Answer the requests of one run; each answer says where the time of the run went so far."""
    scratch, number = Path(setup["scratch"]), setup["number"]
    with timed(MODEL):
        worker = build(**setup["arguments"])
    counter = Counter(scratch / "counter")
    vectors = vectors_in(worker, SharedRoom(scratch, "all"))
    total = worker.new_total(SharedRoom(scratch, str(number)))
    write_line(answers, {"results": {}})  # everything is open: the pool may remove the names
    for message in messages:
        if "over" in message:
            counter.close()
            return
        results: dict[int, Any] = {}
        line: dict[str, Any] = {"results": results}
        try:
            requests = message["requests"]
            worker.begin()
            while (place := counter.take()) < len(requests) and os.getppid() == parent:
                request = from_json(requests[place])
                results[place] = to_json(answered(worker, request, vectors, total))
        except Exception as error:
            line = {"error": f"{type(error).__name__}: {error}"}
        until = time.monotonic_ns()
        write_line(answers, line | {"spent": clock.spent(until), "until": until})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
