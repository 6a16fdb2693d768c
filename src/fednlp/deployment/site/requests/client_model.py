"""The score of a site's own model on its own tests, after a round or after fine-tuning steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fednlp.config import Experiment
from fednlp.deployment.session.reply_checks import MOST_REPORTED, Reportable, require_within
from fednlp.deployment.session.request_checks import (
    require_due,
    require_labelling,
    require_own_examples,
)
from fednlp.deployment.session.site_kinds import SiteKind, declare_at_sites
from fednlp.deployment.site.disclosure import tells_score
from fednlp.deployment.site.policy import Allow
from fednlp.deployment.site.worker import FINETUNED
from fednlp.errors import RunError
from fednlp.formatting.units import is_correlation, is_share, metric_title, plural
from fednlp.training.requests.client_model import ClientModelRequest, ClientModelResult

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site
    from fednlp.runtime.engine import Vectors
    from fednlp.training.worker import ClientWorker

_EVALUATE, _FINETUNE = "evaluate", "finetune"


def _name(request: ClientModelRequest) -> str:
    return _FINETUNE if request.finetune_steps > 0 else _EVALUATE


def _require(wanted: ClientModelRequest, name: str, experiment: Experiment) -> None:
    tunes = wanted.finetune_steps > 0
    require_own_examples(wanted)
    require_labelling(wanted.labelling, wanted.round, wanted.round, experiment, trains=tunes)
    if name != _name(wanted):
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


def _answer(site: Site, wanted: ClientModelRequest, vectors: Vectors) -> ClientModelResult:
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


def _bounds(request: ClientModelRequest, answer: ClientModelResult, may: Reportable) -> None:
    if answer.everyone is not None or answer.by_owner is not None:
        raise RunError("the site answered with scores on tests that are not its own")
    if answer.own is not None:
        share = is_share(may.metric) or is_correlation(may.metric)
        least = -1e-6 if is_share(may.metric) else -MOST_REPORTED
        require_within(may.metric, answer.own, 1 + 1e-6 if share else MOST_REPORTED, least)


def _as_counted(worker: ClientWorker, request: ClientModelRequest, counted: int) -> ClientModelRequest:
    """Have the model evaluated as it was after that round: an update that has not been used yet may still count."""
    if not request.finetune_steps:
        return replace(request, round=counted)
    worker.trainer.forget(request.client, counted + 1)
    return request


declare_at_sites(
    SiteKind(
        ClientModelRequest,
        {_EVALUATE: "the evaluation of round {}", _FINETUNE: "the evaluation after fine-tuning"},
        _require,
        _answer,
        redact_score,
        _bounds,
        name=_name,
        as_counted=_as_counted,
    )
)
