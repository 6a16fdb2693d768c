"""Rounds with few labels: clients that have some train, others label their texts alongside (FeS, section 2.3).

Clients with a gold or a pseudo label may be drawn to train; n clients are drawn to label, every f rounds. Both use the
same global model. Texts labelled in a round are trained on from the next round on. The data set's labels are read
once, for the gold ones: no other label reaches a worker, a decision, or a score that a decision is based on.

Any algorithm can be trained so: :func:`with_pseudo_labels` draws its cohorts among the clients that have labels, and
:class:`PseudoLabels` stands between the round and the runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import TrainRequest
from fednlp.federated.cohort import Cohort, Population
from fednlp.federated.round import RoundReport, publish
from fednlp.federated.runtime import MODEL
from fednlp.federated.transforms import RngKey
from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.noisy_labels import find_noisy_clients
from fednlp.fewshot.pacing import FixedPacing, Pace, is_labelling_round, most_confident, num_pseudo_labels
from fednlp.runtime.messages import LabelRequest, Labels, Probabilities, ProbabilitiesRequest
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.simulation.gold_labels import gold_labels_of
from fednlp.simulation.pace_search import PaceSearch

Numbers = NDArray[np.int64]
PSEUDO = "fewshot.pseudo"
"""Name of the state's vector of pseudo labels: int32 (training examples,), -1 for none."""


def with_pseudo_labels(
    algorithm: Algorithm, stream: Callable[[int], int] = lambda round_number: round_number
) -> Algorithm:
    """Return the algorithm with cohorts drawn among the clients that have examples with labels.

    Args:
        algorithm: Any method.
        stream: Maps a round's number to the number that its cohort is drawn with.
    """

    def sample(population: Population, round_number: int) -> Cohort:
        able = np.flatnonzero(population.sizes)
        if not len(able):
            return Cohort([], reason="no client has a label yet, and some get theirs now")
        among = replace(population, sizes=population.sizes[able])
        drawn = algorithm.sample(among, stream(round_number))
        return replace(drawn, clients=[int(able[place]) for place in drawn.clients])

    return replace(algorithm, sample=sample)


class PseudoLabels:
    """The labels of a run, and a runtime that trains clients on them while other clients label their texts.

    Args:
        context: The run.
        algorithm: The method.

    Attributes:
        algorithm: The method, on the clients that have labels.
        sizes: int64 (clients,), number of labelled examples of each client.
        texts_seen: Number of texts by client that it has run the model over in this round, training excluded.
        total: The pool's aggregation.
    """

    def __init__(self, context: RunContext, algorithm: Algorithm) -> None:
        assert context.experiment.fewshot is not None
        self.context, self.fewshot = context, context.experiment.fewshot
        self.known: GoldLabels = gold_labels_of(context)
        self.search = PaceSearch(context, self) if self.fewshot.pacing == "search" else None
        self.algorithm = with_pseudo_labels(algorithm, self._stream)
        texts = len(context.worker.train_features)
        context.state.vectors.setdefault(PSEUDO, torch.full((texts,), -1, dtype=torch.int32))
        context.state.memory.setdefault("labellings", 0)
        context.gold = self.known.examples, self.known.labels
        context.labelled = self.labelled
        context.facts["fewshot"] = self.known.facts()
        if self.fewshot.detect_label_noise and context.worker.replica.personal.numel:
            raise ConfigError(
                "fewshot.detect_label_noise asks the server's model, whose personal layers (model.train) no client has "
                "trained: share everything, or leave fewshot.detect_label_noise out"
            )
        self.texts_seen: dict[int, int] = {}
        self.trust_all_but(context.state.memory.setdefault("flagged", []))
        self.sizes = self.held
        self._labelling: list[int] = []
        self._flagged: list[int] = []
        self._found: dict[int, Labels] = {}
        if self.search is not None:
            self.search.begin()

    def __len__(self) -> int:
        return len(self.context.pool)

    @property
    def total(self) -> Any:
        """The aggregation that updates are added to."""
        return self.context.pool.total

    @property
    def pseudo(self) -> NDArray[np.int32]:
        """The present pseudo labels by example number, int32, -1 for none; a view of the state."""
        return self.context.state.vectors[PSEUDO].numpy()

    def candidates(self, client: int) -> Numbers:
        """Return the texts of a client that may be given a pseudo label."""
        own = self.context.partition.train(client)
        return np.sort(own[self.usable[own]])

    def labelled(self, client: int) -> tuple[Numbers, Numbers]:
        """Return the texts of a client that have a label now, and their labels: gold, then pseudo."""
        candidates, pseudo = self.candidates(client), self.pseudo
        given = candidates[pseudo[candidates] >= 0]
        numbers, labels = self.known.of(client) if self.held[client] else self.known.of(-1)
        return np.concatenate([numbers, given]), np.concatenate([labels, pseudo[given].astype(np.int64)])

    def prepare(self) -> int:
        """Draw the clients that label in the next round; return the number of clients that train or label.

        Raises:
            ConfigError: No client has a label, and none can label.
        """
        if self.search is not None:
            self.search.prepare()
        context, number = self.context, self.context.state.round + 1
        self.texts_seen, self._found = {}, {}
        due_now = self._is_due(number)
        self._flagged = self._check() if due_now and self.fewshot.detect_label_noise else []
        self.sizes = self.held + self._counts(self.pseudo >= 0)
        able = int(np.count_nonzero(self.sizes))
        self._labelling = self._drawn(self.pace.n) if due_now else []
        if not able and not self._labelling:
            raise ConfigError("no client has a label to train on, and none is to label: raise fewshot.gold")
        context.state.memory["labellings"] += bool(self._labelling)
        for client in self._labelling:
            self._count_texts(client, len(self.candidates(client)))
        return min(context.experiment.clients_per_round, able) + len(self._labelling)

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Send a flat vector to the workers under a name."""
        self.context.pool.publish(name, vector, message)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have clients train on the labels that they have, and others label their texts alongside."""
        given = [
            self._with_labels(request) if isinstance(request, TrainRequest) else request
            for request in requests
        ]
        if not any(isinstance(request, TrainRequest) for request in requests):
            return self.context.pool.do(given, on_progress)
        labelling = self._label_requests(self.context.state.round + 1)
        answers = self.context.pool.do([*given, *labelling], on_progress)
        self._found = dict(zip(self._labelling, answers[len(given) :], strict=True))
        return answers[: len(given)]

    def finish(self, report: RoundReport) -> dict[str, Any]:
        """Store the new labels; return the round's entries about labels."""
        line: dict[str, Any] = {}
        if (
            self._labelling and not self._found
        ):  # no client was trained: none has a label, or secure aggregation was aborted
            answers = self._label_only(report.round)
            self._found = dict(zip(self._labelling, answers, strict=True))
        self._store_labels()
        line["labelling"] = self._labelling
        if self._flagged:
            line["flagged"] = self._flagged
        line["labels"] = {"gold": int(self.held.sum()), "pseudo": int((self.pseudo >= 0).sum())}
        return line

    def tell(self, line: dict[str, Any]) -> dict[str, Any]:
        """Report the round to the search for a pace, if any; return the round's entries about it."""
        return {} if self.search is None else self.search.tell(line)

    def probabilities(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return the published model's probability of each label for training texts, float64 (texts, labels).

        Batches depend only on the texts, so that the last bit does not depend on the number of workers.
        """
        context, size = self.context, self.context.worker.spec.evaluation_batch
        order = np.argsort(-context.worker.train_features.lengths(numbers), kind="stable")
        parts = [numbers[order[start : start + size]].tolist() for start in range(0, len(order), size)]
        answers: list[Probabilities] = context.pool.do([ProbabilitiesRequest(part) for part in parts])
        rows = [row for answer in answers for row in answer.rows]
        found = np.empty((len(numbers), len(self.known.label_names)))
        found[order] = np.array(rows).reshape(found.shape)
        return found

    def accuracy(self) -> float:
        """Return the global model's accuracy on the labels that the server has for choosing a pace."""
        numbers, labels = self.known.validation
        self.context.pool.publish(MODEL, self.context.state.params)
        return float((self.probabilities(numbers).argmax(axis=1) == labels).mean())

    def trust_all_but(self, flagged: list[int]) -> None:
        """Use the gold labels of all clients except flagged ones."""
        self.usable, self.held = self.known.usable.copy(), self.known.counts()
        self._distrust(flagged)

    @property
    def pace(self) -> Pace | FixedPacing:
        """The pace of the next round."""
        if self.search is not None:
            return self.search.order.pace
        if self.fewshot.pacing == "static":
            return FixedPacing(self.fewshot.per_client, self.fewshot.f, self.fewshot.n)
        return Pace(self.fewshot.f, self.fewshot.n, self.fewshot.k)

    def _is_due(self, number: int) -> bool:
        """Return whether clients label in a round."""
        if self.search is not None:
            return self.search.order.labelling > 0
        return self.fewshot.pacing != "none" and is_labelling_round(self.pace, number, 1)

    def _stream(self, round_number: int) -> int:
        """Return the number that a round's clients are drawn with; the same for all trials of a search."""
        return round_number if self.search is None else self.search.order.iteration + 1

    def _with_labels(self, request: TrainRequest) -> TrainRequest:
        examples, labels = self.labelled(request.client)
        return replace(request, examples=examples.tolist(), labels=labels.tolist())

    def _label_requests(self, number: int) -> list[LabelRequest]:
        return [LabelRequest(c, number, self.candidates(c).tolist()) for c in self._labelling]

    def _label_only(self, number: int) -> list[Labels]:
        """Have clients label in a round without training."""
        context = self.context
        publish(self.algorithm, context.state, context.pool, RngKey(context.experiment.seed, number, -1))
        return context.pool.do(self._label_requests(number))

    def _check(self) -> list[int]:
        """Find clients whose gold labels contradict the present model, and discard these labels."""
        context, known = self.context, self.known
        asked = np.flatnonzero(self.held[known.owners] > 0)
        publish(
            self.algorithm,
            context.state,
            context.pool,
            RngKey(context.experiment.seed, context.state.round + 1, -1),
        )
        predicted = self.probabilities(known.examples[asked])
        found: list[int] = find_noisy_clients(known.owners[asked], known.labels[asked], predicted).tolist()
        for client in np.flatnonzero(self.held).tolist():
            self._count_texts(client, int(self.held[client]))
        memory = context.state.memory
        memory["flagged"] = sorted({*memory["flagged"], *found})
        self._distrust(found)
        return found

    def _distrust(self, clients: list[int]) -> None:
        """Discard the gold labels of clients: their texts count as unlabelled from here on."""
        for client in clients:
            self.usable[self.known.of(client)[0]] = True
            self.held[client] = 0

    def _counts(self, which: NDArray[np.bool_]) -> Numbers:
        """Return the number of marked training examples of each client."""
        partition = self.context.partition
        upto = np.concatenate([[0], np.cumsum(which[partition.train_indices])])
        return upto[partition.train_offsets[1:]] - upto[partition.train_offsets[:-1]]  # type: ignore[no-any-return]

    def _drawn(self, count: int) -> list[int]:
        """Draw the clients that label in the next round, among those with unlabelled texts."""
        number = self._stream(self.context.state.round + 1)
        rng = generator(self.context.experiment.seed, "labelling", number)
        clients = np.flatnonzero(self._counts(self.usable))
        drawn: list[int] = np.sort(rng.choice(clients, min(count, len(clients)), replace=False)).tolist()
        return drawn

    def _count_texts(self, client: int, texts: int) -> None:
        self.texts_seen[client] = self.texts_seen.get(client, 0) + texts

    def _store_labels(self) -> None:
        """Replace the pseudo labels of each client that labelled by those of its most confident texts."""
        for client, found in self._found.items():
            texts = self.candidates(client)
            labels = np.array(found.labels, dtype=np.int32)
            among = labels if self.fewshot.class_balanced else None
            best = most_confident(np.array(found.confidences), self._num_labels(len(texts)), among)
            self.pseudo[texts] = -1
            self.pseudo[texts[best]] = labels[best]

    def _num_labels(self, texts: int) -> int:
        """Return the number of a client's texts that get a pseudo label in this round."""
        if self.search is None:
            return num_pseudo_labels(self.pace, self.context.state.memory["labellings"], texts)
        order = self.search.order
        return num_pseudo_labels(order.pace, order.labelling, texts, order.reached)
