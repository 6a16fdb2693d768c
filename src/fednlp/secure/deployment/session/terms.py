"""The terms of a secure sum, which all its parties have to agree on before the first key."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from fednlp.errors import RunError, SecureAbort
from fednlp.secure.keys import RUN_BYTES
from fednlp.secure.params import SecAggParams
from fednlp.secure.session import RoundSpec, round_spec

MOST_ROUNDS = 10**9
MOST_CLIENTS = 10_000
"""Clients of a cohort at most: what a step says of all of them has to fit in one frame."""
_OF_ONE_SITE = ("client", "masking")
"""Of a request: what differs between the sites of a sum. Each site computes both, and refuses others."""


class RoundTerms(BaseModel):
    """What all parties of one round agree on before the first key.

    Attributes:
        round: Its number.
        cohort: The clients' numbers.
        plan: The protocol's numbers, as :class:`fednlp.secure.plan.ProtocolPlan` has them.
        encoding: How updates become whole numbers, as :class:`fednlp.secure.encoding.Encoding` has it.
        noise_std: Standard deviation of each client's noise, in steps of the encoding.
        request: Digest of what every site is asked and sent (:func:`request_digest`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    round: int = Field(ge=1, lt=MOST_ROUNDS)
    cohort: list[int] = Field(max_length=MOST_CLIENTS)
    plan: dict[str, JsonValue]
    encoding: dict[str, JsonValue]
    noise_std: float
    request: str = Field(pattern=r"^[0-9a-f]{64}$")


def terms_of(params: SecAggParams, cohort: Sequence[int], round_number: int, request: str) -> RoundTerms:
    """Return the terms of a round.

    Args:
        params: The numbers of the run.
        cohort: The clients' numbers.
        round_number: The round.
        request: Digest of what every site is asked and sent.
    """
    return RoundTerms(
        round=round_number,
        cohort=list(cohort),
        plan=asdict(params.plan),
        encoding=asdict(params.encoding),
        noise_std=float(params.noise_std),
        request=request,
    )


def request_digest(call: Mapping[str, Any], objects: Mapping[str, str]) -> str:
    """Return the digest of what the sites of a sum are asked and sent, as far as it is the same for all.

    That is the whole request but for the site's number and how it masks, and the bytes of the model and of every other
    object. Two sites with one digest have the same model, learning rate and round. A new field is part of it.

    Args:
        call: JSON of the call: the request, and which objects are transformed on their way.
        objects: SHA-256 of each object, by name.

    Raises:
        RunError: A number in it is too long.

    >>> one, other = ({"request": {"client": c, "rate": r}, "counted": c} for c, r in ((0, 1.0), (1, 1.0)))
    >>> request_digest(one, {"model": "ab"}) == request_digest(other, {"model": "ab"})
    True
    >>> request_digest(one, {"model": "ab"}) == request_digest(one, {"model": "cd"})
    False
    """
    request = {name: value for name, value in call["request"].items() if name not in _OF_ONE_SITE}
    try:
        text = json.dumps([request, call.get("encoded", []), dict(objects)], sort_keys=True)
    except ValueError:  # a number of more digits than Python writes
        raise RunError("the server's request has a number in it that is too long") from None
    return sha256(text.encode()).hexdigest()


def read_terms(value: Mapping[str, Any]) -> RoundTerms:
    """Return the terms that a server sent.

    Raises:
        SecureAbort: They are none.
    """
    try:
        return RoundTerms.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part)[:40] for part in first["loc"])
        raise SecureAbort(f"the terms of the secure sum do not fit: {place}: {first['msg']}") from None


def spec_of(params: SecAggParams, terms: RoundTerms, run: str, length: int) -> RoundSpec:
    """Return a round's spec, whose nonce comes of the run and of all terms.

    Keys and sealed texts are bound to it: parties that were told different terms cannot open each other's.

    Args:
        params: The numbers of the run.
        terms: Of the round.
        length: Elements of a masked vector, the weight included.

    Raises:
        SecureAbort: The cohort does not go with the numbers.
    """
    agreed = json.dumps([run, terms.model_dump()], sort_keys=True).encode()
    bound = replace(params, run=sha256(agreed).digest()[:RUN_BYTES])
    return round_spec(bound, terms.cohort, terms.round, length)
