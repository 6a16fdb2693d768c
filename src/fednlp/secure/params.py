"""The numbers of secure aggregation that all rounds of a run have in common."""

from dataclasses import dataclass, replace

from fednlp.errors import ConfigError
from fednlp.privacy.noise import local_sigma, noise_bound
from fednlp.secure.encoding import Encoding
from fednlp.secure.graph import count
from fednlp.secure.keys import new_run
from fednlp.secure.plan import ProtocolPlan, make_plan

_TAIL = 11.0
"""Standard deviations that the sum must have room for: what :func:`noise_bound` gives for 10^10 parameters."""


@dataclass(frozen=True)
class SecAggParams:
    """What all rounds of a run have in common.

    Attributes:
        plan: The protocol and its numbers.
        encoding: How updates become whole numbers.
        noise_std: Standard deviation of each client's noise, in steps of the encoding; 0 for none.
        noise_clients: How many clients' noise must be enough: those that stay, less those that may tell the server
            their noise.
        min_updates: How many updates must be in a sum for its noise to be enough.
        simulated_dropout: The probability that a client drops out of a round, in [0, 1).
        seed: The experiment's; decides who drops out. Keys and masks come from the operating system.
        run: The nonce that keys and signatures are bound to: fresh each time a run is begun or resumed.
    """

    plan: ProtocolPlan
    encoding: Encoding
    noise_std: float
    noise_clients: int
    min_updates: int
    simulated_dropout: float
    seed: int
    run: bytes

    @property
    def fewest_in_sum(self) -> int:
        """The fewest clients that a sum may be over, however many drop out."""
        # In SecAgg+ a client and so many of its neighbours; in the others so many of all clients.
        return max(self.plan.threshold + (self.plan.protocol == "secagg+"), self.min_updates)


def make_params(
    protocol: str,
    cohort: int,
    parameters: int,
    largest_weight: float,
    seed: int,
    *,
    clip: float,
    dropout: float = 0.0,
    max_colluding: float = 0.0,
    malicious_server: bool = False,
    bits: int | None = None,
    stochastic: bool = False,
    noise_multiplier: float = 0.0,
    simulated_dropout: float = 0.0,
) -> SecAggParams:
    """Work out the numbers of a run.

    Args:
        protocol: ``"secagg"``, ``"secagg+"`` or ``"lightsecagg"``.
        cohort: Clients of a round.
        largest_weight: No client's weight is larger.
        clip: The largest absolute value of an element of an update; with noise, also the norm that updates are cut to.
        dropout: The largest fraction of the cohort that drops out, in [0, 1).
        max_colluding: The largest fraction of the cohort that colludes with the server, in [0, 1).
        malicious_server: Whether the server may lie about who is there.
        bits: Bits of an encoded element; by default as many as the sum has room for, at most 24.
        stochastic: Whether elements are rounded up or down at random.
        noise_multiplier: Standard deviation of the noise on the sum, over ``clip``; 0 for none.
        simulated_dropout: The probability that a client drops out of a round.

    Raises:
        ConfigError: No numbers of the protocol withstand what they must, or the sum has no room.
    """
    staying = cohort - count(cohort, dropout, "dropout")
    honest = staying - count(cohort, max_colluding, "max_colluding")
    if noise_multiplier and honest < 1:
        raise ConfigError(
            f"[privacy] of {cohort} clients none is left whose noise counts at secure.dropout = {dropout} and "
            f"secure.max_colluding = {max_colluding}: lower one of the two"
        )
    spread = cohort * _TAIL * noise_multiplier / honest**0.5 if noise_multiplier else 0.0
    plan = make_plan(protocol, cohort, dropout, max_colluding, bits, malicious_server, spread)
    encoding = Encoding(clip, plan.bits, largest_weight, cohort, plan.modulus, stochastic)
    noise_std = 0.0
    if noise_multiplier:
        noise_std = local_sigma(noise_multiplier, encoding.top, honest, parameters, stochastic=stochastic)
        encoding = replace(encoding, noise_bound=noise_bound(noise_std, 1, parameters))
    return SecAggParams(
        plan=plan,
        encoding=encoding,
        noise_std=noise_std,
        noise_clients=honest,
        min_updates=staying if noise_multiplier else 1,
        simulated_dropout=simulated_dropout,
        seed=seed,
        run=new_run(),
    )
