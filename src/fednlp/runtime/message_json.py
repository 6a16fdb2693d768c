"""Messages (:mod:`fednlp.runtime.messages`) as JSON values: strict on the way in, and of one version."""

from dataclasses import MISSING, asdict, fields
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fednlp.errors import RunError
from fednlp.runtime.messages import Answer, Request

VERSION = 1
"""Of all messages. A peer of another version is refused."""


class _Kind(NamedTuple):
    """A type of message, and the model that its fields are checked by."""

    message: Any
    fields: type[BaseModel]


def _kind(message: Any) -> _Kind:
    hints = get_type_hints(message)
    checked: dict[str, Any] = {
        one.name: (
            hints[one.name],
            ... if one.default is MISSING and one.default_factory is MISSING else None,
        )
        for one in fields(message)
    }
    strict = ConfigDict(extra="forbid", strict=True)
    return _Kind(message, create_model(message.__name__, __config__=strict, **checked))


_KINDS = {
    message.__name__: _kind(message)
    for union in (Request, Answer)
    for message in union.__args__
    if message is not type(None)
}


def to_json(message: Request | Answer) -> dict[str, Any] | None:
    """Return a message as a JSON value.

    >>> from fednlp.runtime.messages import EvaluateRequest
    >>> to_json(EvaluateRequest(batch=3, key=1))
    {'version': 1, 'kind': 'EvaluateRequest', 'batch': 3, 'key': 1}
    """
    if message is None:
        return None
    return {"version": VERSION, "kind": type(message).__name__, **asdict(message)}


def from_json(value: Any) -> Any:
    """Return the message that a JSON value holds.

    Raises:
        RunError: It is of another version, or no message of a known kind.

    >>> from_json({"version": 1, "kind": "EvaluateRequest", "batch": 3, "key": 1})
    EvaluateRequest(batch=3, key=1)
    """
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise RunError(f"a message of another version than {VERSION}: install the same fednlp on both sides")
    kind = _KINDS.get(str(value.get("kind")))
    if kind is None:
        raise RunError(f"a message of an unknown kind: {str(value.get('kind'))[:40]!r}")
    given = {k: v for k, v in value.items() if k not in ("version", "kind")}
    try:
        checked = kind.fields.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(repr(str(part)[:40])[1:-1] for part in first["loc"])
        raise RunError(f"a {value['kind']} that does not fit: {place}: {first['msg']}") from None
    return kind.message(**{name: getattr(checked, name) for name in given})
