"""All checks of an experiment: what goes with what, and the rules of each section's own values."""

from fednlp.config.compatibility import WITHOUT_CLOCK, settings_features
from fednlp.config.fields import ExperimentFields
from fednlp.config.method_checks import method_problems
from fednlp.config.own_code import own_code_problems
from fednlp.config.round_schedules import schedule_problems
from fednlp.config.sections import BASELINES
from fednlp.federated.algorithm import Algorithm
from fednlp.section import conflicts


def problems(
    experiment: ExperimentFields, given: Algorithm | None = None, *, real_clients: bool = False
) -> list[str]:
    """Return every mistake in how the parts go together, a sentence each.

    Args:
        experiment: With the method and the cohort that the data leave.
        given: The algorithm that was given as a value, if it was.
        real_clients: Clients are processes of their own, whose time need not be simulated.
    """
    method, features = method_problems(experiment, given)
    features = [*settings_features(experiment), *features]
    if not real_clients and WITHOUT_CLOCK.in_experiment(experiment):
        features.append(WITHOUT_CLOCK)
    return [
        *own_code_problems(experiment),
        *method,
        *conflicts(features),
        *schedule_problems(experiment),
        *_cohort_problems(experiment),
        *(one for _, section in experiment.sections() for one in section.problems(experiment)),
    ]


def _cohort_problems(experiment: ExperimentFields) -> list[str]:
    clients, cohort = experiment.partition.clients, experiment.clients_per_round
    found = []
    if clients is not None and cohort > clients and experiment.algorithm.name not in BASELINES:
        found.append(
            f"clients_per_round = {cohort} is more than partition.clients = {clients}: lower the first"
        )
    if experiment.min_clients > cohort:
        found.append(
            f"min_clients = {experiment.min_clients} is more than clients_per_round = {cohort}: lower it"
        )
    return found
