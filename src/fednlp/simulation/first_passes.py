"""Which texts a client runs through the frozen layers for the first time, and which it embeds: once each."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fednlp.costs import local_examples
from fednlp.federated.client import ClientResult
from fednlp.simulation.context import RunContext


class FirstPasses:
    """Counts first passes from the lines of a run, so that a resumed run counts as an uninterrupted one.

    Which of its examples a client draws is known to it alone. So its rounds are taken to draw examples that are new to
    it as long as there are any: an upper bound, which is exact once all have been drawn.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._sizes = np.diff(context.partition.train_offsets)
        self._labelled: set[int] = set()
        self._trained: Counter[int] = Counter()
        self._read = 0

    def of_training(self, results: Sequence[ClientResult]) -> dict[int, int]:
        """Return the number of texts that are new to each client that trained.

        With few labels these are its gold texts: the others it has run through all layers to label them.

        Args:
            results: Of the clients that came through.
        """
        self._read_lines()
        found = {r.client: self._new(r.client, self._trained[r.client]) for r in results}
        return {client: new for client, new in found.items() if new}

    def of_labelling(self, labelling: Mapping[int, int]) -> dict[int, int]:
        """Return the number of texts that are new to each client that labels, where any are.

        Args:
            labelling: Number of texts of each client that labels in a round.
        """
        self._read_lines()
        return {client: texts for client, texts in labelling.items() if client not in self._labelled}

    def _new(self, client: int, times: int) -> int:
        """Return the examples that are new to a client that has trained so many times."""
        if self.context.labels is not None:
            return 0 if times else int(self.context.labels.gold[client])
        options, size = self.context.experiment.client, int(self._sizes[client])
        drawn = int(
            local_examples(
                [size],
                epochs=options.num_train_epochs,
                batch_size=options.examples_per_step,
                max_steps=options.max_steps,
            )[0]
        )
        return max(0, min(size, (times + 1) * drawn) - times * drawn)

    def _read_lines(self) -> None:
        for line in self.context.lines[self._read :]:
            self._labelled.update(line.get("labelling", []))
            missed = {dropped["client"] for dropped in line.get("dropped", [])}
            self._trained.update(client for client in line["cohort"] if client not in missed)
        self._read = len(self.context.lines)
