"""Check that a class is a task and that JSON values are its fields, before anything is called."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fednlp.tasks.base import Task

_MEMBERS = tuple(name for name in vars(Task) if not name.startswith("_"))


def lacks(found: Any) -> str | None:
    """Return what an object lacks to be the class of a task; None if nothing.

    >>> lacks(print)
    'it is no class'
    """
    if not isinstance(found, type):
        return "it is no class"
    if not dataclasses.is_dataclass(found):
        return "it is no dataclass"
    there = {*dir(found), *(field.name for field in dataclasses.fields(found))}
    missing = [name for name in _MEMBERS if name not in there]
    return f"it has no {', '.join(missing)}" if missing else None


def misfit(kind: type[Any], fields: Mapping[str, Any]) -> str | None:
    """Return why JSON values cannot be the fields of a dataclass; None if they can.

    >>> from fednlp.tasks.text_classification import TextClassification
    >>> misfit(TextClassification, {"labels": ["a", "b"], "padding": "0"})
    'padding must be int'
    """
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    strange = [name for name in fields if name not in known]
    if strange:
        return f"{strange[0]} is none"
    for name, field in known.items():
        if name not in fields and field.default is field.default_factory is dataclasses.MISSING:
            return f"{name} is missing"
    try:
        hints = get_type_hints(kind)
        shapes = {name: TypeAdapter(hints[name]) for name in fields}
    except Exception as error:  # of the user's own class
        return f"its types cannot be read ({error})"
    for name, value in fields.items():
        try:
            shapes[name].validate_json(json.dumps(value), strict=True)
        except ValidationError:
            hint = hints[name]
            return f"{name} must be {hint.__name__ if isinstance(hint, type) else hint}"
    return None


def option_misfit(kind: type[Any], options: Mapping[str, Any]) -> str | None:
    """Return why options of a user's own task cannot be fields of its class; None if they can.

    An option that is no field is left to ``build``.

    Args:
        kind: The class. The types of its fields may have ranges, as in ``Annotated[int, Field(ge=1)]``.
        options: JSON values.

    >>> from fednlp.tasks.text_classification import TextClassification
    >>> option_misfit(TextClassification, {"label_smoothing_factor": "0.1"})
    'label_smoothing_factor = "0.1": input should be a valid number'
    """
    known = {field.name for field in dataclasses.fields(kind)}
    try:
        hints = get_type_hints(kind, include_extras=True)
        shapes = {name: TypeAdapter(hints[name]) for name in options if name in known}
    except Exception as error:  # of the user's own class
        return f"its types cannot be read ({error})"
    for name, shape in shapes.items():
        value = json.dumps(options[name])
        try:
            shape.validate_json(value, strict=True)
        except ValidationError as error:
            said = error.errors()[0]["msg"]
            return f"{name} = {value}: {said[0].lower()}{said[1:]}"
    return None
