"""What needs the time that each client takes: a simulation has it from a device profile, real clients take theirs."""

from fednlp.config.fields import ExperimentFields

_PROFILE = "set costs.device to a profile, or to a mix of several"


def clock_problems(experiment: ExperimentFields) -> list[str]:
    """Return what cannot be simulated without the time that each client takes, a sentence each."""
    if experiment.data.at_sites or experiment.costs.device is not None:
        return []
    found = []
    if experiment.algorithm.name == "fedbuff":
        found.append(f"fedbuff needs the time that each client takes: {_PROFILE}")
    if experiment.rounds.over_selection != 1:
        found.append(
            f"rounds.over_selection needs the time that each client takes: {_PROFILE}, or say "
            "rounds.over_selection = 1.0"
        )
    return found
