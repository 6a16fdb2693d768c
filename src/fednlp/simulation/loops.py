"""What one round is under each algorithm: federated, centralised, client after client, or each client alone."""

from collections.abc import Callable

from fednlp.simulation.baselines import Alone, Centralised, Chained
from fednlp.simulation.context import Course, Procedure
from fednlp.simulation.pace_search import Paced
from fednlp.simulation.pseudo_labels import FewShot
from fednlp.simulation.rounds import Federated

__all__ = [
    "PROCEDURES",
    "Alone",
    "Centralised",
    "Chained",
    "Course",
    "Federated",
    "FewShot",
    "Paced",
    "Procedure",
    "procedure_of",
]

PROCEDURES: dict[str, Callable[[Course], Procedure]] = {
    "fedavg": Federated,
    "fedprox": Federated,
    "fedopt": Federated,
    "fedadagrad": Federated,
    "fedadam": Federated,
    "fedyogi": Federated,
    "centralised": Centralised,
    "chained": Chained,
    "local": Alone,
}
"""How rounds are done, by the algorithm's name; those of the user's own are federated."""


def procedure_of(course: Course) -> Procedure:
    """Return how the rounds of a run are done."""
    fewshot = course.experiment.fewshot
    if fewshot is not None:
        return Paced(course) if fewshot.pacing == "search" else FewShot(course)
    return PROCEDURES.get(course.experiment.algorithm.name, Federated)(course)
