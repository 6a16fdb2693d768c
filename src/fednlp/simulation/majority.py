"""The baseline that trains nothing: it predicts the most frequent training label, of each client or of all."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fednlp.clock import EVALUATION, timed
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.formulations import TASKS
from fednlp.simulation.context import RunContext
from fednlp.simulation.evaluate import personal_scores, scores_of_clients
from fednlp.tasks.base import Predictions, Task


class MostFrequentLabel:
    """Prediction of the most frequent label: a client's own on its tests, that of all clients on the whole test set.

    Under label shift it says how much of a personal score the clients' label shares give by themselves. A run has one
    round. Of labels that are equally frequent, the task takes the one of the lowest number.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.rounds = 1
        context.note = (
            "nothing is trained: the most frequent training label, of each client on its own tests and of all "
            "clients on the global test"
        )

    def prepare(self) -> Callable[[], dict[str, dict[str, Any]]]:
        """Return the function that predicts and scores."""
        return self._evaluate

    @timed(EVALUATION)
    def _evaluate(self) -> dict[str, dict[str, Any]]:
        context, worker = self.context, self.context.worker
        examples, numbers = context.partition.train_indices, np.load(worker.spec.test_numbers)
        scores = {"global": worker.evaluator.scored([self._predicted(examples, numbers)]) or {}}
        if context.experiment.evaluation.personal:
            context.client_scores = scores_of_clients(context, list(self._own()))
            scores["personal"] = personal_scores(context, context.client_scores)
        return scores

    def _own(self) -> Iterator[Predictions]:
        """Yield each client's predictions on its own tests."""
        partition = self.context.partition
        for client in range(partition.num_clients):
            yield self._predicted(partition.train(client), partition.test(client))

    def _predicted(self, examples: np.ndarray, numbers: np.ndarray) -> Predictions:
        """Return the most frequent label of some training examples for each of some test examples."""
        worker = self.context.worker
        _, predictions = worker.task.baseline(worker.train_features, examples, worker.test_features, numbers)
        return Predictions(numbers.tolist(), predictions, 0.0, 0.0)

    def line(self, done: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the line for rounds.jsonl."""
        self.context.state.round += 1
        return {
            "round": self.context.state.round,
            "cohort": [],
            "train_loss": None,
            "steps": 0,
            "examples": 0,
            "bytes_up": 0,
            "bytes_down": 0,
            "evaluation": done,
        }


def require_class_labels(experiment: Experiment, task: Task) -> None:
    """Check that a run of this baseline has a task whose targets are single labels.

    Args:
        experiment: The configuration, of any method.

    Raises:
        ConfigError: Its targets are numbers, tags, answers or texts, or it is no task that comes with fednlp.
    """
    if experiment.algorithm.name != "majority":
        return
    labelled = [name for name, known in TASKS.items() if known.schema.kind == "class"]
    if task.name not in labelled:
        raise ConfigError(
            f"majority predicts one label for each text, as in {' and '.join(labelled)}, and the task is {task.name}: "
            "choose another baseline"
        )
