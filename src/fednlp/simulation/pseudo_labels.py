"""Rounds with few labels: clients that have some train, others label their texts, side by side (FeS, section 2.3).

Whoever has a gold or a pseudo label may be drawn to train; n clients are drawn to label, every f rounds. Both have
the same global model; what is labelled in a round is trained on from the next round on. The data set's labels are
read once, for those that are gold: no other label reaches a worker, a choice or the score that a choice is made by.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fednlp.costs import merge
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.exchange import bytes_down
from fednlp.federated.round import Gathered, Reply
from fednlp.federated.state import State
from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.noisy_labels import find_noisy_clients
from fednlp.fewshot.pacing import FixedPacing, Pace, is_labelling_round, most_confident, num_pseudo_labels
from fednlp.seeds import generator
from fednlp.simulation.context import Course
from fednlp.simulation.gold_labels import gold_labels_of
from fednlp.simulation.rounds import Federated, spent

Numbers = NDArray[np.int64]
PSEUDO = "fewshot.pseudo"
"""The slot of the state in which pseudo labels lie: int32, one an example of the training set, -1 for none."""


class FewShot(Federated):
    """Rounds of a federated algorithm on gold and pseudo labels."""

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        assert course.experiment.fewshot is not None
        self.fewshot = course.experiment.fewshot
        self.known: GoldLabels = gold_labels_of(course)
        self.base = self.algorithm
        texts = len(course.side.train_features)
        course.state.slots.setdefault(PSEUDO, torch.full((texts,), -1, dtype=torch.int32))
        course.state.memory.setdefault("labellings", 0)
        course.gold = self.known.examples, self.known.labels
        course.labelled = self.labelled
        course.facts["fewshot"] = self.known.facts()
        if self.fewshot.check and course.side.replica.personal.numel:
            raise ConfigError(
                "fewshot.check asks the server's model, whose personal layers (model.train) no client has trained: "
                "share everything, or leave fewshot.check out"
            )
        self.trust_all_but(course.state.memory.setdefault("flagged", []))
        self._labelling: list[int] = []
        self._found: dict[int, list[list[Any]]] = {}

    @property
    def pseudo(self) -> NDArray[np.int32]:
        """Return the pseudo labels as they stand, by example number; a view of the state."""
        return self.course.state.slots[PSEUDO].numpy()

    def pace(self) -> Pace | FixedPacing:
        """Return the pace of the next round."""
        if self.fewshot.pacing == "static":
            return FixedPacing(self.fewshot.per_client, self.fewshot.f, self.fewshot.n)
        return Pace(self.fewshot.f, self.fewshot.n, self.fewshot.k)

    def taken(self, pace: Pace | FixedPacing, texts: int) -> int:
        """Return how many of its texts a client gives a pseudo label at this labelling."""
        return num_pseudo_labels(pace, self.course.state.memory["labellings"], texts)

    def candidates(self, client: int) -> Numbers:
        """Return the texts of a client that may be given a pseudo label."""
        own = self.course.partition.train(client)
        return np.sort(own[self.usable[own]])

    def labelled(self, client: int) -> tuple[Numbers, Numbers]:
        """Return the texts of a client that have a label now, and their labels: gold, then pseudo."""
        candidates, pseudo = self.candidates(client), self.pseudo
        given = candidates[pseudo[candidates] >= 0]
        numbers, labels = self.known.of(client) if self.held[client] else self.known.of(-1)
        return np.concatenate([numbers, given]), np.concatenate([labels, pseudo[given].astype(np.int64)])

    def round(self) -> dict[str, Any]:
        """Do one round: draw who trains and who labels, do both, and take over the new labels."""
        course, number = self.course, self.course.state.round + 1
        pace = self.pace()
        due_now = self.due(pace, number)
        self.beside = {}
        flagged = self._check() if due_now and self.fewshot.check else []
        self.sizes = self.held + self._counts(self.pseudo >= 0)
        able = np.flatnonzero(self.sizes)
        self._labelling = self._drawn(pace.n) if due_now else []
        if not len(able) and not self._labelling:
            raise ConfigError("no client has a label to train on, and none is to label: raise fewshot.gold")
        self.algorithm = replace(self.base, sample=_among(self.base, able, self.drawn_by()))
        course.state.memory["labellings"] += bool(self._labelling)
        for client in self._labelling:
            self._charge(client, len(self.candidates(client)))
        line = super().round()
        if self._labelling and not self._found:  # a secure sum gave up before anybody was asked
            with self.arrived(number, course.state):
                self._train(number, {}, lambda count: None)
        self._take_over(pace)
        line["labelling"] = self._labelling
        if flagged:
            line["flagged"] = flagged
        line["labels"] = {"gold": int(self.held.sum()), "pseudo": int((self.pseudo >= 0).sum())}
        return line

    def pieces(self) -> int:
        """Return how many clients train and label in the next round."""
        able = min(self.course.experiment.clients_per_round, int(np.count_nonzero(self.sizes)))
        return able + len(self._labelling)

    def _check(self) -> list[int]:
        """Find clients whose gold labels look wrong to the model as it is, and take these for unlabelled."""
        memory, known = self.course.state.memory, self.known
        asked = np.flatnonzero(self.held[known.owners] > 0)
        with self.arrived(self.course.state.round + 1, self.course.state):
            said = self.guesses(known.examples[asked])
        found: list[int] = find_noisy_clients(known.owners[asked], known.labels[asked], said).tolist()
        for client in np.flatnonzero(self.held).tolist():
            self._charge(client, int(self.held[client]))
        memory["flagged"] = sorted({*memory["flagged"], *found})
        self._distrust(found)
        return found

    def trust_all_but(self, flagged: list[int]) -> None:
        """Take the gold labels of all clients for labels, but for those of flagged ones."""
        self.usable, self.held = self.known.usable.copy(), self.known.counts()
        self._distrust(flagged)

    def _distrust(self, clients: list[int]) -> None:
        """Take the gold labels of clients for unlabelled texts from here on."""
        for client in clients:
            self.usable[self.known.of(client)[0]] = True
            self.held[client] = 0

    def guesses(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return what the global model gives each label for each of some training texts, (texts, labels).

        Batches are cut by the texts alone, so that the last bit does not depend on the number of workers.
        """
        course, size = self.course, self.course.side.recipe.evaluation_batch
        order = np.argsort(-course.side.train_features.lengths(numbers), kind="stable")
        parts = [numbers[order[start : start + size]].tolist() for start in range(0, len(order), size)]
        job = {"kind": "guess", "unlabelled": parts}
        rows = [row for part in course.pool.do(job, len(parts), course.state.x) for row in part]
        found = np.empty((len(numbers), len(self.known.label_names)))
        found[order] = np.array(rows).reshape(found.shape)
        return found

    def due(self, pace: Pace | FixedPacing, number: int) -> bool:
        """Whether clients label in a round."""
        return self.fewshot.pacing != "none" and is_labelling_round(pace, number, 1)

    def drawn_by(self) -> int:
        """Return the number that cohorts are drawn by: the round's."""
        return self.course.state.round + 1

    def _counts(self, which: NDArray[np.bool_]) -> Numbers:
        """Return how many of each client's training examples are among those marked."""
        partition = self.course.partition
        upto = np.concatenate([[0], np.cumsum(which[partition.train_indices])])
        return upto[partition.train_offsets[1:]] - upto[partition.train_offsets[:-1]]  # type: ignore[no-any-return]

    def _drawn(self, count: int) -> list[int]:
        """Draw who labels in the next round, among those with texts to label."""
        rng = generator(self.course.experiment.seed, "labelling", self.drawn_by())
        clients = np.flatnonzero(self._counts(self.usable))
        drawn: list[int] = np.sort(rng.choice(clients, min(count, len(clients)), replace=False)).tolist()
        return drawn

    def _charge(self, client: int, texts: int) -> None:
        """Count that a client gets the model in this round, and runs it over some texts."""
        layout, exchange = self.course.state.layout, self.course.side.exchange
        down, tensors = bytes_down(exchange, layout), len(layout.entries)
        got = self.with_factors(
            Reply(client, 0.0, bytes_up=0, sent=[], bytes_down=down, tensors_down=tensors)
        )
        more = replace(spent(layout, got), labelled=texts)
        self.beside[client] = merge(self.beside[client], more) if client in self.beside else more

    def train(
        self, round_number: int, state: State, factors: dict[int, float], done: Callable[[int], None]
    ) -> Gathered:
        """Train the cohort; where nobody has a label yet, there is only labelling to do."""
        if factors:
            return super().train(round_number, state, factors, done)
        with self.arrived(round_number, state):
            self._train(round_number, factors, done)
        return Gathered(
            self.course.pool.total, [], aborted="no client has a label yet, and some get theirs now"
        )

    def _train(
        self,
        round_number: int,
        factors: dict[int, float],
        done: Callable[[int], None],
        hiding: dict[int, dict[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Train clients on what labels they have, and have others label their texts beside."""
        course = self.course
        job, order = self.job(round_number, factors, hiding)
        job["labelled"] = [[part.tolist() for part in self.labelled(client)] for client in order]
        job["labelling"] = self._labelling
        job["unlabelled"] = [self.candidates(client).tolist() for client in self._labelling]
        results = course.pool.do(job, len(order) + len(self._labelling), course.state.x, done)
        self._found = dict(zip(self._labelling, results[len(order) :], strict=True))
        return results[: len(order)]

    def _take_over(self, pace: Pace | FixedPacing) -> None:
        """Give each client that labelled its surest texts' labels anew; its earlier pseudo labels are gone."""
        for client, (labels, confidences) in self._found.items():
            texts = self.candidates(client)
            said = np.array(labels, dtype=np.int32)
            among = said if self.fewshot.per_label else None
            best = most_confident(np.array(confidences), self.taken(pace, len(texts)), among)
            self.pseudo[texts] = -1
            self.pseudo[texts[best]] = said[best]
        self._found = {}


def _among(algorithm: Algorithm, able: Numbers, number: int) -> Callable[[int, int, int], list[int]]:
    """Return how a cohort is drawn among the clients that have a label, by a number in place of the round's."""

    def sample(seed: int, round_number: int, clients: int) -> list[int]:
        return [int(able[place]) for place in algorithm.sample(seed, number, len(able))] if len(able) else []

    return sample
