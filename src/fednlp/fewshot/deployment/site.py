"""A site's labels under ``[fewshot]``: its gold labels, and the pseudo labels that it has given. Neither leaves it.

A labelling is known by its round, and what the site labelled in it is a file of its own. The server says by which
labelling the site trains. So the labels of a round that came to nothing are never used, and a search for a pace goes
back to earlier ones.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.data import TextData
from fednlp.deployment.session.site_kinds import SiteKind, declare_at_sites, forgetting_between
from fednlp.deployment.site.disclosure import redact_count
from fednlp.deployment.site.policy import Allow
from fednlp.disk import atomic, private_folder, write_private
from fednlp.errors import RunError
from fednlp.fewshot.filtering import representative
from fednlp.fewshot.pacing import (
    LabelQuota,
    Pace,
    candidate_percentage,
    is_labelling_round,
    most_confident,
    rounded_up,
)
from fednlp.formatting.units import plural
from fednlp.partition.embed import embed
from fednlp.partition.npz import read_arrays
from fednlp.runtime.engine import Vectors
from fednlp.runtime.messages import declare
from fednlp.simulation.components import Log
from fednlp.training.requests.predict import LabelRequest, Labels

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site

Numbers = NDArray[np.int64]
_REMEDY = "then run fednlp join again; no work is lost"
_DATA = "data.json"
_KINDS = {"texts": ("i", 1), "labels": ("i", 1)}


class SiteLabels:
    """The labels of one site in one run.

    Args:
        folder: The site's own; made if missing.
        data: The site's examples; one without a label is a text that may be given one.
        encoder: Folder of the model whose embeddings filter the texts.
        log: Called with a message before each slow step.

    Raises:
        RunError: The folder cannot be made, or the site's data have changed since it labelled.
    """

    def __init__(
        self, folder: Path, run: str, experiment: Experiment, data: TextData, encoder: Path, log: Log
    ) -> None:
        assert experiment.fewshot is not None
        self.folder, self.fewshot, self.data = folder, experiment.fewshot, data
        self.encoder, self.log = encoder, log
        labels, examples = data.labels("train"), np.sort(data.train_numbers)
        known = labels[examples] >= 0
        self.gold: tuple[Numbers, Numbers] = examples[known], labels[examples[known]]
        self.unlabelled: Numbers = examples[~known]
        private_folder(folder, _REMEDY)
        self._require_same_data(run)

    @cached_property
    def candidates(self) -> Numbers:
        """The texts that may be given a pseudo label, by rising number: all without a label, or what filtering leaves.

        Raises:
            FednlpError: The texts cannot be embedded.
        """
        fewshot, texts = self.fewshot, self.unlabelled
        if fewshot.filter_ratio is None:
            return texts
        self.log(f"embedding {plural(len(texts), 'text')} for filtering (once; kept in the cache)")
        vectors = embed(self.data.input_texts("train", texts), str(self.encoder))
        keep = rounded_up(fewshot.filter_ratio * len(texts))
        return np.sort(texts[representative(vectors, keep, fewshot.neighbours, fewshot.rho)])

    def labelled(self, labelling: int) -> tuple[Numbers, Numbers]:
        """Return the examples that have a label, and their labels: gold, then pseudo.

        Args:
            labelling: Round of the labelling whose pseudo labels count; 0 for none.

        Raises:
            RunError: This site has not labelled in that round.
        """
        if labelling == 0:
            return self.gold
        try:
            found = read_arrays(self._file(labelling), _KINDS)
        except (FileNotFoundError, ValueError):
            raise RunError(f"the labels of round {labelling} are not at this site") from None
        numbers, labels = self.gold
        return np.concatenate([numbers, found["texts"]]), np.concatenate([labels, found["labels"]])

    def with_labels(self, request: Any) -> Any:
        """Return a request with the examples that have a label, and their labels, if the site is to train by them.

        Raises:
            RunError: This site has not labelled in the round that the request names.
        """
        if request.labelling is None:
            return request
        examples, labels = self.labelled(request.labelling)
        return replace(request, examples=examples.tolist(), labels=labels.tolist())

    def keep(self, round_number: int, found: Labels, quota: LabelQuota) -> int:
        """Keep the labels of the most confident candidates as those of a round, on the disk; return their number.

        Args:
            round_number: Round of the labelling.
            found: What the model says to :attr:`candidates`.
            quota: How many get a label.
        """
        labels = np.array(found.labels, dtype=np.int64)
        among = labels if self.fewshot.class_balanced else None
        best = np.sort(most_confident(np.array(found.confidences), quota.of(len(labels)), among))
        with atomic(self._file(round_number), _REMEDY, mode=0o600) as file:
            np.savez(file, texts=self.candidates[best], labels=labels[best])
        return len(best)

    def _file(self, round_number: int) -> Path:
        return self.folder / f"{round_number}.npz"

    def _require_same_data(self, run: str) -> None:
        """Note which data the numbers of texts are of; labels of an earlier run are removed."""
        path, now = self.folder / _DATA, {"run": run, "data": self.data.fingerprint}
        before = json.loads(path.read_text()) if path.is_file() else {}
        given = [*self.folder.glob("*.npz")]
        if before.get("run") != run:
            for old in given:
                old.unlink()
        elif given and before != now:
            raise RunError(
                "this site's data have changed since it gave texts pseudo labels: put the earlier file back, and join "
                "again"
            )
        if before != now:
            write_private(path, json.dumps(now).encode(), _REMEDY)


@dataclass(frozen=True)
class KeepLabelsRequest:
    """Have a client give texts of its own pseudo labels by the model that it has after a broadcast, and keep these.

    Attributes:
        round: The number of the round.
        percentage: Percentage of the texts that may get a label, above 0 and at most 100.
        most: Maximum number of labels; None for no maximum.
    """

    client: int
    round: int
    percentage: float
    most: int | None = None


@dataclass(frozen=True)
class LabelsKept:
    """How many pseudo labels a client has since a labelling.

    Attributes:
        labels: Their number.
        error: Why it failed; None if it did not.
    """

    client: int
    labels: int = 0
    error: str | None = None


declare(KeepLabelsRequest, LabelsKept)


def _require_due_labels(wanted: KeepLabelsRequest, name: str, experiment: Experiment) -> None:
    fewshot = experiment.fewshot
    if name != "label":
        raise RunError(f"a call to label is not called {name}")
    if fewshot is None or fewshot.pacing == "none":
        raise RunError("the server asks for pseudo labels, and the experiment has none")
    most, percentage, first = wanted.most, wanted.percentage, fewshot.first_labelling
    pace = Pace(fewshot.f, fewshot.n, fewshot.k)
    due = fewshot.pacing == "search" or is_labelling_round(pace, wanted.round, first)
    labelling = (wanted.round - first) // fewshot.f + 1
    if fewshot.pacing == "static":  # as many more at each labelling in which the site took part
        right = most in range(fewshot.per_client, labelling * fewshot.per_client + 1) and percentage == 100
    elif fewshot.pacing == "curriculum":
        right = most is None and percentage == candidate_percentage(pace, labelling)
    else:  # the server searches for the pace
        right = most is None and 0 < percentage <= 100
    if not (due and right):
        raise RunError("the server asks for another number of pseudo labels than the experiment has")


def _label(site: "Site", wanted: KeepLabelsRequest, vectors: Vectors) -> LabelsKept:
    labels = site.opened.labels
    assert labels is not None
    found: Labels = site.worker.handlers[LabelRequest](
        LabelRequest(wanted.client, wanted.round, labels.candidates.tolist()), vectors
    )
    kept = labels.keep(wanted.round, found, LabelQuota(wanted.percentage, wanted.most))
    rounds = site.opened.experiment.num_rounds
    site.log(f"round {wanted.round} of {rounds}: the model labelled {plural(kept, 'text')} of this site")
    return LabelsKept(wanted.client, kept)


def redact_kept(allow: Allow, kept: LabelsKept) -> LabelsKept:
    """Return what the server is told of the number of pseudo labels."""
    return replace(kept, labels=redact_count(allow, kept.labels))


declare_at_sites(
    SiteKind(
        KeepLabelsRequest,
        {"label": "the labelling of round {}"},
        _require_due_labels,
        _label,
        redact_kept,
        in_round=True,
        as_counted=forgetting_between,
    )
)
