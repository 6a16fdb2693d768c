"""Trials of paces at once: in a round, each group of clients trains and labels with a model of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fednlp.config.sections import Fewshot
from fednlp.errors import ConfigError
from fednlp.federated.round import RoundReport
from fednlp.federated.state import State
from fednlp.fewshot.pacing import label_quota
from fednlp.fewshot.search import RoundOrder
from fednlp.fewshot.trial_waves import (
    TrialWaves,
    after_round,
    begin_wave,
    deal_groups,
    end_wave,
    new_search,
    require_time,
    wave_size,
    waves_from_json,
    waves_to_json,
    went_on,
)
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.simulation.label_holder import LabelHolder, Numbers
from fednlp.simulation.pace_search import PaceCosts, listed_paces, require_shared, search_rules
from fednlp.simulation.round_parts import RoundPart

_TRIAL = "fewshot.trial"
Drawn = Callable[[int, Numbers], list[int]]
"""(number of clients, candidates of each) -> the clients that label."""


class JudgedLabels(Protocol):
    """The methods of the run's labels that trials call."""

    fewshot: Fewshot
    holder: LabelHolder

    def correct(self, params: Tensor, numbers: Numbers, labels: Numbers) -> Numbers:
        """Return 1 for each text that a model gives its label, else 0."""

    def count_validation(self, client: int, models: int) -> None:
        """Count the gold labels of a client as run through models that it is sent for that."""


class PaceTrials:
    """Tries paces at once on groups of clients, and continues with the best from the mean of the groups' models.

    Args:
        context: The run.
        labels: The run's labels.

    Attributes:
        order: The pace of the next round, if no trial is made in it.

    Raises:
        ConfigError: Clients have personal parameters.
    """

    def __init__(self, context: RunContext, labels: JudgedLabels) -> None:
        require_shared(context)
        self.context, self.labels = context, labels
        self.costs = PaceCosts(context)

    def begin(self) -> None:
        """Begin the search, or continue the one of a resumed run.

        Raises:
            ConfigError: The run is too short for the search, or too few clients have gold labels to judge it.
        """
        if "waves" in self.context.state.memory:
            return
        context, holder, clients = self.context, self.labels.holder, self.context.partition.num_clients
        rules = search_rules(context, self.labels.fewshot, float(holder.candidates.mean()))
        search = new_search(listed_paces(self.labels.fewshot, clients), rules)
        able = int(np.count_nonzero(holder.gold))
        if self._by_gold and wave_size(search.paces, clients, able) < len(search.paces):
            raise ConfigError(
                f"cross-validating {len(search.paces)} paces by gold labels needs {len(search.paces) + 1} clients that "
                f"have some and {sum(pace.n for pace in search.paces) + 1} clients in all, and {able} of {clients} "
                "have: say how many labelled texts the server has, fewshot.validation = 128, or raise fewshot.gamma"
            )
        require_time(search, clients, able)
        self._keep(search)

    @property
    def order(self) -> RoundOrder:
        """The pace of the next round, if no trial is made in it."""
        search = self._search
        pace = search.paces[0]
        labelling = search.labelling(pace)
        return RoundOrder(pace, self.context.state.round, labelling, search.reached, None, None, ())

    @property
    def trying(self) -> bool:
        """True if trials are made in the next round."""
        return self._search.searching

    def prepare(self) -> None:
        """Begin a wave of trials where one is due; count what the judgement of the next round's models costs."""
        search = self._search
        if not search.searching:
            return
        holder, memory = self.labels.holder, self.context.state.memory
        if not search.groups:
            able = int(np.count_nonzero(holder.gold + holder.pseudo))
            left = search.paces[len(search.tried) :]
            wave = left[: wave_size(left, len(holder.gold), able)]
            rng = generator(self.context.experiment.seed, "pace trials", self.context.state.round)
            groups = deal_groups(wave, holder.gold + holder.pseudo, holder.candidates, rng)
            search = begin_wave(search, groups, self._scores([self.context.state.params], groups))
            memory["waves"] = waves_to_json(search)
            for number in range(len(groups)):
                self._store(number, State(0, self.context.state.layout, *self._own(self.context.state)))
            self._count(models=1)
        if search.age == search.rules.trial_rounds - 1:
            self._count(models=len(search.groups) - 1)

    def parts(self, sizes: Numbers, drawn: Drawn) -> list[RoundPart]:
        """Return the parts of a round of trials: the control's, then one for each pace.

        All train as many clients, as far as a group has them.

        Args:
            sizes: int64 (clients,), labelled examples of each client.
            drawn: Draws the clients that label.
        """
        search, candidates = self._search, self.labels.holder.candidates
        state, most = self.context.state, self.context.experiment.clients_per_round
        share = max(1, min(most, int(np.count_nonzero(sizes)) // len(search.groups)))
        rng = generator(self.context.experiment.seed, "trial cohorts", state.round + 1)
        found = []
        for number, (group, pace) in enumerate(zip(search.groups, (None, *search.wave), strict=True)):
            able = [client for client in group if sizes[client]]
            part = RoundPart(self._state(number), np.zeros_like(sizes), pace=pace)
            cohort = rng.choice(np.array(able, dtype=np.int64), min(share, len(able)), replace=False)
            part.sizes[cohort] = sizes[cohort]
            if pace is not None and (labelling := search.labelling(pace)):
                own = np.zeros_like(candidates)
                own[list(group)] = candidates[list(group)]
                part.labelling = drawn(pace.n, own)
                part.quota = label_quota(pace, labelling, search.reached)
            found.append(part)
        return found

    def finish(self, parts: Sequence[RoundPart], reports: Sequence[RoundReport]) -> None:
        """Keep the models of the groups after a round, and make the global model their mean over their examples."""
        search, state = self._search, self.context.state
        search = went_on(search, [report.examples for report in reports])
        state.memory["waves"] = waves_to_json(search)
        weights = np.array(search.examples, dtype=np.float64)
        if weights.any():
            for name, mean in _means([self._tensors(part.state) for part in parts], weights).items():
                (state.params if name == "params" else state.vectors[name]).copy_(mean)
        for number, part in enumerate(parts):
            self._store(number, part.state)
        state.round += 1

    def tell(self, line: dict[str, Any]) -> dict[str, Any]:
        """Report a round to the search; return the round's entries about it."""
        search = self._search
        if not search.searching:
            return {"pacing": self._tell_run(went_on(search), line)}
        told: dict[str, Any] = {"phase": "trial", "paces": [list(pace.numbers) for pace in search.wave]}
        told["groups"] = [list(group) for group in search.groups]
        if search.age == search.rules.trial_rounds:
            models = [self._state(number).params for number in range(len(search.groups))]
            accuracies = self._scores(models, search.groups)
            inference, training = self.costs.of(self.labels.holder.candidates)
            search, decision = end_wave(search, accuracies, inference, training)
            told |= decision
            self._forget()
            if not search.searching and not self._by_gold:
                search = replace(search, accuracies=(self._score(self.context.state.params),))
            self._keep(search)
        return {"pacing": told}

    def _tell_run(self, search: TrialWaves, line: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {"phase": "run", "pace": list(search.paces[0].numbers)}
        if not self._by_gold:  # gold labels that all clients have trained on judge nothing
            inference, training = self.costs.of(self.labels.holder.candidates)
            left = self.context.experiment.num_rounds - line["round"]
            accuracy = self._score(self.context.state.params)
            search, decision = after_round(search, accuracy, inference, training, left)
            told |= decision
        self._keep(search)
        return told

    @property
    def _by_gold(self) -> bool:
        return not len(self.labels.holder.known.validation[0])

    @property
    def _search(self) -> TrialWaves:
        return waves_from_json(self.context.state.memory["waves"])

    def _keep(self, search: TrialWaves) -> None:
        self.context.state.memory["waves"] = waves_to_json(search)

    def _score(self, params: Tensor) -> float:
        return float(self.labels.correct(params, *self.labels.holder.known.validation).mean())

    def _scores(self, models: Sequence[Tensor], groups: Sequence[Sequence[int]]) -> list[float]:
        """Return the accuracy of each group's model: on the server's labels, or on the gold labels of other groups.

        Args:
            models: Of each group; one for all of them.
            groups: The clients of each group.
        """
        holder = self.labels.holder
        known = holder.known
        numbers, labels = known.validation
        owners = np.full(len(numbers), -1)
        if self._by_gold:
            used = holder.gold[known.owners] > 0
            numbers, labels, owners = known.examples[used], known.labels[used], known.owners[used]
        right = [self.labels.correct(model, numbers, labels) for model in models]
        rows = right if len(models) > 1 else right * len(groups)
        return [float(row[~np.isin(owners, group)].mean()) for row, group in zip(rows, groups, strict=True)]

    def _count(self, models: int) -> None:
        if self._by_gold:
            for client in np.flatnonzero(self.labels.holder.gold).tolist():
                self.labels.count_validation(client, models)

    def _own(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return copies of what training changes: the model, and the vectors of the server's optimiser."""
        return state.params.clone(), {name: v.clone() for name, v in _optimizer(state.vectors).items()}

    def _tensors(self, state: State) -> dict[str, Tensor]:
        return {"params": state.params} | {
            name: v for name, v in state.vectors.items() if v.is_floating_point()
        }

    def _store(self, number: int, part: State) -> None:
        for name, tensor in {"params": part.params, **part.vectors}.items():
            self.context.state.vectors[f"{_TRIAL}.{number}.{name}"] = tensor

    def _state(self, number: int) -> State:
        """Return the server of a group."""
        state, prefix = self.context.state, f"{_TRIAL}.{number}."
        own = {n.removeprefix(prefix): v for n, v in state.vectors.items() if n.startswith(prefix)}
        return State(state.round, state.layout, own.pop("params"), own, state.memory)

    def _forget(self) -> None:
        for name in [name for name in self.context.state.vectors if name.startswith(f"{_TRIAL}.")]:
            del self.context.state.vectors[name]


def _optimizer(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: vector for name, vector in vectors.items() if not name.startswith("fewshot.")}


def _means(models: Sequence[dict[str, Tensor]], weights: np.ndarray) -> dict[str, Tensor]:
    """Return the weighted mean of each floating-point tensor, summed in 64 bits in the order of the groups."""
    shares = (weights / weights.sum()).tolist()
    found = {}
    for name in models[0]:
        total = torch.zeros_like(models[0][name], dtype=torch.float64)
        for share, model in zip(shares, models, strict=True):
            total.add_(model[name].double(), alpha=share)
        found[name] = total.to(models[0][name].dtype)
    return found
