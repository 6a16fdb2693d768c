"""Sums over a site's own tests, which are added to those of the other sites, in the clear or under masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.deployment.session.reply_checks import Reportable
from fednlp.deployment.session.request_checks import require_due
from fednlp.deployment.session.secure_messages import TESTS
from fednlp.deployment.session.setup import MOST_EXAMPLES
from fednlp.deployment.session.site_kinds import SiteKind, declare_at_sites
from fednlp.deployment.site.disclosure import require_sums_told
from fednlp.deployment.site.policy import Allow
from fednlp.errors import RunError
from fednlp.training.requests.client_sums import ClientSums, ClientSumsRequest

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker


def _require(wanted: ClientSumsRequest, name: str, experiment: Experiment) -> None:
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


def _answer(site: Site, wanted: ClientSumsRequest, vectors: Vectors) -> ClientSums:
    answer: ClientSums = site.do(wanted, vectors)
    return answer


def _withhold(allow: Allow, answer: ClientSums) -> ClientSums:
    return answer  # a site whose policy has no sums told refuses instead


def _bounds(request: ClientSumsRequest, answer: ClientSums, may: Reportable) -> None:
    """Check the number of test examples, their loss and its weight (:func:`fednlp.training.scores.sums_of`)."""
    sums = answer.sums
    if request.masking is not None or answer.error is not None or len(sums) <= 2:
        return
    if not (0 <= sums[0] <= MOST_EXAMPLES and sums[2] >= 0 and (sums[1] >= 0 or may.least_loss < 0)):
        raise RunError("the site answered with a number of test examples that cannot be")


def _masked(site: Site) -> Callable[..., Any] | None:
    return None if site.test_sums is None else site.test_sums.add


def _as_counted(worker: ClientWorker, request: ClientSumsRequest, counted: int) -> ClientSumsRequest:
    return request if worker.has_global_model else replace(request, round=counted)


declare_at_sites(
    SiteKind(
        ClientSumsRequest,
        {TESTS: "the sums over its tests of round {}"},
        _require,
        _answer,
        _withhold,
        _bounds,
        allowed=require_sums_told,
        masked=_masked,
        as_counted=_as_counted,
    )
)
