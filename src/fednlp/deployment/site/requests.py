"""What a site does for a server, one kind of request after the other.

First what holds for all; then for each: when an experiment has it asked, what the site does, what the server gets of
it, and what the server takes. A request of another kind is refused by a site; it is work of the server's own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fednlp.config import Experiment
from fednlp.config.fields import section_types
from fednlp.config.values import algorithm_of, rate_schedule
from fednlp.deployment.session.reply_checks import MOST_REPORTED, Reportable, require_within
from fednlp.deployment.session.setup import MOST_EXAMPLES
from fednlp.deployment.session.site_kinds import (
    DERIVED,
    SITE_KINDS,
    SiteKind,
    declare_at_sites,
    forgetting_between,
)
from fednlp.deployment.site.disclosure import redact_count, require_sums_told, tells_score
from fednlp.deployment.site.policy import Allow
from fednlp.deployment.site.worker import FINETUNED
from fednlp.errors import RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientLoss, ClientResult, LossRequest, TrainRequest
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL
from fednlp.federated.sums import LARGEST
from fednlp.federated.upload import Trained
from fednlp.formatting.units import is_correlation, is_share, metric_title, plural
from fednlp.partition import OneClient
from fednlp.plugins import load
from fednlp.runtime.engine import Vectors
from fednlp.runtime.messages import from_json
from fednlp.secure.deployment.session.messages import TESTS
from fednlp.training.requests.predict import (
    ClientModelRequest,
    ClientModelResult,
    ClientSums,
    ClientSumsRequest,
)

if TYPE_CHECKING:
    from fednlp.deployment.site.site import Site
    from fednlp.training.worker import ClientWorker

__all__ = ["SITE_KINDS"]

_TRAIN = re.compile(r"train(-[1-9][0-9]{0,5})?")
"""Names of calls to train; a number is that of a further attempt at a round."""
_LAST_DIGITS = 1e-12
"""Two machines' cosines may differ in a learning rate's last digits."""
MOST_FACTS = 1 << 16
"""Characters of JSON that a site may say beside its numbers."""


def require_agreed(value: Any, name: str, experiment: Experiment, own: OneClient) -> Any:
    """Return the request that a call carries, if the experiment has it done.

    A server that asks for more, such as training on one example alone, would learn more than the site agreed to. So
    does one that asks others for less: in a sum with updates that a learning rate of 0 has made zero, one site's update
    is in the clear. What the experiment and the round give is computed here, and anything else is refused.

    Args:
        value: JSON of the request.
        experiment: That the site has checked.

    Raises:
        RunError: It is no such request.
    """
    wanted = from_json(value)
    kind = SITE_KINDS.get(type(wanted))
    if kind is None:
        raise RunError(f"a site does not answer a {type(wanted).__name__}")
    if wanted.client != own.client:
        raise RunError(f"the server asks for client {wanted.client}, and this site is client {own.client}")
    if not 1 <= wanted.round <= experiment.num_rounds:
        raise RunError(f"the server asks for round {wanted.round} of {experiment.num_rounds}")
    kind.require(wanted, name, experiment)
    return wanted


def require_sent(
    call: Mapping[str, Any],
    objects: Collection[str],
    wanted: Any,
    algorithm: Algorithm,
    layout: Layout,
) -> None:
    """Check what a call says beside its request, and that its objects are those that the request needs.

    Raises:
        RunError: They are not, or it says something else than the experiment gives.
    """
    transformed = SITE_KINDS[type(wanted)].in_round and not algorithm.downlink.plain
    encoded = [MODEL] if transformed and layout.entries else []
    vectors = {MODEL, *algorithm.receives}
    missing, more = vectors - {*objects}, {*objects} - vectors - ({DERIVED} if encoded else set())
    if missing:
        raise RunError(f"the server did not send {', '.join(sorted(missing))}")
    if more:
        raise RunError(f"the server sent {', '.join(sorted(more))[:80]}, which the experiment does not need")
    if call.get("encoded") != encoded:
        raise RunError(
            "the server sent the model in another encoding than the experiment has (exchange.down)"
        )
    if type(call.get("counted")) is not int or call["counted"] < 0:
        raise RunError("the server does not say in which round this site counted last")


def _require_own_labels(wanted: Any, latest: int, experiment: Experiment, *, trains: bool = True) -> None:
    """Check that a site trains on its own choice of examples, and on labels that it keeps where it has to keep some."""
    if wanted.examples is not None or wanted.labels is not None:
        raise RunError("the server names examples or labels, which are the site's own")
    if (experiment.partly_labelled and trains) is (wanted.labelling is None):
        raise RunError("the server names no labelling to train by, or one that the experiment does not have")
    if wanted.labelling is not None and not 0 <= wanted.labelling <= latest:
        raise RunError(f"the server names the labels of round {wanted.labelling} in round {wanted.round}")


def _require_due(number: int, experiment: Experiment) -> None:
    """Check that a round is one of those after which the experiment evaluates.

    A score of each round tells more of single examples than the few that the site agreed to.
    """
    every = experiment.evaluation.every
    if number % every and number != experiment.num_rounds:
        raise RunError(
            f"the server evaluates after round {number}, and the experiment has evaluation.every = {every}"
        )


def _require_norms(facts: dict[str, Any]) -> None:
    """Check that a site says nothing beside its numbers but how far tensors moved, and which model."""
    norms = facts.get("update_norms", [])
    fits = isinstance(norms, list) and all(
        type(one) in (int, float) and 0 <= one <= MOST_REPORTED for one in norms
    )
    named = isinstance(facts.get("model", ""), str)  # the server knows its models (require_reported)
    if not (fits and named) or {*facts} - {"update_norms", "model"}:
        raise RunError("the site says something beside its numbers that no method asks for")


def _require_short(facts: dict[str, Any]) -> None:
    try:
        length = len(json.dumps(facts))
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or too deep
        length = MOST_FACTS + 1
    if length > MOST_FACTS:
        raise RunError(f"the site says more than {MOST_FACTS:,} characters beside its numbers")


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
    _require_own_labels(wanted, wanted.round - 1, experiment)
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
    _require_short(answer.facts)
    if answer.error is not None:
        return
    require_within("loss", answer.loss, MOST_REPORTED, may.least_loss)
    if {*answer.metrics} != {*may.reports}:
        raise RunError("the site answered with other numbers than the method's clients report")
    for name, value in answer.metrics.items():
        require_within(repr(name[:40]), value, LARGEST)
    if request.masking is None:
        _require_norms(answer.facts)


def _forgetting(worker: ClientWorker, request: Any, counted: int) -> Any:
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
    _require_own_labels(wanted, wanted.round, experiment, trains=wanted.finetune_steps > 0)
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
    _require_due(wanted.round, experiment)
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
    return (
        _forgetting(worker, request, counted) if request.finetune_steps else replace(request, round=counted)
    )


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
    _require_due(wanted.round, experiment)
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


def _require_loss(wanted: LossRequest, name: str, experiment: Experiment) -> None:
    selection = algorithm_of(experiment).selection
    if name != "loss":
        raise RunError(f"a call for a loss is not called {name}")
    if selection is None or not selection.asks:
        raise RunError(
            "the server asks for this site's loss, and the experiment's cohorts do not go by losses"
        )


def require_losses_told(allow: Allow, experiment: Experiment) -> None:
    """Refuse to compute a loss that the server may not know."""
    if not allow.tell_scores:
        raise RunError("allow.tell_scores = false: this site keeps its losses to itself")


def redact_loss(allow: Allow, answer: ClientLoss) -> ClientLoss:
    """Return what the server is told of the loss by which it draws a cohort."""
    return replace(answer, examples=redact_count(allow, answer.examples))


def _loss_bounds(request: LossRequest, answer: ClientLoss, may: Reportable) -> None:
    if answer.error is None:
        require_within("loss", answer.loss, MOST_REPORTED, may.least_loss)


declare_at_sites(
    SiteKind(
        LossRequest,
        {"loss": "the loss before round {}"},
        _require_loss,
        lambda site, wanted, vectors: site.do(wanted, vectors),
        redact_loss,
        _loss_bounds,
        in_round=True,
        allowed=require_losses_told,
        as_counted=forgetting_between,
    )
)


for _, _section in section_types():
    if "site" in _section.places:  # its kinds of requests are declared where it keeps a site's labels
        load(_section.places["site"], "site")
