"""A round of each protocol, from the numbers of a run: the same for whoever knows the cohort and the experiment."""

from collections.abc import Sequence

from fednlp.secure.graph import neighbours
from fednlp.secure.lightsecagg_rules import LightSecAggRoundSpec
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg_rules import SECAGG_PLUS, SecAggRoundSpec
from fednlp.seeds import generator

LIGHTSECAGG = "lightsecagg"


def secagg_spec(params: SecAggParams, clients: Sequence[int], round_number: int) -> SecAggRoundSpec:
    """Return a round of SecAgg or SecAgg+.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.

    Raises:
        SecureAbort: The cohort does not go with the numbers.
    """
    plan = params.plan
    # From the experiment's seed, so that every run of it has the same neighbours.
    order = generator(params.seed, "neighbours", round_number).permutation(len(clients)).tolist()
    return SecAggRoundSpec(
        protocol=plan.protocol,
        ids=tuple(clients),
        neighbours=neighbours(clients, plan.neighbours, order),
        threshold=plan.threshold,
        round_number=round_number,
        malicious_server=plan.malicious_server,
        run=params.run,
        max_colluding=plan.max_colluding,
        # In SecAgg any threshold of all clients is enough; in SecAgg+ the dropouts decide what is connected.
        min_survivors=plan.clients - plan.max_dropouts if plan.protocol == SECAGG_PLUS else 0,
    )


def lightsecagg_spec(
    params: SecAggParams, clients: Sequence[int], round_number: int, length: int
) -> LightSecAggRoundSpec:
    """Return a round of LightSecAgg.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.
        length: Elements of a masked vector, the weight included.

    Raises:
        SecureAbort: The cohort does not go with the numbers.
    """
    plan = params.plan
    return LightSecAggRoundSpec(
        ids=tuple(clients),
        threshold=plan.threshold,
        max_colluding=plan.max_colluding,
        max_dropouts=plan.max_dropouts,
        round_number=round_number,
        length=length,
        run=params.run,
    )
