"""The averagings of low-rank adapters: each rule's law over random ranks, weights and scales, and what it costs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.adapters import GAP, RULES, Adapters, LoraPair, problems
from fednlp.federated.adapters.base import AdaptingServer
from fednlp.federated.adapters.exact import MeasuredPlain
from fednlp.federated.adapters.flexlora import nearest_factors
from fednlp.federated.aggregators.base import AggregatedUpdate, Mean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult
from fednlp.federated.cohort import Cohort, Population, RoundPlan, by_examples, uniform_cohort
from fednlp.federated.communication import broadcast, bytes_down, encode_update, entry_shapes, sent_shapes
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.message import message_bytes
from fednlp.federated.params import Layout
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.state import State
from fednlp.federated.sums import LARGEST, ExactSum, NonFiniteUpdate, weight_unit
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import RngKey, make_chain
from fednlp.federated.update import Update
from fednlp.federated.upload import Upload, model_bytes, pack_upload, received, unpack_upload
from fednlp.models.peft_methods import FIXED_A, MOVED_BASE

RANK = 3
"""The server's, and that of the largest client."""
ALPHA = 6.0
WEIGHTS = ("one.w", "two.w")
Cohorts = st.lists(st.tuples(st.integers(1, 50), st.integers(1, RANK)), min_size=1, max_size=5)
"""(weight, rank) of each client."""


def pairs(rank: int = RANK) -> tuple[LoraPair, ...]:
    """Two adapters, the second transposed, and of another scale."""
    return (
        LoraPair("one.a", "one.b", "one.w", ALPHA / rank),
        LoraPair("two.a", "two.b", "two.w", 0.25 * ALPHA / rank, transposed=True),
    )


def layout(rank: int = RANK, table: bool = True) -> Layout:
    """Two adapted weights of 5 outputs and 4 inputs, the second transposed, a head and a table."""
    shapes = {"head": (3,)}
    for name in ("one", "two"):
        shapes |= {f"{name}.a": (rank, 4), f"{name}.b": (5, rank)}
    kinds = {name: (shape, "parameter") for name, shape in shapes.items()}
    kinds |= {"one.w": ((5, 4), "derived"), "two.w": ((4, 5), "derived")}
    return Layout.of(kinds | ({"words": ((6, 2), "parameter")} if table else {}), "words" if table else None)


def effective(there: Layout, x: Tensor, factor: float = 1.0) -> dict[str, Tensor]:
    """What a model computes with: W + s B A, written out; the scale is multiplied by ``factor``."""
    named, rank = (
        {name: view.double() for name, view in there.views(x).items()},
        there.views(x)["one.a"].shape[0],
    )
    scale = factor * ALPHA / rank
    one = named["one.w"] + scale * named["one.b"] @ named["one.a"]
    two = named["two.w"] + 0.25 * scale * (named["two.b"] @ named["two.a"]).T
    return {"one.w": one, "two.w": two}


def begun(there: Layout, seed: int) -> Tensor:
    """A server's model in the midst of a run."""
    return torch.randn(there.numel, generator=torch.Generator().manual_seed(seed))


class Round:
    """One round on the server's side and the wire, with clients whose local steps are drawn."""

    def __init__(
        self, adapters: Adapters, there: Layout, x: Tensor, cohort: Sequence[tuple[int, int]]
    ) -> None:
        self.adapters = replace(adapters, ranks=tuple(rank for _, rank in cohort))
        if len({*self.adapters.ranks}) == 1 and not adapters.rule.unequal:
            self.adapters = replace(self.adapters, ranks=())
        self.there, self.x, self.weights = there, x, [weight for weight, _ in cohort]
        self.algorithm = Algorithm("a", uniform_cohort(1), uplink=Uplink(adapters=self.adapters))

    def trained(self, client: int, number: int, seed: int) -> tuple[Tensor, Tensor]:
        """A client's start and its model after local steps: base weights, other ranks and what is held stay."""
        adapters, there = self.adapters, self.there
        start = adapters.start(there, self.x, client)
        step = torch.randn(there.numel, generator=torch.Generator().manual_seed(1000 * seed + client))
        views, rank = there.views(step), adapters.rank_of(client)
        for name in (*WEIGHTS, *adapters.held(number)):
            views[name].zero_()
        for name in ("one", "two"):
            views[f"{name}.a"][rank:] = 0
            views[f"{name}.b"][:, rank:] = 0
        return start, start + step

    def run(self, number: int = 1, seed: int = 0) -> tuple[Tensor, list[dict[str, Tensor]], dict[str, float]]:
        """The server's model after the round, what each client's model computes with, and what the step tells."""
        adapters, there, x = self.adapters, self.there, self.x
        total, models, results = ExactSum(there), [], []
        unit = weight_unit(sum(self.weights))
        for client, weight in enumerate(self.weights):
            key = RngKey(seed, number, client)
            start, model = self.trained(client, number, seed)
            models.append(effective(there, model, adapters.scale(client)))
            sent = encode_update(self.algorithm.uplink, there, model - start, key)
            data = pack_upload(Upload(encoded=sent), there)
            result = ClientResult(client, weight / unit)
            upload = unpack_upload(data, self.algorithm, there, result, masked=False, number=number)
            assert len(data) == model_bytes(self.algorithm.uplink, there, None, client, number)
            update = received(upload, self.algorithm, there, x, key)["model"]
            flat = update.flat(there)
            factor = adapters.weight(there, x, flat)
            update.add_to(total, factor * weight / unit)
            results.append(factor * weight / unit)
        delta, rows = total.mean(sum(results))
        derived = [there.entries[n] for n in sorted(there.derived)]
        mean = Mean(delta, rows, [slice(entry.start, entry.stop) for entry in derived])
        sizes = np.array(self.weights)
        cohort = Cohort(list(range(len(sizes))))
        plan = RoundPlan(number, cohort, {}, unit, Population(sizes, seed), by_examples)
        state = State(number - 1, there, x.clone())
        told = AdaptingServer(ServerOptimizer(), adapters).step(
            state, AggregatedUpdate({"model": mean}, 1.0, len(sizes), {}, plan)
        )
        return state.params, models, dict(told or {})


def gap(there: Layout, after: Tensor, models: list[dict[str, Tensor]], weights: Sequence[float]) -> float:
    """How far a model is from the mean of the clients' models, in the weights that it computes with, over its size."""
    shares = [weight / sum(weights) for weight in weights]
    own = effective(there, after)
    wanted = {n: sum(p * one[n] for p, one in zip(shares, models, strict=True)) for n in own}
    size = max(1.0, *(float(one.abs().max()) for model in models for one in model.values()))
    return max(float((own[name] - wanted[name]).abs().max()) for name in own) / size


def the(name: str, ranks: tuple[int, ...] = ()) -> Adapters:
    return Adapters(RULES[name], pairs(), RANK, ranks)


@settings(deadline=None, max_examples=40)
@given(
    cohort=Cohorts,
    seed=st.integers(0, 1000),
    name=st.sampled_from(["flora", "rolora", "exact"]),
    table=st.booleans(),
)
def test_the_model_is_the_mean_of_the_clients_round_after_round(
    cohort: list[tuple[int, int]], seed: int, name: str, table: bool
) -> None:
    """FLoRA and RoLoRA for any ranks, FedEx for one."""
    there = layout(table=table)
    if not RULES[name].unequal:
        cohort = [(weight, RANK) for weight, _ in cohort]
    x = begun(there, seed)
    for number in (1, 2, 3):
        one = Round(the(name), there, x, cohort)
        x, models, _ = one.run(number, seed)
        assert gap(there, x, models, one.weights) < 1e-6
        assert torch.isfinite(x).all()


@settings(deadline=None, max_examples=20)
@given(cohort=Cohorts, seed=st.integers(0, 1000), name=st.sampled_from(sorted(RULES)))
def test_all_other_tensors_are_averaged_as_ever(cohort: list[tuple[int, int]], seed: int, name: str) -> None:
    """HetLoRA's weights hold for them too."""
    there, x = layout(), begun(layout(), seed)
    if not RULES[name].unequal:
        cohort = [(weight, RANK) for weight, _ in cohort]
    if name == "hetlora":
        cohort = cohort[:1]
    one = Round(the(name), there, x, cohort)
    views = there.views(one.run(seed=seed)[0])
    heads = [there.views(one.trained(client, 1, seed)[1]) for client in range(len(cohort))]
    for part in ("head", "words"):
        mean = sum(weight * own[part].double() for (weight, _), own in zip(cohort, heads, strict=True))
        wanted = (mean / sum(weight for weight, _ in cohort)).float()
        torch.testing.assert_close(views[part], wanted, rtol=0, atol=1e-5)


def test_plain_averaging_is_not_the_mean_and_says_by_how_much() -> None:
    there, x = layout(), begun(layout(), 0)
    cohort = [(3, RANK), (1, RANK), (4, RANK)]
    one = Round(Adapters(MeasuredPlain(), pairs(), RANK), there, x, cohort)
    after, models, told = one.run()
    assert gap(there, after, models, one.weights) > 0.1
    before = {name: view.double() for name, view in there.views(x).items()}
    shares = [weight / 8 for weight, _ in cohort]
    rest = whole = 0.0
    for name in WEIGHTS:
        mean = sum(p * (model[name] - before[name]) for p, model in zip(shares, models, strict=True))
        rest += float((mean - (effective(there, after)[name] - before[name])).square().sum())
        whole += float(mean.square().sum())
    assert told[GAP] == pytest.approx(math.sqrt(rest / whole), rel=1e-5)
    assert all(torch.equal(there.views(after)[name], there.views(x)[name]) for name in WEIGHTS)
    exact = Round(the("exact"), there, x, cohort).run()[2]
    assert exact[GAP] == pytest.approx(told[GAP], rel=1e-6)


def test_one_client_alone_leaves_no_gap() -> None:
    there, x = layout(), begun(layout(), 0)
    after, _, told = Round(the("exact"), there, x, [(7, RANK)]).run()
    assert told[GAP] < 1e-6
    for name in WEIGHTS:
        torch.testing.assert_close(there.views(after)[name], there.views(x)[name], rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(cohort=Cohorts, seed=st.integers(0, 1000))
def test_no_factors_are_nearer_than_flexlora_s(cohort: list[tuple[int, int]], seed: int) -> None:
    """Eckart and Young, for the server and for each client's rank; the weights W stay as they are."""
    there, x = layout(), begun(layout(), seed)
    one = Round(the("flexlora"), there, x, cohort)
    after, models, _ = one.run(seed=seed)
    before, shares = there.views(x), [weight / sum(one.weights) for weight in one.weights]
    for name in WEIGHTS:
        assert torch.equal(there.views(after)[name], before[name])
        w = before[name].double()
        mean = sum(p * (model[name] - w) for p, model in zip(shares, models, strict=True))
        values = torch.linalg.svdvals(mean)
        for client in range(len(cohort)):
            rank = one.adapters.rank_of(client)
            start = one.adapters.start(there, after, client)
            got = effective(there, start, one.adapters.scale(client))[name] - w
            tail = float(values[rank:].square().sum().sqrt())
            assert float((got - mean).norm()) == pytest.approx(tail, abs=1e-5 * float(values[0]))


@settings(deadline=None, max_examples=30)
@given(rank=st.integers(1, 4), of=st.integers(1, 4), seed=st.integers(0, 1000))
def test_nearest_factors_hold_a_product_of_their_rank(rank: int, of: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    product = torch.randn(6, of, generator=draw) @ torch.randn(of, 5, generator=draw)
    a, b = nearest_factors(product, torch.ones(rank, 5), 2.0)
    kept = min(rank, of)
    torch.testing.assert_close(a[:kept] @ a[:kept].T, torch.eye(kept, dtype=torch.float64), rtol=0, atol=1e-6)
    assert (a[:kept].gather(1, a[:kept].abs().argmax(1, keepdim=True)) > 0).all()
    assert torch.equal(a[kept:], torch.ones(rank - kept, 5, dtype=torch.float64))
    assert not b[:, kept:].any()
    if rank >= of:
        torch.testing.assert_close(2.0 * b @ a, product.double(), rtol=0, atol=1e-5)


def test_a_product_of_nothing_leaves_the_rows_of_a() -> None:
    a, b = nearest_factors(torch.zeros(4, 3), torch.ones(2, 3), 1.0)
    assert torch.equal(a, torch.ones(2, 3, dtype=torch.float64))
    assert not b.any()


@settings(deadline=None, max_examples=30)
@given(cohort=Cohorts, seed=st.integers(0, 1000))
def test_hetlora_pads_and_weighs_by_the_norm_of_the_products(
    cohort: list[tuple[int, int]], seed: int
) -> None:
    there, x = layout(), begun(layout(), seed)
    one = Round(the("hetlora"), there, x, cohort)
    after, models, _ = one.run(seed=seed)
    before = there.views(x)
    norms = [
        math.sqrt(sum(float((model[name] - before[name].double()).square().sum()) for name in WEIGHTS))
        for model in models
    ]
    shares = np.array([weight * norm for (weight, _), norm in zip(cohort, norms, strict=True)])
    shares /= shares.sum()
    own = [there.views(one.trained(client, 1, seed)[1]) for client in range(len(cohort))]
    for name in ("one.a", "one.b", "two.a", "two.b", "head"):
        scale = [one.adapters.scale(c) if name.endswith(".b") else 1.0 for c in range(len(cohort))]
        wanted = sum(p * s * its[name].double() for p, s, its in zip(shares, scale, own, strict=True))
        torch.testing.assert_close(there.views(after)[name].double(), wanted, rtol=0, atol=2e-5)


@settings(deadline=None, max_examples=10)
@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 100))
def test_hetlora_of_equal_ranks_and_norms_is_fedit(weights: list[int], seed: int) -> None:
    class EqualNorms(type(RULES["hetlora"])):  # type: ignore[misc]
        def weight(self, factors: object) -> float:
            return 2.0

    there, x = layout(), begun(layout(), seed)
    cohort = [(weight, RANK) for weight in weights]
    het, fedit = (
        Round(Adapters(rule, pairs(), RANK), there, x, cohort).run(seed=seed)[0]
        for rule in (EqualNorms(), MeasuredPlain())
    )
    torch.testing.assert_close(het, fedit, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=10)
@given(cohort=Cohorts, seed=st.integers(0, 100), number=st.integers(1, 4))
def test_rolora_holds_one_factor(cohort: list[tuple[int, int]], seed: int, number: int) -> None:
    """A in odd rounds and B in even ones, whatever the server's optimiser does; and only the other one travels."""
    there, x = layout(), begun(layout(), seed)
    one = Round(the("rolora"), there, x, cohort)
    views = there.views(one.run(number, seed)[0])
    held, moved = ("a", "b") if number % 2 else ("b", "a")
    for name in ("one", "two"):
        assert torch.equal(views[f"{name}.{held}"], there.views(x)[f"{name}.{held}"])
        assert not torch.equal(views[f"{name}.{moved}"], there.views(x)[f"{name}.{moved}"])
    sent = sent_shapes(one.algorithm.uplink, there, None, 0, number)
    assert {name[-1] for name in sent if name.startswith(("one", "two"))} == {moved}


def test_a_server_of_the_user_s_own_is_asked_for_what_it_sends() -> None:
    class Own(ServerOptimizer):
        def model(self, state: State, staleness: int) -> Tensor:
            return state.params + 1.0

    there, x = layout(), begun(layout(), 0)
    server = AdaptingServer(Own(), the("rolora"))
    assert torch.equal(server.model(State(0, there, x), 0), x + 1.0)


def test_flora_begins_anew_as_lora_does() -> None:
    there, x = layout(), begun(layout(), 0)
    one = Round(the("flora"), there, x, [(1, 1), (2, 3)])
    after = [there.views(one.run(number)[0]) for number in (1, 1, 2)]
    assert not any(after[0][f"{name}.b"].any() for name in ("one", "two"))
    assert all(
        float(after[0][f"{name}.a"].abs().max()) <= 0.5 for name in ("one", "two")
    )  # 1 / sqrt(4 inputs)
    assert torch.equal(after[0]["one.a"], after[1]["one.a"])
    assert not torch.equal(after[0]["one.a"], after[2]["one.a"])
    assert not torch.equal(after[0]["one.a"], after[0]["two.a"])


@settings(deadline=None, max_examples=20)
@given(rank=st.integers(1, RANK), seed=st.integers(0, 100))
def test_a_padded_client_trains_what_one_of_its_rank_trains(rank: int, seed: int) -> None:
    """The gradients of s B A are zero where both factors are, and else those of matrices of the client's rank."""
    there, x, adapters = layout(), begun(layout(), seed), the("flora", (rank,))
    start = adapters.start(there, x, 0)
    scale, draw = ALPHA / rank, torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(7, 4, generator=draw), torch.randn(7, 5, generator=draw)

    def gradients(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        loss = (inputs @ (scale * b @ a).T - targets).square().mean()
        return torch.autograd.grad(loss, (a, b))

    views = there.views(start)
    wide = gradients(views["one.a"], views["one.b"])
    own = gradients(views["one.a"][:rank], views["one.b"][:, :rank])
    assert not wide[0][rank:].any()
    assert not wide[1][:, rank:].any()
    torch.testing.assert_close(wide[0][:rank], own[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(wide[1][:, :rank], own[1], rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(rank=st.integers(1, RANK), seed=st.integers(0, 100))
def test_a_client_that_does_nothing_gives_back_what_it_got(rank: int, seed: int) -> None:
    """The scale rides on B: s B A of what a client begins with is the server's, cut to its rank."""
    there, x, adapters = layout(), begun(layout(), seed), the("hetlora", (rank,))
    start = adapters.start(there, x, 0)
    cut = there.views(x.clone())
    for name in ("one", "two"):
        cut[f"{name}.a"][rank:] = 0
        cut[f"{name}.b"][:, rank:] = 0
    wanted = effective(there, there.flatten(cut))
    for name, found in effective(there, start, adapters.scale(0)).items():
        torch.testing.assert_close(found, wanted[name], rtol=0, atol=1e-5)
    update = torch.zeros(there.numel)
    adapters.arrived(there, x, update, 0)
    torch.testing.assert_close(there.views(x + update)["one.b"], cut["one.b"], rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(cohort=Cohorts, seed=st.integers(0, 1000), name=st.sampled_from(["exact", "flora"]))
def test_a_round_changes_w_by_the_rank_that_is_counted(
    cohort: list[tuple[int, int]], seed: int, name: str
) -> None:
    """Of matrices that are large enough for it."""
    shapes = {
        "one.a": ((RANK, 40), "parameter"),
        "one.b": ((30, RANK), "parameter"),
        "one.w": ((30, 40), "derived"),
    }
    there, x = Layout.of(shapes), begun(Layout.of(shapes), seed)
    ranks = tuple(RANK if name == "exact" else rank for _, rank in cohort)
    adapters = Adapters(RULES[name], (LoraPair("one.a", "one.b", "one.w", 1.0),), RANK)
    products, shares = torch.zeros(30, 40, dtype=torch.float64), 1 / len(cohort)
    draw = torch.Generator().manual_seed(seed)
    mean_a, mean_b = torch.zeros(RANK, 40, dtype=torch.float64), torch.zeros(30, RANK, dtype=torch.float64)
    for rank in ranks:
        a = torch.randn(rank, 40, generator=draw, dtype=torch.float64)
        b = torch.randn(30, rank, generator=draw, dtype=torch.float64)
        products += shares * b @ a
        mean_a[:rank] += shares * a
        mean_b[:, :rank] += shares * b
    if name == "exact":
        products -= mean_b @ mean_a
    found = int((torch.linalg.svdvals(products) > 1e-9).sum())
    assert found == replace(adapters, ranks=ranks).change_rank(range(len(cohort)))
    assert x.numel() == there.numel


def wide(rule: str = "exact", ranks: tuple[int, ...] = ()) -> tuple[Layout, Adapters]:
    """One adapted weight of 30 outputs and 40 inputs with r = 2."""
    shapes = {"a": ((2, 40), "parameter"), "b": ((30, 2), "parameter"), "w": ((30, 40), "derived")}
    return Layout.of(shapes), Adapters(RULES[rule], (LoraPair("a", "b", "w", 1.0),), 2, ranks)


@pytest.mark.parametrize("down", [[], ["int4"], ["bfloat16"]])
def test_bytes(down: list[str]) -> None:
    """A and B as they are transformed, and in float32 what W changed by, as two factors or as W itself."""
    there, adapters = wide()
    downlink = Downlink(make_chain(parse_chain(down, "down"), nearest=True))
    factors = dict(downlink.chain.shapes(entry_shapes(there.entries[:2])))

    assert bytes_down(downlink, there, adapters=adapters) == message_bytes(factors)
    change = {"w.B": ((30, 6), torch.float32), "w.A": ((6, 40), torch.float32)}
    assert bytes_down(downlink, there, adapters=adapters, rank=6) == message_bytes(factors | change)
    assert bytes_down(downlink, there, adapters=adapters, rank=100) == message_bytes(
        factors | {"w": ((30, 40), torch.float32)}
    )
    lengths = [bytes_down(downlink, there, adapters=adapters, rank=2 * rank) for rank in range(30)]
    assert lengths == sorted(lengths)


def test_bytes_of_a_smaller_client() -> None:
    there, adapters = wide("flora", (1, 2))
    shapes = {"a": ((1, 40), torch.float32), "b": ((30, 1), torch.float32)}
    assert bytes_down(Downlink(), there, adapters=adapters, client=0) == message_bytes(shapes)
    assert bytes_down(Downlink(), there, adapters=adapters, client=1) > message_bytes(shapes)
    assert sent_shapes(Uplink(adapters=adapters), there, None, 0) == shapes
    assert adapters.change_rank([0, 1, 2]) == 4


def test_base_weights_arrive_as_they_are() -> None:
    there, _ = wide()
    x = begun(there, 0)
    down = make_chain(parse_chain(["int4"], "down"), nearest=True)
    arrived, sent = there.views(broadcast(Downlink(down), there, x, RngKey(0, 1, -1)).model), there.views(x)
    assert torch.equal(arrived["w"], sent["w"])
    assert not torch.equal(arrived["a"], sent["a"])


def test_a_rule_needs_every_factor_shared() -> None:
    there, adapters = wide()
    adapters.check(there)
    lacking = Layout.of({"a": ((2, 40), "parameter"), "w": ((30, 40), "derived")})
    with pytest.raises(ConfigError, match="needs every adapter shared, and b is not"):
        adapters.check(lacking)


def test_a_smaller_client_s_update_is_compressed_in_its_own_shape() -> None:
    """What arrives is what the server adds, and a compressed update keeps its zeros."""
    there, adapters = wide("flora", (1, 2))
    x, uplink = begun(there, 0), Uplink(make_chain(parse_chain(["int8"], "up")), adapters=adapters)
    algorithm = Algorithm("a", uniform_cohort(1), uplink=uplink)
    update = torch.zeros(there.numel)
    there.views(update)["a"][:1] = 0.5
    there.views(update)["b"][:, :1] = 0.25
    key = RngKey(0, 1, 0)
    sent = encode_update(uplink, there, update, key)
    found = received(Upload(encoded=sent), algorithm, there, x, key)["model"]
    assert isinstance(found, Update)
    model = there.views(x + found.flat(there))
    assert not model["a"][1:].any()
    assert not model["b"][:, 1:].any()
    torch.testing.assert_close(model["a"][0], there.views(x)["a"][0] + 0.5, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"averaging": "mean"},
            "'mean': give one of plain, ffa, exact, fedsa, rolora, flora, flexlora, hetlora",
        ),
        ({"averaging": ["ffa"]}, "averaging = ['ffa']: give one of plain"),
        ({"averaging_gap": 1}, "averaging_gap = 1: give true or false"),
        (
            {"ranks": [4, 0]},
            "ranks = [4, 0]: give the ranks that clients are dealt in turn, whole numbers from 1",
        ),
        ({"ranks": []}, "ranks = []: give the ranks"),
        ({"ranks": [True, 2]}, "ranks = [True, 2]: give the ranks"),
        ({"ranks": [2, 4], "r": 4}, "leave r out, since the server's rank is the largest of ranks, 4"),
        (
            {"ranks": [2, 4], "averaging": "ffa"},
            'averaging = "ffa" has one rank for all: leave ranks out, or say',
        ),
        (
            {"averaging_gap": True, "averaging": "flora"},
            'averaging_gap is for averaging = "plain" and one rank',
        ),
        ({"averaging_gap": True, "ranks": [1, 2]}, 'averaging_gap is for averaging = "plain" and one rank'),
        ({"use_dora": True, "averaging": "exact"}, 'say averaging = "plain" or "ffa", or leave use_dora out'),
        ({"use_dora": True, "averaging": "hetlora"}, "goes by products of the factors"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    (problem,) = problems(options)
    assert message in problem


def test_models_know_what_the_rules_do_to_the_base() -> None:
    assert {name for name, rule in RULES.items() if rule.moves_base} == {*MOVED_BASE}
    assert FIXED_A in RULES
    assert not list(problems({"method": "lora"}))


def test_an_update_that_its_weight_would_take_beyond_the_sum_is_not_added() -> None:
    """HetLoRA multiplies by a norm, which is the client's own doing: 2^20 is the most that a sum holds."""
    there, x = layout(), begun(layout(), 0)
    adapters = the("hetlora")
    for size, fits in ((1.0, True), (10.0, True), (1000.0, False), (2.0**20, False), (math.inf, False)):
        update = torch.full((there.numel,), size)
        if fits:
            factor = adapters.weight(there, x, update)
            assert 0 < factor * size <= LARGEST
            continue
        with pytest.raises(NonFiniteUpdate, match="its update is too large to be multiplied by"):
            adapters.weight(there, x, update)
