"""The rules by which cohorts are drawn: what they promise, what they see, and what does not go with them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednlp
from fednlp import Algorithm, Cohort, Population, Selection
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.cohorts import COHORTS
from fednlp.federated.cohorts.oort import oort
from fednlp.federated.cohorts.power_of_choice import power_of_choice
from fednlp.federated.params import Layout
from fednlp.federated.state import State

LAYOUT = Layout.of({"w": ((1,), "parameter")})
LOSSES = {0: 0.5, 1: 2.0, 2: 0.1, 3: 2.0, 4: 1.0, 5: 3.0}


def server(rounds: int = 0, **remembered: list[float]) -> State:
    """Return a server after some rounds, with what it remembers of clients."""
    vectors = {f"clients.{name}": torch.tensor(values) for name, values in remembered.items()}
    return State(rounds, LAYOUT, LAYOUT.zeros(), vectors)


def everyone(*sizes: int, seed: int = 0, seconds: list[float] | None = None) -> Population:
    clock = None if seconds is None else np.array(seconds)
    return Population(np.array(sizes, dtype=np.int64), seed, clock)


def answering(losses: Mapping[int, float], asked: list[int]) -> Callable[[Iterable[int]], dict[int, float]]:
    """Return what answers for clients, and notes who was asked."""

    def ask(clients: Iterable[int]) -> dict[int, float]:
        asked.extend(clients)
        return {client: losses[client] for client in asked if client in losses}

    return ask


def test_with_all_clients_as_candidates_those_of_the_largest_losses_train() -> None:
    asked: list[int] = []
    rule = power_of_choice(3, candidates=9)
    cohort = rule.draw(everyone(5, 1, 9, 4, 3, 0), server(), answering(LOSSES, asked))
    assert (cohort, asked) == (Cohort([1, 3, 4]), [0, 1, 2, 3, 4])  # client 5 has no examples


def test_with_as_many_candidates_as_train_nobody_is_asked_and_p_decides() -> None:
    rule, asked, counts = power_of_choice(1, candidates=1), list[int](), np.zeros(3)
    for seed in range(3000):
        cohort = rule.draw(everyone(1, 2, 3, seed=seed), server(), answering({}, asked))
        counts[list(cohort.clients)] += 1
    assert not asked
    assert not rule.asks
    np.testing.assert_allclose(counts / 3000, [1 / 6, 2 / 6, 3 / 6], atol=0.04)


def test_a_candidate_that_does_not_answer_does_not_train() -> None:
    cohort = power_of_choice(2, 6).draw(everyone(*[3] * 6), server(), answering({2: 0.1, 4: 0.2, 5: 0.3}, []))
    assert cohort == Cohort([4, 5])


@pytest.mark.whole
def test_oort_explores_uniformly_where_utilities_are_equal() -> None:
    """Those that were never tried, and those that were, each with the same probability within their kind."""
    counts, rounds = np.zeros(8), 2000
    seen = {"round": [1.0] * 4 + [0.0] * 4, "examples": [5.0] * 8, "loss": [0.7] * 8}
    for seed in range(rounds):
        cohort = oort(4, exploration=0.5, exploration_decay=1.0).draw(
            everyone(*[5] * 8, seed=seed), server(3, **seen), answering({}, [])
        )
        assert sum(client < 4 for client in cohort.clients) == 2
        counts[list(cohort.clients)] += 1
    np.testing.assert_allclose(counts / rounds, 0.5, atol=0.06)


def test_oort_takes_the_useful_those_not_seen_for_long_and_the_fast() -> None:
    def drawn(population: Population, rule: Selection, **seen: list[float]) -> list[int]:
        return [int(c) for c in rule.draw(population, server(9, **seen), answering({}, [])).clients]

    four, rule = everyone(5, 5, 5, 5), oort(1, least_exploration=0.0, exploration=0.0)
    same = [5.0] * 4
    assert drawn(four, rule, round=[9.0] * 4, examples=same, loss=[0.1, 0.9, 0.1, 0.2]) == [1]
    assert drawn(four, rule, round=[9.0, 9.0, 1.0, 9.0], examples=same, loss=[0.5] * 4) == [2]
    quick = oort(1, least_exploration=0.0, exploration=0.0, seconds=1.0)
    timed = everyone(5, 5, 5, 5, seconds=[4.0, 4.0, 4.0, 1.0])
    assert drawn(timed, quick, round=[9.0] * 4, examples=same, loss=[0.5] * 4) == [3]
    assert len(drawn(everyone(5, 0, 5, 5), oort(9), round=[0.0] * 4, examples=same, loss=[0.0] * 4)) == 3


class Number:
    """A number w, trained to the mean of a client's data; its loss is the squared distance."""

    w = 0.0

    def get_model_params(self) -> dict[str, float]:
        return {"w": self.w}

    def set_model_params(self, params: Mapping[str, Any]) -> None:
        self.w = float(params["w"])

    def loss(self, data: list[float]) -> float:
        return float(np.mean([(self.w - one) ** 2 for one in data]))

    def train(self, data: list[float]) -> float:
        before = self.loss(data)
        self.w = float(np.mean(data))
        return before


def test_a_selection_asks_after_the_model_was_published_and_sees_what_clients_reported() -> None:
    seen: list[list[float]] = []

    def draw(population: Population, state: State, ask: Any) -> Cohort:
        losses = ask(range(3))
        seen.append([losses[client] for client in sorted(losses)] + state.vectors["clients.loss"].tolist())
        return Cohort([max(losses, key=lambda client: losses[client])])

    chosen = Algorithm("mine", uniform_cohort(1), selection=Selection(draw, asks=True, remembers=("loss",)))
    result = fednlp.federate(Number(), [[1.0], [2.0], [4.0]], chosen, num_rounds=2)
    assert [report.cohort for report in result.rounds] == [[2], [0]]
    assert [[one.client for one in report.asked] for report in result.rounds] == [[0, 1, 2]] * 2
    assert seen == [[1.0, 4.0, 16.0, 0.0, 0.0, 0.0], [9.0, 4.0, 0.0, 0.0, 0.0, 16.0]]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(lambda everyone, state, ask: Cohort(list(ask([0])))), "say Selection\\(asks=True\\)"),
        (Selection(lambda everyone, state, ask: Cohort(list(ask([7]))), asks=True), "ask ids from 0 to 1"),
        (Selection(lambda everyone, state, ask: Cohort([0, 0])), "draw distinct ids"),
        (Selection(lambda everyone, state, ask: Cohort([0], staleness=[1])), "leave staleness out"),
    ],
)
def test_a_selection_that_does_not_fit_is_named(selection: Selection, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fednlp.federate(
            Number(), [[1.0], [2.0]], Algorithm("mine", uniform_cohort(1), selection=selection), num_rounds=1
        )


def test_what_a_server_cannot_remember_is_named() -> None:
    asleep = Selection(lambda everyone, state, ask: Cohort([]), remembers=("names",))
    with pytest.raises(ConfigError, match="remembers names: choose of round, examples, loss, tau, or have"):
        Algorithm("mine", uniform_cohort(1), selection=asleep, reports=("tau",))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"cohort": {"name": "power-of-choice", "candidates": 3}}, "cohort.candidates = 3 is fewer than"),
        ({"cohort": {"name": "oort", "seconds": 3.0}}, "set costs.device, or leave cohort.seconds out"),
        ({"cohort": {"name": "oort", "candidates": 30}}, "cohort.candidates is not supported by oort"),
    ],
)
def test_options_that_a_rule_cannot_have_are_refused(sections: dict[str, Any], message: str) -> None:
    given = {"data": {"name": "20news"}, "cohort": {"name": "power-of-choice"}, **sections}
    with pytest.raises(ConfigError) as error:
        Experiment(**given).resolved()
    assert message in str(error.value)


def test_a_rule_of_one_s_own_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_cohorts.py").write_text(
        "from fednlp import Cohort\n"
        "def first(clients_per_round, step: int = 1):\n"
        "    return lambda population, number: Cohort(list(range(0, clients_per_round * step, step)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rule = COHORTS.find("my_cohorts:first").make(3, float, {"step": 2})
    assert not isinstance(rule, Selection)
    assert rule(everyone(*[1] * 9), 1) == Cohort([0, 2, 4])
