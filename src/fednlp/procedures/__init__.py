"""What one round is under each algorithm: federated, centralised, client after client, or each client alone."""

from collections.abc import Callable

from fednlp.procedures.course import Course, Procedure
from fednlp.procedures.federated import Federated
from fednlp.procedures.references import Alone, Centralised, Chained

__all__ = ["PROCEDURES", "Alone", "Centralised", "Chained", "Course", "Federated", "Procedure"]

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
"""How rounds are done, by the algorithm's name."""
