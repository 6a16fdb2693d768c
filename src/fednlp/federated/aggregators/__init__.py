"""The aggregation rules: one file for each.

A file holds a function of the file's name, which returns an :class:`~fednlp.federated.aggregators.base.Aggregator`. Its
parameters are the rule's options, with their types and defaults: they are the keys of ``[aggregator]``. ``@aggregator``
gives the title and what the rule refuses. A user's own rule is the same, named ``"module:function"``. Files without
such a function hold what rules are made of, and the rules that other sections stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fednlp.registry import MethodPart, Registry, mark


@dataclass(frozen=True)
class Rule(MethodPart):
    """An aggregation rule as experiments see it."""

    section = "aggregator"
    noun = "aggregator"
    returns = "an Aggregator"

    @staticmethod
    def fits(value: Any) -> bool:
        """Whether a value is an aggregator."""
        from fednlp.federated.aggregators.base import Aggregator

        return isinstance(value, Aggregator)


aggregator = mark
"""Gives a rule's function its title, and says what the rule needs, breaks and refuses."""

AGGREGATORS = Registry(__name__, Rule)
"""The rules that come with fednlp, and those of the user's own."""
