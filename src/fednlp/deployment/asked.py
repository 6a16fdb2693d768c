"""What a server may ask of a site after its setup, by the experiment that the site has agreed to."""

import re
from typing import Any

from fednlp.config import Experiment
from fednlp.deployment.secure_messages import TESTS
from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.formatting.units import plural
from fednlp.partition import OneClient
from fednlp.runtime.message_json import from_json
from fednlp.runtime.messages import ClientModelRequest, ClientSumsRequest, KeepLabelsRequest

DERIVED = "derived"
"""The object with the tensors that the server computes, beside a model whose other tensors are transformed."""
_TRAIN = re.compile(r"train(-[1-9][0-9]{0,5})?")
"""Names of calls to train; a number is that of a further attempt at a round."""
_EVALUATE = ("evaluate", "finetune")

SiteRequest = TrainRequest | ClientModelRequest | ClientSumsRequest | KeepLabelsRequest
"""What a site does for a server."""


def asked_of(value: Any, name: str, experiment: Experiment, own: OneClient) -> SiteRequest:
    """Return the request that a call carries, if the experiment has it done.

    A server that asks for more, such as training on one example alone, would learn more than the site agreed to.

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


def _require_labelling(wanted: KeepLabelsRequest, name: str, experiment: Experiment) -> None:
    fewshot = experiment.fewshot
    if name != "label":
        raise RunError(f"a call to label is not called {name}")
    if fewshot is None or fewshot.pacing == "none":
        raise RunError("the server asks for pseudo labels, and the experiment has none")
    least, most = fewshot.per_client, wanted.most
    right = most is not None and most >= least if fewshot.pacing == "static" else most is None
    if not 0 < wanted.percentage <= 100 or not right:
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
    if not (0 <= wanted.weight <= 1 and 0 <= wanted.rate <= 1) or wanted.staleness:
        raise RunError("the server asks for another weight, learning rate or model than the experiment has")


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
    if wanted.on_all or wanted.save_to is not None:
        raise RunError("a site has its own test examples alone, and keeps its model to itself")
    if wanted.finetune_steps not in (0, experiment.client.finetune_steps):
        raise RunError(
            f"the server asks for {plural(wanted.finetune_steps, 'step')} that the experiment does not have"
        )
