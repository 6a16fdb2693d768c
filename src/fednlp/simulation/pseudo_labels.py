"""Rounds with few labels: clients that have some train, others label their texts alongside (FeS, section 2.3).

Clients with a gold or a pseudo label may be drawn to train; n clients are drawn to label, every f rounds. Both use the
same global model. Texts labelled in a round are trained on from the next round on. No label but the gold ones reaches
a worker, a decision, or a score that a decision is based on.

Any algorithm can be trained so: :func:`with_pseudo_labels` draws its cohorts among the clients that have labels, and
:class:`PseudoLabels` stands between the round and the runtime. Who holds the labels is a
:class:`~fednlp.simulation.label_holder.LabelHolder`: the server of a simulation, or the sites of a deployment.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import TrainRequest
from fednlp.federated.cohort import Cohort, Population
from fednlp.federated.round import RoundReport, publish
from fednlp.federated.runtime import MODEL
from fednlp.federated.transforms import RngKey
from fednlp.fewshot.noisy_labels import find_noisy_clients
from fednlp.fewshot.pacing import FixedPacing, LabelQuota, Pace, is_labelling_round, label_quota
from fednlp.runtime.messages import Probabilities, ProbabilitiesRequest
from fednlp.seeds import generator
from fednlp.simulation.context import RunContext
from fednlp.simulation.label_holder import LabelHolder, Numbers
from fednlp.simulation.pace_search import PaceSearch


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
    """A runtime that trains clients on the labels that they have, while other clients label their texts.

    Args:
        context: The run.
        algorithm: The method.
        holder: Who holds the labels.

    Attributes:
        algorithm: The method, on the clients that have labels.
        sizes: int64 (clients,), number of labelled examples of each client.
        texts_seen: Number of texts by client that it has run the model over in this round, training excluded.
        total: The pool's aggregation.
    """

    def __init__(self, context: RunContext, algorithm: Algorithm, holder: LabelHolder) -> None:
        assert context.experiment.fewshot is not None
        self.context, self.fewshot, self.holder = context, context.experiment.fewshot, holder
        self.search = PaceSearch(context, self) if self.fewshot.pacing == "search" else None
        self.algorithm = with_pseudo_labels(algorithm, self._stream)
        context.state.memory.setdefault("labellings", 0)
        context.labels = holder
        context.facts["fewshot"] = holder.facts()
        if self.fewshot.detect_label_noise and context.worker.replica.personal.numel:
            raise ConfigError(
                "fewshot.detect_label_noise asks the server's model, whose personal layers (model.train) no client has "
                "trained: share everything, or leave fewshot.detect_label_noise out"
            )
        self.texts_seen: dict[int, int] = {}
        self.trust_all_but(context.state.memory.setdefault("flagged", []))
        self.sizes = holder.gold
        self._labelling: list[int] = []
        self._flagged: list[int] = []
        self._answers: list[tuple[Any, Any]] = []
        if self.search is not None:
            self.search.begin()

    def __len__(self) -> int:
        return len(self.context.pool)

    @property
    def total(self) -> Any:
        """The aggregation that updates are added to."""
        return self.context.pool.total

    def num_candidates(self, client: int) -> int:
        """Return the number of texts of a client that may be given a pseudo label."""
        return int(self.holder.candidates[client])

    def prepare(self) -> int:
        """Draw the clients that label in the next round; return the number of clients that train or label.

        Raises:
            ConfigError: No client has a label, and none can label.
        """
        if self.search is not None:
            self.search.prepare()
        context, number = self.context, self.context.state.round + 1
        self.texts_seen, self._answers = {}, []
        due_now = self._is_due(number)
        self._flagged = self._check() if due_now and self.fewshot.detect_label_noise else []
        self.sizes = self.holder.gold + self.holder.pseudo
        able = int(np.count_nonzero(self.sizes))
        candidates = self.holder.candidates
        self._labelling = self._drawn(self.pace.n, candidates) if due_now else []
        if not able and not self._labelling:
            raise ConfigError(
                "no client has a label to train on, and none is to label: raise fewshot.gold, or label texts at a site"
            )
        for client in self._labelling:
            self._count_texts(client, int(candidates[client]))
        return min(context.experiment.clients_per_round, able) + len(self._labelling)

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Send a flat vector to the workers under a name."""
        self.context.pool.publish(name, vector, message)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have clients train on the labels that they have, and others label their texts alongside."""
        given = [
            self.holder.with_labels(request) if isinstance(request, TrainRequest) else request
            for request in requests
        ]
        if not any(isinstance(request, TrainRequest) for request in requests):
            return self.context.pool.do(given, on_progress)
        labelling = self._label_requests(self.context.state.round + 1)
        answers = self.context.pool.do([*given, *labelling], on_progress)
        self._answers = list(zip(labelling, answers[len(given) :], strict=True))
        return answers[: len(given)]

    def finish(self, report: RoundReport) -> dict[str, Any]:
        """Have the new labels stored; return the round's entries about labels."""
        if (
            self._labelling and not self._answers
        ):  # no client was trained: none has a label, or secure aggregation was aborted
            self._label_only(report.round)
        failed = self._keep_labels()
        self.context.state.memory["labellings"] += bool(self._labelling)
        line: dict[str, Any] = {"labelling": [one for one in self._labelling if one not in failed]}
        if failed:
            line["labelling_dropped"] = [
                {"client": client, "reason": reason} for client, reason in failed.items()
            ]
        if self._flagged:
            line["flagged"] = self._flagged
        line["labels"] = {"gold": int(self.holder.gold.sum()), "pseudo": int(self.holder.pseudo.sum())}
        return line

    def tell(self, line: dict[str, Any]) -> dict[str, Any]:
        """Report the round to the search for a pace, if any; return the round's entries about it."""
        return {} if self.search is None else self.search.tell(line)

    def probabilities(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return the published model's probability of each label for the server's texts, float64 (texts, labels).

        Batches depend only on the texts, so that the last bit does not depend on the number of workers.
        """
        context, size = self.context, self.context.worker.spec.evaluation_batch
        order = np.argsort(-context.worker.train_features.lengths(numbers), kind="stable")
        parts = [numbers[order[start : start + size]].tolist() for start in range(0, len(order), size)]
        answers: list[Probabilities] = context.pool.do([ProbabilitiesRequest(part) for part in parts])
        rows = [row for answer in answers for row in answer.rows]
        found = np.empty((len(numbers), len(self.holder.known.label_names)))
        found[order] = np.array(rows).reshape(found.shape)
        return found

    def accuracy(self) -> float:
        """Return the global model's accuracy on the labels that the server has for choosing a pace."""
        numbers, labels = self.holder.known.validation
        self.context.pool.publish(MODEL, self.context.state.params)
        return float((self.probabilities(numbers).argmax(axis=1) == labels).mean())

    def trust_all_but(self, flagged: list[int]) -> None:
        """Use the gold labels of all clients except flagged ones."""
        self.holder.trust_all_but(flagged)

    @property
    def pace(self) -> Pace | FixedPacing:
        """The pace of the next round."""
        if self.search is not None:
            return self.search.order.pace
        if self.fewshot.pacing == "static":
            return FixedPacing(self.fewshot.per_client, self.fewshot.f, self.fewshot.n)
        return Pace(self.fewshot.f, self.fewshot.n, self.fewshot.k)

    @property
    def quota(self) -> LabelQuota:
        """How many of a client's texts get a pseudo label in this round."""
        if self.search is None:
            return label_quota(self.pace, self.context.state.memory["labellings"] + 1)
        order = self.search.order
        return label_quota(order.pace, order.labelling, order.reached)

    def _is_due(self, number: int) -> bool:
        """Return whether clients label in a round."""
        if self.search is not None:
            return self.search.order.labelling > 0
        return self.fewshot.pacing != "none" and is_labelling_round(self.pace, number, 1)

    def _stream(self, round_number: int) -> int:
        """Return the number that a round's clients are drawn with; the same for all trials of a search."""
        return round_number if self.search is None else self.search.order.iteration + 1

    def _label_requests(self, number: int) -> list[Any]:
        return [self.holder.label_request(client, number, self.quota) for client in self._labelling]

    def _label_only(self, number: int) -> None:
        """Have clients label in a round without training."""
        self._publish(number)
        requests = self._label_requests(number)
        self._answers = list(zip(requests, self.context.pool.do(requests), strict=True))

    def _keep_labels(self) -> dict[int, str]:
        """Have the new labels replace earlier ones; return why clients failed to label, by client."""
        failed = {}
        for request, answer in self._answers:
            reason = self.holder.keep(request, self.quota, answer)
            if reason is not None:
                failed[int(request.client)] = reason
                del self.texts_seen[request.client]
        return failed

    def _check(self) -> list[int]:
        """Find clients whose gold labels contradict the present model, and discard these labels."""
        holder, known, memory = self.holder, self.holder.known, self.context.state.memory
        asked = np.flatnonzero(holder.gold[known.owners] > 0)
        self._publish(self.context.state.round + 1)
        predicted = self.probabilities(known.examples[asked])
        found: list[int] = find_noisy_clients(known.owners[asked], known.labels[asked], predicted).tolist()
        for client in np.flatnonzero(holder.gold).tolist():
            self._count_texts(client, int(holder.gold[client]))
        memory["flagged"] = sorted({*memory["flagged"], *found})
        self.trust_all_but(memory["flagged"])
        return found

    def _publish(self, number: int) -> None:
        """Send the global model to the clients outside of the training of a round."""
        context = self.context
        publish(self.algorithm, context.state, context.pool, RngKey(context.experiment.seed, number, -1))

    def _drawn(self, count: int, candidates: Numbers) -> list[int]:
        """Draw the clients that label in the next round, among those with unlabelled texts."""
        number = self._stream(self.context.state.round + 1)
        rng = generator(self.context.experiment.seed, "labelling", number)
        clients = np.flatnonzero(candidates)
        drawn: list[int] = np.sort(rng.choice(clients, min(count, len(clients)), replace=False)).tolist()
        return drawn

    def _count_texts(self, client: int, texts: int) -> None:
        self.texts_seen[client] = self.texts_seen.get(client, 0) + texts
