"""The methods: one file for each, named after its paper, with everything that the method is.

A file holds a function of the file's name, which returns an :class:`~fednlp.federated.algorithm.Algorithm`. Its
parameters after ``clients_per_round`` are the method's options, with their types and defaults: they are the keys of
``[algorithm]``. Four names are the run's own and need not be taken: ``weight``, ``min_clients``, ``client_rate`` and
``server``; a method that takes ``server`` by name has a server optimiser that ``[server]`` may set. ``@method`` gives
the title and what the method refuses. A user's own method is the same, named ``"module:function"``.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.server import ServerOptimizer
from fednlp.plugins import is_own, load

COMMON = ("weight", "min_clients", "client_rate", "server")
"""Parameters of a method that the run gives where the method takes them."""
Refusal = Callable[[Mapping[str, Any], Any], list[str]]
"""(the method's options, the experiment) -> mistakes, a sentence each."""


@dataclass(frozen=True)
class Method:
    """A method as experiments see it.

    Attributes:
        name: As it is typed.
        build: Returns the algorithm.
        title: As people write it.
        refuses: What the method cannot go with.
        fixed_server: Whether the method stands for one server optimiser, so that another is refused.
    """

    name: str
    build: Callable[..., Algorithm]
    title: str
    refuses: Refusal | None = None
    fixed_server: bool = False

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters after the first."""
        found = list(inspect.signature(self.build, eval_str=True).parameters.values())[1:]
        return {one.name: one for one in found}

    @property
    def server(self) -> ServerOptimizer | None:
        """The server optimiser that the method begins with; None where ``[server]`` cannot set any."""
        parameter = self.parameters.get("server")
        return None if parameter is None else parameter.default

    def options(self) -> type[BaseModel]:
        """Return the model that checks the method's options."""
        fields: dict[str, Any] = {}
        for name, one in self.parameters.items():
            if name not in COMMON and one.kind is not inspect.Parameter.VAR_KEYWORD:
                annotation = Any if one.annotation is inspect.Parameter.empty else one.annotation
                fields[name] = (annotation, ... if one.default is inspect.Parameter.empty else one.default)
        strict = ConfigDict(extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=True)
        return create_model(self.name, __config__=strict, **fields)

    def make(
        self, clients_per_round: int, common: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Algorithm:
        """Build the algorithm.

        Args:
            clients_per_round: The size of the cohort.
            common: What the run gives, by the names in :data:`COMMON`; what the method does not take is left out,
                and ``server`` is left out where it is not taken by name.
            options: The method's own.

        Raises:
            ConfigError: The function does not take the options, or returns something else.
        """
        taken = self.parameters
        every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
        given = {n: value for n, value in common.items() if n in taken or (every and n != "server")}
        try:
            made = self.build(clients_per_round, **given, **options)
        except TypeError as error:
            raise ConfigError(f'algorithm.name = "{self.name}": {error} (see [algorithm.options])') from error
        if not isinstance(made, Algorithm):
            raise ConfigError(
                f'algorithm.name = "{self.name}" returned {type(made).__name__}: return a fednlp.Algorithm'
            )
        return made


def method(
    title: str, *, refuses: Refusal | None = None, fixed_server: bool = False
) -> Callable[[Callable[..., Algorithm]], Callable[..., Algorithm]]:
    """Give a method's function its title and what it refuses.

    Args:
        title: As people write it.
        refuses: Returns what the method cannot go with, a sentence each.
        fixed_server: Whether the method stands for one server optimiser.
    """

    def mark(build: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
        build.method = (title, refuses, fixed_server)  # type: ignore[attr-defined]
        return build

    return mark


@cache
def names() -> tuple[str, ...]:
    """Return the names of the methods that come with fednlp: the files of this folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def find(name: str, key: str = "algorithm.name") -> Method:
    """Return a method by its name, or one of the user's own by ``"module:function"``.

    Args:
        name: As typed.
        key: The setting that holds it, for messages.

    Raises:
        ConfigError: There is none.
    """
    build = load(name if is_own(name) else f"{__name__}.{name}:{name}", key)
    return of(build, name)


def of(build: Callable[..., Algorithm], name: str) -> Method:
    """Return a function that builds an algorithm as a method.

    Args:
        build: The function.
        name: What it is called.
    """
    title, refuses, fixed = getattr(build, "method", (name.rpartition(":")[2], None, False))
    return Method(name, build, title, refuses, fixed)
