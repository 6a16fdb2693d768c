"""An engine whose clients live in another thread and get nothing but bytes: what a transport has to do, and no more."""

import json
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from queue import Queue
from typing import Any, Self

import torch
from torch import Tensor

from fednlp.federated.client import TrainRequest
from fednlp.federated.message import pack, unpack
from fednlp.federated.upload import Trained, pack_upload, unpack_upload
from fednlp.runtime.engine import Worker, vectors_in
from fednlp.runtime.messages import from_json, to_json, trains
from fednlp.runtime.shared import PrivateRoom
from fednlp.training.requests.predict import LabelRequest


class Letters:
    """Sends what is for a client to a thread, and does the server's own work here."""

    def __init__(self, workers: int, factory: str, threads: int, preload: Sequence[str]) -> None:
        self.factory = factory
        self.to_clients: Queue[Any] = Queue()
        self.to_server: Queue[Any] = Queue()
        self.vectors: dict[str, Tensor] = {}
        self.total: Any = None
        self.thread = threading.Thread(target=self._clients, daemon=True)

    def __len__(self) -> int:
        return 1

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        self.worker = worker
        self.total = worker.new_total(PrivateRoom())
        self.vectors = vectors_in(worker, PrivateRoom())
        self.thread.start()
        self.to_clients.put(json.dumps(arguments))

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        if vector is not self.vectors[name]:
            self.vectors[name].copy_(vector)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        answers = []
        if any(isinstance(request, (TrainRequest, LabelRequest)) for request in requests):
            self.to_clients.put({name: pack({name: vector}) for name, vector in self.vectors.items()})
        for request in requests:
            answer: Any
            if isinstance(request, (TrainRequest, LabelRequest)):
                self.to_clients.put(json.dumps(to_json(request)))
                answer = self._arrived(request)
            else:
                answer = self.worker.handlers[type(request)](request, self.vectors)
            answers.append(self.worker.receive(request, answer, self.vectors, self.total))
            on_progress(len(answers))
        return answers

    def _arrived(self, request: Any) -> Any:
        answer, upload = self.to_server.get()
        found = from_json(json.loads(answer))
        if not trains(request):
            return found
        worker: Any = self.worker
        if upload is None:
            return Trained(found, None)
        masked = request.masking is not None
        began, algorithm = request.began, worker.algorithm
        upload = unpack_upload(upload, algorithm, worker.layout, found, masked=masked, number=began)
        return Trained(found, upload)

    def _clients(self) -> None:
        module, _, name = self.factory.partition(":")
        worker = getattr(import_module(module), name)(**json.loads(self.to_clients.get()))
        vectors: dict[str, Tensor] = {}
        while (letter := self.to_clients.get()) is not None:
            if isinstance(letter, dict):
                for name, data in letter.items():
                    vectors |= unpack(data, {name: ((worker.layout.numel,), torch.float32)})
                continue
            request = from_json(json.loads(letter))
            answer, upload = worker.handlers[type(request)](request, vectors), None
            if trains(request):
                answer, sent = answer.result, answer.upload
                if sent is not None:
                    upload = pack_upload(sent, worker.layout)
                    whole = worker.layout.message_bytes
                    told = whole if answer.bytes_up is None else answer.bytes_up
                    assert len(upload) == told or request.masking is not None
            self.to_server.put((json.dumps(to_json(answer)), upload))

    def close(self) -> None:
        self.to_clients.put(None)
        if self.thread.is_alive():
            self.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
