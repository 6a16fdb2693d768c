"""From the sections ``[privacy]`` and ``[secure]`` of an experiment to the values that a run uses."""

from collections import Counter
from typing import TYPE_CHECKING

from fednlp.config import Experiment
from fednlp.privacy.dp import DPMechanism
from fednlp.simulation.build import algorithm_of

if TYPE_CHECKING:
    from fednlp.secure.params import SecAggParams


def dp_mechanism(experiment: Experiment, clients: int) -> DPMechanism | None:
    """Return the mechanism of ``[privacy]``; None without the section.

    Args:
        experiment: The experiment.
        clients: Number of clients of the run.

    Raises:
        ConfigError: No noise reaches ``privacy.epsilon``.
    """
    privacy = experiment.privacy
    if privacy is None:
        return None
    central = experiment.secure.protocol == "none"
    mechanism = DPMechanism(
        clip=privacy.clip,
        noise_multiplier=privacy.noise or 0.0,
        central=central,
        sampling=privacy.sampling,
        clients=clients,
        cohort=min(experiment.clients_per_round, clients),
        rounds=experiment.num_rounds,
        delta=privacy.delta,
        seed=experiment.seed,
        distance=None if central else 0.0,
        most_rounds=0 if central else _most_rounds(experiment, clients),
    )
    return mechanism if privacy.epsilon is None else mechanism.calibrated(privacy.epsilon)


def secagg_params(
    experiment: Experiment, clients: int, parameters: int, largest_weight: float, noise_multiplier: float
) -> "SecAggParams":
    """Return the numbers of ``[secure]``.

    Args:
        experiment: The experiment, with a protocol.
        clients: Number of clients of the run.
        parameters: Elements of an update.
        largest_weight: No client's weight is larger.
        noise_multiplier: Standard deviation of the noise on the sum, over ``privacy.clip``; 0 for none.

    Raises:
        ConfigError: No numbers of the protocol withstand what they must, or the sum has no room.
    """
    from fednlp.secure.params import make_params

    secure, privacy = experiment.secure, experiment.privacy
    return make_params(
        secure.protocol,
        min(experiment.clients_per_round, clients),
        parameters,
        largest_weight,
        experiment.seed,
        clip=secure.clip if privacy is None else privacy.clip,
        dropout=secure.dropout,
        max_colluding=secure.corruption,
        malicious_server=secure.active,
        bits=secure.bits,
        stochastic=secure.stochastic,
        noise_multiplier=noise_multiplier,
        simulated_dropout=secure.simulated_dropout,
    )


def _most_rounds(experiment: Experiment, clients: int) -> int:
    """Return how many rounds draw the client that is drawn most often, whatever happens in those rounds.

    A client that drops out is counted, and so is a round without a sum: it may be refused after it was unmasked.
    """
    sample = algorithm_of(experiment).sample
    drawn: Counter[int] = Counter()
    for round_number in range(1, experiment.num_rounds + 1):
        drawn.update(sample(experiment.seed, round_number, clients))
    return max(drawn.values())
