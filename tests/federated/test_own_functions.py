"""Functions of the user's own that take or return something else: each mistake is one sentence with its line."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fednlp import Algorithm, Cohort, Result, Selection, fedavg, federate
from fednlp.errors import ConfigError, FednlpError, RunError
from fednlp.federated.aggregators.coordinate_wise import CoordinateWise
from fednlp.federated.aggregators.whole_updates import WholeUpdates
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.server import ServerUpdate

DATA = [[1.0, 1.0], [2.0, 5.0], [6.0, 6.0]]


def rule(combine: Callable[..., Any], weighs: bool = False) -> Algorithm:
    """Return FedAvg with a rule of one's own, which looks at each coordinate."""
    made = type("Mine", (CoordinateWise,), {"combine": combine, "weighs": weighs})
    return replace(fedavg(3), aggregator=made())


def client(function: Callable[[Any, Any], Any], **traits: Any) -> Algorithm:
    return Algorithm(
        "mine", uniform_cohort(3), client=lambda local, x, server, own: function(local, x), **traits
    )


def drawn(draw: Callable[..., Any], **traits: Any) -> Algorithm:
    return Algorithm("mine", uniform_cohort(3), selection=Selection(draw, **traits))  # type: ignore[arg-type]


def weighed(weights: Callable[[Any, Any], Any]) -> Algorithm:
    made = type(
        "Mine", (WholeUpdates,), {"weights": lambda self, products, shares: weights(products, shares)}
    )
    return replace(fedavg(3), aggregator=made())


class Late(ServerUpdate):
    def step(self, state: Any, update: Any, more: Any) -> None:  # type: ignore[override]
        raise AssertionError


PLACE = r"\(test_own_functions\.py, line \d+\)"
WANTED = r"return ndarray of float32, shape \(2,\)"
CLIENT = rf"the client's function client\.<lambda> {PLACE} returned"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: rule(lambda self, v: v.mean(keepdims=True).ravel()), rf"float32, shape \(1,\): {WANTED}"),
        (lambda: rule(lambda self, v: np.median(v, axis=0).astype(np.int64)), rf"int64, shape \(2,\): {WANTED}"),
        (lambda: rule(lambda self, v: None), rf"the aggregator's [^ ]+ {PLACE} returned NoneType: {WANTED}"),
        (lambda: rule(lambda self, v: v[0] * np.nan), "round 1: the aggregator Mine returned NaN"),
        (lambda: rule(lambda self, v: v[0] * 1e30), r"the aggregator Mine returned .* beyond 1,048,576"),
        (lambda: rule(lambda self: None), rf"your own .* {PLACE}, takes nothing, .* values: let it take these$"),
        (lambda: rule(lambda self, v: v[0], weighs=True), "called with values, shares: .* or say weighs = False"),
        (lambda: rule(lambda self, v, shares: v[0]), "called with values: .* or say weighs = True"),
        (lambda: weighed(lambda products, shares: shares[:2]), r"shape \(2,\): return .* shape \(3,\)"),
        (lambda: weighed(lambda products, shares: shares / 0), "the aggregator Mine returned NaN"),
        (lambda: replace(fedavg(3), server=Late()), rf"step, your own Late\.step {PLACE}, takes state, update, more"),
        (lambda: Algorithm("mine", lambda everyone: Cohort([0])), rf"sample, your own .* {PLACE}, takes everyone"),  # type: ignore[arg-type,misc]
        (lambda: drawn(lambda everyone, state: Cohort([0])), "called with population, state, ask: let it take"),
        (lambda: drawn(lambda p, state, ask: (state.params.zero_(), Cohort([0]))[1]), r"changed state\.params"),
        (lambda: drawn(lambda p, state, ask: Cohort([])), "the cohort's rule drew nobody"),
        (lambda: client(lambda local, x: {"model": local.steps(x) - x}), rf"{CLIENT} dict: return a fednlp\.Result"),
        (lambda: client(lambda local, x: Result({"model": local.steps(x)})), rf"{CLIENT} .* give the change y - x"),
        (lambda: client(lambda local, x: Result({"model": x.numpy()})), r"ndarray of float32, .* a flat torch tensor"),
        (lambda: Algorithm("mine", uniform_cohort(3), client=lambda local, x: None), "called with local, x, server"),  # type: ignore[arg-type,misc,return-value]
        (lambda: client(lambda local, x: 1 / 0), rf"0 of 3 .*\(all of them: ZeroDivisionError: [^;]* {PLACE}\);"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
def test_a_mistake_is_one_sentence_with_its_line(
    number_trainer: Callable[..., Any], made: Callable[[], Algorithm], said: str
) -> None:
    with pytest.raises(FednlpError) as caught:
        federate(number_trainer("seen"), DATA, made(), num_rounds=1)
    assert re.search(said, str(caught.value)), str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert isinstance(caught.value, (ConfigError, RunError))


def test_numbers_of_float64_are_taken(number_trainer: Callable[..., Any]) -> None:
    made = rule(lambda self, values: np.median(values.astype(np.float64), axis=0))
    assert float(federate(number_trainer("seen"), DATA, made, num_rounds=1).params["w"]) == 2.0
    sent = client(lambda local, x: Result({"model": (local.steps(x) - x).flat().double()}))
    single = client(lambda local, x: Result({"model": (local.steps(x) - x).flat()}))
    first, second = (
        federate(number_trainer("seen"), DATA, one, num_rounds=2).params for one in (sent, single)
    )
    assert torch.equal(first["w"], second["w"])


def test_a_rule_that_weighs_gets_the_shares_of_the_weight(number_trainer: Callable[..., Any]) -> None:
    """Their weighted sum is the weighted mean; without weights each would count once."""
    made = rule(lambda self, values, shares: shares @ values, weighs=True)
    unlike = partial(replace, sample=lambda population, number: Cohort([0, 1, 2], scale=[1.0, 2.0, 5.0]))
    found, mean = (
        federate(number_trainer("seen"), DATA, unlike(one), num_rounds=1).params for one in (made, fedavg(3))
    )
    torch.testing.assert_close(found["w"], mean["w"])


def test_a_selection_sees_what_clients_report(number_trainer: Callable[..., Any]) -> None:
    seen: list[list[float]] = []

    def draw(population: Any, state: Any, ask: Any) -> Cohort:
        seen.append(state.vectors["clients.start"].tolist())
        return Cohort([state.round])

    made = client(
        lambda local, x: Result({"model": local.steps(x) - x}, metrics={"start": 1.0 + local.client}),
        reports=("start",),
        selection=Selection(draw, remembers=("start",)),
    )
    federate(number_trainer("seen"), DATA, made, num_rounds=3)
    assert seen == [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 2.0, 0.0]]
