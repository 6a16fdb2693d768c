"""What a site does for a server, one kind of request after the other.

For each: when an experiment has it asked, what the site does, what the server gets of it, and what the server takes. A
request of another kind is refused by a site; it is work of the server's own.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fednlp.config import Experiment
from fednlp.config.values import rate_schedule
from fednlp.deployment.session.reply_checks import MOST_REPORTED, Reportable, require_facts, require_within
from fednlp.deployment.session.request_checks import require_due, require_own_labels
from fednlp.deployment.session.secure_messages import TESTS
from fednlp.deployment.session.setup import MOST_EXAMPLES
from fednlp.deployment.session.site_kinds import SITE_KINDS, SiteKind, declare_at_sites
from fednlp.deployment.site.disclosure import redact_count, require_sums_told, tells_score
from fednlp.deployment.site.policy import Allow
from fednlp.deployment.site.worker import FINETUNED
from fednlp.errors import RunError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.sums import LARGEST
from fednlp.federated.upload import Trained
from fednlp.fewshot.pacing import LabelQuota, Pace, candidate_percentage, is_labelling_round
from fednlp.formatting.units import is_correlation, is_share, metric_title, plural
from fednlp.runtime.engine import Vectors
from fednlp.runtime.messages import declare
from fednlp.training.requests.predict import (
    ClientModelRequest,
    ClientModelResult,
    ClientSums,
    ClientSumsRequest,
    LabelRequest,
    Labels,
)

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site
    from fednlp.training.worker import ClientWorker

__all__ = ["SITE_KINDS"]

_TRAIN = re.compile(r"train(-[1-9][0-9]{0,5})?")
"""Names of calls to train; a number is that of a further attempt at a round."""
_LAST_DIGITS = 1e-12
"""Two machines' cosines may differ in a learning rate's last digits."""


def told_to_train(request: TrainRequest) -> TrainRequest:
    """Return a request as its site gets it.

    A site is told the round in which it begins, and no weight. The server weighs an update when it adds it: how late
    the update is, and how much others weigh, may not be known before.

    >>> request = told_to_train(TrainRequest(client=3, round=12, weight=0.25, staleness=2))
    >>> request.round, request.weight, request.staleness
    (10, 1.0, 0)
    """
    return replace(request, round=request.began, staleness=0, weight=1.0)


def _require_training(wanted: TrainRequest, name: str, experiment: Experiment) -> None:
    secure = experiment.secure.protocol != "none"
    require_own_labels(wanted, wanted.round - 1, experiment)
    if not _TRAIN.fullmatch(name):
        raise RunError(f"a call to train is not called {name}")
    if secure is (wanted.masking is None):
        raise RunError(
            "the server asks for an update that is not masked, and the experiment has secure sums"
            if secure
            else "the server asks for a masked update, and the experiment has no secure sums"
        )
    if wanted.weight != 1 or wanted.staleness:
        raise RunError("the server asks for another weight or model than the experiment has")
    rate = rate_schedule(experiment.client, experiment.num_rounds).factor(wanted.round)
    if not math.isclose(wanted.rate, rate, rel_tol=0.0, abs_tol=_LAST_DIGITS):
        raise RunError(
            f"the server asks for {wanted.rate:g} times the learning rate in round {wanted.round}, and the experiment "
            f"has {rate:g} times"
        )


def _train(site: Site, wanted: TrainRequest, vectors: Vectors) -> Trained:
    wanted = site.labelled(wanted)
    fewest = site.policy.allow.fewest_examples
    if site.opened.labels is not None and len(wanted.examples or ()) < fewest:
        raise RunError(f"allow.fewest_examples = {fewest}, and fewer examples here have a label by now")
    answer: Trained = site.do(wanted, vectors)
    if answer.upload is not None:
        done = answer.result
        site.loss = done.loss / done.examples if done.examples else None
    return answer


def redact_result(allow: Allow, result: ClientResult) -> ClientResult:
    """Return what the server is told of a client's training.

    A loss that is not told counts for no example, and the loss of an unknown number of examples is that of one. The
    method's own metrics are what it works with, and are not changed.
    """
    if not allow.tell_scores:
        result = replace(result, loss=0.0, examples=0)
    if not allow.tell_size:
        mean = result.loss / max(1, result.examples)
        result = replace(result, loss=mean, examples=min(1, result.examples), steps=0, gradient_examples=0)
    return result


def _update_bounds(request: TrainRequest, answer: ClientResult, may: Reportable) -> None:
    if answer.weight != request.weight:
        raise RunError("the site answered with another weight than it was told")
    require_facts(answer.facts, norms_alone=answer.error is None and request.masking is None)
    if answer.error is not None:
        return
    require_within("loss", answer.loss, MOST_REPORTED, may.least_loss)
    if {*answer.metrics} != {*may.reports}:
        raise RunError("the site answered with other numbers than the method's clients report")
    for name, value in answer.metrics.items():
        require_within(repr(name[:40]), value, LARGEST)


def _forgetting(worker: ClientWorker, request: TrainRequest, counted: int) -> TrainRequest:
    worker.trainer.forget(request.client, counted + 1)
    return request


declare_at_sites(
    SiteKind(
        TrainRequest,
        {"train": "the training of round {}"},
        _require_training,
        _train,
        lambda allow, answer: replace(answer, result=redact_result(allow, answer.result)),
        _update_bounds,
        in_round=True,
        told=told_to_train,
        masked=lambda site: site.sums and site.sums.train,
        as_counted=_forgetting,
    )
)


def _evaluation(request: ClientModelRequest) -> str:
    return "finetune" if request.finetune_steps > 0 else "evaluate"


def _require_evaluation(wanted: ClientModelRequest, name: str, experiment: Experiment) -> None:
    require_own_labels(wanted, wanted.round, experiment, trains=wanted.finetune_steps > 0)
    if name != _evaluation(wanted):
        raise RunError(f"a call to evaluate is not called {name}")
    if not wanted.finetune_steps and not experiment.evaluation.personal:
        raise RunError(
            "the server asks for this site's scores, and the experiment has evaluation.personal = false"
        )
    if wanted.finetune_steps and wanted.round != experiment.num_rounds:
        raise RunError(
            f"the server has the model fine-tuned after round {wanted.round}, which is not the last"
        )
    require_due(wanted.round, experiment)
    if not wanted.on_own or wanted.on_all or wanted.save_to is not None:
        raise RunError("a site has its own test examples alone, and keeps its model to itself")
    if wanted.finetune_steps not in (0, experiment.client.finetune_steps):
        raise RunError(
            f"the server asks for {plural(wanted.finetune_steps, 'step')} that the experiment does not have"
        )


def _evaluate_model(site: Site, wanted: ClientModelRequest, vectors: Vectors) -> ClientModelResult:
    if wanted.finetune_steps:
        wanted = replace(wanted, save_to=str(site.folder / FINETUNED))
    answer: ClientModelResult = site.do(site.labelled(wanted), vectors)
    if answer.own is not None:  # it belongs to the site, whether or not the server is told
        metric, rounds = metric_title(site.worker.task.metric), site.opened.experiment.num_rounds
        site.log(f"round {wanted.round} of {rounds}: {metric} {answer.own:.4f} on this site's tests")
    return answer


def redact_score(allow: Allow, result: ClientModelResult) -> ClientModelResult:
    """Return what the server is told of the score of a client's model."""
    return result if tells_score(allow) else ClientModelResult(result.client, result.error)


def _score_bounds(request: ClientModelRequest, answer: ClientModelResult, may: Reportable) -> None:
    if answer.everyone is not None or answer.by_owner is not None:
        raise RunError("the site answered with scores on tests that are not its own")
    if answer.own is not None:
        share = is_share(may.metric) or is_correlation(may.metric)
        least = -1e-6 if is_share(may.metric) else -MOST_REPORTED
        require_within(may.metric, answer.own, 1 + 1e-6 if share else MOST_REPORTED, least)


def _as_of(worker: ClientWorker, request: ClientModelRequest, counted: int) -> ClientModelRequest:
    """Have the model evaluated as it was after that round: an update that has not been used yet may still count."""
    if not request.finetune_steps:
        return replace(request, round=counted)
    worker.trainer.forget(request.client, counted + 1)
    return request


declare_at_sites(
    SiteKind(
        ClientModelRequest,
        {"evaluate": "the evaluation of round {}", "finetune": "the evaluation after fine-tuning"},
        _require_evaluation,
        _evaluate_model,
        redact_score,
        _score_bounds,
        name=_evaluation,
        as_counted=_as_of,
    )
)


def _require_sums(wanted: ClientSumsRequest, name: str, experiment: Experiment) -> None:
    require_due(wanted.round, experiment)
    if name != TESTS or not experiment.evaluation.federated:
        raise RunError("the server asks for sums over tests, and the experiment has no evaluation.federated")
    secure = experiment.secure.protocol != "none"
    if secure is (wanted.masking is None):
        raise RunError(
            "the server asks for sums that are not masked, and the experiment has secure sums"
            if secure
            else "the server asks for masked sums, and the experiment has no secure sums"
        )


def _sums_bounds(request: ClientSumsRequest, answer: ClientSums, may: Reportable) -> None:
    """Check the number of test examples, their loss and its weight (:func:`fednlp.training.scores.sums_of`)."""
    sums = answer.sums
    if request.masking is not None or answer.error is not None or len(sums) <= 2:
        return
    if not (0 <= sums[0] <= MOST_EXAMPLES and sums[2] >= 0 and (sums[1] >= 0 or may.least_loss < 0)):
        raise RunError("the site answered with a number of test examples that cannot be")


def _sums_as_of(worker: ClientWorker, request: ClientSumsRequest, counted: int) -> ClientSumsRequest:
    return request if worker.has_global_model else replace(request, round=counted)


declare_at_sites(
    SiteKind(
        ClientSumsRequest,
        {TESTS: "the sums over its tests of round {}"},
        _require_sums,
        lambda site, wanted, vectors: site.do(wanted, vectors),
        lambda allow, answer: answer,  # where the policy has no sums told, it is refused
        _sums_bounds,
        allowed=require_sums_told,
        masked=lambda site: site.test_sums and site.test_sums.add,
        as_counted=_sums_as_of,
    )
)


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


def _label(site: Site, wanted: KeepLabelsRequest, vectors: Vectors) -> LabelsKept:
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


def _forgetting_between(worker: ClientWorker, request: KeepLabelsRequest, counted: int) -> KeepLabelsRequest:
    worker.trainer.forget(request.client, counted + 1, before=request.round)  # it may train as well
    return request


declare_at_sites(
    SiteKind(
        KeepLabelsRequest,
        {"label": "the labelling of round {}"},
        _require_due_labels,
        _label,
        redact_kept,
        in_round=True,
        as_counted=_forgetting_between,
    )
)
