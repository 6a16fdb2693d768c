"""The methods: one file for each, named after its paper, with everything that the method is.

A file holds a function of the file's name, which returns an :class:`~fednlp.federated.algorithm.Algorithm`. Its
parameters after ``clients_per_round`` are the method's options, with their types and defaults: they are the keys of
``[algorithm]``. Four names are the run's own and need not be taken: ``weight``, ``min_clients``, ``client_rate`` and
``server``. A method hands the first three on as ``**common``, :class:`~fednlp.federated.algorithm.RoundOptions`. One
that takes ``server`` by name has a server optimiser that ``[server]`` may set. ``@method`` gives the title, and what
the method needs, breaks and refuses. A user's own method is the same, named ``"module:function"``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.server import ServerOptimizer
from fednlp.registry import MethodPart, Refusal, Registry, mark

COMMON = ("weight", "min_clients", "client_rate", "server")
"""Parameters of a method that the run gives where the method takes them."""


@dataclass(frozen=True)
class Method(MethodPart):
    """A method as experiments see it.

    Attributes:
        fixed_server: Whether the method stands for one server optimiser, so that another is refused.
    """

    fixed_server: bool = False

    section = "algorithm"
    noun = "method"
    returns = "a fednlp.Algorithm"
    given = COMMON

    @staticmethod
    def fits(value: Any) -> bool:
        """Whether a value is an algorithm."""
        return isinstance(value, Algorithm)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters after the first."""
        found = list(super().parameters.values())[1:]
        return {one.name: one for one in found}

    @property
    def server(self) -> ServerOptimizer | None:
        """The server optimiser that the method begins with; None where ``[server]`` cannot set any.

        Raises:
            ConfigError: The user's own function takes ``server``, and its default is no optimiser.
        """
        parameter = self.parameters.get("server")
        if parameter is None:
            return None
        if not isinstance(parameter.default, ServerOptimizer):
            raise ConfigError(f"{self._said}: the default of server is to be a fednlp.ServerOptimizer")
        return parameter.default

    def make(
        self, clients_per_round: int, common: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Algorithm:
        """Build the algorithm.

        Args:
            clients_per_round: The size of the cohort.
            common: What the run gives, by the names in :data:`COMMON`; what the method does not take is left out,
                and ``server`` is left out where it is not taken by name.

        Raises:
            ConfigError: The function does not take the options, raises an error, or returns something else.
        """
        taken, every = self.parameters, self.takes_any
        given = {n: value for n, value in common.items() if n in taken or (every and n != "server")}
        for name in options:
            if name in given:
                raise ConfigError(
                    f"{self._said}: {name} is given by the run: leave it out of [{self.section}.options]"
                )
        made: Algorithm = self.call(clients_per_round, **given, **options)
        return made


def method(
    title: str,
    *,
    refuses: Refusal | None = None,
    needs: Mapping[str, str] = MappingProxyType({}),
    breaks: Mapping[str, str] = MappingProxyType({}),
    fixed_server: bool = False,
) -> Callable[[Callable[..., Algorithm]], Callable[..., Algorithm]]:
    """Give a method's function its title and what it refuses.

    Args:
        title: As people write it.
        refuses: Returns what the method cannot go with, a sentence each.
        needs: What it needs of other settings, by the names in :data:`fednlp.config.compatibility.TRAITS`, each with
            why: words after its name.
        breaks: What it breaks for other settings, likewise.
        fixed_server: Whether the method stands for one server optimiser.
    """
    return mark(title, refuses=refuses, needs=needs, breaks=breaks, fixed_server=fixed_server)


ALGORITHMS = Registry(__name__, Method)
"""The methods that come with fednlp, and those of the user's own."""
