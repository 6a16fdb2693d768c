"""Small files that a program keeps for itself: one model each, checked when it is read, replaced as a whole."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fednlp.checked_json import damaged
from fednlp.disk import regular

_M = TypeVar("_M", bound=BaseModel)


class Stored(BaseModel):
    """What such a file holds: each field in its own type, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


def read_stored(path: Path, kind: type[_M], what: str, remedy: str) -> _M | None:
    """Return what a file holds; None where there is none.

    Args:
        path: The file.
        what: What is wrong with a file that does not fit, such as "it names no run".
        remedy: Advice for the end of the error message.

    Raises:
        RunError: It does not fit, or cannot be read.
    """
    try:
        return kind.model_validate_json(regular(path).read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError):
        raise damaged(path, ValueError(what), remedy) from None
