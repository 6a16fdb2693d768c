"""What a server may ask of a site: what the experiment has done, and nothing that would tell it more."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.config import Experiment
from fednlp.config.values import rate_schedule
from fednlp.deployment.site.requests import SITE_KINDS, require_agreed, require_sent
from fednlp.errors import RunError
from fednlp.federated.client import LossRequest, TrainRequest
from fednlp.federated.params import Layout
from fednlp.fewshot.deployment.site import KeepLabelsRequest
from fednlp.partition import OneClient
from fednlp.runtime.messages import to_json
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.training.requests.predict import (
    ClientModelRequest,
    ClientSumsRequest,
    LabelRequest,
    LocalOnlyRequest,
)

Make = Callable[..., Experiment]

OWN = OneClient(2, 4, np.arange(9), np.arange(3))
TRAIN = TrainRequest(2, 3, 1.0)
EVALUATE = ClientModelRequest(2, 3, True, False)


def ask(made: Experiment, request: Any, name: str) -> Any:
    return require_agreed(to_json(request), name, made, OWN)


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
    sums = ClientSumsRequest(2, 3, {})
    assert ask(experiment({"secure.protocol": "secagg", "evaluation.federated": True}), sums, "tests") == sums


def test_a_score_is_not_asked_for_where_the_experiment_has_none(experiment: Make) -> None:
    made = experiment(
        {"client.finetune_steps": 5, "evaluation.personal": False, "evaluation.federated": True}
    )
    with pytest.raises(RunError, match=r"evaluation\.personal = false"):
        ask(made, EVALUATE, "evaluate")
    with pytest.raises(RunError, match="not called finetune"):
        ask(experiment({}), EVALUATE, "finetune")


LABEL = KeepLabelsRequest(2, 3, 2.0)
LABELLED = replace(TRAIN, labelling=1)
SUMS = ClientSumsRequest(2, 3)
LOSS = LossRequest(2, 3)
FEWSHOT: dict[str, Any] = {"fewshot": {"f": 2, "k": 1.0}}
STATIC: dict[str, Any] = {"fewshot": {"f": 2, "pacing": "static", "per_client": 20}}
TUNED = {"client.finetune_steps": 5}
FEDERATED = {"evaluation.federated": True}
SECURE = {"secure": {"protocol": "secagg+", "clip": 1.0}}
NAMES = {
    TrainRequest: "train",
    ClientModelRequest: "evaluate",
    ClientSumsRequest: "tests",
    KeepLabelsRequest: "label",
    LossRequest: "loss",
}
OTHERS = "client 1, and this site is client 2"
EXAMPLES = "names examples or labels"
LABELS = "names no labelling|names the labels of round"
QUOTA = "another number of pseudo labels"
WEIGHT = "another weight or model"
LIES: dict[tuple[type, str], list[tuple[Any, str]]] = {
    (TrainRequest, "client"): [(1, OTHERS)],
    (TrainRequest, "round"): [(0, "round 0 of 4"), (5, "round 5 of 4")],
    (TrainRequest, "weight"): [(w, WEIGHT) for w in (0.0, 0.5, 2.0, float("nan"))],
    (TrainRequest, "staleness"): [(1, WEIGHT), (-1, WEIGHT)],
    (TrainRequest, "rate"): [
        (r, "times the learning rate") for r in (0.0, 1e-9, 0.5, 1.1, 9.0, float("nan"))
    ],
    (TrainRequest, "masking"): [({}, "has no secure sums")],
    (TrainRequest, "examples"): [([7], EXAMPLES), ([], EXAMPLES)],
    (TrainRequest, "labels"): [([1], EXAMPLES)],
    (TrainRequest, "labelling"): [(0, LABELS)],
    (ClientModelRequest, "client"): [(1, OTHERS)],
    (ClientModelRequest, "round"): [(0, "round 0 of 4"), (5, "round 5 of 4")],
    (ClientModelRequest, "on_own"): [(False, "its own test examples alone")],
    (ClientModelRequest, "on_all"): [(True, "its own test examples alone")],
    (ClientModelRequest, "finetune_steps"): [
        (1, "a call to evaluate is not called"),
        (-1, "which is not the last"),
    ],
    (ClientModelRequest, "save_to"): [("/etc/passwd", "keeps its model to itself")],
    (ClientModelRequest, "examples"): [([1], EXAMPLES)],
    (ClientModelRequest, "labels"): [([1], EXAMPLES)],
    (ClientModelRequest, "labelling"): [(1, LABELS)],
    (ClientSumsRequest, "client"): [(1, OTHERS)],
    (ClientSumsRequest, "round"): [(0, "round 0 of 4"), (9, "round 9 of 4")],
    (ClientSumsRequest, "masking"): [({}, "has no secure sums")],
    (LossRequest, "client"): [(1, OTHERS)],
    (LossRequest, "round"): [(0, "round 0 of 4"), (5, "round 5 of 4")],
    (KeepLabelsRequest, "client"): [(1, OTHERS)],
    (KeepLabelsRequest, "round"): [(0, "round 0 of 4"), (2, QUOTA), (4, QUOTA)],
    (KeepLabelsRequest, "percentage"): [(p, QUOTA) for p in (0.0, 1e-9, 1.0, 3.0, 100.0, float("nan"))],
    (KeepLabelsRequest, "most"): [(0, QUOTA), (20, QUOTA)],
}
"""By field of each request, lies of a server. A learning rate of 0 leaves one site's update alone in a sum."""
HONEST = {
    TrainRequest: (TRAIN, {}),
    ClientModelRequest: (EVALUATE, {}),
    ClientSumsRequest: (SUMS, FEDERATED),
    KeepLabelsRequest: (LABEL, FEWSHOT),
    LossRequest: (LOSS, {"cohort": {"name": "power-of-choice"}}),
}


def test_every_field_of_every_request_is_checked() -> None:
    """A new field has no entry yet: say what a site makes of it when the server lies."""
    assert {*HONEST} == {*SITE_KINDS}
    assert {*LIES} == {(kind, one.name) for kind in HONEST for one in fields(kind)}


@pytest.mark.parametrize(("kind", "field"), LIES)
def test_a_lie_in_any_field_is_refused(experiment: Make, kind: type, field: str) -> None:
    honest, changes = HONEST[kind]
    made = experiment(changes)
    assert ask(made, honest, NAMES[kind]) == honest
    for value, reason in LIES[kind, field]:
        with pytest.raises(RunError, match=reason):
            ask(made, replace(honest, **{field: value}), NAMES[kind])


@pytest.mark.parametrize(
    ("request_", "name", "changes", "reason"),
    [
        (TRAIN, "train-02", {}, "not called train-02"),
        (LOSS, "train", {}, "a call for a loss is not called train"),
        (TRAIN, "evaluate", {}, "not called evaluate"),
        (EVALUATE, "train", {}, "not called train"),
        (LABEL, "train", FEWSHOT, "a call to label is not called train"),
        (LABEL, "label", {}, "and the experiment has none"),
        (TRAIN, "train", FEWSHOT, "names no labelling"),
        (replace(TRAIN, labelling=3), "train", FEWSHOT, "names the labels of round 3 in round 3"),
        (replace(TRAIN, labelling=-1), "train", FEWSHOT, "names the labels of round -1"),
        (
            replace(EVALUATE, finetune_steps=5, round=4, labelling=5),
            "finetune",
            FEWSHOT | TUNED,
            "the labels of round 5 in round 4",
        ),
        (LABEL, "label", {"fewshot": {"pacing": "none"}}, "the experiment has none"),
        (replace(EVALUATE, finetune_steps=1, round=4), "finetune", {}, "1 step "),
        (replace(EVALUATE, finetune_steps=4, round=4), "finetune", TUNED, "4 steps "),
        (replace(EVALUATE, finetune_steps=1), "finetune", {}, "after round 3, which is not the last"),
        (TRAIN, "train", SECURE, "not masked, and the experiment has secure sums"),
        (SUMS, "tests", SECURE | FEDERATED, "sums that are not masked"),
        (SUMS, "tests", {}, r"has no evaluation\.federated"),
        (SUMS, "evaluate", FEDERATED, r"has no evaluation\.federated"),
        (replace(LABEL, percentage=99.0, most=20), "label", STATIC, QUOTA),
        (replace(LABEL, percentage=100.0, most=19), "label", STATIC, QUOTA),
        (replace(LABEL, percentage=100.0, most=41), "label", STATIC, QUOTA),
        (replace(LABEL, percentage=100.0), "label", STATIC, QUOTA),
        (LabelRequest(2, 3, [1]), "label", {}, "does not answer a LabelRequest"),
        (LocalOnlyRequest(2, 1, 1, True, True), "local", {}, "does not answer a LocalOnlyRequest"),
    ],
)
def test_more_may_not_be_asked(
    experiment: Make, request_: Any, name: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RunError, match=reason):
        ask(experiment(changes), request_, name)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_learning_rate_is_that_of_the_round(experiment: Make, schedule: str) -> None:
    """To the last digits, in which two machines' cosines may differ."""
    made = experiment({"client.round_schedule": schedule, "client.warmup_rounds": 1})
    rates = [rate_schedule(made.client, 4).factor(number) for number in range(1, 5)]
    for number, rate in enumerate(rates, 1):
        wanted = replace(TRAIN, round=number, rate=math.nextafter(rate, 2))
        assert ask(made, wanted, "train") == wanted
        for other in {*rates} - {rate}:
            with pytest.raises(RunError, match=f"the learning rate in round {number}"):
                ask(made, replace(wanted, rate=other), "train")


def test_labels_are_asked_for_as_the_pace_says(experiment: Make) -> None:
    for changes, honest in (
        (FEWSHOT, [replace(LABEL, round=1, percentage=1.0), LABEL]),
        (
            STATIC,
            [KeepLabelsRequest(2, 1, 100.0, 20), *(KeepLabelsRequest(2, 3, 100.0, n) for n in (20, 40))],
        ),
        ({"fewshot": {"pacing": "search"}}, [replace(LABEL, round=n, percentage=7.0) for n in (1, 2, 3)]),
    ):
        made = experiment(changes)
        assert [ask(made, one, "label") for one in honest] == honest
    made = experiment(FEWSHOT | TUNED)
    tuned = replace(EVALUATE, finetune_steps=5, round=4, labelling=3)
    assert [ask(made, *one) for one in ((tuned, "finetune"), (LABELLED, "train"))] == [tuned, LABELLED]


@pytest.mark.parametrize(
    ("call", "objects", "reason"),
    [
        ({"encoded": ["model"]}, ["model"], "another encoding"),
        ({"encoded": 5}, ["model"], "another encoding"),
        ({"encoded": None}, ["model"], "another encoding"),
        ({"counted": None}, ["model"], "counted last"),
        ({"counted": True}, ["model"], "counted last"),
        ({"counted": -1}, ["model"], "counted last"),
        ({}, [], "did not send model"),
        ({}, ["model", "control"], "sent control, which the experiment does not need"),
        ({}, ["model", "derived"], "sent derived, which the experiment does not need"),
    ],
)
def test_what_comes_with_a_request_is_what_it_needs(
    experiment: Make, call: dict[str, Any], objects: list[str], reason: str
) -> None:
    layout, honest = Layout.of({"a": ((3,), "parameter")}), {"encoded": [], "counted": 0}
    plain, eighth = (build_algorithm(experiment(one)) for one in ({}, {"exchange": {"down": ["int8"]}}))
    require_sent(honest, ["model"], TRAIN, plain, layout)
    require_sent(honest | {"encoded": ["model"]}, ["model"], TRAIN, eighth, layout)
    require_sent(honest, ["model"], EVALUATE, eighth, layout)
    with pytest.raises(RunError, match="another encoding"):
        require_sent(honest, ["model"], TRAIN, eighth, layout)
    with pytest.raises(RunError, match=reason):
        require_sent(honest | call, objects, TRAIN, plain, layout)


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
