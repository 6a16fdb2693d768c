"""Pseudo labels: a site gives texts of its own labels by the model that it gets, and keeps them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fednlp.config import Experiment
from fednlp.deployment.session.site_kinds import SiteKind, declare_at_sites
from fednlp.deployment.site.disclosure import redact_count
from fednlp.deployment.site.policy import Allow
from fednlp.errors import RunError
from fednlp.fewshot.pacing import LabelQuota, Pace, candidate_percentage, is_labelling_round
from fednlp.formatting.units import plural
from fednlp.runtime.messages import declare
from fednlp.training.requests.label import LabelRequest, Labels

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker


@dataclass(frozen=True)
class KeepLabelsRequest:
    """Have a client give texts of its own pseudo labels by the model that it has after a broadcast, and keep these.

    Attributes:
        client: Its id.
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
        client: Its id.
        labels: Their number.
        error: Why it failed; None if it did not.
    """

    client: int
    labels: int = 0
    error: str | None = None


declare(KeepLabelsRequest, LabelsKept)


def _require(wanted: KeepLabelsRequest, name: str, experiment: Experiment) -> None:
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


def _answer(site: Site, wanted: KeepLabelsRequest, vectors: Vectors) -> LabelsKept:
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


def _as_counted(worker: ClientWorker, request: KeepLabelsRequest, counted: int) -> KeepLabelsRequest:
    worker.trainer.forget(request.client, counted + 1, before=request.round)  # it may train as well
    return request


declare_at_sites(
    SiteKind(
        KeepLabelsRequest,
        {"label": "the labelling of round {}"},
        _require,
        _answer,
        redact_kept,
        in_round=True,
        as_counted=_as_counted,
    )
)
