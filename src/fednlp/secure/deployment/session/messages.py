"""The messages of a secure sum between a server and its sites: in which step each travels, and how.

A message is the same bytes as in a simulation (:mod:`fednlp.secure.messages`). A short one is a text in the JSON of a
call or reply, in base64; LightSecAgg's coded pieces, each about as long as the model, are objects of their own.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fednlp.errors import SecureAbort
from fednlp.secure.lightsecagg import LightSecAggRoundSpec
from fednlp.secure.messages import (
    HEADER_BYTES,
    AdvertiseKeys,
    AdvertiseSealKey,
    CodedSum,
    DeliveredPieces,
    DeliveredShares,
    KeyRoster,
    PieceMessage,
    Revealed,
    SealedPieces,
    SealedShares,
    SealKeyRoster,
    Survivors,
    from_bytes,
    pieces_from_bytes,
    to_bytes,
)
from fednlp.secure.session import RoundSpec

BODY = "message"
"""The name of a message in a JSON object, and of an object that holds one."""
_ID_BYTES = 4


@dataclass(frozen=True)
class _Form:
    """How a kind of message travels, and how long it may be.

    Attributes:
        rows: Rows at most.
        width: Bytes of a sealed piece, for a message of sealed pieces.
        large: Whether it is an object.
    """

    kind: Any
    rows: int
    width: int = 0
    large: bool = False

    @property
    def most_bytes(self) -> int:
        """The longest that a message can be."""
        pieces = issubclass(self.kind, PieceMessage)
        row = _ID_BYTES + self.width if pieces else sum(column.width for column in self.kind.columns)
        return HEADER_BYTES + self.rows * row

    def read(self, data: bytes | memoryview) -> Any:
        """Return the message that bytes hold.

        Raises:
            SecureAbort: It is of another kind or length.
        """
        if issubclass(self.kind, PieceMessage):
            return pieces_from_bytes(data, self.kind, self.rows, self.width)
        return from_bytes(bytes(data), self.kind, self.rows)

    def from_json(self, value: Mapping[str, Any]) -> Any:
        """Return the message that a JSON object holds.

        Raises:
            SecureAbort: It holds none, or one of another kind or length.
        """
        text = value.get(BODY)
        if not isinstance(text, str) or len(text) > 4 * -(-self.most_bytes // 3):
            raise SecureAbort(f"{self.kind.__name__} is missing, or longer than {self.most_bytes} bytes")
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            raise SecureAbort(f"{self.kind.__name__} is not written in base64") from None
        return self.read(data)


def to_json(message: Any) -> dict[str, Any]:
    """Return a short message as a JSON object."""
    return {BODY: base64.b64encode(to_bytes(message)).decode()}


@dataclass(frozen=True)
class Step:
    """One exchange between the server and each client.

    Attributes:
        down: What the server sends; None for the terms.
        up: What the client answers; None for nothing but that it has taken the step.
    """

    name: str
    down: _Form | None
    up: _Form | None


KEYS, SHARES, DELIVER, REVEAL, ANSWER = "keys", "shares", "deliver", "reveal", "answer"
STEPS = frozenset({KEYS, SHARES, DELIVER, REVEAL, ANSWER})
"""The names of all calls of a secure sum; between the third step and the last one clients train."""
TESTS = "tests"
"""The call by which a client sends sums over its own test examples."""
OF_TESTS = f"{TESTS}-"
"""What the names of all calls of a secure sum over the clients' tests begin with."""


def steps_of(spec: RoundSpec) -> tuple[Step, Step, Step, Step]:
    """Return the four steps of a round: keys, shares, their delivery, and the last one, after the uploads."""
    n = len(spec.ids)
    survivors = _Form(Survivors, n)
    if isinstance(spec, LightSecAggRoundSpec):
        return (
            Step(KEYS, None, _Form(AdvertiseSealKey, 1)),
            Step(SHARES, _Form(SealKeyRoster, n), _Form(SealedPieces, n, spec.sealed_bytes, large=True)),
            Step(DELIVER, _Form(DeliveredPieces, n, spec.sealed_bytes, large=True), None),
            Step(ANSWER, survivors, _Form(CodedSum, spec.piece, large=True)),
        )
    return (
        Step(KEYS, None, _Form(AdvertiseKeys, 1)),
        Step(SHARES, _Form(KeyRoster, n), _Form(SealedShares, n)),
        Step(DELIVER, _Form(DeliveredShares, n), None),
        Step(REVEAL, survivors, _Form(Revealed, n)),
    )
