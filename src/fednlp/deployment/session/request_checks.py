"""Checks of what a server asks of a site after its setup, by the experiment that the site has agreed to."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from fednlp.config import Experiment
from fednlp.config.values import rate_schedule
from fednlp.deployment.session.secure_messages import TESTS
from fednlp.errors import RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import LossRequest, TrainRequest
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL
from fednlp.fewshot.pacing import Pace, candidate_percentage, is_labelling_round
from fednlp.formatting.units import plural
from fednlp.partition import OneClient
from fednlp.runtime.message_json import from_json
from fednlp.runtime.messages import ClientModelRequest, ClientSumsRequest, KeepLabelsRequest

DERIVED = "derived"
"""The object with the tensors that the server computes, beside a model whose other tensors are transformed."""
_TRAIN = re.compile(r"train(-[1-9][0-9]{0,5})?")
"""Names of calls to train; a number is that of a further attempt at a round."""
LOSS = "loss"
"""Names of calls for a loss before the cohort is drawn."""
_EVALUATE = ("evaluate", "finetune")
_LAST_DIGITS = 1e-12
"""Two machines' cosines may differ in a learning rate's last digits."""

SiteRequest = TrainRequest | LossRequest | ClientModelRequest | ClientSumsRequest | KeepLabelsRequest
"""What a site does for a server."""


def require_agreed(value: Any, name: str, experiment: Experiment, own: OneClient) -> SiteRequest:
    """Return the request that a call carries, if the experiment has it done.

    A server that asks for more, such as training on one example alone, would learn more than the site agreed to. So
    does one that asks others for less: in a sum with updates that a learning rate of 0 has made zero, one site's update
    is in the clear. What the experiment and the round give is computed here, and anything else is refused.

    Args:
        value: JSON of the request.
        name: Of the call.
        experiment: That the site has checked.
        own: The site's client.

    Raises:
        RunError: It is no such request.
    """
    wanted = from_json(value)
    if not isinstance(wanted, SiteRequest):
        raise RunError(f"a site does not answer a {type(wanted).__name__}")
    if wanted.client != own.client:
        raise RunError(f"the server asks for client {wanted.client}, and this site is client {own.client}")
    if not 1 <= wanted.round <= experiment.num_rounds:
        raise RunError(f"the server asks for round {wanted.round} of {experiment.num_rounds}")
    if isinstance(wanted, LossRequest):
        if name != LOSS:
            raise RunError(f"a call for a loss is not called {name}")
        return wanted
    if isinstance(wanted, KeepLabelsRequest):
        _require_labelling(wanted, name, experiment)
        return wanted
    if isinstance(wanted, ClientSumsRequest):
        _require_sums(wanted, name, experiment)
        return wanted
    if wanted.examples is not None or wanted.labels is not None:
        raise RunError("the server names examples or labels, which are the site's own")
    _require_labels(wanted, experiment)
    if isinstance(wanted, TrainRequest):
        _require_training(wanted, name, experiment)
    else:
        _require_evaluation(wanted, name, experiment)
    return wanted


def require_sent(
    call: Mapping[str, Any],
    objects: Collection[str],
    wanted: SiteRequest,
    algorithm: Algorithm,
    layout: Layout,
) -> None:
    """Check what a call says beside its request, and that its objects are those that the request needs.

    Args:
        call: JSON of the call.
        objects: Their names.
        wanted: The request.
        algorithm: Of the experiment.
        layout: Of the model.

    Raises:
        RunError: They are not, or it says something else than the experiment gives.
    """
    asks = algorithm.selection is not None and algorithm.selection.asks
    if isinstance(wanted, LossRequest) and not asks:
        raise RunError(
            "the server asks for this site's loss, and the experiment's cohorts do not go by losses"
        )
    transformed = (
        isinstance(wanted, TrainRequest | LossRequest | KeepLabelsRequest) and not algorithm.downlink.plain
    )
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


def _require_labelling(wanted: KeepLabelsRequest, name: str, experiment: Experiment) -> None:
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


def _require_labels(wanted: TrainRequest | ClientModelRequest, experiment: Experiment) -> None:
    """Check that a site trains on the labels that it has kept where the experiment has it keep some."""
    trains = isinstance(wanted, TrainRequest) or wanted.finetune_steps > 0
    if (experiment.fewshot is not None and trains) is (wanted.labelling is None):
        raise RunError("the server names no labelling to train by, or one that the experiment does not have")
    latest = wanted.round - isinstance(wanted, TrainRequest)
    if wanted.labelling is not None and not 0 <= wanted.labelling <= latest:
        raise RunError(f"the server names the labels of round {wanted.labelling} in round {wanted.round}")


def _require_training(wanted: TrainRequest, name: str, experiment: Experiment) -> None:
    secure = experiment.secure.protocol != "none"
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


def _require_due(number: int, experiment: Experiment) -> None:
    """Check that a round is one of those after which the experiment evaluates.

    A score of each round tells more of single examples than the few that the site agreed to.
    """
    every = experiment.evaluation.every
    if number % every and number != experiment.num_rounds:
        raise RunError(
            f"the server evaluates after round {number}, and the experiment has evaluation.every = {every}"
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


def _require_evaluation(wanted: ClientModelRequest, name: str, experiment: Experiment) -> None:
    if name != _EVALUATE[wanted.finetune_steps > 0]:
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
