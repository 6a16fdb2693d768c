"""The engine of a deployment: what is for a client goes to its site, and the server's own work is done here.

The round is the same as in a simulation (:func:`fednlp.federated.round.run_round`). What arrives is on disk before it
is acknowledged, and is added to the exact sum in any order. So a server that is killed asks again only for what had
not arrived, and ends in the same weights.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from fednlp.deployment.server.publishing import Offer, Publisher
from fednlp.deployment.server.round_log import RoundLog
from fednlp.deployment.server.waiting import Patience
from fednlp.deployment.session.call_ids import next_attempt
from fednlp.deployment.session.hub import Hub, StoredReply
from fednlp.deployment.session.messages import Call, printable
from fednlp.deployment.session.objects import mapped_privately
from fednlp.deployment.session.reply_checks import Reportable, least_loss, most_counts, require_own
from fednlp.deployment.session.site_kinds import call_id
from fednlp.deployment.site.requests import SITE_KINDS
from fednlp.errors import FednlpError, RunError
from fednlp.federated.aggregators.base import Room
from fednlp.federated.client import ClientResult, TrainRequest, failed
from fednlp.federated.pages import DiskRoom, LeanRoom, set_aside
from fednlp.federated.round import late
from fednlp.federated.upload import Trained, unpack_upload, upload_bytes
from fednlp.runtime.engine import answered, vectors_in
from fednlp.runtime.messages import KINDS, from_json, to_json, trains
from fednlp.runtime.shared import PrivateRoom
from fednlp.secure.deployment.server.sums import with_masked_weight
from fednlp.secure.deployment.session.terms import request_digest

_LARGE = 64 << 20
"""Bytes of a large model, whose memory is given back whenever it is not needed."""


class SiteEngine:
    """Has requests answered by the sites of a deployment.

    Args:
        hub: What is asked of whom, and what arrived.
        folder: For the models that are on their way, and for what is decided about the round.
        patience: How it waits for who is missing.
        counted: The last round by client in which its update counted.
        threads: torch threads of the server's own work.
        target: A round's training ends once so many clients have delivered; None for all of the cohort.

    Attributes:
        busy: Returns the clients that train across rounds: they are not asked for evaluations.
        forgets: Whether the calls of the rounds before are over when a client is asked to train.
    """

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        patience: Patience,
        counted: Mapping[int, int] | None = None,
        threads: int = 1,
        target: int | None = None,
    ) -> None:
        self.hub, self.folder, self.patience, self.target = hub, folder, patience, target
        self.log = RoundLog(folder / "round.json")
        self.counted = dict(counted or {})
        self.vectors: dict[str, Tensor] = {}
        self.total: Any = None
        self.busy: Callable[[], Collection[int]] = frozenset
        self.forgets = True
        self._messages: dict[str, bytes | None] = {}
        self._offers: dict[str, Offer] = {}
        self._old: list[Offer] = []  # in whose place others are published
        self._changed: set[str] = set()
        self._calls: tuple[int, dict[int, str]] = 0, {}
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
        self.publisher = Publisher(self.hub, self.folder, worker.layout)
        totals, vectors = _rooms(worker.layout.numel, self.folder)
        self.total = worker.new_total(totals)
        self.vectors = vectors_in(worker, vectors)

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
        calls: dict[str, int] = {}
        busy = self.busy()
        for place, request in enumerate(requests):
            if type(request) not in SITE_KINDS:
                continue
            if self._is_late(request):
                answers[place] = self._late(request)
            elif not trains(request) and request.client in busy:
                answers[place] = _unanswered(request, "the site trains")
            else:
                calls[self._call_id(request)] = place
        if calls:
            self._ask({name: requests[place] for name, place in calls.items()})
        for place, request in enumerate(requests):
            if type(request) not in SITE_KINDS:
                answers[place] = answered(self.worker, request, self.vectors, self.total)
                on_progress(len(answers))
        awaited, missing = {*calls}, self._missing
        for reply in self.patience.replies(self.hub, awaited):
            place = calls[reply.id]
            answers[place] = self._received(requests[place], reply)
            on_progress(len(answers))
            if awaited and self._closes(requests, answers):
                missing = self._late
                break
        for name in sorted(awaited):
            self.hub.withdraw(name)
            answers[calls[name]] = missing(requests[calls[name]])
        for name, place in calls.items():
            self._note(name, requests[place], answers[place], name not in awaited)
        return [answers[place] for place in range(len(requests))]

    def come_to_nothing(self) -> None:
        """Take note that the round has to be begun again: clients that failed in it are then asked once more."""
        number, calls = self._calls
        if number:
            self.log.come_to_nothing(number, calls)

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

    def _call_id(self, request: Any) -> str:
        """Return the number of a request's call; that of a client that failed in an earlier attempt is a new one."""
        own = call_id(request)
        return self.log.of(request.round).calls.get(request.client, own) if trains(request) else own

    def _ask(self, requests: Mapping[str, Any]) -> None:
        """Open a call for each request, with the vectors as they are published."""
        stored = {*self.hub.stored()}
        for name, request in requests.items():
            if name in stored:  # it is answered without anything being offered
                self.hub.ask(request.client, Call(name, {}))
                continue
            if trains(request) and self.forgets:
                self.hub.forget(request.round - 1)
            self.open(name, request, self._offered())
        while self._old:
            self.publisher.drop(self._old.pop())
        for vector in self.vectors.values():  # nobody looks at them while updates arrive
            set_aside(vector)

    def open(self, name: str, request: Any, offers: Sequence[Offer]) -> None:
        """Open the call that carries a request; nothing happens if it is open or answered.

        Args:
            name: Its number.
            offers: The vectors that the site needs for it.
        """
        most = 0
        if trains(request):
            masked = request.masking is not None
            most = upload_bytes(self.worker.algorithm, self.worker.layout, None, masked=masked)
        call = self._call(name, request, offers)
        self.hub.ask(request.client, call, most)

    def digest(self, request: Any) -> str:
        """Return the digest of a request and of what is published, to which a secure sum is bound."""
        call = self._call(call_id(request), request, self._offered())
        return request_digest(call.request, {name: ref.digest for name, ref in call.objects.items()})

    def _call(self, name: str, request: Any, offers: Sequence[Offer]) -> Call:
        body = {
            "request": to_json(SITE_KINDS[type(request)].told(request)),
            "counted": self.counted.get(request.client, 0),
            "encoded": sorted(offer.name for offer in offers if offer.encoded),
        }
        return Call(name, body, {name: ref for offer in offers for name, ref in offer.objects.items()})

    def _offered(self) -> list[Offer]:
        """Return what is published, offered anew where it was published anew."""
        for name in sorted(self._changed):
            if name in self._offers:
                self._old.append(self._offers[name])
            self._offers[name] = self.publisher.offer(name, self.vectors[name], self._messages[name])
        self._changed.clear()
        return list(self._offers.values())

    def _closes(self, requests: Sequence[Any], answers: Mapping[int, Any]) -> bool:
        """Return whether enough clients have delivered; which ones these are is then on the disk."""
        if self.target is None:
            return False
        trained = {place: one for place, one in enumerate(requests) if trains(one)}
        delivered = [
            trained[place] for place in trained.keys() & answers.keys() if answers[place].error is None
        ]
        if len(delivered) < self.target:
            return False
        self.log.close(delivered[0].round, [request.client for request in delivered])
        return True

    def _is_late(self, request: Any) -> bool:
        """Return whether it was settled before this server was started that a client's update does not count."""
        if not trains(request):
            return False
        counted = self.log.of(request.round).counted
        if counted is None or request.client in counted:
            return False
        self.hub.withdraw(self._call_id(request))
        return True

    def _late(self, request: TrainRequest) -> ClientResult:
        assert self.target is not None
        return late(self.worker.algorithm, self.worker.layout, request, self.target)

    def _missing(self, request: Any) -> Any:
        wait = self.patience.seconds
        if request.client in self.patience.gone() or wait is None:
            return _unanswered(request, "the site was removed from the federation")
        return _unanswered(request, f"no answer within {wait:g} seconds (rounds.wait)")

    def _received(self, request: Any, reply: StoredReply) -> Any:
        """Return what a site answered, with its update in the total; a site that fails is reported."""
        if reply.error is not None:
            return _unanswered(request, reply.error)
        try:
            answer = from_json(reply.answer)
            self._require_own(request, answer)
            if answer.error is not None:
                sent = (answer.bytes_down, answer.tensors_down) if trains(request) else ()
                return _unanswered(request, printable(answer.error), *sent)
            if not trains(request):
                return answer
            answer = replace(answer, weight=request.weight)
            if reply.path is None:
                raise RunError("the site sent no update")
            masked, data = request.masking is not None, mapped_privately(reply.path)
            worker, began = self.worker, request.began
            upload = unpack_upload(data, worker.algorithm, worker.layout, answer, masked=masked, number=began)
            if upload.masked is not None:
                answer = with_masked_weight(answer, upload.masked, self.worker.layout.numel)
            return self.worker.receive(request, Trained(answer, upload), self.vectors, self.total)
        except FednlpError as error:
            return _unanswered(request, str(error))

    def _require_own(self, request: Any, answer: Any) -> None:
        """Check that an answer is one that the site may give."""
        worker = self.worker
        most = most_counts(worker.options, len(worker.partition.train(request.client)))
        may = Reportable(most, worker.task.metric, worker.algorithm.reports, least_loss(worker.task))
        require_own(SITE_KINDS[type(request)].told(request), answer, may)

    def _note(self, name: str, request: Any, answer: Any, arrived: bool) -> None:
        if not trains(request):
            return
        if self._calls[0] != request.round:
            self._calls = request.round, {}
        came_through = answer.error is None
        self._calls[1][request.client] = next_attempt(name) if arrived and not came_through else name
        if came_through:
            self.counted[request.client] = request.round


def _unanswered(request: Any, reason: str, bytes_down: int | None = 0, tensors_down: int | None = 0) -> Any:
    """Return the result of a request to which a site gave no answer that counts.

    Args:
        bytes_down: Length of the message that the site got to train on.
    """
    if trains(request):
        return failed(request, RunError(reason), bytes_down, tensors_down)
    answer = KINDS[type(request)].answer
    assert answer is not None
    return answer(request.client, error=reason)


def _rooms(numel: int, folder: Path) -> tuple[Room, Room]:
    """Return the room of a server's totals, and that of its published vectors.

    Args:
        folder: For vectors that need not be in memory while nobody looks at them.
    """
    large = numel * 4 >= _LARGE
    return (LeanRoom(), DiskRoom(folder)) if large else (PrivateRoom(), PrivateRoom())
