"""The engine of a deployment: what is for a client goes to its site, and the server's own work is done here.

The round is the same as in a simulation (:func:`fednlp.federated.round.run_round`). What arrives is on disk before it
is acknowledged, and is added to the exact sum in any order. So a server that is killed asks again only for what had
not arrived, and ends in the same weights.
"""

import mmap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from fednlp.deployment.asked import SiteRequest
from fednlp.deployment.hub import Hub, StoredReply
from fednlp.deployment.messages import Call, ObjectRef
from fednlp.deployment.secure_server import with_masked_weight
from fednlp.errors import FednlpError, RunError
from fednlp.federated.client import ClientResult, TrainRequest, failed
from fednlp.federated.message import write_message
from fednlp.federated.upload import Trained, unpack_upload, upload_bytes
from fednlp.runtime.engine import vectors_in
from fednlp.runtime.messages import (
    ClientModelRequest,
    ClientModelResult,
    KeepLabelsRequest,
    LabelsKept,
    from_json,
    to_json,
)
from fednlp.runtime.shared import PrivateRoom

_KINDS: Mapping[type, str] = {
    TrainRequest: "train",
    ClientModelRequest: "evaluate",
    KeepLabelsRequest: "label",
}
"""What goes to sites, and what it is called in the numbers of calls."""
_ANSWERS: Mapping[type, Any] = {
    TrainRequest: ClientResult,
    ClientModelRequest: ClientModelResult,
    KeepLabelsRequest: LabelsKept,
}
_LOOK = 1.0
"""Seconds between two looks at who is missing."""


class Sites:
    """Has requests answered by the sites of a deployment.

    Args:
        hub: What is asked of whom, and what arrived.
        folder: For the models that are on their way.
        wait: Seconds that a round waits for who is missing; None for as long as it takes.
        counted: The last round by client in which its update counted.
        on_waiting: Told the clients that are awaited, now and then, and since when, in seconds.
        gone: Returns the clients that no longer take part; asked each time that the engine looks at who is missing.
        threads: torch threads of the server's own work.
    """

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        wait: float | None = None,
        counted: Mapping[int, int] | None = None,
        on_waiting: Callable[[Sequence[int], float], None] = lambda clients, seconds: None,
        gone: Callable[[], Collection[int]] = frozenset,
        threads: int = 1,
    ) -> None:
        self.hub, self.folder, self.wait = hub, folder, wait
        self.on_waiting, self.gone = on_waiting, gone
        self.counted = dict(counted or {})
        self.vectors: dict[str, Tensor] = {}
        self.total: Any = None
        self._messages: dict[str, bytes | None] = {}
        self._objects: dict[str, ObjectRef] = {}
        self._changed: set[str] = set()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)

    def __len__(self) -> int:
        return 1

    def start(self, worker: Any, arguments: dict[str, Any]) -> None:
        """Begin.

        Args:
            worker: Does the server's half of the round, and what is the server's own
                (:class:`fednlp.training.worker.ClientWorker`).
            arguments: Not needed here: the sites build their own.
        """
        self.worker = worker
        self.total = worker.new_total(PrivateRoom())
        self.vectors = vectors_in(worker, PrivateRoom())

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let the clients have a flat vector under a name; it is offered to them once a client is asked."""
        if vector is not self.vectors[name]:
            self.vectors[name].copy_(vector)
        self._messages[name] = message
        self._changed.add(name)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered; return the results in their order."""
        answers: dict[int, Any] = {}
        asked: dict[str, int] = {}
        for place, request in enumerate(requests):
            if type(request) in _KINDS:
                asked[call_id(request)] = place
        if asked:
            self._ask([requests[place] for place in asked.values()])
        for place, request in enumerate(requests):
            if type(request) not in _KINDS:
                answer = self.worker.handlers[type(request)](request, self.vectors)
                answers[place] = self.worker.receive(request, answer, self.vectors, self.total)
                on_progress(len(answers))
        for reply in self._arriving(asked, requests):
            place = asked.pop(reply.id)
            answers[place] = self._received(requests[place], reply)
            on_progress(len(answers))
        for name, place in asked.items():
            self.hub.withdraw(name)
            answers[place] = _missing(requests[place], self._why_missing(requests[place].client))
        for place in sorted(answers):
            self._note(requests[place], answers[place])
        return [answers[place] for place in range(len(requests))]

    def close(self) -> None:
        """Leave the sites as they are, as the next start goes on with them, and give torch its threads back."""
        torch.set_num_threads(self._threads_before)
        self.total = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, requests: Sequence[Any]) -> None:
        """Open a call for each request, with the vectors as they are published."""
        objects = self._offered()
        encoded = sorted(name for name, message in self._messages.items() if message is not None)
        for request in requests:
            most = 0
            if isinstance(request, TrainRequest):
                self.hub.forget(request.round - 1)
                masked = request.masking is not None
                algorithm, layout = self.worker.algorithm, self.worker.layout
                most = upload_bytes(algorithm, layout, None, masked=masked)
            body = {
                "request": to_json(request),
                "counted": self.counted.get(request.client, 0),
                "encoded": encoded,
            }
            self.hub.ask(request.client, Call(call_id(request), body, objects), most)

    def _offered(self) -> dict[str, ObjectRef]:
        """Return what is published as objects, written anew where it was published anew."""
        for name in sorted(self._changed):
            path = self.folder / f"{name}.new"
            message = self._messages[name]
            with path.open("wb") as file:
                if message is None:
                    write_message(file, self.worker.layout.views(self.vectors[name]))
                else:
                    file.write(message)
            old, self._objects[name] = self._objects.get(name), self.hub.add_object(path)
            path.unlink()  # the hub has it open: its bytes go once it is no longer offered
            if old is not None and old not in self._objects.values():
                self.hub.drop_object(old.digest)
        self._changed.clear()
        return dict(self._objects)

    def _arriving(self, asked: Mapping[str, int], requests: Sequence[Any]) -> Iterator[StoredReply]:
        """Yield the replies as they arrive, until all are there or the time is over."""
        begun = told = time.monotonic()
        while asked:
            reply = self.hub.take(_LOOK)
            now = time.monotonic()
            gone = self.gone()
            if reply is not None:
                if reply.id in asked:
                    yield reply
                continue
            late = self.wait is not None and now - begun > self.wait
            if late or all(requests[place].client in gone for place in asked.values()):
                return
            if now - told >= 10 * _LOOK:
                told = now
                self.on_waiting(sorted(requests[place].client for place in asked.values()), now - begun)

    def _why_missing(self, client: int) -> str:
        if client in self.gone() or self.wait is None:
            return "the site was removed from the federation"
        return f"no answer within {self.wait:g} seconds (rounds.wait)"

    def _received(self, request: Any, reply: StoredReply) -> Any:
        """Return what a site answered, with its update in the total; a site that fails is reported."""
        if reply.error is not None:
            return _missing(request, reply.error)
        try:
            answer = from_json(reply.answer)
            _require_own(request, answer)
            if not isinstance(request, TrainRequest) or answer.error is not None:
                return answer
            with _mapped(reply.path) as data:
                masked = request.masking is not None
                upload = unpack_upload(data, self.worker.algorithm, self.worker.layout, answer, masked=masked)
            if upload.masked is not None:
                answer = with_masked_weight(answer, upload.masked)
            return self.worker.receive(request, Trained(answer, upload), self.vectors, self.total)
        except FednlpError as error:
            return _missing(request, str(error))

    def _note(self, request: Any, answer: Any) -> None:
        if isinstance(request, TrainRequest) and answer.error is None:
            self.counted[request.client] = request.round


def call_id(request: SiteRequest) -> str:
    """Return the number of the call that carries a request.

    >>> call_id(TrainRequest(client=3, round=12, weight=1.0))
    '12.3.train'
    """
    name = _KINDS[type(request)]
    if isinstance(request, ClientModelRequest) and request.finetune_steps:
        name = "finetune"
    return f"{request.round}.{request.client}.{name}"


def _require_own(request: Any, answer: Any) -> None:
    """Check that an answer is to the request: a site speaks for itself alone."""
    if not isinstance(answer, _ANSWERS[type(request)]) or answer.client != request.client:
        raise RunError("the site answered something else than it was asked")
    if isinstance(answer, ClientResult) and answer.weight != request.weight:
        raise RunError("the site answered with another weight than it was told")


def _missing(request: Any, reason: str) -> Any:
    if isinstance(request, TrainRequest):
        return failed(request, RunError(reason), 0, 0)
    return _ANSWERS[type(request)](request.client, error=reason)


@contextmanager
def _mapped(path: Path | None) -> Iterator[memoryview]:
    """Map the file of an upload for the time of a block."""
    if path is None:
        raise RunError("the site sent no update")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            yield view
        finally:
            view.release()
