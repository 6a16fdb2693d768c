"""What a server may ask of a site: what the experiment has done, and nothing that would tell it more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.config import Experiment
from fednlp.deployment.asked import asked_of
from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.partition import OneClient
from fednlp.runtime.message_json import to_json
from fednlp.runtime.messages import ClientModelRequest, ClientSumsRequest, LabelRequest, LocalOnlyRequest

Make = Callable[..., Experiment]

OWN = OneClient(2, 4, np.arange(9), np.arange(3))
TRAIN = TrainRequest(2, 3, 0.5, rate=0.25)
EVALUATE = ClientModelRequest(2, 3, True, False)


def ask(made: Experiment, request: Any, name: str) -> Any:
    return asked_of(to_json(request), name, made, OWN)


def test_what_the_experiment_has_done_may_be_asked(experiment: Make) -> None:
    made = experiment({"client.finetune_steps": 5})
    assert ask(made, TRAIN, "train") == TRAIN
    assert ask(made, EVALUATE, "evaluate") == EVALUATE
    tuned = replace(EVALUATE, finetune_steps=5, round=4)
    assert ask(made, tuned, "finetune") == tuned
    assert ask(made, TRAIN, "train-2") == TRAIN
    secure = experiment({"secure": {"protocol": "secagg+", "clip": 1.0}})
    masked = replace(TRAIN, masking={})
    assert [ask(secure, masked, name) for name in ("train", "train-2")] == [masked] * 2


def test_a_score_is_not_asked_for_where_the_experiment_has_none(experiment: Make) -> None:
    made = experiment(
        {"client.finetune_steps": 5, "evaluation.personal": False, "evaluation.federated": True}
    )
    with pytest.raises(RunError, match=r"evaluation\.personal = false"):
        ask(made, EVALUATE, "evaluate")
    with pytest.raises(RunError, match="not called finetune"):
        ask(experiment({}), EVALUATE, "finetune")


@pytest.mark.parametrize(
    ("request_", "name", "reason"),
    [
        (replace(TRAIN, client=1), "train", "client 1, and this site is client 2"),
        (replace(TRAIN, round=0), "train", "round 0 of 4"),
        (replace(TRAIN, round=5), "train", "round 5 of 4"),
        (replace(TRAIN, examples=[7]), "train", "names examples or labels"),
        (replace(TRAIN, examples=[7], labels=[1]), "train", "names examples or labels"),
        (TRAIN, "train-02", "not called train-02"),
        (TRAIN, "evaluate", "not called evaluate"),
        (replace(TRAIN, masking={}), "train", "has no secure sums"),
        (replace(TRAIN, weight=2.0), "train", "another weight"),
        (replace(TRAIN, weight=float("nan")), "train", "another weight"),
        (replace(TRAIN, rate=9.0), "train", "another weight"),
        (replace(TRAIN, staleness=1), "train", "another weight"),
        (replace(EVALUATE, on_all=True), "evaluate", "its own test examples alone"),
        (replace(EVALUATE, save_to="/etc/passwd"), "evaluate", "keeps its model to itself"),
        (replace(EVALUATE, finetune_steps=1, round=4), "finetune", "1 step "),
        (replace(EVALUATE, finetune_steps=1), "finetune", "after round 3, which is not the last"),
        (replace(EVALUATE, examples=[1]), "evaluate", "names examples or labels"),
        (EVALUATE, "train", "not called train"),
        (LabelRequest(2, 3, [1]), "label", "does not answer a LabelRequest"),
        (LocalOnlyRequest(2, 1, 1, True, True), "local", "does not answer a LocalOnlyRequest"),
    ],
)
def test_more_may_not_be_asked(experiment: Make, request_: Any, name: str, reason: str) -> None:
    with pytest.raises(RunError, match=reason):
        ask(experiment(), request_, name)


def test_scores_of_a_site_may_not_be_asked_where_the_experiment_has_none(experiment: Make) -> None:
    """Neither the server's experiment nor the site's dry run said that they leave."""
    with pytest.raises(RunError, match=r"evaluation\.personal = false"):
        ask(experiment({"evaluation.personal": False}), EVALUATE, "evaluate")
    tuned = experiment({"evaluation.personal": False, "client.finetune_steps": 5})
    assert ask(tuned, replace(EVALUATE, finetune_steps=5, round=4), "finetune").finetune_steps == 5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    every=st.integers(1, 12),
    number=st.integers(1, 12),
    asks=st.sampled_from([EVALUATE, ClientSumsRequest(2, 1)]),
)
def test_a_site_is_evaluated_after_the_rounds_that_the_experiment_names(
    experiment: Make, every: int, number: int, asks: Any
) -> None:
    made = experiment({"num_rounds": 12, "evaluation.every": every, "evaluation.federated": True})
    wanted = replace(asks, round=number)
    name = "evaluate" if isinstance(wanted, ClientModelRequest) else "tests"
    if number % every == 0 or number == 12:
        assert ask(made, wanted, name) == wanted
    else:
        with pytest.raises(
            RunError, match=rf"after round {number}, and the experiment has evaluation\.every"
        ):
            ask(made, wanted, name)


def test_an_update_that_is_to_be_masked_is_not_sent_bare(experiment: Make) -> None:
    with pytest.raises(RunError, match="not masked, and the experiment has secure sums"):
        ask(experiment({"secure": {"protocol": "secagg+", "clip": 1.0}}), TRAIN, "train")


def test_sums_over_tests_are_asked_for_as_the_experiment_says(experiment: Make) -> None:
    sums = ClientSumsRequest(2, 3)
    masked = replace(sums, masking={})
    plain, secure = ({"evaluation.federated": True} | more for more in ({}, {"secure.protocol": "secagg"}))
    assert ask(experiment(plain), sums, "tests") == sums
    assert ask(experiment(secure), masked, "tests") == masked
    for changes, request, name, reason in (
        ({}, sums, "tests", "has no evaluation.federated"),
        (plain, sums, "evaluate", "has no evaluation.federated"),
        (plain, masked, "tests", "has no secure sums"),
        (secure, sums, "tests", "sums that are not masked"),
        (plain, replace(sums, client=1), "tests", "client 1, and this site is client 2"),
        (plain, replace(sums, round=9), "tests", "round 9 of 4"),
    ):
        with pytest.raises(RunError, match=reason):
            ask(experiment(changes), request, name)
