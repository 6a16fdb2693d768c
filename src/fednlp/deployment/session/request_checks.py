"""Checks of what a server asks of a site after its setup, by the experiment that the site has agreed to."""

from collections.abc import Collection, Mapping
from typing import Any

from fednlp.config import Experiment
from fednlp.deployment.session.site_kinds import SITE_KINDS
from fednlp.errors import RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL
from fednlp.partition import OneClient
from fednlp.runtime.messages import from_json

DERIVED = "derived"
"""The object with the tensors that the server computes, beside a model whose other tensors are transformed."""


def require_agreed(value: Any, name: str, experiment: Experiment, own: OneClient) -> Any:
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

    Args:
        call: JSON of the call.
        objects: Their names.
        wanted: The request.
        algorithm: Of the experiment.
        layout: Of the model.

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


def require_own_labels(wanted: Any, latest: int, experiment: Experiment, *, trains: bool = True) -> None:
    """Check that a site trains on its own choice of examples, and on labels that it keeps where it has to keep some.

    Args:
        wanted: A request by which a site may train.
        latest: The last round of which there can be a labelling.
        experiment: That the site has checked.
        trains: Whether the site trains by it.

    Raises:
        RunError: It does not.
    """
    if wanted.examples is not None or wanted.labels is not None:
        raise RunError("the server names examples or labels, which are the site's own")
    if (experiment.fewshot is not None and trains) is (wanted.labelling is None):
        raise RunError("the server names no labelling to train by, or one that the experiment does not have")
    if wanted.labelling is not None and not 0 <= wanted.labelling <= latest:
        raise RunError(f"the server names the labels of round {wanted.labelling} in round {wanted.round}")


def require_due(number: int, experiment: Experiment) -> None:
    """Check that a round is one of those after which the experiment evaluates.

    A score of each round tells more of single examples than the few that the site agreed to.

    Raises:
        RunError: It is not.
    """
    every = experiment.evaluation.every
    if number % every and number != experiment.num_rounds:
        raise RunError(
            f"the server evaluates after round {number}, and the experiment has evaluation.every = {every}"
        )
