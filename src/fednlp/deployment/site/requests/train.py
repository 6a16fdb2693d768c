"""A site's part in a round: it trains, and sends an update."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.config.values import rate_schedule
from fednlp.deployment.session.reply_checks import (
    MOST_REPORTED,
    Reportable,
    require_norms,
    require_short,
    require_within,
)
from fednlp.deployment.session.request_checks import require_labelling, require_own_examples
from fednlp.deployment.session.site_kinds import SiteKind, declare_at_sites
from fednlp.deployment.site.policy import Allow
from fednlp.errors import RunError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.sums import LARGEST
from fednlp.federated.upload import Trained

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker

_NAMES = re.compile(r"train(-[1-9][0-9]{0,5})?")
"""Names of calls to train; a number is that of a further attempt at a round."""
_LAST_DIGITS = 1e-12
"""Two machines' cosines may differ in a learning rate's last digits."""


def told(request: TrainRequest) -> TrainRequest:
    """Return a request as its site gets it.

    A site is told the round in which it begins, and no weight. The server weighs an update when it adds it: how late
    the update is, and how much others weigh, may not be known before.

    >>> request = told(TrainRequest(client=3, round=12, weight=0.25, staleness=2))
    >>> request.round, request.weight, request.staleness
    (10, 1.0, 0)
    """
    return replace(request, round=request.began, staleness=0, weight=1.0)


def _require(wanted: TrainRequest, name: str, experiment: Experiment) -> None:
    secure = experiment.secure.protocol != "none"
    require_own_examples(wanted)
    require_labelling(wanted.labelling, wanted.round, wanted.round - 1, experiment, trains=True)
    if not _NAMES.fullmatch(name):
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


def _answer(site: Site, wanted: TrainRequest, vectors: Vectors) -> Trained:
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


def _withhold(allow: Allow, answer: Trained) -> Trained:
    return replace(answer, result=redact_result(allow, answer.result))


def _bounds(request: TrainRequest, answer: ClientResult, may: Reportable) -> None:
    if answer.weight != request.weight:
        raise RunError("the site answered with another weight than it was told")
    require_short(answer.facts)
    if answer.error is not None:
        return
    require_within("loss", answer.loss, MOST_REPORTED, may.least_loss)
    if {*answer.metrics} != {*may.reports}:
        raise RunError("the site answered with other numbers than the method's clients report")
    for name, value in answer.metrics.items():
        require_within(repr(name[:40]), value, LARGEST)
    if request.masking is None:
        require_norms(answer.facts)


def _masked(site: Site) -> Callable[..., Any] | None:
    return None if site.sums is None else site.sums.train


def _as_counted(worker: ClientWorker, request: TrainRequest, counted: int) -> TrainRequest:
    worker.trainer.forget(request.client, counted + 1)
    return request


declare_at_sites(
    SiteKind(
        TrainRequest,
        {"train": "the training of round {}"},
        _require,
        _answer,
        _withhold,
        _bounds,
        in_round=True,
        told=told,
        masked=_masked,
        as_counted=_as_counted,
    )
)
