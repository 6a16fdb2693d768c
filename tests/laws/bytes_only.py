"""An engine whose workers share no memory: requests, answers, models and totals are copied as bytes between them."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from fednlp.runtime.engine import Worker, vectors_in
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.shared import PrivateRoom
from fednlp.runtime.travelling import Arriving, Piece, RemoteWorker

_WORKERS = 2


class BytesOnly:
    """Two workers in this process that are asked in turn, as those of other machines are."""

    def __init__(self, workers: int, factory: str, threads: int = 1, preload: Sequence[str] = ()) -> None:
        self._factory, self._threads = factory, threads
        self.vectors: dict[str, Tensor] = {}
        self.total: Any = None

    def __len__(self) -> int:
        return _WORKERS

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        """Build the workers."""
        self.worker = worker
        self.vectors = vectors_in(worker, PrivateRoom())
        self.total = worker.new_total(PrivateRoom())
        self._arriving = Arriving(worker)
        self._remote = [RemoteWorker(self._factory, arguments, self._threads) for _ in range(_WORKERS)]

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let the workers have a vector under a name."""
        self.vectors[name].copy_(vector)
        for remote in self._remote:
            copied = torch.frombuffer(bytearray(vector.numpy().tobytes()), dtype=vector.dtype)
            remote.vectors[name].copy_(copied)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered; return the answers in their order."""
        answers: list[Any] = []
        for remote in self._remote:
            remote.worker.begin()
        for number, request in enumerate(requests):
            remote = self._remote[(number + 1) % _WORKERS]
            answers.append(from_json(remote.answer(to_json(request))))
            on_progress(number + 1)
        for remote in self._remote:
            for piece in remote.hand_over():
                self._arriving.room.put(Piece(piece.name, piece.blocks.copy(), piece.values.copy()))
            self._arriving.merge_into(self.total)
        return answers

    def close(self) -> None:
        """Let the workers go."""
        self._remote = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
