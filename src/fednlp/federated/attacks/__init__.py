"""Attacks: clients that send something else than what they trained. One file for each.

A file holds a function of the file's name, which returns an :data:`Attack`. Its parameters are the attack's options,
with their types and defaults: they are the keys of ``[attack]`` beside ``fraction``. ``@attack`` gives the title and
what the attack refuses. A user's own attack is the same, named ``"module:function"``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientFunction, Local, Result, checked_result
from fednlp.plugins import require_takes
from fednlp.registry import MethodPart, Registry, mark
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

Attack = Callable[[ClientFunction], ClientFunction]
"""The method's client -> what an attacker computes in its place."""


@dataclass(frozen=True)
class AttackPlugin(MethodPart):
    """An attack as experiments see it."""

    section = "attack"
    noun = "attack"
    returns = "a function from a client function to another"

    @staticmethod
    def fits(value: Any) -> bool:
        """Whether a value is a function."""
        return callable(value)


attack = mark
"""Gives an attack's function its title, and says what the attack refuses."""

ATTACKS = Registry(__name__, AttackPlugin)
"""The attacks that come with fednlp, and those of the user's own."""


def draw_attackers(clients: int, fraction: float, seed: int) -> list[int]:
    """Return the ids of the attackers: that fraction of all clients, rounded, at least one; the same in every round.

    Args:
        clients: How many clients there are.

    >>> len(draw_attackers(20, 0.2, seed=0)), len(draw_attackers(20, 0.01, seed=0))
    (4, 1)
    """
    count = max(1, round(fraction * clients))
    drawn = generator(seed, "attackers").choice(clients, size=count, replace=False)
    return [int(client) for client in np.sort(drawn)]


def with_attackers(algorithm: Algorithm, attack: Attack, attackers: Collection[int]) -> Algorithm:
    """Return an algorithm of which some clients are attackers.

    Raises:
        ConfigError: What the attack returned does not take what a client's function takes.
    """
    honest, malicious, bad = algorithm.client, attack(algorithm.client), frozenset(attackers)
    require_takes(malicious, "the attackers' function", "local", "x", "server", "own")

    def client(local: Local, x: Tensor, server: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Result:
        chosen = malicious if local.client in bad else honest
        return checked_result(chosen(local, x, server, own), chosen)

    return replace(algorithm, client=client)
