"""The rules by which cohorts are drawn: one file for each.

A file holds a function of the file's name, which returns a :data:`~fednlp.federated.cohort.Sample`, or a
:class:`~fednlp.federated.cohort.Selection` where nobody can foresee its cohorts. Its parameters after
``clients_per_round`` are the rule's options, with their types and defaults: they are the keys of ``[cohort]``.
``weight`` is the run's own, p_i of a client from its number of examples, and need not be taken. ``@cohort`` gives the
title and what the rule refuses. A user's own rule is the same, named ``"module:function"``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fednlp.federated.cohort import Sample, Selection, WeightFunction
from fednlp.registry import MethodPart, Registry, mark


@dataclass(frozen=True)
class CohortRule(MethodPart):
    """A rule by which cohorts are drawn as experiments see it."""

    section = "cohort"
    noun = "cohort rule"
    returns = "a function (population, round) -> Cohort, or a fednlp.Selection"
    given = ("weight",)

    @staticmethod
    def fits(value: Any) -> bool:
        """Whether a value draws cohorts."""
        return isinstance(value, Selection) or callable(value)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters after the first."""
        found = list(super().parameters.values())[1:]
        return {one.name: one for one in found}

    def make(self, size: int, weight: WeightFunction, options: Mapping[str, Any]) -> Sample | Selection:
        """Build the rule.

        Args:
            weight: p_i of a client, from its number of examples.

        Raises:
            ConfigError: The function does not take the options, raises an error, or returns something else.
        """
        given = {"weight": weight} if "weight" in self.parameters else {}
        made: Sample | Selection = self.call(size, **given, **options)
        return made


cohort = mark
"""Gives a rule's function its title, and says what the rule needs, breaks and refuses."""

COHORTS = Registry(__name__, CohortRule)
"""The rules that come with fednlp, and those of the user's own."""
