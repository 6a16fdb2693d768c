"""Krum and multi-Krum: the paper's definition written out, what it promises, what it needs and refuses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fednlp
from fednlp import fedavg, federate
from fednlp.config import Experiment, parse
from fednlp.errors import ConfigError, TooFewClients
from fednlp.federated.aggregators import kept_updates
from fednlp.federated.aggregators.base import AggregatedUpdate
from fednlp.federated.aggregators.krum import Krum, krum, scores
from fednlp.federated.aggregators.whole_updates import squared_distances
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import Cohort, Population, RoundPlan, equally
from fednlp.federated.params import Kind, Layout
from fednlp.federated.update import Update
from fednlp.runtime.shared import PrivateRoom

SHAPES: dict[str, tuple[tuple[int, ...], Kind]] = {"w": ((2, 3), "parameter"), "words": ((4, 2), "parameter")}
LAYOUT = Layout.of(SHAPES, table="words")
Make = Callable[..., Experiment]
RUN = {"num_rounds": 2, "algorithm.weighting": "uniform", "clients_per_round": 5}


def plan_of(clients: int) -> RoundPlan:
    population = Population(np.ones(clients, dtype=np.int64))
    return RoundPlan(1, Cohort(range(clients)), dict.fromkeys(range(clients), 1.0), 1.0, population, equally)


def aggregated(rule: Krum, cohorts: Sequence[np.ndarray], order: Sequence[int]) -> AggregatedUpdate:
    """Aggregate the clients' vectors, one array (clients, numel) for each; every other client has another worker."""
    names = ("model", "control")[: len(cohorts)]
    totals = [rule.init(LAYOUT, names, PrivateRoom()) for _ in range(2)]
    for client in order:
        vectors = [torch.from_numpy(vectors[client]) for vectors in cohorts]
        update = {name: Update.of(vector, LAYOUT) for name, vector in zip(names, vectors, strict=True)}
        rule.add(totals[client % 2], TrainRequest(client, 1, 1.0), update)
    rule.merge(*totals)
    clients = len(order)
    return rule.finish(totals[0], plan_of(clients), [ClientResult(c, 1.0) for c in range(clients)])


def by_definition(vectors: np.ndarray, f: int, m: int) -> np.ndarray:
    """Blanchard et al. 2017, section 4: s(i) sums over the n - f - 2 closest; the m best of the scores are averaged."""
    n, exact = len(vectors), vectors.astype(np.float64)
    totals = []
    for i in range(n):
        distances = sorted(float(((exact[i] - exact[j]) ** 2).sum()) for j in range(n) if j != i)
        totals.append(sum(distances[: n - f - 2]))
    best = sorted(range(n), key=lambda i: (totals[i], i))[: min(m, n - f)]
    return np.asarray(exact[best].mean(axis=0))


@given(data=st.data(), f=st.integers(1, 3), m=st.integers(1, 6), block=st.integers(1, 200))
@settings(max_examples=60)
def test_it_is_the_paper_s_definition_whoever_adds_the_updates(
    data: st.DataObject, f: int, m: int, block: int
) -> None:
    """Of all vectors that clients send, the same clients' are averaged: those whose model updates are chosen."""
    n = data.draw(st.integers(2 * f + 3, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    model, control = rng.normal(size=(2, n, LAYOUT.numel)).astype(np.float32)
    order, rule = data.draw(st.permutations(range(n))), Krum(f, m)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_updates, "VALUES_AT_ONCE", block)
        found = aggregated(rule, (model, control), order)
    np.testing.assert_allclose(found.model.delta.numpy(), by_definition(model, f, m), rtol=1e-5, atol=1e-6)
    chosen = rule.weights(model.astype(np.float64) @ model.T.astype(np.float64), np.ones(n) / n)
    np.testing.assert_allclose(
        found.vectors["control"].delta.numpy(), chosen @ control.astype(np.float64), rtol=1e-5, atol=1e-6
    )
    assert found.clients == n
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_updates, "VALUES_AT_ONCE", block)
        again = aggregated(rule, (model, control), range(n))
    assert torch.equal(found.model.delta, again.model.delta)


@given(
    f=st.integers(1, 4),
    more=st.integers(0, 4),
    strength=st.floats(1, 1e4),
    selected=st.booleans(),
    seed=st.integers(0, 999),
)
def test_attackers_far_from_the_others_are_never_chosen(
    f: int, more: int, strength: float, selected: bool, seed: int
) -> None:
    """Even where all of them send the same, so that they are each other's closest."""
    rng = np.random.default_rng(seed)
    n = 2 * f + 3 + more
    honest = rng.normal(scale=0.01, size=(n - f, LAYOUT.numel))
    attack = np.tile(rng.normal(size=LAYOUT.numel) + strength, (f, 1))
    vectors = np.concatenate([attack, honest]).astype(np.float32)
    found = aggregated(Krum(f, n - f if selected else 1), (vectors,), range(n)).model.delta.numpy()
    if selected:
        np.testing.assert_allclose(found, vectors[f:].astype(np.float64).mean(axis=0), rtol=1e-5, atol=1e-7)
    else:
        assert any(np.array_equal(found, one) for one in vectors[f:])


def test_the_example_of_five_numbers() -> None:
    """1 and 2 lie closest to their two closest others; of the two the first is chosen."""
    points = np.array([0.0, 1.0, 2.0, 3.0, 90.0])
    assert scores((points[:, None] - points) ** 2, 1).tolist() == [5.0, 2.0, 2.0, 5.0, 15313.0]
    vectors = np.repeat(points[:, None], LAYOUT.numel, axis=1).astype(np.float32)
    for selected, value in ((1, 1.0), (2, 1.5), (4, 1.5), (9, 1.5)):
        found = aggregated(Krum(1, selected), (vectors,), range(5))
        assert found.model.delta.tolist() == [value] * LAYOUT.numel


@given(st.lists(st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=6))
def test_distances_follow_from_inner_products(rows: list[list[float]]) -> None:
    vectors = np.array(rows)
    wanted = ((vectors[:, None] - vectors) ** 2).sum(-1)
    np.testing.assert_allclose(squared_distances(vectors @ vectors.T), wanted, rtol=1e-9, atol=1e-8)


def test_no_more_values_are_read_at_a_time_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_updates, "VALUES_AT_ONCE", 20)
    seen: list[tuple[int, ...]] = []
    read = kept_updates.UpdateFile.blocks

    def watched(self: Any, number: int, places: Sequence[int]) -> Any:
        for start, values in read(self, number, places):
            seen.append(values.shape)
            yield start, values

    monkeypatch.setattr(kept_updates.UpdateFile, "blocks", watched)
    vectors = np.eye(5, LAYOUT.numel, dtype=np.float32)
    aggregated(Krum(1, 2), (vectors,), range(5))
    assert seen == [(5, 4)] * 3 + [(5, 2)] + [(2, 10), (2, 4)]


def test_a_round_of_too_few_clients_is_not_begun_and_not_ended() -> None:
    rule = Krum(2, 1)
    with pytest.raises(
        TooFewClients, match=r"round 1: 6 clients were drawn, .* needs 2 \* 2 \+ 3 = 7: raise"
    ):
        rule.open(plan_of(6), LAYOUT)
    rule.open(plan_of(7), LAYOUT)
    vectors = np.zeros((6, LAYOUT.numel), dtype=np.float32)
    with pytest.raises(TooFewClients, match="6 clients answered"):
        aggregated(rule, (vectors,), range(6))


def test_an_own_trainer_is_moved_to_a_client_s_number(number_trainer: Callable[..., Any]) -> None:
    clients = [[1.0], [2.0], [3.0], [4.0], [900.0]]
    for rule, wanted in ((krum(1), 2.0), (krum(1, selected=4), 2.5)):
        algorithm = replace(fedavg(5), aggregator=rule)
        assert float(federate(number_trainer(), clients, algorithm, num_rounds=1).params["w"]) == wanted
    with pytest.raises(TooFewClients, match="5 clients were drawn, and krum with byzantine = 2"):
        federate(number_trainer(), clients, replace(fedavg(5), aggregator=krum(2)), num_rounds=1)


@pytest.mark.slow
def test_workers_change_nothing(experiment: Make, tmp_path: Path, outcome: Callable[..., Any]) -> None:
    """SCAFFOLD's control variates come from the same clients as the models."""
    made = RUN | {
        "algorithm.name": "scaffold",
        "client.optimizer": "sgd",
        "aggregator": {"name": "krum", "selected": 3},
    }
    one = fednlp.run(experiment(made), tmp_path / "one")
    two = fednlp.run(experiment(made | {"runtime.workers": 2}), tmp_path / "two")
    mean = fednlp.run(experiment(made | {"aggregator": {"name": "mean"}}), tmp_path / "mean")
    assert outcome(one) == outcome(two)
    assert outcome(one)["weights"] != outcome(mean)["weights"]


UNIFORM = {"data": {"name": "bbc"}, "algorithm": {"weighting": "uniform"}, "clients_per_round": 10}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"aggregator": {"name": "krum", "byzantine": 4}},
            "aggregator.byzantine = 4 needs 2 * 4 + 3 = 11 clients in a round, and clients_per_round is 10",
        ),
        (
            {"aggregator": {"name": "krum", "byzantine": 2, "selected": 9}},
            "aggregator.selected = 9 of clients_per_round = 10 averages some of the 2 attackers too: say 8 at most",
        ),
        ({"aggregator": {"name": "krum", "byzantine": 0}}, "aggregator.byzantine = 0"),
        ({"aggregator": {"name": "krum", "fraction": 0.1}}, "aggregator.fraction is not supported by krum"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(UNIFORM | {"aggregator": {"name": "krum"}} | changes).resolved()
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_what_fits_is_written_out() -> None:
    made = parse(UNIFORM | {"aggregator": {"name": "krum", "byzantine": 3}}).resolved()
    assert made.aggregator is not None
    assert made.aggregator.function_options == {"byzantine": 3, "selected": 1}
