"""Trials of paces at once: the cohort trains the run's model, and groups of idle clients label and train beside it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.client import TrainRequest
from fednlp.federated.round import RoundReport
from fednlp.federated.state import State
from fednlp.fewshot.gold import every_second
from fednlp.fewshot.pacing import label_quota
from fednlp.fewshot.search import RoundOrder
from fednlp.fewshot.simulation.label_holder import Numbers
from fednlp.fewshot.simulation.label_judge import LabelJudge
from fednlp.fewshot.simulation.pace_search import PaceCosts, listed_paces, require_shared, search_rules
from fednlp.fewshot.simulation.round_parts import RoundPart
from fednlp.fewshot.trial_waves import (
    TrialWaves,
    after_round,
    begin_wave,
    deal_groups,
    end_wave,
    new_search,
    num_idle,
    require_time,
    wave_size,
    waves_from_json,
    waves_to_json,
    went_on,
)
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext

_TRIAL, _BEFORE = "fewshot.trial", "fewshot.trial.before"
Drawn = Callable[[int, Numbers], list[int]]
"""(number of clients, candidates of each) -> the clients that label."""


class PaceTrials:
    """Tries paces at once on idle clients beside the run's training, and continues with the best pace.

    A trial leaves nothing but its result: the model of the run is trained by the control alone, and the labels that
    are given in trials are deleted after them.

    Args:
        judge: Compares models with the labels that are known.

    Attributes:
        order: The pace of the next round, if no trial is made in it.

    Raises:
        ConfigError: Clients have personal parameters.
    """

    def __init__(self, context: RunContext, judge: LabelJudge) -> None:
        assert context.experiment.fewshot is not None
        require_shared(context)
        self.context, self.judge, self.fewshot = context, judge, context.experiment.fewshot
        self.costs = PaceCosts(context, whole_round=self.fewshot.trial_cost == "round")
        # The runtime keeps what is published where the run's model lies, and the groups' models are published too.
        context.state.params = context.state.params.clone()

    def begin(self) -> None:
        """Begin the search, or continue the one of a resumed run.

        Raises:
            ConfigError: The run is too short for the search, or has too few gold labels to judge it.
        """
        saved = self.context.state.memory.get("waves")
        if saved is not None:
            self._search: TrialWaves = waves_from_json(saved)
            return
        context, holder, clients = self.context, self.judge.holder, self.context.partition.num_clients
        rules = search_rules(context, self.fewshot, holder, self.costs)
        search = new_search(listed_paces(self.fewshot, clients), rules)
        self._keep(search)
        if self._by_gold and not self._held.any():
            raise ConfigError(
                "half of each class's gold labels judge the paces and the other half train in trials: have two of one "
                "class at least, or say how many labelled texts the server has, fewshot.validation = 128"
            )
        require_time(search, self._idle(self.train_sizes()))

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
        search, state = self._search, self.context.state
        if not search.searching:
            return
        if not search.groups:
            sizes = self.train_sizes()
            left, idle = search.paces[len(search.tried) :], self._idle(sizes)
            wave = left[: wave_size(left, idle)]
            rng = generator(self.context.experiment.seed, "pace trials", state.round)
            groups = deal_groups(wave, sizes, self.judge.holder.candidates, idle, rng)
            # The control of the wave before has the run's model, which was judged then.
            again = bool(search.tried)
            started = search.started if again else self._score(state.params)
            self._keep(begin_wave(search, groups, started))
            before = {name: vector.clone() for name, vector in state.vectors.items() if _is_label(name)}
            state.vectors.update({f"{_BEFORE}.{name}": vector for name, vector in before.items()})
            for number in range(1, len(groups)):
                self._store(number, State(0, state.layout, *self._own(state)))
            for client, texts in [] if again else self._judging():
                self.judge.count(client, texts)
        elif search.age == search.rules.trial_rounds - 1:
            for client, texts in self._judging():
                self.judge.count_models(client, texts, len(search.groups))

    def train_sizes(self) -> Numbers:
        """Return the number of labelled examples that each client trains on in the next round, int64 (clients,)."""
        holder = self.judge.holder
        owners = holder.known.owners[self._held]
        held = np.bincount(owners, minlength=len(holder.gold)).astype(np.int64)
        return holder.gold + holder.pseudo - held

    def held_texts(self) -> frozenset[int]:
        """Return the texts whose gold labels judge the paces; those train nobody until the search ends."""
        return frozenset(self.judge.holder.known.examples[self._held].tolist())

    def parts(self, sizes: Numbers, drawn: Drawn) -> list[RoundPart]:
        """Return the parts of a round of trials: the control's, which trains the run's model, then one for each pace.

        Args:
            sizes: int64 (clients,), labelled examples of each client.
            drawn: Draws the clients that label.
        """
        search, candidates = self._search, self.judge.holder.candidates
        found = []
        for number, (group, pace) in enumerate(zip(search.groups, (None, *search.wave), strict=True)):
            part = RoundPart(self._state(number), _within(sizes, group), pace=pace)
            if pace is not None and (labelling := search.labelling(pace)):
                part.labelling = drawn(pace.n, _within(candidates, group))
                part.quota = label_quota(pace, labelling, search.reached)
            found.append(part)
        return found

    def finish(self, parts: Sequence[RoundPart], reports: Sequence[RoundReport]) -> None:
        """Make each group's model the mean of the run's and its own, over their examples, as if one cohort had trained.

        Args:
            parts: The parts of the round.
            reports: The numbers of each.
        """
        state, control = self.context.state, reports[0].examples
        for number, (part, report) in enumerate(zip(parts[1:], reports[1:], strict=True), start=1):
            if control + report.examples:
                share = report.examples / (control + report.examples)
                _move(part.state.params, state.params, share)
                for name, vector in part.state.vectors.items():
                    if vector.is_floating_point():
                        _move(vector, state.vectors[name], share)
            self._store(number, part.state)
        self._keep(went_on(self._search))

    def tell(self, line: dict[str, Any]) -> dict[str, Any]:
        """Report a round to the search; return the round's entries about it."""
        search = self._search
        if not search.searching:
            return {"pacing": self._tell_run(went_on(search), line)}
        told: dict[str, Any] = {"phase": "trial", "paces": [list(pace.numbers) for pace in search.wave]}
        told["groups"] = [list(group) for group in search.groups]
        if search.age == search.rules.trial_rounds:
            accuracies = [self._score(self._state(number).params) for number in range(len(search.groups))]
            inference, training = self.costs.of(self.judge.holder.candidates)
            search, decision = end_wave(search, accuracies, inference, training)
            told |= decision
            self._forget()
            if not search.searching and not self._by_gold:
                search = replace(search, accuracies=(accuracies[0],))
            self._keep(search)
        return {"pacing": told}

    def _tell_run(self, search: TrialWaves, line: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {"phase": "run", "pace": list(search.paces[0].numbers)}
        if not self._by_gold:  # gold labels that all clients have trained on judge nothing
            inference, training = self.costs.of(self.judge.holder.candidates)
            left = self.context.experiment.num_rounds - line["round"]
            accuracy = self._score(self.context.state.params)
            search, decision = after_round(search, accuracy, inference, training, left)
            told |= decision
        self._keep(search)
        return told

    @property
    def _by_gold(self) -> bool:
        return not len(self.judge.holder.known.validation[0])

    def _keep(self, search: TrialWaves) -> None:
        self._search = search
        self.context.state.memory["waves"] = waves_to_json(search)

    @property
    def _held(self) -> NDArray[np.bool_]:
        """The gold labels that judge the paces, bool by gold label; none if the server has labels, or has no search."""
        holder = self.judge.holder
        known = holder.known
        if not self._by_gold or not self.trying:
            return np.zeros(len(known.owners), dtype=bool)
        return every_second(known.owners, known.labels) & (holder.gold[known.owners] > 0)

    def _idle(self, sizes: Numbers) -> int:
        able = int(np.count_nonzero(sizes))
        return num_idle(len(sizes), able, self.context.experiment.clients_per_round)

    def _score(self, params: Tensor) -> float:
        """Return a model's score on the labels that judge the paces, 0 to 1."""
        known = self.judge.holder.known
        texts = known.validation
        if self._by_gold:
            texts = known.examples[self._held], known.labels[self._held]
        return self.judge.score(params, *texts)

    def _judging(self) -> Iterable[tuple[int, int]]:
        """Return the clients whose gold labels judge the paces, each with the number of these labels."""
        owners, texts = np.unique(self.judge.holder.known.owners[self._held], return_counts=True)
        return zip(owners.tolist(), texts.tolist(), strict=True)

    def _own(self, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Return copies of what training changes: the model, and the vectors of the server's optimiser."""
        own = {name: v.clone() for name, v in state.vectors.items() if not name.startswith("fewshot.")}
        return state.params.clone(), own

    def _store(self, number: int, part: State) -> None:
        for name, tensor in {"params": part.params, **part.vectors}.items():
            self.context.state.vectors[f"{_TRIAL}.{number}.{name}"] = tensor

    def _state(self, number: int) -> State:
        """Return the server of a group; the control's is the run's."""
        state, prefix = self.context.state, f"{_TRIAL}.{number}."
        if number == 0:
            return state
        own = {n.removeprefix(prefix): v for n, v in state.vectors.items() if n.startswith(prefix)}
        return State(state.round, state.layout, own.pop("params"), own, state.memory)

    def _forget(self) -> None:
        """Delete the groups' models, and put back the labels that clients had before the trials."""
        vectors = self.context.state.vectors
        for name in [name for name in vectors if name.startswith(f"{_BEFORE}.")]:
            vectors[name.removeprefix(f"{_BEFORE}.")].copy_(vectors[name])
        for name in [name for name in vectors if name.startswith(f"{_TRIAL}.")]:
            del vectors[name]


def without(request: TrainRequest, texts: frozenset[int]) -> TrainRequest:
    """Return a request without the labels of some texts."""
    if not texts or request.examples is None or request.labels is None:
        return request
    pairs = [pair for pair in zip(request.examples, request.labels, strict=True) if pair[0] not in texts]
    return replace(request, examples=[one for one, _ in pairs], labels=[label for _, label in pairs])


def _is_label(name: str) -> bool:
    return name.startswith("fewshot.") and not name.startswith(_TRIAL)


def _within(numbers: Numbers, group: Sequence[int]) -> Numbers:
    """Return numbers by client, 0 for those outside of a group."""
    own = np.zeros_like(numbers)
    own[list(group)] = numbers[list(group)]
    return own


def _move(own: Tensor, main: Tensor, share: float) -> None:
    """Make a tensor the weighted mean of itself and another, in 64 bits."""
    own.copy_(main.double().mul_(1 - share).add_(own.double(), alpha=share))
