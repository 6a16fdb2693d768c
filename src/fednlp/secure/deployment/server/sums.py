"""The server's part in the secure sums of a deployment: the clients' state machines are at the sites.

A session here is what :mod:`fednlp.secure.session` has with all parties in one process, with the same messages and the
same count of their bytes. The server never has a seed of a client that came through before that client's peers reveal
it, and no update but under its masks.

A server that is killed goes on with the *same* session. It has no secrets, its messages are a function of those that
arrived, those lie in the hub's inbox, and who was there in each step is on its disk before the next step's first call
(:class:`_Present`). So it says once more, word for word, what it had said, and sites answer once more what they had
answered. It never begins a second session for a round. With two sessions over the same updates, the second among other
survivors, the difference of the two sums is the sum of the few clients in which they differ, which no threshold
protects; and answers that arrived for the first session would count towards opening it after the second was opened.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fednlp.deployment.server.waiting import Patience
from fednlp.deployment.session.call_ids import client_of
from fednlp.deployment.session.hub import Hub, StoredReply
from fednlp.deployment.session.messages import Call, ObjectRef
from fednlp.disk import write_durably, writing
from fednlp.errors import FednlpError, SecureAbort, TooFewClients
from fednlp.federated.client import ClientResult
from fednlp.federated.upload import Residues, masked_tail
from fednlp.secure.deployment.session.messages import BODY, Step, steps_of, to_json
from fednlp.secure.deployment.session.terms import spec_of, terms_of
from fednlp.secure.lightsecagg import LightSecAggRoundSpec, LightSecAggServer
from fednlp.secure.masks import MaskSeeds
from fednlp.secure.messages import parts
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg import SecAggServer
from fednlp.secure.session import Channel, RoundSpec, UnmaskingInfo

_REMEDY = "then start it again; nothing that was acknowledged is lost"
_UPLOADED = "uploaded"
_PIECES = ".pieces"


@dataclass(frozen=True)
class Asking:
    """How clients are asked.

    Attributes:
        hub: What is asked of whom, and what arrived.
        wait: Seconds that a step waits for who is missing; None for as long as it takes.
        on_waiting: Told the clients that are awaited, now and then, and since when, in seconds.
        on_dropout: Told of a client that does not go on in a secure sum, and why.
        gone: Returns the clients that no longer take part.
    """

    hub: Hub
    wait: float | None = None
    on_waiting: Callable[[Sequence[int], float], None] = lambda clients, seconds: None
    on_dropout: Callable[[int, str], None] = lambda client, reason: None
    gone: Callable[[], Collection[int]] = frozenset

    def collect(self, calls: Mapping[int, Call], most_bytes: int) -> dict[int, StoredReply]:
        """Ask clients, and return the replies once all are there or the time is over; late ones are withdrawn.

        Args:
            most_bytes: Bytes of a reply's object at most.
        """
        for client, call in calls.items():
            self.hub.ask(client, call, most_bytes)
        awaited = {call.id for call in calls.values()}
        patience = Patience(self.wait, self.on_waiting, self.gone)
        replies = {client_of(reply.id): reply for reply in patience.replies(self.hub, awaited)}
        for name in sorted(awaited):
            self.hub.withdraw(name)
            self.on_dropout(client_of(name), "it did not answer in time, or was removed")
        return replies


class _Present:
    """Which clients were there in each step of a round, on the disk.

    Args:
        path: The file; made with the first step.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path.parent, _REMEDY):
            self._steps: dict[str, list[int]] = json.loads(path.read_text()) if path.is_file() else {}

    def get(self, step: str) -> list[int] | None:
        """Return who was there; None for a step that did not come to its end."""
        return self._steps.get(step)

    def put(self, step: str, clients: Collection[int]) -> None:
        """Take note of who was there; when this returns, it is on the disk."""
        self._steps[step] = list(clients)
        write_durably(self.path, json.dumps(self._steps).encode(), _REMEDY)


class SecureSessions:
    """Opens the sessions of a federation's secure sums.

    Args:
        folder: For who was there, and for pieces that are on their way.
        digest: Returns the digest of what the clients will be asked and sent in a round.
        fewest: Updates that must have arrived before a sum is opened: a round that is to be done again for lack of
            clients must not have been.
        prefix: Of the names of calls, and of the run in the terms: of sums of another kind than updates.
    """

    def __init__(
        self, asking: Asking, folder: Path, digest: Callable[[int], str], fewest: int = 1, prefix: str = ""
    ) -> None:
        self.asking, self.folder, self.digest = asking, folder, digest
        self.fewest, self.prefix = fewest, prefix

    def open(
        self, params: SecAggParams, clients: Sequence[int], channel: Channel, round_number: int, length: int
    ) -> "SecureSiteSession":
        """Return the session of a round, at its beginning; what had arrived of it is not asked for again.

        Args:
            params: The numbers of the run.
            clients: The cohort's numbers.
            channel: Counts the messages' bytes.
            round_number: The round.
            length: Elements of a masked vector, the weight included.
        """
        terms = terms_of(params, clients, round_number, self.digest(round_number))
        spec = spec_of(params, terms, self.prefix + self.asking.hub.run, length)
        path = self.folder / f"{round_number}.json"
        with writing(self.folder, _REMEDY):
            for old in self.folder.iterdir():
                if old != path:
                    old.unlink()
        arguments = self.asking, spec, terms.model_dump(), channel, _Present(path), self.fewest, self.prefix
        return SecureSiteSession(*arguments)


class SecureSiteSession:
    """A secure sum among sites (a :class:`fednlp.secure.session.SecureSession`).

    Args:
        spec: The round.
        terms: What clients are told of it.
        channel: Counts the messages' bytes.
        present: Who was there in the steps that are done.
        fewest: Updates that must have arrived.
        prefix: Of the names of calls.
    """

    def __init__(
        self,
        asking: Asking,
        spec: RoundSpec,
        terms: dict[str, Any],
        channel: Channel,
        present: _Present,
        fewest: int,
        prefix: str = "",
    ) -> None:
        self.asking, self.spec, self.terms, self.channel = asking, spec, terms, channel
        self.present, self.fewest, self.prefix = present, fewest, prefix
        self.keys, self.shares, self.deliver, self.last = steps_of(spec)
        light = isinstance(spec, LightSecAggRoundSpec)
        self.server: Any = LightSecAggServer(spec) if light else SecAggServer(spec)  # type: ignore[arg-type]

    def setup(self) -> dict[int, MaskSeeds]:
        """Have clients exchange keys and shares.

        Returns:
            The clients that are ready to train, without their masks, which they keep to themselves.
        """
        channel, server = self.channel, self.server
        cohort = channel.present(dict.fromkeys(self.spec.ids), "keys")
        rosters = channel.to_clients(server.roster(channel.to_server(self._ask(self.keys, cohort))))
        sharing = channel.present(rosters, "shares")
        delivered = channel.to_clients(server.deliver(channel.to_server(self._ask(self.shares, sharing))))
        ready = self._ask(self.deliver, delivered)
        # Whose updates are in the sum was settled before this process began: no other one may be added.
        uploaded = self.present.get(_UPLOADED)
        return {client: [] for client in ready if uploaded is None or client in uploaded}

    def unmask(self, uploaded: Sequence[int]) -> UnmaskingInfo:
        """Have clients reveal what opens the sum.

        Raises:
            SecureAbort: Too few clients uploaded or answered.
            TooFewClients: Too few uploaded for the round to count; nothing was revealed.
        """
        server, channel = self.server, self.channel
        shown = channel.to_clients(server.survivors(list(uploaded)))
        if len(uploaded) < self.fewest:
            raise TooFewClients(
                f"round {self.spec.round_number}: {len(uploaded)} updates arrived, and {self.fewest} are needed; "
                "nothing was opened, and the rounds before are saved: start the server again to wait for the others"
            )
        settled = self.present.get(_UPLOADED)
        if settled is None:
            self.present.put(_UPLOADED, uploaded)
        elif set(settled) != set(uploaded):
            raise SecureAbort("an update of a sum that was about to be opened is not there any more")
        answers = channel.to_server(self._ask(self.last, channel.present(shown, "answer")))
        if isinstance(server, LightSecAggServer):
            return UnmaskingInfo([], server.recover(answers))
        return UnmaskingInfo(server.unmask(answers))

    def _ask(self, step: Step, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Have clients take a step, and return what those answered that did, in the order of the cohort."""
        settled = self.present.get(step.name)
        wanted = {one: message for one, message in messages.items() if settled is None or one in settled}
        calls = {client: self._call(step, client, message) for client, message in wanted.items()}
        most = step.up.most_bytes if step.up is not None and step.up.large else 0
        replies = self.asking.collect(calls, most)
        for call in calls.values():
            self._drop(call)
        answers = {}
        for client in [one for one in self.spec.ids if one in replies]:
            try:
                answers[client] = _read(step, replies[client])
            except FednlpError as error:
                self.asking.on_dropout(client, str(error))
        if settled is None:
            self.present.put(step.name, answers)
        return answers

    def _call(self, step: Step, client: int, message: Any) -> Call:
        number = self.spec.round_number
        name, request = f"{number}.{client}.{self.prefix}{step.name}", {"round": number}
        objects: dict[str, ObjectRef] = {}
        if step.down is None:
            return Call(name, self.terms)
        if not step.down.large:
            return Call(name, request | to_json(message))
        path = self._place(name)
        with writing(path.parent, _REMEDY), path.open("wb") as file:
            for part in parts(message):
                file.write(part)
        objects[BODY] = self.asking.hub.add_object(path)
        return Call(name, request, objects)

    def _drop(self, call: Call) -> None:
        for ref in call.objects.values():
            self.asking.hub.drop_object(ref.digest)
            self._place(call.id).unlink()

    def _place(self, call_id: str) -> Path:
        return self.present.path.with_name(call_id + _PIECES)


def with_masked_weight(result: ClientResult, masked: Residues, parameters: int | None = None) -> ClientResult:
    """Return a client's report with the masked weight of the upload itself, and no other facts.

    Args:
        masked: What it sent: its masked update, what is reported if that is summed too, the masked weight last.
        parameters: Elements of the update; all but the last by default.
    """
    parameters = len(masked) - 1 if parameters is None else parameters
    seconds = result.facts.get("masking_seconds")
    seconds = seconds if isinstance(seconds, float) and 0 <= seconds < 1e9 else 0.0
    return replace(result, facts=masked_tail(masked, parameters, seconds))


def _read(step: Step, reply: StoredReply) -> Any:
    """Return the message that a reply holds; None for a step that is answered by none.

    Raises:
        SecureAbort: The client refused, or sent something else.
    """
    if reply.error is not None:
        raise SecureAbort(reply.error)
    if step.up is None:
        return None
    if not step.up.large:
        return step.up.from_json(reply.answer or {})
    if reply.path is None or not reply.size:
        raise SecureAbort(f"{step.up.kind.__name__} is missing")
    return step.up.read(np.memmap(reply.path, np.uint8, "r").data)
