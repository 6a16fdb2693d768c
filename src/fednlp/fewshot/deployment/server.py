"""The labels of a federation's sites as its server has them: how many there are, and of which labelling."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.deployment.session.setup import ENCODER_FILES, Ready, model_files
from fednlp.disk import atomic
from fednlp.fewshot.deployment.site import KeepLabelsRequest, LabelsKept
from fednlp.fewshot.gold import GoldLabels
from fednlp.fewshot.pacing import LabelQuota
from fednlp.fewshot.simulation.gold_labels import class_names_of
from fednlp.fewshot.simulation.label_holder import Numbers
from fednlp.models.resolve import resolve_model
from fednlp.partition.embed import ENCODER
from fednlp.simulation.context import RunContext
from fednlp.training.worker_spec import opened_features

COUNTS = "fewshot.json"
"""File of the sites' numbers of gold labels and of candidates, in the federation's folder."""
PSEUDO, LABELLING = "fewshot.pseudo", "fewshot.labelling"
"""Names of the state's vectors, int32 (sites,): pseudo labels of each, and the round in which it gave them or 0."""


class RemoteLabels:
    """The labels of sites, each of which holds its own.

    Args:
        folder: The federation's, with what :meth:`save_counts` wrote.

    Attributes:
        known: The labels of the server's own texts, for choosing a pace; none of a site's.
        gold: int64 (sites,), number of gold labels of each site.
        candidates: int64 (sites,), number of texts of each site that may be given a pseudo label.
    """

    def __init__(self, folder: Path, context: RunContext) -> None:
        names = class_names_of(context.worker.task)
        counts = json.loads((folder / COUNTS).read_text())
        self.gold, self.candidates = (np.array(counts[name], np.int64) for name in ("gold", "candidates"))
        none = np.zeros(0, dtype=np.int64)
        validation = (none, none) if context.experiment.data.validation_path is None else _validation(context)
        self.known = GoldLabels(
            none, none, none, np.zeros(0, dtype=bool), validation, none, len(self.gold), names
        )
        self.context = context
        for name in (PSEUDO, LABELLING):
            context.state.vectors.setdefault(name, torch.zeros(len(self.gold), dtype=torch.int32))

    @staticmethod
    def files(experiment: Experiment) -> dict[str, Path]:
        """Return the files that the sites need for their labels, by the names of their objects."""
        assert experiment.fewshot is not None
        filters = experiment.fewshot.filter_ratio is not None
        return model_files(Path(resolve_model(ENCODER)), ENCODER_FILES) if filters else {}

    @staticmethod
    def save_counts(folder: Path, ready: Mapping[int, Ready], sites: int) -> None:
        """Write what the sites answered of their labels: before the first round, once.

        Args:
            ready: What each site answered, by its number; a site that was removed before has no answer.
            sites: How many sites there are.
        """
        answers = [ready.get(client) for client in range(sites)]
        counts = {
            name: [getattr(answer, name) or 0 if answer else 0 for answer in answers]
            for name in ("gold", "candidates")
        }
        with atomic(folder / COUNTS) as file:
            file.write(json.dumps(counts).encode())

    @property
    def pseudo(self) -> Numbers:
        """Number of pseudo labels of each site, int64 (sites,)."""
        return self._vector(PSEUDO).astype(np.int64)

    def facts(self) -> dict[str, Any]:
        """Return the figures for the run's summary."""
        return {
            "gold": int(self.gold.sum()),
            "clients_with_gold": int((self.gold > 0).sum()),
            "candidates": int(self.candidates.sum()),
        }

    def trust_all_but(self, flagged: Sequence[int]) -> None:
        """Use the gold labels of all sites: a server that has none of them flags nobody."""

    def with_labels(self, request: Any) -> Any:
        """Return a request by which a site trains on its gold labels and on those of its last labelling."""
        return replace(request, labelling=int(self._vector(LABELLING)[request.client]))

    def label_request(self, client: int, round_number: int, quota: LabelQuota) -> KeepLabelsRequest:
        """Return the request by which a site labels in a round."""
        own = quota.beyond(int(self.pseudo[client]))
        return KeepLabelsRequest(client, round_number, own.percentage, own.most)

    def keep(self, request: KeepLabelsRequest, quota: LabelQuota, answer: LabelsKept) -> str | None:
        """Note how many labels a site has now; return why it failed, None if it did not."""
        most = int(self.candidates[request.client])
        if answer.error is not None:
            return answer.error
        if not 0 <= answer.labels <= most:
            return f"the site answered with {answer.labels} pseudo labels, and has {most} texts to label"
        self._vector(PSEUDO)[request.client] = answer.labels
        self._vector(LABELLING)[request.client] = request.round
        return None

    def truth(self) -> dict[str, Any]:
        """Return nothing: the true labels are not known."""
        return {}

    def _vector(self, name: str) -> NDArray[np.int32]:
        return self.context.state.vectors[name].numpy()  # a view


def _validation(context: RunContext) -> tuple[Numbers, Numbers]:
    """Return the server's own texts, by number, and their labels (:mod:`fednlp.deployment.server.components`)."""
    labels = opened_features(context.worker.spec.train_features).values("label")
    return np.arange(len(labels)), labels
