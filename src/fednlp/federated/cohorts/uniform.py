"""Uniform cohorts by their name in an experiment."""

from fednlp.federated.cohort import Sample, uniform_cohort
from fednlp.federated.cohorts import cohort


@cohort("Uniform")
def uniform(clients_per_round: int) -> Sample:
    """Return the draw of distinct clients, each with the same probability.

    Args:
        clients_per_round: The size of the cohort.
    """
    return uniform_cohort(clients_per_round)
