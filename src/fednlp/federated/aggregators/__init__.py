"""The aggregation rules: one file for each.

A file holds a function of the file's name, which returns an :class:`~fednlp.federated.aggregators.base.Aggregator`. Its
parameters are the rule's options, with their types and defaults: they are the keys of ``[aggregator]``. ``@aggregator``
gives the title and what the rule refuses. A user's own rule is the same, named ``"module:function"``. Files without
such a function hold what rules are made of, and the rules that other sections stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fednlp.registry import Plugin, Refusal, Registry, mark

if TYPE_CHECKING:
    from fednlp.federated.aggregators.base import Aggregator


@dataclass(frozen=True)
class Rule(Plugin):
    """An aggregation rule as experiments see it."""

    section = "aggregator"
    noun = "aggregator"

    def make(self, options: Mapping[str, Any]) -> Aggregator:
        """Build the aggregator.

        Raises:
            ConfigError: The function does not take the options, or returns something else.
        """
        made: Aggregator = self.call(_is_aggregator, "an Aggregator", **options)
        return made


def _is_aggregator(value: Any) -> bool:
    from fednlp.federated.aggregators.base import Aggregator

    return isinstance(value, Aggregator)


def aggregator(
    title: str, *, refuses: Refusal | None = None
) -> Callable[[Callable[..., Aggregator]], Callable[..., Aggregator]]:
    """Give a rule's function its title and what it refuses.

    Args:
        title: As people write it.
        refuses: Returns what the rule cannot go with, a sentence each.
    """
    return mark(title=title, refuses=refuses)


AGGREGATORS = Registry(__name__, Rule)
"""The rules that come with fednlp, and those of the user's own."""
