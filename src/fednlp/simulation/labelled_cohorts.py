"""Cohorts of rounds with few labels: drawn among the clients that have some."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fednlp.federated.algorithm import Algorithm
from fednlp.federated.cohort import Cohort, Population


def with_pseudo_labels(
    algorithm: Algorithm, stream: Callable[[int], int] = lambda round_number: round_number
) -> Algorithm:
    """Return the algorithm with cohorts drawn among the clients that have examples with labels.

    Args:
        stream: Maps a round's number to the number that its cohort is drawn with.
    """

    def sample(population: Population, round_number: int) -> Cohort:
        able = np.flatnonzero(population.sizes)
        if not len(able):
            return Cohort([], reason="no client has a label yet, and some get theirs now")
        among = replace(population, sizes=population.sizes[able])
        drawn = algorithm.sample(among, stream(round_number))
        return replace(drawn, clients=[int(able[place]) for place in drawn.clients])

    return replace(algorithm, sample=sample)
