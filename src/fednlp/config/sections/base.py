"""What all sections of an experiment have in common, and the names that sections share."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import create_model

from fednlp.section import Section

BASELINES = ("centralised", "chained", "local", "majority")
"""What federated algorithms are compared with; no algorithms themselves."""
WITHOUT_MODEL = ("local", "majority")
"""Baselines without a common model: each client predicts by what it has itself."""
SITES = "sites"
"""The name of data that are at the sites of a deployment."""
GIVEN = "given-in-python"
"""The name of an algorithm that is given as a value, in Python."""


S = TypeVar("S", bound=Section)


def with_options(types: Mapping[str, Any]) -> Callable[[type[S]], type[S]]:
    """Return a decorator that gives a section a key for each option; one that is left out is None.

    Args:
        types: The type of each option. A key that the section has already stays as it is.
    """

    def decorate(section: type[S]) -> type[S]:
        keys: dict[str, Any] = {
            name: (kind | None, None) for name, kind in types.items() if name not in section.model_fields
        }
        return create_model(
            section.__name__, __base__=section, __doc__=section.__doc__, __module__=section.__module__, **keys
        )

    return decorate
