"""A site's part in secure sums: its state machine lives here, on its own disk, and its seeds never leave it.

What the server says is not believed. The terms of a round are those that the experiment gives, which the site's policy
has seen, or the round is refused: the protocol's threshold and neighbours, the encoding, the noise, the cohort
(``agreed``). Keys and sealed texts are bound to the run, the round and all terms. One of
these is the digest of the request and of the model and all else that comes with it. A site masks nothing that was made
from another model or by another request, so updates from different models are never in one sum.

These rules keep one update from being told apart. They hold across crashes, since each step is on the disk before its
answer is sent:

* There is one session in a round, and rounds only go up. A second one, with other peers, would give a sum that differs
  from the first in a few clients alone.
* The masks are used for one vector. What was sent once is kept, masked, and is sent again if it is asked for again. So
  a client that has trained does not train twice, and the server never gets two vectors under the same masks.
* Shares are revealed once, for one list of survivors, and are off the disk before the answer is sent. So no peer's seed
  and key are both told.
* A step is repeated word for word, or refused. A refusal by the state machine ends the session.

The noise of differential privacy is drawn from the operating system. A simulation draws it from the experiment's seed,
which the server of a deployment knows. It is drawn once a round, and is part of the vector that is kept.

In SecAgg+ a site sees the survivors among its neighbours alone: that a sum is over its neighbours and itself at least
is the protocol's own check, and that it holds the noise of enough other sites is the server's word.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.upload import Trained, masked_tail, pack_masked
from fednlp.privacy.noise import os_generator
from fednlp.runtime import messages
from fednlp.secure.deployment.session.messages import (
    BODY,
    DELIVER,
    KEYS,
    SHARES,
    TESTS,
    Step,
    steps_of,
    to_json,
)
from fednlp.secure.deployment.session.terms import MOST_ROUNDS, read_terms
from fednlp.secure.deployment.site.agreed import AgreedTerms
from fednlp.secure.deployment.site.kept import Done, KeptSessions, Session
from fednlp.secure.encoding import Encoding
from fednlp.secure.lightsecagg import LightSecAggClient, LightSecAggRoundSpec
from fednlp.secure.messages import Survivors, parts
from fednlp.secure.secagg import SecAggClient
from fednlp.secure.upload import add_own_masks, add_own_noise
from fednlp.training.requests.predict import ClientSums, ClientSumsRequest

Answer = tuple[dict[str, Any], Path | None]
_TRAIN = "train"
_METHODS = {KEYS: "advertise", SHARES: "share", DELIVER: "receive"}
"""Of the state machines; the last step's method is called as the step is."""


class SecureSite:
    """Answers the calls of secure sums.

    Args:
        folder: The site's own, for what is kept of the rounds that are not over.
        agreed: What is expected of every round.
    """

    def __init__(self, folder: Path, agreed: AgreedTerms) -> None:
        self.agreed = agreed
        self.kept = KeptSessions(folder, agreed.run, agreed.clients)

    def answer(self, name: str, request: Mapping[str, Any], objects: Mapping[str, Path]) -> Answer:
        """Take a step of the protocol.

        Args:
            name: Of the step, and of the call.
            objects: The files that came with it, by name.

        Returns:
            The answer as JSON, and the file that belongs to it; None for nothing.

        Raises:
            SecureAbort: The step is refused.
        """
        number, asked = _round_of(request), _digest(request, objects)
        if name == KEYS and number not in self.kept:
            terms = read_terms(request)
            self.agreed.params(terms)
            session = self.kept.begin(terms)
        else:
            session = self.kept.load(number)
        if name not in session.done:
            self._take(session, name, asked, request, objects)
        elif session.done[name].asked != asked:
            raise SecureAbort(f"the server asks for the {name} of round {number} twice, and not for the same")
        return self.kept.said(session, name)

    def train(self, request: TrainRequest, digest: str, work: Callable[[TrainRequest], Trained]) -> Answer:
        """Have the client train, and mask what it sends; what was sent once is sent again.

        Args:
            request: What the server asks; its masks are not in it.
            digest: Of what it asks and sent (:func:`fednlp.secure.deployment.session.terms.request_digest`).
            work: Trains, and encodes the update.

        Returns:
            The client's report as JSON, and the file of its masked update; None for a client that failed.

        Raises:
            SecureAbort: The server asks for something else than the terms of the round say.
        """
        session, encoding = self._before(request, _TRAIN, digest)
        if encoding is None:
            return self.kept.said(session, _TRAIN)
        answer = work(replace(request, masking={**(request.masking or {}), "noise_std": 0.0}))
        if answer.upload is None:
            return _json(answer.result), None
        residues = np.array(answer.upload.masked, dtype=np.uint32)
        if session.terms.noise_std:
            add_own_noise(residues, encoding, session.terms.noise_std, os_generator())
        client = self._mask(session, residues, encoding)
        # The facts that came with the answer are of the residues before they were masked.
        facts = masked_tail(residues, len(residues) - 1, answer.result.facts["masking_seconds"])
        self.kept.write_body(session, _TRAIN, [pack_masked(residues)])
        return self._sent(session, _TRAIN, client, replace(answer.result, facts=facts), body=True)

    def add(
        self, request: ClientSumsRequest, digest: str, work: Callable[[ClientSumsRequest], ClientSums]
    ) -> Answer:
        """Have the client evaluate, and mask the sums that it sends; what was sent once is sent again.

        Args:
            request: What the server asks; its masks are not in it.
            digest: Of what it asks and sent.
            work: Evaluates, and writes the sums as residues.

        Raises:
            SecureAbort: The server asks for something else than the terms of the round say.
        """
        session, encoding = self._before(request, TESTS, digest)
        if encoding is None:
            return self.kept.said(session, TESTS)
        answer = work(request)
        residues = np.array(answer.sums, dtype=np.uint32)
        client = self._mask(session, residues, encoding)
        return self._sent(session, TESTS, client, replace(answer, sums=residues.tolist()))

    def _before(
        self, request: TrainRequest | ClientSumsRequest, name: str, digest: str
    ) -> tuple[Session, Encoding | None]:
        """Return a round's session, ready to mask a vector, and how to encode it; None where it was sent already.

        Raises:
            SecureAbort: The session is not that far, or was refused, or is about another model or request.
        """
        session = self.kept.load(request.round)
        if name in session.done:
            return session, None
        if DELIVER not in session.done:
            raise SecureAbort(
                f"the server asks for the update of round {request.round} before it delivers shares"
            )
        if digest != session.terms.request:
            raise SecureAbort(
                f"the server sent this site another model or request than the terms of round {request.round} say: the "
                "sites were sent different models or requests"
            )
        return session, self.agreed.encoding(session.terms, request.masking or {})

    def _mask(self, session: Session, residues: NDArray[np.uint32], encoding: Encoding) -> Any:
        """Add the client's masks to its vector, in place; return its state machine."""
        client = self._client(session)
        add_own_masks(residues, client.masks(), encoding.modulus)
        return client

    def _sent(
        self, session: Session, name: str, client: Any, answer: ClientResult | ClientSums, body: bool = False
    ) -> Answer:
        """Put on the disk that the masks were used, and for what, and return the answer."""
        session.client = client.saved()
        session.done[name] = Done(asked="", answer=_json(answer), body=body)
        self.kept.save(session)
        return self.kept.said(session, name)

    def over(self, round_number: int) -> None:
        """Remove all that is kept of the rounds before this one."""
        self.kept.over(round_number)

    def _take(
        self, session: Session, name: str, asked: str, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> None:
        """Take a step, and put what came of it on the disk."""
        known = {step.name: step for step in steps_of(self.agreed.spec(session.terms))}
        if name not in known:
            raise SecureAbort(f"{session.terms.plan['protocol']} has no step called {name}")
        step, client = known[name], self._client(session)
        try:
            message = self._message(session, step, request, objects)
            if isinstance(message, Survivors):
                self.agreed.check_survivors(session.terms, message)
            method = getattr(client, _METHODS.get(name, name))
            made = method() if message is None else method(message)
        except SecureAbort as abort:
            self.kept.refuse(session, str(abort))
            raise
        large = step.up is not None and step.up.large
        if large:
            self.kept.write_body(session, name, parts(made))
        if name == SHARES and isinstance(client, LightSecAggClient):
            self.kept.keep_piece(session, client.piece)
        session.client = client.saved()
        session.done[name] = Done(
            asked=asked, answer={} if made is None or large else to_json(made), body=large
        )
        self.kept.save(session)
        if name not in _METHODS:
            self.kept.drop_pieces(session)

    def _message(
        self, session: Session, step: Step, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> Any:
        """Return what the server sent; None in the step that has only terms."""
        if step.down is None:
            return None
        if not step.down.large:
            return step.down.from_json(request)
        if BODY not in objects:
            raise SecureAbort(f"{step.down.kind.__name__} is missing")
        return step.down.read(self.kept.keep_pieces(session, objects[BODY]))

    def _client(self, session: Session) -> Any:
        """Return the state machine as it was after the last step."""
        spec, own, state = self.agreed.spec(session.terms), self.agreed.own, session.client
        if not isinstance(spec, LightSecAggRoundSpec):
            of_client = spec.client_spec(own)
            return SecAggClient(of_client) if state is None else SecAggClient.restored(of_client, state)
        if state is None:
            return LightSecAggClient(spec, own)
        form = steps_of(spec)[2].down
        assert form is not None
        delivered = form.read(self.kept.pieces(session)) if DELIVER in session.done else None
        return LightSecAggClient.restored(spec, own, state, self.kept.piece(session), delivered)


def _round_of(request: Mapping[str, Any]) -> int:
    number = request.get("round")
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < MOST_ROUNDS:
        raise SecureAbort("the server does not say of which round its secure sum is")
    return number


def _digest(request: Mapping[str, Any], objects: Mapping[str, Path]) -> str:
    """Return a digest of what is asked; files of objects are named by the digests of their bytes."""
    named = {name: path.name for name, path in objects.items()}
    try:
        text = json.dumps([request, named], sort_keys=True)
    except ValueError:  # a number of more digits than Python writes
        raise SecureAbort("the server's part in the secure sum has a number in it that is too long") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _json(result: ClientResult | ClientSums) -> dict[str, Any]:
    found = messages.to_json(result)
    assert found is not None
    return found
