"""Power-of-Choice: Cho, Wang and Joshi 2022, "Towards Understanding Biased Client Selection in Federated Learning"."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from fednlp.federated.cohort import Ask, Cohort, Population, Selection, WeightFunction, by_examples
from fednlp.federated.cohorts import cohort
from fednlp.seeds import generator

if TYPE_CHECKING:
    from fednlp.federated.state import State


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    candidates, size = options.get("candidates"), experiment.clients_per_round
    if candidates is None or candidates >= size:
        return []
    return [
        f"cohort.candidates = {candidates} is fewer than clients_per_round = {size}, which are chosen among them: "
        "raise it"
    ]


@cohort("Power-of-Choice", refuses=_refuses)
def power_of_choice(
    clients_per_round: int,
    candidates: Annotated[int, Field(ge=1)] | None = None,
    *,
    weight: WeightFunction = by_examples,
) -> Selection:
    """Return pow-d: the m candidates with the largest loss train.

    Args:
        clients_per_round: m, the size of the cohort.
        candidates: d, how many clients are asked, drawn with probability p_i without replacement; None for 2 m. With
            d = m nobody is asked, as all candidates train.
        weight: A client's weight p_i, from its number of examples.
    """
    wanted = candidates or 2 * clients_per_round

    def draw(population: Population, state: "State", ask: Ask) -> Cohort:
        p = weights_of(population, weight)
        able = np.flatnonzero(p)
        rng = generator(population.seed, "cohort", state.round + 1)
        size = min(wanted, len(able))
        drawn = np.sort(rng.choice(able, size, replace=False, p=p[able] / p.sum())).tolist() if size else []
        if size <= clients_per_round:
            return Cohort(drawn)
        losses = ask(drawn)
        return Cohort(
            sorted(sorted(losses, key=lambda client: (-losses[client], client))[:clients_per_round])
        )

    return Selection(draw, asks=wanted > clients_per_round)


def weights_of(population: Population, weight: WeightFunction) -> np.ndarray:
    """Return each client's weight p_i, float64 (clients,).

    Args:
        weight: p_i of a client, from its number of examples.
    """
    sizes, places = np.unique(population.counted, return_inverse=True)
    return np.array([weight(int(size)) if size else 0.0 for size in sizes])[places]
