"""Workers on one machine: this process, and others beside it, taking pieces of one job in turn.

A job is a small JSON value and a number of pieces (clients to train, batches to evaluate). Every worker
takes the next piece when it is free, so that the longest are begun first and nobody waits. Numbers and
names travel as JSON lines over pipes; tensors lie in mapped files that all workers share; nothing is
pickled. Since sums are exact (:mod:`fednlp.federated.sums`), who took which piece leaves no trace.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import torch
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.federated.sums import ExactSum
from fednlp.runtime.shared import Counter, scratch_folder, shared_tensor


class Side(Protocol):
    """The clients' side of a run: what a worker can do, given a job's piece and the global model."""

    layout: Layout

    def work(self, job: dict[str, Any], piece: int, x: Tensor, total: ExactSum) -> Any:
        """Do one piece; return what JSON can hold, and add updates to ``total``."""


class Pool:
    """A side here, and as many more in processes of their own as asked for.

    Args:
        workers: How many in all, this process counted.
        factory: ``"module:function"`` that builds a :class:`Side` in a worker process from arguments.
        threads: torch threads of each worker.
        preload: Modules that the factory will need.

    Worker processes start at once, and import these modules while the caller still prepares.
    """

    def __init__(self, workers: int, factory: str, threads: int = 1, preload: Sequence[str] = ()) -> None:
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        self._children = [_Child(factory, threads, preload) for _ in range(workers - 1)]
        self._scratch: Path | None = None
        self._counter: Counter | None = None
        self._sums: list[ExactSum] = []

    def __len__(self) -> int:
        return 1 + len(self._children)

    def start(self, side: Side, arguments: dict[str, Any]) -> Tensor:
        """Set the workers up and return the shared flat tensor that is to hold the global model.

        Args:
            side: The clients' side in this process.
            arguments: JSON values from which the factory builds the same side elsewhere.

        Raises:
            RunError: There is no room for the shared tensors.
        """
        self.side, layout = side, side.layout
        self.total = ExactSum(layout)
        if not self._children:
            return torch.zeros(layout.numel)
        rows = layout.table_shape[0]
        self._scratch = scratch_folder(4 * layout.numel + len(self._children) * (8 * layout.numel + rows))
        self._counter = Counter(self._scratch / "counter")
        x = shared_tensor(self._scratch / "x", layout.numel, torch.float32)
        for number, child in enumerate(self._children):
            storage = shared_tensor(self._scratch / f"sum{number}", layout.numel, torch.int64)
            touched = shared_tensor(self._scratch / f"touched{number}", rows, torch.bool)
            self._sums.append(ExactSum(layout, storage, touched))
            child.send({"arguments": arguments, "scratch": str(self._scratch), "number": number})
        return x

    def do(
        self, job: dict[str, Any], pieces: int, x: Tensor, done: Callable[[int], None] = lambda count: None
    ) -> list[Any]:
        """Do all pieces of a job; return their results in order. Updates are in ``self.total``.

        Raises:
            RunError: A worker process died or failed; the message says how.
        """
        if self._counter is None:
            results = []
            for piece in range(pieces):
                results.append(self.side.work(job, piece, x, self.total))
                done(piece + 1)
            return results
        self._counter.reset()
        for child in self._children:
            child.send({"job": job, "pieces": pieces})
        by_piece: dict[int, Any] = {}
        while (piece := self._counter.take()) < pieces:
            by_piece[piece] = self.side.work(job, piece, x, self.total)
            done(piece + 1)
        self._forget_scratch()
        for child, part in zip(self._children, self._sums, strict=True):
            by_piece |= {int(number): result for number, result in child.receive().items()}
            self.total.merge(part)
            part.clear()
        done(pieces)
        return [by_piece[piece] for piece in range(pieces)]

    def _forget_scratch(self) -> None:
        """Remove the names of the shared files once every worker has them open: no crash leaves any behind."""
        if self._scratch is not None:
            for child in self._children:
                child.receive()
            shutil.rmtree(self._scratch, ignore_errors=True)
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
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Child:
    """One worker process, spoken to in JSON lines."""

    def __init__(self, factory: str, threads: int, preload: Sequence[str]) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fednlp.runtime.worker", factory, str(threads), *preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the workers
        )

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._death()
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise RunError(f"a worker process failed: {message['error']}")
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
