"""What a hostile site answers: numbers that the server cannot count with, and more than it was asked."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fednlp.deployment.answers import MOST_COUNTED, MOST_FACTS, require_own
from fednlp.deployment.disclosure import told_sizes
from fednlp.deployment.gathering import sites_partition
from fednlp.deployment.policy import Allow
from fednlp.deployment.setup import MOST_EXAMPLES, read_ready
from fednlp.errors import RunError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.round import mean_over_examples
from fednlp.runtime.message_json import from_json, to_json
from fednlp.runtime.messages import ClientModelResult, LabelsKept

ASKED = TrainRequest(2, 1, 1.0)
GOOD = ClientResult(2, 1.0, examples=7, steps=3, loss=1.5, facts={"update_norms": [1.0]})


def said(**changes: Any) -> Any:
    """Return what the server reads of an answer that was changed on its way through JSON."""
    return from_json(json.loads(json.dumps({**(to_json(GOOD) or {}), **changes})))


def test_an_answer_to_what_was_asked_is_taken() -> None:
    require_own(ASKED, said(), ClientResult)
    require_own(ASKED, said(examples=MOST_COUNTED, loss=float("nan")), ClientResult)


@pytest.mark.parametrize("name", ["examples", "steps", "gradient_examples", "bytes_up", "bytes_down"])
@pytest.mark.parametrize("count", [-1, MOST_COUNTED + 1, 10**4000])
def test_a_count_that_cannot_be_is_refused(name: str, count: int) -> None:
    with pytest.raises(RunError, match=f"a number of {name} that cannot be"):
        require_own(ASKED, said(**{name: count}), ClientResult)


def test_the_largest_counts_have_a_mean() -> None:
    most = said(examples=MOST_COUNTED, metrics={"tau": 1.0})
    assert mean_over_examples([most, most]) == {"tau": 1.0}


def test_facts_are_short() -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    for facts in ({"x": "y" * MOST_FACTS}, {"x": int("9" * 4000 + "9" * 4000, 16)}):
        with pytest.raises(RunError, match="characters beside its numbers"):
            require_own(ASKED, replace(GOOD, facts=facts), ClientResult)
    require_own(ASKED, replace(GOOD, facts={"x": deep}), ClientResult)


def test_a_site_speaks_for_itself_of_what_it_was_asked() -> None:
    for answer in (said(client=1), ClientModelResult(2), LabelsKept(2, 1), None):
        with pytest.raises(RunError, match="something else than it was asked"):
            require_own(ASKED, answer, ClientResult)
    with pytest.raises(RunError, match="another weight"):
        require_own(ASKED, said(weight=0.5), ClientResult)
    with pytest.raises(RunError, match="a number of labels that cannot be"):
        require_own(ASKED, LabelsKept(2, -1), LabelsKept)


def test_a_site_that_claims_many_examples_does_not_fill_the_servers_memory() -> None:
    for name in ("train", "test"):
        with pytest.raises(RunError, match="the answer does not fit"):
            read_ready({"train": 1, "test": 0, name: MOST_EXAMPLES + 1})
    whole = sites_partition({0: read_ready({"train": MOST_EXAMPLES, "test": 0})}, ["nord"])
    assert len(whole.train(0)) == MOST_EXAMPLES
    with pytest.raises(RunError, match="at most 10,000,000"):
        told_sizes(Allow(), MOST_EXAMPLES + 1, 0)
