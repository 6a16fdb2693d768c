"""An algorithm is a value: everything in which one method of federated learning differs from another.

A method is one file in :mod:`fednlp.federated.algorithms`: a function that returns this value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import Aggregator
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.client import ClientFunction, average_model
from fednlp.federated.cohort import REMEMBERED, Sample, Selection, WeightFunction, by_examples
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.runtime import MODEL
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer, ServerUpdate
from fednlp.plugins import require_methods, require_takes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAME = re.compile(r"\w[\w.-]{0,79}", re.ASCII)
"""Of a vector or a number."""


class RoundOptions(TypedDict, total=False):
    """What every method takes beside its own options, by name.

    Attributes:
        weight: A client's weight p_i, from its number of examples; that number where it is left out.
        min_clients: A round in which fewer clients come through stops the run.
        client_rate: The clients' learning rate over the rounds, as a factor.
    """

    weight: WeightFunction
    min_clients: int
    client_rate: RateSchedule


@dataclass(frozen=True)
class Algorithm:
    """One method of federated learning.

    Attributes:
        sample: Draws the cohort, which whoever knows the seed can foresee.
        weight: p_i of a client, from its number of examples.
        client: What a client computes (:mod:`fednlp.federated.client`).
        uplink: What happens to updates on their way to the server.
        downlink: What happens to the global model on its way to the clients.
        server: What the server does with it.
        min_clients: A round in which fewer clients come through stops the run.
        sends: Names of the vectors that a client sends; the first is the model's update.
        reports: Names of the numbers that a client reports; the server gets their weighted means, unprotected.
        keeps: Names of the vectors that a client keeps between its rounds, in its record on disk.
        receives: Names of the server's vectors that travel to the clients with the model.
        personal_model: Which of ``keeps`` is a client's own model, to be evaluated and used; None for none.
        client_rate: The clients' learning rate over the rounds, as a factor.
        local_trainings: How often a client takes its local steps in a round, for predicted time and memory.
        local_gradients: How many gradients over all of its examples it computes in a round, for the same.
        local_losses: How often it computes the loss over all of its examples in a round, for predicted time.
        teachers: How many other models read each batch of its local steps, without gradients, for predicted time.
        models: Names of the server's models beside the first, to which a client's update may belong instead
            (:attr:`fednlp.federated.client.Result.model`). They are among ``receives``; each client is evaluated with
            the one of the least loss on its training examples.
        selection: Draws the cohort in place of ``sample``, by what clients answer or did before; None for ``sample``.

    Raises:
        ConfigError: The first of ``sends`` is not ``"model"``, ``personal_model`` is none of ``keeps``, or one of
            ``sends``, ``reports``, ``keeps`` and ``receives`` is no tuple of distinct names, the selection remembers
            what there is not, or a function of the user's own does not take what it will be called with.
    """

    name: str
    sample: Sample
    weight: WeightFunction = by_examples
    client: ClientFunction = average_model
    uplink: Uplink = field(default_factory=Uplink)
    downlink: Downlink = field(default_factory=Downlink)
    aggregator: Aggregator = field(default_factory=WeightedMean)
    server: ServerUpdate = field(default_factory=ServerOptimizer)
    min_clients: int = 1
    sends: tuple[str, ...] = ("model",)
    reports: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    receives: tuple[str, ...] = ()
    personal_model: str | None = None
    client_rate: RateSchedule = field(default_factory=RateSchedule)
    local_trainings: int = 1
    local_gradients: int = 0
    local_losses: int = 0
    teachers: int = 0
    models: tuple[str, ...] = ()
    selection: Selection | None = None

    def __post_init__(self) -> None:
        if self.sends[:1] != ("model",):
            raise ConfigError(f'{self.name}: sends = {self.sends!r}: the first vector is the update, "model"')
        for what in ("sends", "reports", "keeps", "receives", "models"):
            self._require_names(what, getattr(self, what))
        if MODEL in self.receives:
            raise ConfigError(
                f'{self.name}: receives = {self.receives!r}: "model" travels anyway, leave it out'
            )
        if not {*self.models} <= {*self.receives}:
            raise ConfigError(
                f"{self.name}: models = {self.models!r} are not all in receives = {self.receives!r}: add them there"
            )
        if self.personal_model is not None and self.personal_model not in self.keeps:
            raise ConfigError(
                f'{self.name}: personal_model = "{self.personal_model}" is none of keeps = {self.keeps!r}: add it there'
            )
        if self.selection is not None:
            names: Any = self.selection.remembers
            self._require_names("remembers", names if isinstance(names, str) else (*names,))
            strange = {*names} - {*REMEMBERED, *self.reports}
            if strange:
                raise ConfigError(
                    f"{self.name}: a selection remembers {', '.join(sorted(strange))}: choose of "
                    f"{', '.join((*REMEMBERED, *self.reports))}, or have the clients report it (reports)"
                )
            require_takes(self.selection.draw, f"{self.name}: draw", "population", "state", "ask")
        require_takes(self.sample, f"{self.name}: sample", "population", "round_number")
        require_takes(self.client, f"{self.name}: the client's function", "local", "x", "server", "own")
        require_methods(self.server)
        self.aggregator.require_fits()

    def _require_names(self, what: str, names: Any) -> None:
        """Check that a trait is a tuple of distinct names: files and records are named after them."""
        if not isinstance(names, tuple) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
            raise ConfigError(
                f"{self.name}: {what} = {names!r}: give a tuple of names, each of letters, digits and _ . -, for "
                'example ("control",)'
            )
        if len({*names}) < len(names):
            raise ConfigError(f"{self.name}: {what} = {names!r}: each name is to be there once")

    @property
    def held_vectors(self) -> int:
        """Number of vectors as long as the shared model that a client holds beside the model that it trains.

        The global model, from which the update is measured; what it keeps and receives; and what it computes for its
        steps: a vector for each that it sends besides the update, each gradient, and the result of each training
        before the last.

        >>> from fednlp import ditto, fedavg, scaffold
        >>> [method(1).held_vectors for method in (fedavg, scaffold, ditto)]
        [1, 4, 3]
        """
        given = 1 + len(self.keeps) + len(self.receives)
        return given + len(self.sends) - 1 + self.local_gradients + self.local_trainings - 1

    def local_work(self, steps: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of examples of each client's work in a round; a forward pass counts a third of a step.

        Args:
            steps: Those of its local steps, taken once.
            sizes: Those that it has.
        """
        forwards = self.teachers * steps + self.local_losses * sizes
        return self.local_trainings * steps + self.local_gradients * sizes + forwards // 3
