"""Few-shot rounds whose pace is searched for while the run goes on (FeS, Algorithm 1)."""

from typing import Any

import numpy as np

from fednlp.errors import ConfigError
from fednlp.fewshot.pacing import FixedPacing, Pace, num_pseudo_labels
from fednlp.fewshot.search import RoundOrder, ask, begin, tell
from fednlp.fewshot.search_rules import PaceSearchRules, initial_list, laptop_list
from fednlp.fewshot.search_state import from_json, to_json
from fednlp.simulation.context import Course
from fednlp.simulation.pseudo_labels import FewShot

_UNITS = 3.0, 1.0
"""An example's training and labelling, where no device is named: backwards is twice the work of forwards."""
_KEPT = "fewshot.kept"


class Paced(FewShot):
    """Few-shot rounds that try paces, go on with the best, and try the best ones again where gains fall off."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        fewshot, memory = self.fewshot, course.state.memory
        if course.side.personalised:
            raise ConfigError(
                'fewshot.pacing = "search" puts the model back between trials, and not what clients keep to themselves '
                "(model.train): share everything, or set another pacing"
            )
        self.units = _UNITS
        if self.fleet is not None:  # means over all clients: a pace is not judged by the devices that it drew
            training, inference = self.fleet.mean_training(), self.fleet.mean_inference()
            if training and inference:
                self.units = training, inference
        if "search" not in memory:
            rules = PaceSearchRules(
                trial_rounds=fewshot.trial_rounds,
                candidates=fewshot.candidates,
                threshold=fewshot.threshold,
                window=fewshot.window,
                switches=fewshot.switches,
                rounds=self.rounds,
            )
            listed = initial_list if fewshot.paces == "paper" else laptop_list
            paces = listed(course.partition.num_clients)
            memory["search"] = to_json(begin(paces, rules, self._accuracy()))
        self.order: RoundOrder = ask(from_json(memory["search"]))

    def pace(self) -> Pace | FixedPacing:
        """Return the pace that the search wants tried, or has found."""
        return self.order.pace

    def due(self, pace: Pace | FixedPacing, number: int) -> bool:
        """Whether clients label in a round, by the age of its pace."""
        return self.order.labelling > 0

    def taken(self, pace: Pace | FixedPacing, texts: int) -> int:
        """Return how many of its texts a client gives a pseudo label, going on from the paces before."""
        return num_pseudo_labels(pace, self.order.labelling, texts, self.order.reached)

    def drawn_by(self) -> int:
        """Return what cohorts are drawn by: the same for all trials of a search."""
        return self.order.iteration + 1

    def round(self) -> dict[str, Any]:
        """Do one round under the pace that is due, and let the search know how it went."""
        memory = self.course.state.memory
        search = from_json(memory["search"])
        self.order = ask(search)
        self._swap()
        line = super().round()
        search, said = tell(search, self._accuracy(), *self._seconds(line))
        memory["search"] = to_json(search)
        return line | {"pacing": said}

    def _accuracy(self) -> float:
        """Return the accuracy on the labels that the server has for this."""
        numbers, labels = self.known.validation
        return float((self.guesses(numbers).argmax(axis=1) == labels).mean())

    def _seconds(self, line: dict[str, Any]) -> tuple[float | None, float, float]:
        """Return what one client's labelling, one training batch, and the whole round take on the device."""
        training, inference = self.units
        texts = [len(self.candidates(client)) for client in line["labelling"]]
        labelling = float(np.mean(texts)) * inference if texts else None
        batch = self.course.side.options.batch_size * training
        trained = line["examples"] * training / max(1, len(line["cohort"]))
        return labelling, batch, float(line.get("simulated_seconds", max(labelling or 0.0, trained)))

    def _swap(self) -> None:
        """Remember all that a trial changes, put back what is remembered, forget what is no longer needed."""
        state, order = self.course.state, self.order
        flagged = state.memory.setdefault("flagged_before", {})
        own = {"x": state.x, **{n: t for n, t in state.slots.items() if not n.startswith(_KEPT)}}
        if order.remember is not None:
            for name, tensor in own.items():
                state.slots[f"{_KEPT}.{order.remember}.{name}"] = tensor.clone()
            flagged[order.remember] = state.memory["flagged"]
        if order.restore is not None:
            for name, tensor in own.items():
                tensor.copy_(state.slots[f"{_KEPT}.{order.restore}.{name}"])
            state.memory["flagged"] = flagged[order.restore]
            self.trust_all_but(state.memory["flagged"])
        for name in [n for n in state.slots if n.startswith(_KEPT) and n.split(".")[2] not in order.keep]:
            del state.slots[name]
        state.memory["flagged_before"] = {n: clients for n, clients in flagged.items() if n in order.keep}
