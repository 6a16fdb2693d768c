"""The labels of a simulation: the server draws the gold ones from all examples, and holds the pseudo labels."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.label_counts import most_confident_of_each
from fednlp.fewshot.pacing import LabelQuota, most_confident
from fednlp.fewshot.simulation.gold_labels import gold_labels_of
from fednlp.fewshot.simulation.label_holder import Numbers
from fednlp.partition.draws import largest_remainder
from fednlp.simulation.context import RunContext
from fednlp.training.requests.predict import LabelRequest, Labels
from fednlp.training.worker_spec import opened_features

PSEUDO = "fewshot.pseudo"
"""Name of the state's vector of pseudo labels: int32 (training examples,), -1 for none."""
READS_HIDDEN_LABELS = (
    'fewshot.label_counts = "truth" reads hidden labels: an upper bound, and the rule of the authors\' code; no real '
    "federation has these labels"
)


class CentralLabels:
    """The labels of all clients, in one place.

    Of the true labels, the gold ones are used. The others only say how right pseudo labels are, in the lines of a run,
    and with ``fewshot.label_counts = "truth"`` how many of a client's pseudo labels are of each class.

    Attributes:
        known: The gold labels, and which texts may be given a pseudo label.
        usable: bool, by example number: ``known.usable`` and the gold texts of flagged clients.
        gold: int64 (clients,), number of gold labels of each client that is not flagged.
    """

    def __init__(self, context: RunContext) -> None:
        assert context.experiment.fewshot is not None
        self.context, self.fewshot = context, context.experiment.fewshot
        self.known: GoldLabels = gold_labels_of(context)
        texts = len(context.worker.train_features)
        context.state.vectors.setdefault(PSEUDO, torch.full((texts,), -1, dtype=torch.int32))
        labels = opened_features(context.worker.spec.train_features).values("label")
        self._truth = _LabelTruth(labels, len(self.known.label_names))
        self.trust_all_but([])
        if self._counts_are_true:
            context.note = READS_HIDDEN_LABELS
            context.log(READS_HIDDEN_LABELS)

    @property
    def pseudo(self) -> Numbers:
        """Number of pseudo labels of each client, int64 (clients,)."""
        return self._counts(self._labels >= 0)

    @property
    def candidates(self) -> Numbers:
        """Number of texts of each client that may be given a pseudo label, int64 (clients,)."""
        return self._counts(self.usable)

    def facts(self) -> dict[str, Any]:
        """Return the figures for the run's summary."""
        return self.known.facts()

    def trust_all_but(self, flagged: Sequence[int]) -> None:
        """Use the gold labels of all clients except flagged ones, whose gold texts count as unlabelled."""
        self.usable, self.gold = self.known.usable.copy(), self.known.counts()
        for client in flagged:
            self.usable[self.known.of(client)[0]] = True
            self.gold[client] = 0

    def with_labels(self, request: Any) -> Any:
        """Return a request with the texts of its client that have a label now, and their labels: gold, then pseudo."""
        candidates, pseudo = self._texts(request.client), self._labels
        given = candidates[pseudo[candidates] >= 0]
        numbers, labels = self.known.of(request.client if self.gold[request.client] else -1)
        examples = np.concatenate([numbers, given])
        known = np.concatenate([labels, pseudo[given].astype(np.int64)])
        return replace(request, examples=examples.tolist(), labels=known.tolist())

    def label_request(self, client: int, round_number: int, quota: LabelQuota) -> LabelRequest:
        """Return the request by which a client classifies its texts."""
        return LabelRequest(client, round_number, self._texts(client).tolist())

    def keep(self, request: LabelRequest, quota: LabelQuota, answer: Labels) -> None:
        """Replace the pseudo labels of a client that has labelled by those of its most confident texts."""
        texts, pseudo = np.array(request.texts, dtype=np.int64), self._labels
        labels, confidences = np.array(answer.labels, dtype=np.int32), np.array(answer.confidences)
        count = quota.beyond(int((pseudo[texts] >= 0).sum())).of(len(texts))
        if self._counts_are_true:
            counts = largest_remainder(self._truth.counts(texts), count)
            best = most_confident_of_each(confidences, labels, counts)
        else:
            best = most_confident(confidences, count, labels if self.fewshot.class_balanced else None)
        pseudo[texts] = -1
        pseudo[texts[best]] = labels[best]
        self._truth.note(texts, labels, best)

    def truth(self) -> dict[str, Any]:
        """Return how right the pseudo labels of this round are; nothing where none are given."""
        return {} if self.fewshot.pacing == "none" else self._truth.line(self._labels)

    @property
    def _counts_are_true(self) -> bool:
        """Return whether clients give as many pseudo labels of each class as the hidden labels say."""
        return self.fewshot.pacing != "none" and self.fewshot.label_counts == "truth"

    @property
    def _labels(self) -> NDArray[np.int32]:
        """The present pseudo labels by example number, int32, -1 for none; a view of the state."""
        return self.context.state.vectors[PSEUDO].numpy()

    def _texts(self, client: int) -> Numbers:
        """Return the texts of a client that may be given a pseudo label."""
        own = self.context.partition.train(client)
        return np.sort(own[self.usable[own]])

    def _counts(self, which: NDArray[np.bool_]) -> Numbers:
        """Return the number of marked training examples of each client."""
        partition = self.context.partition
        upto = np.concatenate([[0], np.cumsum(which[partition.train_indices])])
        return upto[partition.train_offsets[1:]] - upto[partition.train_offsets[:-1]]  # type: ignore[no-any-return]


class _LabelTruth:
    """Compares pseudo labels with the true labels, for the lines of a run, and counts the true labels.

    Nothing that a run does depends on it, except with ``fewshot.label_counts = "truth"``.

    Args:
        labels: int (examples,), true label of each training example.
        num_labels: Number of labels.
    """

    def __init__(self, labels: NDArray[np.integer[Any]], num_labels: int) -> None:
        self._labels, self._num_labels = labels, num_labels
        self._begin()

    def _begin(self) -> None:
        self._new, self._candidates = [0, 0], [0, 0]

    def counts(self, texts: Numbers) -> Numbers:
        """Return the number of texts of each class, int64 (labels,).

        Args:
            texts: int64, by example number.
        """
        return np.bincount(self._labels[texts], minlength=self._num_labels)

    def note(self, texts: Numbers, predicted: NDArray[np.integer[Any]], chosen: Numbers) -> None:
        """Note what a client has labelled in a round.

        Args:
            texts: int64 (texts,), its candidates, by example number.
            predicted: (texts,), the label that the model gives each.
            chosen: int64, the places in ``texts`` of those that get a pseudo label.
        """
        right = self._labels[texts] == predicted
        for counts, some in ((self._new, right[chosen]), (self._candidates, right)):
            counts[0] += len(some)
            counts[1] += int(some.sum())

    def line(self, pseudo: NDArray[np.int32]) -> dict[str, Any]:
        """Return the figures of a round, and begin the next one.

        Args:
            pseudo: int32 (examples,), the pseudo labels after the round; -1 for none.

        Returns:
            ``precision``: fraction of the pseudo labels that are right, None without any. ``given``, ``right``: their
            number and that of the right ones, by label. ``new``, ``candidates``: the same two numbers, for the
            pseudo labels of this round, and for all texts that the model was run over for them.

        >>> truth = _LabelTruth(np.array([0, 1, 1, 0]), 2)
        >>> truth.note(np.array([0, 1, 3]), np.array([0, 1, 1]), np.array([1, 0]))
        >>> truth.line(np.array([0, 1, 0, -1], dtype=np.int32))
        {'precision': 0.666667, 'given': [2, 1], 'right': [1, 1], 'new': [2, 2], 'candidates': [3, 2]}
        """
        given = pseudo[pseudo >= 0]
        right = given[given == self._labels[pseudo >= 0]]
        found: dict[str, Any] = {"precision": round(len(right) / len(given), 6) if len(given) else None}
        for name, some in (("given", given), ("right", right)):
            found[name] = np.bincount(some, minlength=self._num_labels).tolist()
        if self._candidates[0]:
            found |= {"new": self._new, "candidates": self._candidates}
        self._begin()
        return found
