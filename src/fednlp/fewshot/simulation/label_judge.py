"""How good a model is on the texts whose labels are known, and what clients compute for it.

These labels judge the paces of a search, and find clients whose gold labels look wrong.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fednlp.federated.runtime import MODEL
from fednlp.fewshot.noisy_labels import find_noisy_clients
from fednlp.fewshot.simulation.label_holder import LabelHolder, Numbers
from fednlp.simulation.context import RunContext
from fednlp.training.requests.predict import Probabilities, ProbabilitiesRequest


class LabelJudge:
    """Compares models with known labels, and counts the texts and models that clients need for it in a round.

    Attributes:
        texts_seen: Number of texts by client that it has run a model over in this round, training excluded.
        received: The clients that have run the model of this round over texts, and so received it.
        models: Number of models by client that it is sent in this round beside the one of the round.
    """

    def __init__(self, context: RunContext, holder: LabelHolder) -> None:
        assert context.experiment.fewshot is not None
        self.context, self.holder = context, holder
        self.trial_score = context.experiment.fewshot.trial_score
        self.begin_round()

    def begin_round(self) -> None:
        """Forget what was counted."""
        self.texts_seen: dict[int, int] = {}
        self.received: set[int] = set()
        self.models: dict[int, int] = {}

    def count(self, client: int, texts: int) -> None:
        """Count texts of a client as run through the model of the round."""
        self.texts_seen[client] = self.texts_seen.get(client, 0) + texts
        self.received.add(client)

    def count_models(self, client: int, texts: int, models: int) -> None:
        """Count texts of a client as run through each of several models, which it is sent for that alone."""
        self.texts_seen[client] = self.texts_seen.get(client, 0) + models * texts
        self.models[client] = self.models.get(client, 0) + models

    def failed(self, client: int) -> None:
        """Forget a client that failed to label."""
        del self.texts_seen[client]

    def probabilities(self, numbers: Numbers) -> NDArray[np.float64]:
        """Return the published model's probability of each label for some texts, float64 (texts, labels).

        Batches depend only on the texts, so that the last bit does not depend on the number of workers.

        Args:
            numbers: int64 (texts,), the texts.
        """
        context, size = self.context, self.context.worker.spec.evaluation_batch
        order = np.argsort(-context.worker.train_features.lengths(numbers), kind="stable")
        parts = [numbers[order[start : start + size]].tolist() for start in range(0, len(order), size)]
        answers: list[Probabilities] = context.pool.do([ProbabilitiesRequest(part) for part in parts])
        rows = [row for answer in answers for row in answer.rows]
        found = np.empty((len(numbers), len(self.holder.known.label_names)))
        found[order] = np.array(rows).reshape(found.shape)
        return found

    def score(self, params: Tensor, numbers: Numbers, labels: Numbers) -> float:
        """Return a model's score on labelled texts, 0 to 1: its accuracy, or the mean probability of the true labels.

        It is 0 without texts.

        Args:
            params: The model, flat.
            numbers: int64 (texts,), the texts.
            labels: int64 (texts,), their labels.
        """
        if not len(numbers):
            return 0.0
        self.context.pool.publish(MODEL, params)
        found = self.probabilities(numbers)
        if self.trial_score == "probability":
            return min(1.0, float(found[np.arange(len(labels)), labels].mean()))
        return float((found.argmax(axis=1) == labels).mean())

    def server_score(self) -> float:
        """Return the global model's score on the labels that the server has for choosing a pace."""
        return self.score(self.context.state.params, *self.holder.known.validation)

    def noisy_clients(self) -> list[int]:
        """Return the clients whose gold labels contradict the published model; count their passes over them."""
        known, gold = self.holder.known, self.holder.gold
        asked = np.flatnonzero(gold[known.owners] > 0)
        predicted = self.probabilities(known.examples[asked])
        found: list[int] = find_noisy_clients(known.owners[asked], known.labels[asked], predicted).tolist()
        for client in np.flatnonzero(gold).tolist():
            self.count(client, int(gold[client]))
        return found
