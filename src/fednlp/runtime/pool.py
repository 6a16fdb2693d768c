"""Workers on one machine: this process, and others alongside it, answering requests in turn.

Every worker takes the next request when it is free, in an order that has all workers done at about the same time
(:mod:`fednlp.runtime.schedule`). Requests
and results (:mod:`fednlp.runtime.messages`) travel as JSON lines over pipes; tensors lie in mapped files that all
workers share; nothing is pickled. Since totals do not depend on the order of adding, who answered which request leaves
no trace.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import torch
from torch import Tensor

from fednlp.clock import IDLE, MESSAGES, timed
from fednlp.errors import RunError
from fednlp.runtime.allocator import release_freed_memory
from fednlp.runtime.engine import Worker, vectors_in
from fednlp.runtime.message_json import from_json, to_json
from fednlp.runtime.messages import Request
from fednlp.runtime.placement import WORKER
from fednlp.runtime.schedule import scheduled
from fednlp.runtime.shared import Counter, PrivateRoom, SharedRoom, remove_scratch, scratch_folder


class Pool:
    """A worker here, and as many more in processes of their own as configured: an engine of one machine.

    Args:
        workers: How many in all, this process counted.
        factory: ``"module:function"`` that builds a worker in a worker process from arguments.
        threads: torch threads of each worker.
        preload: Modules that the factory will need.

    Worker processes start at once, and import these modules while the caller still prepares.
    """

    def __init__(self, workers: int, factory: str, threads: int = 1, preload: Sequence[str] = ()) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        self._children = [_Child(number, factory, threads, preload) for number in range(1, workers)]
        self._scratch: Path | None = None
        self._counter: Counter | None = None
        self._totals: list[Any] = []
        self.total: Any = None
        self.vectors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return 1 + len(self._children)

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        """Set the workers up.

        Args:
            worker: The one in this process.
            arguments: JSON values from which the factory builds the same worker elsewhere.

        Raises:
            RunError: There is no room for the shared tensors.
        """
        self.worker, layout = worker, worker.layout
        self.total = worker.new_total(PrivateRoom())
        if not self._children:
            self.vectors = vectors_in(worker, PrivateRoom())
            return
        shared = 4 * (1 + len(worker.receives)) * layout.numel
        each = (8 * layout.numel + layout.table_shape[0]) * len(worker.sends)
        self._scratch = scratch_folder(shared + len(self._children) * each)
        self._counter = Counter(self._scratch / "counter")
        self.vectors = vectors_in(worker, SharedRoom(self._scratch, "all"))
        for number, child in enumerate(self._children):
            self._totals.append(worker.new_total(SharedRoom(self._scratch, str(number))))
            child.send({"arguments": arguments, "scratch": str(self._scratch), "number": number})

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let all workers have a vector under a name; one that lies there already is not copied."""
        if vector is not self.vectors[name]:
            with timed(MESSAGES):
                self.vectors[name].copy_(vector)

    def do(
        self, requests: Sequence[Request], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered; return the answers in their order. Updates are in ``self.total``.

        Args:
            requests: In any order.
            on_progress: Told how many are answered.

        Raises:
            RunError: A worker process died or failed; the message says how.
        """
        self.worker.begin()
        order = scheduled(requests, self.worker.work, len(self))
        take = itertools.count().__next__ if self._counter is None else self._hand_out(requests, order)
        by_number: dict[int, Any] = {}
        while (place := take()) < len(order):
            request = requests[order[place]]
            answer = self.worker.handlers[type(request)](request, self.vectors)
            by_number[order[place]] = self.worker.receive(request, answer, self.vectors, self.total)
            on_progress(place + 1)
        self._forget_scratch()
        for child, total in zip(self._children, self._totals, strict=True):
            answers = child.receive()
            by_number |= {order[int(taken)]: from_json(answer) for taken, answer in answers.items()}
            self.worker.merge(self.total, total)
        if self._children:
            on_progress(len(requests))
        return [by_number[number] for number in range(len(requests))]

    @timed(MESSAGES)
    def _hand_out(self, requests: Sequence[Request], order: Sequence[int]) -> Callable[[], int]:
        """Send all workers the requests in their order; return what claims the place of the next."""
        assert self._counter is not None
        self._counter.reset()
        message = {"requests": [to_json(requests[number]) for number in order]}
        for child in self._children:
            child.send(message)
        return self._counter.take

    def spent(self, until: int) -> list[dict[str, int]]:
        """Return the nanoseconds of each part for each of the other workers.

        Args:
            until: The end of the measurement, by :func:`time.monotonic_ns`; they wait since their last answer.
        """
        return [
            child.spent | {IDLE: child.spent.get(IDLE, 0) + until - child.until} for child in self._children
        ]

    def _forget_scratch(self) -> None:
        """Remove the names of the shared files once every worker has them open: no crash leaves any behind."""
        if self._scratch is not None:
            for child in self._children:
                child.receive()
            remove_scratch(self._scratch)
            self._scratch = None

    def close(self) -> None:
        """Stop the workers, remove the shared files, and give torch its threads back."""
        torch.set_num_threads(self._threads_before)
        for child in self._children:
            child.stop()
        self._children = []
        if self._counter is not None:
            self._counter.close()
            self._counter = None
        if self._scratch is not None:
            remove_scratch(self._scratch)
            self._scratch = None
        self._totals, self.total = [], None
        release_freed_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Child:
    """One worker process, spoken to in JSON lines."""

    def __init__(self, number: int, factory: str, threads: int, preload: Sequence[str]) -> None:
        own = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), WORKER: str(number)}
        environment = os.environ | own
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fednlp.runtime.worker", factory, str(threads), *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the workers
        )
        self.spent: dict[str, int] = {}
        self.until = time.monotonic_ns()

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with timed(IDLE):
            line = self._process.stdout.readline()
        if not line:
            raise self._death()
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise RunError(f"a worker process failed: {message['error']}")
        if "spent" in message:
            self.spent, self.until = message["spent"], message["until"]
        results: dict[str, Any] = message["results"]
        return results

    def _death(self) -> RunError:
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        hint = "; was memory short? try a smaller runtime.workers" if code == -signal.SIGKILL else ""
        return RunError(f"a worker process died ({why}{': ' + last[0] if last else ''}){hint}")

    def stop(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
