"""Krum: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fednlp.errors import TooFewClients
from fednlp.federated.aggregators import aggregator
from fednlp.federated.aggregators.base import AggregatedUpdate, Aggregator, Collection
from fednlp.federated.aggregators.kept_updates import UpdateFile
from fednlp.federated.aggregators.whole_updates import Numbers, WholeUpdates, squared_distances
from fednlp.formatting.units import plural
from fednlp.option_types import PositiveInt

if TYPE_CHECKING:
    from fednlp.federated.client import ClientResult
    from fednlp.federated.cohort import RoundPlan
    from fednlp.federated.params import Layout


@dataclass(frozen=True)
class Krum(WholeUpdates):
    """The mean of the updates that lie closest to their neighbours (section 4 of the paper).

    Attributes:
        byzantine: f: the number of attackers in a round that the rule withstands.
        selected: m: the number of updates that are averaged; 1 for Krum, more for multi-Krum. Where clients
            dropped out, no more than n - f of those that are left.
    """

    byzantine: int
    selected: int

    def weights(self, products: Numbers, shares: Numbers) -> Numbers:
        """Return 1 / m for the m updates of the lowest scores, 0 for the others; lower ids come first in a tie."""
        clients = len(products)
        best = np.argsort(scores(squared_distances(products), self.byzantine), kind="stable")
        count = min(self.selected, clients - self.byzantine)
        found = np.zeros(clients)
        found[best[:count]] = 1 / count
        return found

    def open(self, plan: RoundPlan, layout: Layout) -> Collection:
        """Begin to collect a round's updates.

        Raises:
            TooFewClients: Even if all of them answer, the cohort is too small.
            RunError: The disk has no room for the models' updates.
        """
        self._require_enough(plan, len(plan.cohort.clients), "were drawn")
        return super().open(plan, layout)

    def finish(self, total: UpdateFile, plan: RoundPlan, results: Sequence[ClientResult]) -> AggregatedUpdate:
        """Return the mean of the selected updates.

        Raises:
            TooFewClients: Fewer than 2 f + 3 clients answered.
        """
        self._require_enough(plan, len(results), "answered")
        return super().finish(total, plan, results)

    def _require_enough(self, plan: RoundPlan, clients: int, did: str) -> None:
        f, least = self.byzantine, least_clients(self.byzantine)
        if clients < least:
            raise TooFewClients(
                f"round {plan.number}: {plural(clients, 'client')} {did}, and krum with byzantine = {f} needs "
                f"2 * {f} + 3 = {least}: raise clients_per_round or lower aggregator.byzantine"
            )


def scores(distances: Numbers, byzantine: int) -> Numbers:
    """Return Krum's score of each update: the sum of the squared distances to its n - f - 2 closest others.

    Args:
        distances: Squared distances, (clients, clients), with zeros on the diagonal.

    >>> points = np.array([0.0, 1.0, 2.0, 3.0, 90.0])
    >>> scores((points[:, None] - points) ** 2, byzantine=1).tolist()
    [5.0, 2.0, 2.0, 5.0, 15313.0]
    """
    clients = len(distances)
    others = distances[~np.eye(clients, dtype=bool)].reshape(clients, clients - 1)
    closest: Numbers = np.sort(others, axis=1)[:, : clients - byzantine - 2]
    return np.asarray(closest.sum(axis=1))


def least_clients(byzantine: int) -> int:
    """Return how many clients Krum needs: more than 2 f + 2 (section 4 of the paper)."""
    return 2 * byzantine + 3


def _refuses(options: Mapping[str, Any], experiment: Any) -> list[str]:
    found: list[str] = []
    f, m, clients = options.get("byzantine", 1), options.get("selected", 1), experiment.clients_per_round
    if clients < least_clients(f):
        found.append(
            f"aggregator.byzantine = {f} needs 2 * {f} + 3 = {least_clients(f)} clients in a round, and "
            f"clients_per_round is {clients}: lower the one or raise the other"
        )
    elif m > clients - f:
        found.append(
            f"aggregator.selected = {m} of clients_per_round = {clients} averages some of the {f} attackers too: say "
            f"{clients - f} at most"
        )
    return found


@aggregator("Krum", refuses=_refuses)
def krum(byzantine: PositiveInt = 1, selected: PositiveInt = 1) -> Aggregator:
    """Return Krum, or multi-Krum with ``selected`` above 1.

    Args:
        byzantine: f: the number of attackers in a round that the rule withstands; a round needs 2 f + 3 clients.
        selected: m: the number of updates that are averaged, at most n - f.
    """
    return Krum(byzantine, selected)
