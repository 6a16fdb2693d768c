"""The engine of a deployment: what is for a client goes to its site, and the server's own work is done here.

The round is the same as in a simulation (:func:`fednlp.federated.round.run_round`). What arrives is on disk before it
is acknowledged, and is added to the exact sum in any order. So a server that is killed asks again only for what had
not arrived, and ends in the same weights.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from fednlp.deployment.asked import DERIVED
from fednlp.deployment.hub import Hub, StoredReply
from fednlp.deployment.messages import Call, ObjectRef
from fednlp.deployment.objects import mapped
from fednlp.deployment.secure_server import with_masked_weight
from fednlp.errors import FednlpError, RunError
from fednlp.federated.client import ClientResult, TrainRequest, failed
from fednlp.federated.communication import derived_entries
from fednlp.federated.message import write_message
from fednlp.federated.upload import Trained, unpack_upload, upload_bytes
from fednlp.runtime.engine import vectors_in
from fednlp.runtime.messages import ClientModelRequest, ClientModelResult, from_json, to_json
from fednlp.runtime.shared import PrivateRoom

_KINDS: Mapping[type, str] = {TrainRequest: "train", ClientModelRequest: "evaluate"}
"""What goes to sites, and what it is called in the numbers of calls."""
_LOOK = 1.0
"""Seconds between two looks at who is missing."""


@dataclass(frozen=True)
class Offer:
    """A flat vector that sites can fetch.

    Attributes:
        name: Of the vector.
        objects: What it consists of, by name.
        encoded: Whether it is transformed on its way.
    """

    name: str
    objects: Mapping[str, ObjectRef]
    encoded: bool


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

    Attributes:
        busy: Returns the clients that train across rounds: they are not asked for evaluations.
        forgets: Whether the calls of the rounds before are over when a client is asked to train.
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
        self.busy: Callable[[], Collection[int]] = frozenset
        self.forgets = True
        self._messages: dict[str, bytes | None] = {}
        self._offers: dict[str, Offer] = {}
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
        busy = self.busy()
        for place, request in enumerate(requests):
            if isinstance(request, ClientModelRequest) and request.client in busy:
                answers[place] = _missing(request, "the site trains")
            elif type(request) in _KINDS:
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
        stored = {*self.hub.stored()}
        for request in requests:
            if call_id(request) in stored:  # it is answered without anything being offered
                self.hub.ask(request.client, Call(call_id(request), {}))
                continue
            if isinstance(request, TrainRequest) and self.forgets:
                self.hub.forget(request.round - 1)
            self.open(request, self._offered())

    def open(self, request: Any, offers: Sequence[Offer]) -> None:
        """Open the call that carries a request; nothing happens if it is open or answered.

        Args:
            request: What is asked.
            offers: The vectors that the site needs for it.
        """
        most = 0
        if isinstance(request, TrainRequest):
            masked = request.masking is not None
            most = upload_bytes(self.worker.algorithm, self.worker.layout, None, masked=masked)
        body = {
            "request": to_json(told(request)),
            "counted": self.counted.get(request.client, 0),
            "encoded": sorted(offer.name for offer in offers if offer.encoded),
        }
        objects = {name: ref for offer in offers for name, ref in offer.objects.items()}
        self.hub.ask(request.client, Call(call_id(request), body, objects), most)

    def offer(self, name: str, vector: Tensor, message: bytes | None) -> Offer:
        """Offer a flat vector to the sites, until :meth:`drop`.

        Args:
            name: Its name.
            vector: It.
            message: Its bytes, where it is transformed on its way.
        """
        views = self.worker.layout.views(vector)
        if message is None:
            return Offer(name, {name: self._object(name, views)}, False)
        objects = {name: self._object(name, message)}
        derived = derived_entries(self.worker.layout)
        if derived:  # they are never transformed
            objects[DERIVED] = self._object(DERIVED, {one.name: views[one.name] for one in derived})
        return Offer(name, objects, True)

    def drop(self, offer: Offer) -> None:
        """Offer a vector no longer."""
        for ref in offer.objects.values():
            self.hub.drop_object(ref.digest)

    def _object(self, name: str, content: Mapping[str, Tensor] | bytes) -> ObjectRef:
        path = self.folder / f"{name}.new"
        with path.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                write_message(file, content)
        ref = self.hub.add_object(path)
        path.unlink()  # the hub has it open: its bytes go once it is no longer offered
        return ref

    def _offered(self) -> list[Offer]:
        """Return what is published, offered anew where it was published anew."""
        for name in sorted(self._changed):
            old = self._offers.get(name)
            self._offers[name] = self.offer(name, self.vectors[name], self._messages[name])
            if old is not None:
                self.drop(old)
        self._changed.clear()
        return list(self._offers.values())

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
            _require_own(told(request), answer)
            if not isinstance(request, TrainRequest):
                return answer
            answer = replace(answer, weight=request.weight)
            if answer.error is not None:
                return answer
            if reply.path is None:
                raise RunError("the site sent no update")
            with mapped(reply.path) as data:
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


def call_id(request: TrainRequest | ClientModelRequest) -> str:
    """Return the number of the call that carries a request.

    >>> call_id(TrainRequest(client=3, round=12, weight=1.0))
    '12.3.train'
    """
    name = _KINDS[type(request)]
    if isinstance(request, TrainRequest):
        return f"{request.began}.{request.client}.{name}"
    if request.finetune_steps:
        name = "finetune"
    return f"{request.round}.{request.client}.{name}"


def told(request: Any) -> Any:
    """Return a request as its site gets it.

    A site is told the round in which it begins, and no weight. The server weighs an update when it adds it: how late
    the update is, and how much others weigh, may not be known before.

    >>> told(TrainRequest(client=3, round=12, weight=0.25, staleness=2))
    TrainRequest(client=3, round=10, weight=1.0, staleness=0, rate=1.0, masking=None, examples=None, labels=None)
    """
    if not isinstance(request, TrainRequest):
        return request
    return replace(request, round=request.began, staleness=0, weight=1.0)


def _require_own(request: Any, answer: Any) -> None:
    """Check that an answer is to the request: a site speaks for itself alone."""
    wanted = ClientResult if isinstance(request, TrainRequest) else ClientModelResult
    if not isinstance(answer, wanted) or answer.client != request.client:
        raise RunError("the site answered something else than it was asked")
    if isinstance(answer, ClientResult) and answer.weight != request.weight:
        raise RunError("the site answered with another weight than it was told")


def _missing(request: Any, reason: str) -> Any:
    if isinstance(request, TrainRequest):
        return failed(request, RunError(reason), 0, 0)
    return ClientModelResult(request.client, reason)
