"""Three averagings of low-rank adapters: which of them is the mean of the clients' models, and what it costs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.federated.aggregators.base import Mean
from fednlp.federated.communication import broadcast, bytes_down, entry_shapes
from fednlp.federated.links import Downlink
from fednlp.federated.lora import LoraPair, change_ranks, check_exact, exact_step, lora_products
from fednlp.federated.message import message_bytes
from fednlp.federated.params import Layout
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.sums import ExactSum, weight_unit
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import RngKey, make_chain

PAIRS = [
    LoraPair("one.a", "one.b", "one.w", scaling=2.0),
    LoraPair("two.a", "two.b", "two.w", scaling=0.5, transposed=True),
]
PLAIN = ServerOptimizer()


def layout(rank: int = 2, table: bool = True) -> Layout:
    """Two adapted weights of 5 outputs and 4 inputs, the second transposed, a head and a table."""
    shapes = {"one.w": (5, 4), "two.w": (4, 5), "head": (3,)}
    for name in ("one", "two"):
        shapes |= {f"{name}.a": (rank, 4), f"{name}.b": (5, rank)}
    kinds = {name: (shape, "parameter") for name, shape in shapes.items()}
    return Layout.of(kinds | ({"words": ((6, 2), "parameter")} if table else {}), "words" if table else None)


def effective(there: Layout, x: Tensor) -> dict[str, Tensor]:
    """What a model computes with: W + s B A, written out."""
    named = {name: view.double() for name, view in there.views(x).items()}
    one = named["one.w"] + 2.0 * named["one.b"] @ named["one.a"]
    two = named["two.w"] + 0.5 * (named["two.b"] @ named["two.a"]).T
    return {"one.w": one, "two.w": two}


def trained(there: Layout, x: Tensor, clients: int, seed: int, frozen_a: bool = False) -> list[Tensor]:
    """Clients' models after local training: the base weights are as they were."""
    torch.manual_seed(seed)
    models = [x + torch.randn(len(x)) for _ in range(clients)]
    for model in models:
        for entry in there.entries:
            if entry.name.endswith(".w") or (frozen_a and entry.name.endswith(".a")):
                model[entry.start : entry.stop] = x[entry.start : entry.stop]
    return models


def averaged(there: Layout, x: Tensor, models: list[Tensor], weights: list[int], exact: bool) -> Tensor:
    """One round on the server, through the exact sum and the server's step."""
    total, unit = ExactSum(there), weight_unit(sum(weights))
    for model, weight in zip(models, weights, strict=True):
        update = model - x
        if exact:
            lora_products(there, x, update[: there.dense], PAIRS)
        table = there.rows(update) if there.table else None
        total.add(weight / unit, update[: there.dense], None, table)
    mean, rows = total.mean(sum(weights) / unit)
    after = x.clone()
    PLAIN.move(there, after, Mean(mean, rows), {})
    if exact:
        for pair in PAIRS:
            there.views(after)[pair.base].copy_(there.views(x)[pair.base])
        exact_step(there, after, mean, PAIRS)
    return after


def gap(there: Layout, x: Tensor, models: list[Tensor], weights: list[int]) -> float:
    """How far a model is from the mean of the clients' models, in the weights that it computes with."""
    shares = [weight / sum(weights) for weight in weights]
    own = effective(there, x)
    each = [effective(there, model) for model in models]
    wanted = {n: sum(p * one[n] for p, one in zip(shares, each, strict=True)) for n in own}
    return max(float((own[name] - wanted[name]).abs().max()) for name in own)


@settings(deadline=None, max_examples=30)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    rank=st.integers(1, 3),
    seed=st.integers(0, 1000),
    table=st.booleans(),
)
def test_exact_averaging_is_the_mean_of_the_clients_round_after_round(
    weights: list[int], rank: int, seed: int, table: bool
) -> None:
    there = layout(rank, table)
    x = torch.randn(there.numel, generator=torch.Generator().manual_seed(seed))
    for number in range(3):
        models = trained(there, x, len(weights), seed + number)
        size = max(float(w.abs().max()) for model in models for w in effective(there, model).values())
        x = averaged(there, x, models, weights, exact=True)
        assert gap(there, x, models, weights) < 1e-6 * max(1.0, size)


def test_all_other_tensors_are_averaged_as_ever() -> None:
    there = layout()
    x = torch.randn(there.numel, generator=torch.Generator().manual_seed(0))
    models = trained(there, x, 3, seed=1)
    plain, exact = (there.views(averaged(there, x, models, [1, 2, 3], kind)) for kind in (False, True))
    assert all(torch.equal(plain[n], exact[n]) for n in plain if not n.endswith(".w"))
    assert all(torch.equal(plain[n], there.views(x)[n]) for n in plain if n.endswith(".w"))
    assert not any(torch.equal(plain[n], exact[n]) for n in plain if n.endswith(".w"))


def test_plain_averaging_is_not_the_mean_and_a_frozen_matrix_makes_it_so() -> None:
    there, weights = layout(), [3, 1, 4]
    x = torch.randn(there.numel, generator=torch.Generator().manual_seed(0))
    models = trained(there, x, 3, seed=1)
    assert gap(there, averaged(there, x, models, weights, exact=False), models, weights) > 0.1
    models = trained(there, x, 3, seed=1, frozen_a=True)
    after = averaged(there, x, models, weights, exact=False)
    assert gap(there, after, models, weights) < 1e-5
    assert not torch.equal(after, x)


def test_one_client_alone_changes_no_base_weight() -> None:
    there = layout()
    x = torch.randn(there.numel, generator=torch.Generator().manual_seed(0))
    after = averaged(there, x, trained(there, x, 1, seed=1), [7], exact=True)
    for name in ("one.w", "two.w"):
        torch.testing.assert_close(there.views(after)[name], there.views(x)[name], rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(clients=st.integers(1, 4), rank=st.integers(1, 2), seed=st.integers(0, 1000))
def test_the_difference_has_the_rank_that_its_bytes_are_counted_with(
    clients: int, rank: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    shares = torch.rand(clients, generator=draw, dtype=torch.float64) + 0.1
    shares /= shares.sum()
    a = torch.randn(clients, rank, 12, generator=draw, dtype=torch.float64)
    b = torch.randn(clients, 12, rank, generator=draw, dtype=torch.float64)
    rest = torch.einsum("i,ior,irn->on", shares, b, a)
    rest -= torch.einsum("i,ior->or", shares, b) @ torch.einsum("i,irn->rn", shares, a)
    found = torch.linalg.svdvals(rest)
    assert int((found > 1e-9).sum()) == (clients - 1) * rank


def wide() -> Layout:
    """One adapted weight of 30 outputs and 40 inputs with r = 2, as a run with exact averaging lays it out."""
    shapes = {"a": ((2, 40), "parameter"), "b": ((30, 2), "parameter"), "w": ((30, 40), "derived")}
    return Layout.of(shapes)


@settings(deadline=None, max_examples=20)
@given(clients=st.integers(1, 4), lossy=st.booleans(), seed=st.integers(0, 1000))
def test_a_round_changes_w_by_the_rank_that_is_counted(clients: int, lossy: bool, seed: int) -> None:
    """Also where clients began from an A and B that the way down had rounded."""
    there, pair = wide(), LoraPair("a", "b", "w", 1.0)
    x = torch.randn(there.numel, generator=torch.Generator().manual_seed(seed))
    began = x + lossy * 0.1 * torch.randn(there.numel, generator=torch.Generator().manual_seed(seed + 1))
    total, unit = ExactSum(there), weight_unit(clients)
    for update in trained(there, torch.zeros(there.numel), clients, seed):
        lora_products(there, began, update, [pair])
        total.add(1 / unit, update)
    mean, _ = total.mean(clients / unit)
    after = x + mean
    there.views(after)["w"].copy_(there.views(x)["w"])
    exact_step(there, after, mean, [pair])
    change = (there.views(after)["w"] - there.views(x)["w"]).double()
    ranks = int((torch.linalg.svdvals(change) > 1e-4).sum())
    assert ranks == change_ranks(clients, lossy) * 2


@pytest.mark.parametrize("down", [[], ["int4"], ["bfloat16"]])
def test_bytes(down: list[str]) -> None:
    """A and B as they are transformed, and in float32 what W changed by, as two factors or as W itself."""
    there = wide()
    downlink = Downlink(make_chain(parse_chain(down, "down"), nearest=True))
    pairs = (LoraPair("a", "b", "w", 1.0),)
    adapters = dict(downlink.chain.shapes(entry_shapes(there.entries[:2])))

    assert bytes_down(downlink, there, adapters=pairs) == message_bytes(adapters)
    factors = {"w.B": ((30, 6), torch.float32), "w.A": ((6, 40), torch.float32)}
    assert bytes_down(downlink, there, adapters=pairs, ranks=3) == message_bytes(adapters | factors)
    assert bytes_down(downlink, there, adapters=pairs, ranks=50) == message_bytes(
        adapters | {"w": ((30, 40), torch.float32)}
    )
    lengths = [bytes_down(downlink, there, adapters=pairs, ranks=ranks) for ranks in range(30)]
    assert lengths == sorted(lengths)


def test_base_weights_arrive_as_they_are() -> None:
    there = wide()
    x = torch.randn(there.numel, generator=torch.Generator().manual_seed(0))
    down = make_chain(parse_chain(["int4"], "down"), nearest=True)
    arrived, sent = there.views(broadcast(Downlink(down), there, x, RngKey(0, 1, -1)).model), there.views(x)
    assert torch.equal(arrived["w"], sent["w"])
    assert not torch.equal(arrived["a"], sent["a"])
    torch.testing.assert_close(arrived["a"], sent["a"], rtol=0, atol=0.5)


def test_what_cannot_be_exact() -> None:
    there = layout()
    check_exact(there, PAIRS)
    with pytest.raises(ConfigError, match="there are no adapters"):
        check_exact(there, [])
    with pytest.raises(ConfigError, match=r"three\.a is not"):
        check_exact(there, [*PAIRS, replace(PAIRS[0], a="three.a")])
