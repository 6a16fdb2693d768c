"""Sites of secure sums without models, and a hub without connections, which may be killed with the server."""

import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from fednlp.deployment.session.hub import StoredReply
from fednlp.deployment.session.messages import Call, ObjectRef
from fednlp.deployment.session.objects import ref_of
from fednlp.errors import FednlpError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.params import Layout
from fednlp.federated.sums import ExactSum
from fednlp.federated.transforms import RngKey
from fednlp.federated.upload import Trained, Upload
from fednlp.runtime.messages import from_json, to_json
from fednlp.secure.aggregator import SecureMean
from fednlp.secure.deployment.server.sums import Asking, SecureSessions, with_masked_weight
from fednlp.secure.deployment.session.messages import STEPS
from fednlp.secure.deployment.site.agreed import Agreed
from fednlp.secure.deployment.site.kept import KeptSessions, Session
from fednlp.secure.deployment.site.sums import SecureSite
from fednlp.secure.masks import MaskSeeds
from fednlp.secure.params import SecAggParams, make_params
from fednlp.secure.round import SecureRound
from fednlp.secure.session import SessionFactory, open_session
from fednlp.secure.upload import mask_update, mask_values

RUN = "run"
DIGEST = "0" * 64
"""Of what every site is asked and sent."""
LENGTH = 103
WEIGHTS = {client: float(client + 1) for client in range(8)}
STEPS_OF = {
    "secagg": ("keys", "shares", "deliver", "train", "reveal"),
    "secagg+": ("keys", "shares", "deliver", "train", "reveal"),
    "lightsecagg": ("keys", "shares", "deliver", "train", "answer"),
}
PROTOCOLS = tuple(STEPS_OF)


class Killed(BaseException):
    """What ends a process: nothing catches it."""


def params_of(protocol: str, **options: Any) -> SecAggParams:
    settings: dict[str, Any] = {"dropout": 0.25, "clip": 4.0, "max_colluding": 0.0} | options
    return make_params(protocol, len(WEIGHTS), LENGTH, max(WEIGHTS.values()), 7, **settings)


def update_of(client: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(client).uniform(-1, 1, LENGTH).astype(np.float32))


def new_sum() -> ExactSum:
    return ExactSum(Layout.of({"a": ((LENGTH,), "parameter")}))


def agreed_by(client: int, params: SecAggParams, smallest: int = 3) -> Agreed:
    return Agreed(RUN, client, len(WEIGHTS), WEIGHTS[client], 1e7, smallest, SecureMean(params), LENGTH)


def train(request: TrainRequest) -> Trained:
    """Do what a worker does, short of training."""
    assert request.masking is not None
    key = RngKey(7, request.round, request.client)
    masked = mask_update(update_of(request.client), request.masking, key).residues
    facts = {"masked_weight": int(masked[-1]), "masking_seconds": 0.5}
    return Trained(ClientResult(request.client, request.weight, facts=facts), Upload(masked=masked))


@dataclass
class Sites:
    """All sites, each made anew for each call, as after a crash, and the hub that calls them at once.

    Attributes:
        folder: Of sites and inbox.
        params: What the sites make of the experiment.
        vanished: The step before which a client vanishes.
        kills: Numbers of replies after which the server is killed.
        twice: Numbers of calls whose first answer is lost in a crash of the site.
        torn: Numbers of calls in which the site is first killed before its session is saved.
        late: The step whose answer a client does not give for now.
        sent: Digest of what a client is asked and sent, if not that of the terms.
        trained: How many times each client trained.
    """

    folder: Path
    params: SecAggParams
    vanished: Mapping[int, str] = field(default_factory=dict)
    kills: Collection[int] = ()
    twice: Collection[int] = ()
    torn: Collection[int] = ()
    late: dict[int, str] = field(default_factory=dict)
    work: Callable[[TrainRequest], Trained] = train
    run: str = RUN
    sent: Mapping[int, str] = field(default_factory=dict)
    inbox: dict[str, StoredReply] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    taken: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.objects: dict[str, Path] = {}
        self.ready: list[str] = []

    def site(self, client: int) -> SecureSite:
        return SecureSite(self.folder / f"site-{client}", agreed_by(client, self.params))

    def add_object(self, path: Path, digest: str | None = None) -> ObjectRef:
        ref = ref_of(path)
        self.objects[ref.digest] = self.folder / ref.digest
        shutil.copy(path, self.objects[ref.digest])
        return ref

    def drop_object(self, digest: str) -> None:
        del self.objects[digest]

    def ask(self, client: int, call: Call, most_bytes: int = 0) -> None:
        if self.late.get(client) == call.id.rpartition(".")[2]:
            return
        if call.id not in self.inbox:
            self.calls.append(call)
            self.inbox[call.id] = self.answered(client, call, most_bytes)
        self.ready.append(call.id)

    def answered(self, client: int, call: Call, most_bytes: int) -> StoredReply:
        name = call.id.rpartition(".")[2]
        if self.vanished.get(client) == name:
            return StoredReply(call.id, client, None, None, 0, "gone")
        try:
            if len(self.calls) in self.torn:
                self.tear(client, name, call)
            if len(self.calls) in self.twice:
                lost = self.answer(client, name, call)
                answer, body = self.answer(client, name, call)
                assert answer == lost[0]
            else:
                answer, body = self.answer(client, name, call)
        except FednlpError as error:
            return StoredReply(call.id, client, None, None, 0, str(error))
        if body is None:
            return StoredReply(call.id, client, answer, None, 0, None)
        place = self.folder / call.id
        shutil.move(body, place)
        size = place.stat().st_size
        assert size <= most_bytes
        return StoredReply(call.id, client, answer, place, size, None)

    def tear(self, client: int, name: str, call: Call) -> None:
        """Kill a site while it works on a call."""

        def die(kept: KeptSessions, session: Session) -> None:
            raise Killed

        trained = list(self.trained)
        with patch.object(KeptSessions, "save", die), suppress(Killed):
            self.answer(client, name, call)
        self.trained = trained

    def answer(self, client: int, name: str, call: Call) -> tuple[dict[str, Any], Path | None]:
        objects = {one: self.objects[ref.digest] for one, ref in call.objects.items()}
        if name in STEPS:
            return self.site(client).answer(name, call.request, objects)

        def work(request: TrainRequest) -> Trained:
            self.trained.append(client)
            return self.work(request)

        return self.site(client).train(
            from_json(call.request["request"]), self.sent.get(client, DIGEST), work
        )

    def withdraw(self, call_id: str) -> None:
        self.inbox.pop(call_id, None)

    def take(self, timeout: float | None = None) -> StoredReply | None:
        self.taken += 1
        if self.taken in self.kills:
            self.ready.clear()
            raise Killed
        return self.inbox[self.ready.pop(0)] if self.ready else None


def sum_of(
    params: SecAggParams, number: int, sessions: SessionFactory, uploads: Any
) -> tuple[ExactSum, SecureRound]:
    """Go through a round; ``uploads(requests)`` yields each result and its masked update."""
    round_, total = SecureRound(params, number, WEIGHTS, LENGTH, sessions), new_sum()
    requests = [
        TrainRequest(client, number, 0.5, masking={**masking, "clip": None})
        for client, masking in round_.begin().items()
    ]
    for result, masked in uploads(requests):
        total.add_residues(masked[:-1])
        round_.add(result.client, result.facts["masked_weight"])

    def unmask(slices: int, length: int, seeds: MaskSeeds) -> None:
        for start in range(0, slices * length, length):
            total.add_residues(mask_values(start, min(start + length, LENGTH), seeds), start)

    round_.finish(total, unmask)
    return total, round_


def simulated(
    params: SecAggParams, number: int = 1, vanished: Collection[int] = ()
) -> tuple[ExactSum, SecureRound]:
    """Return the sum with all parties in this process; clients that vanish do not upload."""

    def uploads(requests: list[TrainRequest]) -> Any:
        for request in requests:
            if request.client not in vanished:
                done = train(request)
                yield done.result, done.upload.masked

    return sum_of(params, number, open_session, uploads)


def deployed(
    sites: Sites, params: SecAggParams, number: int = 1, fewest: int = 1
) -> tuple[ExactSum, SecureRound]:
    """Return the sum over sites; a server that is killed is started again, and then nobody is late any more."""
    while True:
        asking = Asking(sites, gone=lambda: sites.late.keys())  # type: ignore[arg-type]
        sessions = SecureSessions(asking, sites.folder / "server", lambda number: DIGEST, fewest)
        try:
            return sum_of(params, number, sessions.open, lambda requests: list(uploads_of(sites, requests)))
        except Killed:
            sites.late.clear()


def uploads_of(sites: Sites, requests: list[TrainRequest]) -> Any:
    for request in requests:
        call = Call(f"{request.round}.{request.client}.train", {"request": to_json(request)})
        sites.ask(request.client, call, 10**6)
    while (reply := sites.take()) is not None:
        if reply.error is None and reply.path is not None:
            masked = np.fromfile(reply.path, np.uint8)[5:].copy().view("<u4")
            yield with_masked_weight(from_json(reply.answer), masked), masked
