"""Over-selection: a round draws more clients than it needs, so that it does not wait for the slowest."""

import math
from fractions import Fraction

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, GIVEN

_REMEDY = "say rounds.over_selection = 1.0"


def num_drawn(experiment: ExperimentFields) -> int:
    """Return how many clients a round draws: ``rounds.over_selection`` times ``clients_per_round``, rounded up.

    >>> from fednlp.config import parse
    >>> num_drawn(parse({"data": {"name": "20news"}, "rounds": {"over_selection": 1.1}}))
    11
    """
    return math.ceil(Fraction(repr(experiment.rounds.over_selection)) * experiment.clients_per_round)


def over_selection_problems(experiment: ExperimentFields) -> list[str]:
    """Return what over-selection does not go together with, a sentence each."""
    if experiment.rounds.over_selection == 1:
        return []
    name, found = experiment.algorithm.name, []
    if name in BASELINES:
        found.append(f"rounds.over_selection is not supported by {name}, which draws no cohorts: {_REMEDY}")
    if name == "fedbuff":
        found.append(
            f"rounds.over_selection is not supported by fedbuff, which waits for no client: {_REMEDY}"
        )
    if name == GIVEN:
        found.append(
            "rounds.over_selection does not reach an algorithm that is given as a value, which draws its own cohorts: "
            f"{_REMEDY}, and let its sample draw more"
        )
    if experiment.secure.protocol != "none":
        found.append(
            "rounds.over_selection withdraws updates that arrive late, and a sum under masks has its own way with "
            f"dropouts: raise clients_per_round and secure.dropout, and {_REMEDY}"
        )
    if experiment.privacy is not None:
        found.append(
            "[privacy] counts on one client changing one update, and with rounds.over_selection a fast client also "
            f"decides who else counts: {_REMEDY}"
        )
    if experiment.fewshot is not None:
        found.append(f"[fewshot] draws its cohorts among the clients with labels: {_REMEDY}")
    return found
