"""What a hostile site answers: numbers that the server cannot count with, and more than it was asked."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.costs.fleet import local_examples
from fednlp.deployment.server.gathering import sites_partition
from fednlp.deployment.session.reply_checks import (
    MOST_CALLS,
    MOST_COUNTED,
    MOST_REPORTED,
    Reportable,
    least_loss,
    most_counts,
    require_own,
)
from fednlp.deployment.session.setup import MOST_EXAMPLES, read_ready
from fednlp.deployment.site.disclosure import redact_sizes
from fednlp.deployment.site.policy import Allow
from fednlp.deployment.site.requests import MOST_FACTS
from fednlp.errors import RunError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.round import mean_over_examples
from fednlp.federated.sums import LARGEST
from fednlp.fewshot.deployment.site import KeepLabelsRequest, LabelsKept
from fednlp.runtime.messages import KINDS, from_json, to_json
from fednlp.tasks.text_classification import TextClassification
from fednlp.training.local_training import LocalTraining
from fednlp.training.requests.predict import (
    ClientModelRequest,
    ClientModelResult,
    ClientSums,
    ClientSumsRequest,
)

ASKED = TrainRequest(2, 1, 1.0)
REQUESTS = (ASKED, ClientModelRequest(2, 1, True, False), KeepLabelsRequest(2, 1, 100.0))
MOST = most_counts(LocalTraining(), 1000)
GOOD = ClientResult(2, 1.0, examples=7, steps=3, loss=1.5, facts={"update_norms": [1.0]})


def said(**changes: Any) -> Any:
    """Return what the server reads of an answer that was changed on its way through JSON."""
    return from_json(json.loads(json.dumps({**(to_json(GOOD) or {}), **changes})))


def check(answer: Any, kind: type[Any] = ClientResult, metric: str = "accuracy") -> None:
    """Check an answer of a site with 1000 examples, whose method reports what it says."""
    may = Reportable(MOST, metric, tuple(getattr(answer, "metrics", ())))
    require_own(next(one for one in REQUESTS if KINDS[type(one)].answer is kind), answer, may)


def test_an_answer_to_what_was_asked_is_taken() -> None:
    check(said())
    check(said(**{name: count for name, count in MOST.items() if name != "labels"}, bytes_up=MOST_COUNTED))
    check(said(loss=MOST_REPORTED, metrics={"tau": -LARGEST}))
    check(said(error="its loss is no number", loss=float("nan")))


@pytest.mark.parametrize("name", ["examples", "steps", "gradient_examples", "bytes_up", "bytes_down"])
@pytest.mark.parametrize("count", [-1, 1, 10**4000])
def test_a_count_that_cannot_be_is_refused(name: str, count: int) -> None:
    past = MOST.get(name, MOST_COUNTED) + 1 if count == 1 else count
    with pytest.raises(RunError, match=f"a number of {name} that cannot be"):
        check(said(**{name: past}))


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 5), st.sampled_from([-1, 1, 7, 300]))
def test_what_a_client_counts_is_within_the_bounds(
    examples: int, batch: int, epochs: int, steps: int
) -> None:
    """A method that takes the local steps so often as it may counts what the bound allows, and no more."""
    options = LocalTraining(num_train_epochs=epochs, per_device_train_batch_size=batch, max_steps=steps)
    seen = local_examples([examples], epochs=epochs, batch_size=batch, max_steps=steps)[0]
    most = most_counts(options, examples)
    assert MOST_CALLS * seen <= most["examples"] <= MOST_CALLS * (seen + batch * options.steps(examples))
    assert most["steps"] == MOST_CALLS * options.steps(examples)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1e308, 1e308, 1.1 * MOST_REPORTED])
def test_a_loss_that_cannot_be_is_refused(loss: float) -> None:
    with pytest.raises(RunError, match=r"a loss of \S+, which cannot be"):
        check(said(loss=loss))
    with pytest.raises(RunError, match=r"a 'tau' of \S+, which cannot be"):
        check(said(metrics={"tau": loss}))


@pytest.mark.parametrize("loss", [-1.0, -1e-9])
def test_a_loss_below_zero_is_one_of_a_task_of_the_users_own(loss: float) -> None:
    """A cross-entropy cannot be negative: one that is would hide the losses of others in the mean."""

    class Own(TextClassification):
        pass

    negative = said(loss=loss)
    with pytest.raises(RunError, match=r"a loss of \S+, which cannot be"):
        require_own(ASKED, negative, Reportable(MOST, "f1", (), least_loss(TextClassification(("a",)))))
    require_own(ASKED, negative, Reportable(MOST, "f1", (), least_loss(Own(("a",)))))
    with pytest.raises(RunError, match="a number of test examples that cannot be"):
        require_own(ClientSumsRequest(2, 1), ClientSums(2, None, [5, -7, 5]), Reportable(MOST, "f1"))


@pytest.mark.parametrize(
    ("reports", "metrics"), [((), {"a": 1.0}), (("tau",), {}), (("tau",), {"tau": 1.0, "a": 1.0})]
)
def test_a_site_reports_the_numbers_of_the_method_and_no_others(
    reports: tuple[str, ...], metrics: dict[str, float]
) -> None:
    with pytest.raises(RunError, match="other numbers than the method's clients report"):
        require_own(ASKED, said(metrics=metrics), Reportable(MOST, "accuracy", reports))


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("accuracy", 1e17),
        ("accuracy", 1.1),
        ("accuracy", -0.5),
        ("mcc", -1.5),
        ("perplexity", float("inf")),
        ("bleu", float("nan")),
    ],
)
def test_a_score_that_cannot_be_is_refused(metric: str, score: float) -> None:
    with pytest.raises(RunError, match=f"a {metric} of .*, which cannot be"):
        check(ClientModelResult(2, own=score), ClientModelResult, metric)


@pytest.mark.parametrize(
    ("metric", "score"), [("accuracy", 1.0), ("mcc", -1.0), ("bleu", 30.0), ("mse", 1e9), ("f1", None)]
)
def test_a_score_that_can_be_is_taken(metric: str, score: float | None) -> None:
    check(ClientModelResult(2, own=score), ClientModelResult, metric)


@pytest.mark.parametrize("more", [{"everyone": {"accuracy": 1.0}}, {"by_owner": [1.0]}])
def test_a_site_has_no_scores_on_the_tests_of_others(more: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="tests that are not its own"):
        check(replace(ClientModelResult(2, own=0.5), **more), ClientModelResult)


def test_the_largest_numbers_have_a_mean() -> None:
    most = said(examples=MOST["examples"], metrics={"tau": LARGEST})
    check(most)
    assert mean_over_examples([most, most]) == {"tau": LARGEST}


@pytest.mark.parametrize(
    "facts",
    [
        {"update_norms": [float("nan")]},
        {"update_norms": [10**310]},
        {"update_norms": [-1.0]},
        {"update_norms": ["1"]},
        {"update_norms": {"a": 1.0}},
        {"other": 1.0},
    ],
)
def test_facts_are_norms(facts: dict[str, Any]) -> None:
    """They stand in the round's line, which must be read again."""
    with pytest.raises(RunError, match="beside its numbers"):
        check(replace(GOOD, facts=facts))
    masked = replace(ASKED, masking={})
    require_own(masked, replace(GOOD, facts={"tail": 1}), Reportable(MOST, "accuracy"))


def test_facts_are_short() -> None:
    for facts in ({"x": "y" * MOST_FACTS}, {"x": int("9" * 4000 + "9" * 4000, 16)}):
        with pytest.raises(RunError, match="characters beside its numbers"):
            check(replace(GOOD, facts=facts))


@pytest.mark.parametrize("sums", [[-1, 0, 1], [10**40, 0, 1], [1, 0, -1]])
def test_sums_over_tests_are_of_a_number_of_examples(sums: list[int]) -> None:
    asked = ClientSumsRequest(2, 1)
    with pytest.raises(RunError, match="a number of test examples that cannot be"):
        require_own(asked, ClientSums(2, None, sums), Reportable(MOST, "accuracy"))
    require_own(asked, ClientSums(2, "failed", sums), Reportable(MOST, "accuracy"))
    require_own(replace(asked, masking={}), ClientSums(2, None, sums), Reportable(MOST, "accuracy"))
    require_own(asked, ClientSums(2, None, [5, 7, 5]), Reportable(MOST, "accuracy"))


def test_a_site_speaks_for_itself_of_what_it_was_asked() -> None:
    for answer in (said(client=1), ClientModelResult(2), LabelsKept(2, 1), None):
        with pytest.raises(RunError, match="something else than it was asked"):
            check(answer)
    with pytest.raises(RunError, match="another weight"):
        check(said(weight=0.5))
    with pytest.raises(RunError, match="a number of labels that cannot be"):
        check(LabelsKept(2, -1), LabelsKept)
    with pytest.raises(RunError, match="a number of labels that cannot be"):
        check(LabelsKept(2, 1001), LabelsKept)


@pytest.mark.whole
def test_a_site_that_claims_many_examples_does_not_fill_the_servers_memory() -> None:
    for name in ("train", "test"):
        with pytest.raises(RunError, match="the answer does not fit"):
            read_ready({"train": 1, "test": 0, name: MOST_EXAMPLES + 1})
    whole = sites_partition({0: read_ready({"train": MOST_EXAMPLES, "test": 0})}, ["nord"])
    assert len(whole.train(0)) == MOST_EXAMPLES
    with pytest.raises(RunError, match="more than the 10,000,000"):
        redact_sizes(Allow(), MOST_EXAMPLES + 1, 0)
