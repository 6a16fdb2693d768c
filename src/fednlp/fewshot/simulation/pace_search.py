"""Search for the pace of pseudo-labelling by trials one after the other (FeS, Algorithm 1)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.fewshot.config import Fewshot
from fednlp.fewshot.pacing import Pace
from fednlp.fewshot.search import RoundOrder, ask, begin, tell
from fednlp.fewshot.search_rules import PaceSearchRules, initial_list, laptop_list
from fednlp.fewshot.search_state import PaceSearch as SearchState
from fednlp.fewshot.search_state import from_json, to_json
from fednlp.fewshot.simulation.label_holder import LabelHolder
from fednlp.fewshot.simulation.label_judge import LabelJudge
from fednlp.simulation.context import RunContext
from fednlp.simulation.resource_estimation import examples_of_round, fleet_of, seconds_of_round

_UNITS = 3.0, 1.0
"""Time units of training and of labelling an example without a device: a backward pass takes two forward passes."""
_KEPT = "fewshot.kept"


class PaceCosts:
    """The seconds of labelling, of training and of a round that a search divides gains by, means over clients' devices.

    Where no device is known, or nothing that counts takes any of its time, they are units of a forward pass.

    Args:
        whole_round: Whether what a round costs without labelling counts.

    Attributes:
        units: Seconds per example of training and of labelling, or units.
        fleet: The devices; None where they are units.
    """

    def __init__(self, context: RunContext, *, whole_round: bool) -> None:
        self.context, self.batch = context, context.worker.options.examples_per_step
        self.whole_round = whole_round
        self.units, self.fleet = _UNITS, None
        fleet = fleet_of(context.experiment, context.worker.replica.model, context.partition.num_clients)
        if fleet is None:
            return
        # Means over all clients: a pace is not judged by the devices that it drew.
        training, inference = fleet.mean_training(), fleet.mean_inference()
        if training is None or inference is None:
            return
        sends = context.experiment.costs.bandwidth_up or context.experiment.costs.bandwidth_down
        if (training and inference) or (whole_round and sends):
            self.units, self.fleet = (training, inference), fleet

    def of(self, candidates: NDArray[np.int64]) -> tuple[float, float]:
        """Return l_i, the mean seconds of one client's labelling, and l_t, the seconds of one training batch.

        Args:
            candidates: int64 (clients,), texts of each client that may be given a pseudo label.
        """
        training, inference = self.units
        return float(candidates[candidates > 0].mean()) * inference, self.batch * training

    def of_a_round(self, labels: NDArray[np.int64]) -> float:
        """Return the seconds of a round without labelling: messages and local steps, the mean over clients with labels.

        Without a device it is the local steps alone; 0 if it does not count.

        Args:
            labels: int64 (clients,), labelled examples of each client.
        """
        if not self.whole_round:
            return 0.0
        context, algorithm = self.context, self.context.worker.algorithm
        examples = examples_of_round(context.experiment, algorithm, labels)
        seconds = examples * self.units[0]
        if self.fleet is not None:
            seconds = seconds_of_round(self.fleet, algorithm, context.state.layout, examples)
        able = labels > 0 if labels.any() else np.ones(len(labels), dtype=bool)
        return float(seconds[able].mean())


def require_shared(context: RunContext) -> None:
    """Refuse a search over what clients keep: it judges the server's model, and may put it back.

    Raises:
        ConfigError: Clients have personal parameters, or the method has them keep something.
    """
    if context.worker.personalised or context.worker.algorithm.keeps:
        raise ConfigError(
            'fewshot.pacing = "search" puts the model back between trials, and not what clients keep to themselves '
            "(model.train, or the algorithm): share everything, or set another pacing"
        )


def listed_paces(fewshot: Fewshot, clients: int) -> list[Pace]:
    """Return the paces that the first search of a run tries."""
    return (initial_list if fewshot.pace_grid == "paper" else laptop_list)(clients)


def search_rules(
    context: RunContext, fewshot: Fewshot, holder: LabelHolder, costs: PaceCosts
) -> PaceSearchRules:
    """Return the rules of a run's search.

    Theta makes C_train the time to train on k percent of a client's candidates, in batches.

    Args:
        costs: The seconds of its devices.
    """
    candidates = float(holder.candidates.mean())
    return PaceSearchRules(
        trial_rounds=fewshot.trial_rounds,
        candidates=fewshot.candidates,
        threshold=fewshot.threshold,
        window=fewshot.window,
        theta=max(candidates, 1.0) / (100 * context.worker.options.examples_per_step),
        round_seconds=costs.of_a_round(holder.gold),
        max_searches=fewshot.max_searches,
        rounds=context.experiment.num_rounds,
    )


class PaceSearch:
    """Evaluates paces, continues with the best, and evaluates the best ones again when gains decline.

    Args:
        judge: Compares models with the labels that are known.

    Attributes:
        order: The pace of the next round, and what to save or restore before it.

    Raises:
        ConfigError: Clients have personal parameters.
    """

    def __init__(self, context: RunContext, judge: LabelJudge) -> None:
        assert context.experiment.fewshot is not None
        self.context, self.judge, self.fewshot = context, judge, context.experiment.fewshot
        require_shared(context)
        self.costs = PaceCosts(context, whole_round=self.fewshot.trial_cost == "round")

    def begin(self) -> None:
        """Begin the search, or continue the one of a resumed run."""
        context, fewshot, memory = self.context, self.fewshot, self.context.state.memory
        if "search" in memory:
            self._search = from_json(memory["search"])
        else:
            rules = search_rules(context, fewshot, self.judge.holder, self.costs)
            paces = listed_paces(fewshot, context.partition.num_clients)
            self._keep(begin(paces, rules, self.judge.server_score()))
        self.order: RoundOrder = ask(self._search)

    def prepare(self) -> None:
        """Prepare the next round: set its pace, and save or restore what a trial changes."""
        self.order = ask(self._search)
        self._swap()

    def tell(self, line: dict[str, Any]) -> dict[str, Any]:
        """Report the round to the search; return the round's entries about it."""
        search, reported = tell(self._search, self.judge.server_score(), *self._seconds(line))
        self._keep(search)
        return {"pacing": reported}

    def _keep(self, search: SearchState) -> None:
        self._search = search
        self.context.state.memory["search"] = to_json(search)

    def _seconds(self, line: dict[str, Any]) -> tuple[float | None, float, float]:
        """Return the seconds of a client's labelling (None without any), of a training batch, and of the round."""
        training, inference = self.costs.units
        texts = self.judge.holder.candidates[line["labelling"]]
        labelling = float(texts.mean()) * inference if len(texts) else None
        batch = self.context.worker.options.examples_per_step * training
        trained = line["examples"] * training / max(1, len(line["cohort"]))
        return labelling, batch, float(line.get("simulated_seconds", max(labelling or 0.0, trained)))

    def _swap(self) -> None:
        """Save what a trial changes, restore what was saved, and delete what is no longer needed."""
        state, order = self.context.state, self.order
        flagged = state.memory.setdefault("flagged_before", {})
        own = {"params": state.params} | {n: v for n, v in state.vectors.items() if not n.startswith(_KEPT)}
        if order.remember is not None:
            for name, tensor in own.items():
                state.vectors[f"{_KEPT}.{order.remember}.{name}"] = tensor.clone()
            flagged[order.remember] = state.memory["flagged"]
        if order.restore is not None:
            for name, tensor in own.items():
                tensor.copy_(state.vectors[f"{_KEPT}.{order.restore}.{name}"])
            state.memory["flagged"] = flagged[order.restore]
            self.judge.holder.trust_all_but(state.memory["flagged"])
        for name in [n for n in state.vectors if n.startswith(_KEPT) and n.split(".")[2] not in order.keep]:
            del state.vectors[name]
        state.memory["flagged_before"] = {n: clients for n, clients in flagged.items() if n in order.keep}
