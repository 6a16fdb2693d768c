"""The types of options that several functions and sections have in common: a type and its range."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]

_PATH = object()
File = Annotated[str, _PATH]
"""A path, which a run directory holds as an absolute one."""


def files_among(types: Mapping[str, Any]) -> list[str]:
    """Return the options that are paths.

    Args:
        types: The type of each option.

    >>> files_among({"alpha": PositiveFloat, "table": File, "name": str})
    ['table']
    """
    return [name for name, kind in types.items() if _PATH in getattr(kind, "__metadata__", ())]
