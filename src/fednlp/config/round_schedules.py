"""What the learning rates over the rounds, in ``[client]`` and ``[server]``, cannot go with."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import GIVEN, Client, Server
from fednlp.formatting.units import plural

WITHOUT_ROUNDS = {
    "chained": "in chained each client trains once",
    "local": "in local each client trains once",
    "majority": "majority trains nothing",
}
"""Baselines in which a client trains once, for all of its rounds, or never, each with these words."""
_KEYS = ("round_schedule", "warmup_rounds", "minimum_rate")
CONSTANT = {key: Client.model_fields[key].default for key in _KEYS}
"""The settings of a rate that is the same in all rounds."""


def schedule_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with the learning rates over the rounds, a sentence each."""
    found = _unused(experiment)
    for name, section in (("client", experiment.client), ("server", experiment.server)):
        found += _meaningless(name, section, experiment.num_rounds)
    return found


def _unused(experiment: ExperimentFields) -> list[str]:
    """Return the settings that the method does not use; those of ``[server]`` in a baseline are refused elsewhere."""
    method = experiment.algorithm.name
    if method in WITHOUT_ROUNDS:
        return [
            f"client.{key} is over the rounds of a federation, and {WITHOUT_ROUNDS[method]}: leave it out"
            for key in _set(experiment.client)
        ]
    if method == GIVEN:
        return [
            f"{name}.{key} is not read beside an algorithm that is given as a value: leave it out, and give the "
            f"algorithm its schedule, {value}"
            for name, section, value in (
                ("client", experiment.client, "fednlp.Algorithm(client_rate=...)"),
                ("server", experiment.server, "fednlp.ServerOptimizer(rate=...)"),
            )
            for key in _set(section)
        ]
    return []


def _set(section: Client | Server) -> list[str]:
    return [key for key in _KEYS if getattr(section, key) != CONSTANT[key]]


def _meaningless(name: str, section: Client | Server, rounds: int) -> list[str]:
    found = []
    if section.minimum_rate and section.round_schedule == "constant":
        found.append(
            f"{name}.minimum_rate is what a falling rate falls towards, and {name}.round_schedule is "
            f'"constant": say {name}.round_schedule = "linear" or "cosine", or leave {name}.minimum_rate out'
        )
    if section.warmup_rounds >= rounds:
        found.append(
            f"{name}.warmup_rounds = {section.warmup_rounds} leaves none of the {plural(rounds, 'round')} for the "
            f"whole learning rate: give at most {rounds - 1}, or raise num_rounds"
        )
    return found
