"""Kinds of requests and of answers: which there are, and how they travel as JSON: strict on the way in, of one version.

A kind is declared where its request is defined, by :func:`declare`; what is asked is no matter of this room. Tensors
are not in messages. In one machine they lie in memory that all workers share; a transport sends them as
:mod:`fednlp.federated.message` packs them.
"""

from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fednlp.errors import RunError
from fednlp.federated.client import ClientLoss, ClientResult, LossRequest, TrainRequest

VERSION = 1
"""Of all messages. A peer of another version is refused."""


@dataclass(frozen=True)
class RequestKind:
    """A kind of request.

    Attributes:
        request: Its type: a data class of JSON values, whose name is that of the kind on the way.
        answer: The type of its answers, likewise; None where all that is answered goes into the total.
        trains: Whether a client trains by it: the answer comes with an update for the round's total.
    """

    request: type[Any]
    answer: type[Any] | None
    trains: bool = False


KINDS: dict[type[Any], RequestKind] = {}
"""The kinds that are declared, by the type of the request."""
_MESSAGES: dict[str, tuple[type[Any], type[BaseModel]]] = {}
"""By name: a type of message, and the model that its fields are checked by."""


def declare(request: type[Any], answer: type[Any] | None, *, trains: bool = False) -> None:
    """Make a kind of request known (:class:`RequestKind`): from then on it can be sent, and answered."""
    KINDS[request] = RequestKind(request, answer, trains)
    for message in (request, answer):
        if message is not None:
            _MESSAGES[message.__name__] = (message, _checked(message))


def trains(request: Any) -> bool:
    """Return whether a client trains by a request."""
    return KINDS[type(request)].trains


def _checked(message: type[Any]) -> type[BaseModel]:
    hints = get_type_hints(message)
    checked: dict[str, Any] = {
        one.name: (
            hints[one.name],
            ... if one.default is MISSING and one.default_factory is MISSING else None,
        )
        for one in fields(message)
    }
    return create_model(message.__name__, __config__=ConfigDict(extra="forbid", strict=True), **checked)


declare(TrainRequest, ClientResult, trains=True)
declare(LossRequest, ClientLoss)


def to_json(message: Any) -> dict[str, Any] | None:
    """Return a message as a JSON value; None stays None.

    >>> to_json(TrainRequest(client=3, round=1, weight=0.5))["kind"]
    'TrainRequest'
    """
    if message is None:
        return None
    return {"version": VERSION, "kind": type(message).__name__, **asdict(message)}


def from_json(value: Any) -> Any:
    """Return the message that a JSON value holds.

    Raises:
        RunError: It is of another version, or no message of a known kind.

    >>> from_json({"version": 1, "kind": "TrainRequest", "client": 3, "round": 1, "weight": 0.5}).client
    3
    """
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise RunError(f"a message of another version than {VERSION}: install the same fednlp on both sides")
    kind = _MESSAGES.get(str(value.get("kind")))
    if kind is None:
        raise RunError(f"a message of an unknown kind: {str(value.get('kind'))[:40]!r}")
    given = {k: v for k, v in value.items() if k not in ("version", "kind")}
    try:
        checked = kind[1].model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(repr(str(part)[:40])[1:-1] for part in first["loc"])
        raise RunError(f"a {value['kind']} that does not fit: {place}: {first['msg']}") from None
    return kind[0](**{name: getattr(checked, name) for name in given})
