"""The laws of the round, on a trainer that anybody could have written."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from fednlp import ServerOptimizer, fedavg, federate, fedopt, fedprox
from fednlp.errors import ConfigError, RunError, TooFewClients
from fednlp.federated.aggregators.base import requests_of
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import Result
from fednlp.federated.cohort import Cohort, Population, equally, poisson_cohort, uniform_cohort
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.params import Layout
from fednlp.federated.round import plan_round
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.state import State
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import make_chain

Data = tuple[torch.Tensor, torch.Tensor]
Adjust = Callable[[dict[str, nn.Parameter]], None]


class Client(tuple):  # type: ignore[type-arg]
    """(inputs, targets), as long as its examples."""

    def __len__(self) -> int:
        return len(self[0])


class Linear:
    """Full-batch gradient steps on a linear model."""

    def __init__(self, steps: int = 1, rate: float = 0.1) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.steps, self.rate = steps, rate

    def get_model_params(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(params)

    def loss(self, data: Data) -> torch.Tensor:
        return ((self.model(data[0]) - data[1]) ** 2).mean()

    def train(self, data: Data, adjust: Adjust = lambda params: None) -> float:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate)
        for _ in range(self.steps):
            loss = self.loss(data)
            optimizer.zero_grad()
            loss.backward()
            adjust(dict(self.model.named_parameters()))
            optimizer.step()
        return loss.item()

    def test(self, data: Data) -> dict[str, float]:
        return {"loss": self.loss(data).item()}


def some_clients(sizes: list[int], seed: int = 0) -> list[Client]:
    rng = torch.Generator().manual_seed(seed)
    return [Client((torch.randn(n, 3, generator=rng), torch.randn(n, 1, generator=rng))) for n in sizes]


def outcome(
    algorithm: Algorithm, sizes: list[int], trainer: Linear | None = None, **more: Any
) -> dict[str, torch.Tensor]:
    return federate(trainer or Linear(), some_clients(sizes), algorithm, **{"num_rounds": 3, **more}).params


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(sizes=sizes)
@settings(deadline=None, max_examples=20)
def test_one_full_batch_step_each_is_one_centralised_step(sizes: list[int]) -> None:
    clients = some_clients(sizes)
    federated = federate(Linear(), clients, fedavg(len(sizes)), num_rounds=1).params
    central = Linear()
    central.train((torch.cat([c[0] for c in clients]), torch.cat([c[1] for c in clients])))
    for name, value in central.model.state_dict().items():
        torch.testing.assert_close(federated[name], value, rtol=1e-5, atol=1e-6)


@given(sizes=sizes)
@settings(deadline=None, max_examples=10)
def test_the_special_cases_are_fedavg(sizes: list[int]) -> None:
    plain = outcome(fedavg(len(sizes)), sizes, Linear(steps=3))
    assert same(plain, outcome(fedprox(len(sizes), mu=0.0), sizes, Linear(steps=3)))
    assert same(plain, outcome(fedopt(len(sizes), ServerOptimizer("sgd", 1.0)), sizes, Linear(steps=3)))


def test_each_part_of_the_method_matters() -> None:
    sizes = [2, 5, 9]
    plain = outcome(fedavg(3), sizes, Linear(steps=3))
    assert not same(plain, outcome(fedprox(3, mu=1.0), sizes, Linear(steps=3)))
    assert not same(plain, outcome(fedopt(3), sizes, Linear(steps=3)))
    assert not same(plain, outcome(fedavg(3, weight=equally), sizes, Linear(steps=3)))
    assert not same(plain, outcome(fedavg(2), sizes, Linear(steps=3)))


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6), data=st.data())
@settings(deadline=None, max_examples=20)
def test_permuting_the_cohort_changes_nothing(sizes: list[int], data: st.DataObject) -> None:
    clients = some_clients(sizes)
    order = data.draw(st.permutations(range(len(sizes))))
    algorithm = fedopt(len(sizes))
    one = federate(Linear(), clients, algorithm, num_rounds=2).params
    other = federate(Linear(), [clients[i] for i in order], algorithm, num_rounds=2).params
    assert same(one, other)


def test_a_client_of_weight_zero_changes_nothing() -> None:
    base = fedavg(2)
    zero = replace(fedavg(3), weight=lambda examples: 0.0 if examples == 7 else float(examples))
    clients = some_clients([3, 4, 7])
    one = federate(Linear(), clients[:2], base, num_rounds=2).params
    other = federate(Linear(), clients, zero, num_rounds=2).params
    assert same(one, other)


def test_a_run_is_a_function_of_its_seed() -> None:
    sizes = [1, 2, 3, 4, 5, 6]
    assert same(outcome(fedavg(2), sizes, seed=1), outcome(fedavg(2), sizes, seed=1))
    assert not same(outcome(fedavg(2), sizes, seed=1), outcome(fedavg(2), sizes, seed=2))


class Failing(Linear):
    """Raises on one client's data and gives NaN on another's."""

    def train(self, data: Data, adjust: Adjust = lambda params: None) -> float:
        if len(data[0]) == 5:
            raise ValueError("out of cheese")
        loss = super().train(data, adjust)
        if len(data[0]) == 7:
            self.model.weight.data.fill_(math.nan)
        return loss


def test_clients_that_fail_are_dropped_and_named() -> None:
    line = Failing.train.__code__.co_firstlineno + 2
    clients = some_clients([5, 3, 7, 4])
    result = federate(Failing(), clients, fedavg(4), num_rounds=1)
    report = result.rounds[0]
    assert [(r.client, r.error) for r in report.dropped] == [
        (0, f"ValueError: out of cheese (test_round.py, line {line})"),
        (2, "NonFiniteUpdate: training ended in NaN, infinity or a number beyond 2^20"),
    ]
    good = federate(Linear(), [clients[1], clients[3]], fedavg(2), num_rounds=1)
    assert same(result.params, good.params)
    assert report.bytes_up == report.bytes_down // 2


def test_too_few_clients_stop_the_run_with_the_reason() -> None:
    with pytest.raises(RunError, match=r"round 1: 0 of 1 clients answered, min_clients is 1 .*out of cheese"):
        federate(Failing(), some_clients([5]), fedavg(1), num_rounds=1)


class Closed(Linear):
    """A trainer whose steps are its own business."""

    def train(self, data: Data) -> float:  # type: ignore[override]
        return super().train(data)


def test_a_method_that_changes_gradients_needs_a_trainer_that_lets_it() -> None:
    with pytest.raises(ConfigError, match=r"fedprox changes the gradient .* train\(data, adjust\)"):
        federate(Closed(), some_clients([2]), fedprox(1, mu=0.1))
    one = federate(Closed(), some_clients([2]), fedprox(1, mu=0.0)).params
    assert same(one, outcome(fedavg(1), [2], num_rounds=10))


def test_fedprox_by_federate_is_fedprox_by_hand() -> None:
    """The loss with (mu/2)||y - x||^2 in it, as the paper writes it, against the gradient with mu (y - x)."""
    mu, clients = 0.7, some_clients([2, 5, 3])
    federated = federate(Linear(steps=4), clients, fedprox(3, mu=mu), num_rounds=3).params
    x = Linear().model
    for _ in range(3):
        trained = []
        for client in clients:
            y = copy.deepcopy(x)
            optimizer = torch.optim.SGD(y.parameters(), lr=0.1)
            for _ in range(4):
                pairs = zip(y.parameters(), x.parameters(), strict=True)
                gap = sum(((p - q.detach()) ** 2).sum() for p, q in pairs)
                optimizer.zero_grad()
                (((y(client[0]) - client[1]) ** 2).mean() + mu / 2 * gap).backward()
                optimizer.step()
            trained.append(y.state_dict())
        mean = {n: sum(len(c) / 10 * t[n] for c, t in zip(clients, trained, strict=True)) for n in trained[0]}
        x.load_state_dict(mean)
    for name, value in x.state_dict().items():
        torch.testing.assert_close(federated[name], value, rtol=1e-5, atol=1e-6)


def test_a_client_s_part_is_told_the_steps_and_keeps_its_vectors() -> None:
    """By ``federate`` too: steps are counted by ``adjust``, what is kept comes back, metrics are weighted means."""
    seen: list[tuple[int, int, float, float]] = []

    def client(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
        before = float(own["rounds"][0]) if own else 0.0
        y = local.steps(x)
        seen.append((local.client, local.round, before, local.rate_sum))
        kept = torch.full_like(x, before + 1)
        return Result({"model": (y - x) / 1.0}, {"rounds": kept}, {"steps": local.num_steps * len(server)})

    trainer = Linear(steps=3)
    trainer.learning_rate = 0.5  # type: ignore[attr-defined]
    method = replace(fedavg(2), client=client, keeps=("rounds",))
    result = federate(trainer, some_clients([1, 3]), method, num_rounds=2)
    assert sorted(seen) == [(0, 1, 0.0, 1.5), (0, 2, 1.0, 1.5), (1, 1, 0.0, 1.5), (1, 2, 1.0, 1.5)]
    assert [r.metrics for r in result.rounds[0].results] == [{"steps": 3}, {"steps": 3}]
    assert [r.steps for r in result.rounds[0].results] == [3, 3]
    assert same(result.params, outcome(fedavg(2), [1, 3], Linear(steps=3), num_rounds=2))


def test_a_trainer_has_no_gradient_of_all_its_data_to_give() -> None:
    def client(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
        return Result({"model": local.gradient(x)})

    with pytest.raises(ConfigError, match="asks for the gradient of all of a client's data"):
        federate(Linear(), some_clients([2]), replace(fedavg(1), client=client))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"client_rate": RateSchedule("linear", rounds=3)}, "leave client_rate out"),
        ({"uplink": Uplink(error_feedback=True)}, "leave uplink and downlink out"),
        (
            {"downlink": Downlink(make_chain(parse_chain(["float16"], "down")))},
            "leave uplink and downlink out",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_trainer_does_not_follow_is_refused(changes: dict[str, Any], remedy: str) -> None:
    """Its learning rate is its own, and nothing is compressed."""
    with pytest.raises(ConfigError, match=rf"^fedavg: .*federate\(\).*: {remedy}$"):
        federate(Linear(), some_clients([2]), replace(fedavg(1), **changes))


@pytest.mark.filterwarnings("ignore:steps. whole numbers")
def test_statistics_are_averaged_and_whole_numbers_stay() -> None:
    class Counting(Linear):
        buffer_names = ("seen",)

        def __init__(self) -> None:
            super().__init__()
            self.seen = 0.0

        def get_model_params(self) -> dict[str, Any]:
            return {"seen": self.seen, "steps": 3, **super().get_model_params()}

        def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
            assert params["steps"].item() == 3
            self.seen = float(params["seen"])
            super().set_model_params({k: v for k, v in params.items() if k not in {"seen", "steps"}})

        def train(self, data: Data, adjust: Adjust = lambda params: None) -> float:
            self.seen = float(len(data[0]))
            return super().train(data, adjust)

    result = federate(Counting(), some_clients([2, 6]), fedopt(2), num_rounds=4)
    assert float(result.params["seen"]) == (2 * 2 + 6 * 6) / 8
    assert result.params["steps"].dtype == torch.int64


@given(shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=5))
@settings(deadline=None)
def test_bytes_are_those_of_the_safetensors_message(shapes: list[list[int]]) -> None:
    tensors = {f"layer.{i}": torch.zeros(shape) for i, shape in enumerate(shapes)}
    layout = Layout.of({name: (tuple(t.shape), "parameter") for name, t in tensors.items()})
    assert layout.message_bytes == len(save(tensors))


class Counter:
    """A live state with a weight and a counter, which slows its training down from step to step."""

    def __init__(self) -> None:
        self.state = {"w": torch.zeros(1), "n": torch.tensor(0)}

    def get_model_params(self) -> dict[str, torch.Tensor]:
        return self.state

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
        for name, value in params.items():
            self.state[name].copy_(value)

    def train(self, data: list[float]) -> None:
        for value in data:
            self.state["n"] += 1
            self.state["w"] += (value - self.state["w"]) / self.state["n"]

    def test(self, data: Any) -> dict[str, float]:
        return {}


def test_integers_of_one_client_do_not_reach_another() -> None:
    """Not even where the trainer hands out its live tensors; so the order of equal clients does not matter."""
    clients = [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]
    one = federate(Counter(), clients, fedavg(2), num_rounds=2).params
    other = federate(Counter(), clients[::-1], fedavg(2), num_rounds=2).params
    assert int(one["n"]) == int(other["n"]) == 0
    assert torch.equal(one["w"], other["w"])


class Mean:
    """A mean that begins from a value of the test's."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    def get_model_params(self) -> dict[str, Any]:
        return self.params

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
        self.params = dict(params)

    def train(self, data: list[float]) -> None:
        self.params["w"] = sum(data) / len(data)

    def test(self, data: Any) -> dict[str, float]:
        return {}


def test_whole_numbers_are_not_trained_without_a_word() -> None:
    with pytest.raises(ConfigError, match=r"nothing to average: write 0\.0 in place of 0"):
        federate(Mean({"w": 0}), [[1.0]], fedavg(1))
    with pytest.warns(UserWarning, match="n: whole numbers are not averaged"):
        found = federate(Mean({"w": 0.0, "n": 3}), [[2.0]], fedavg(1), num_rounds=1).params
    assert (float(found["w"]), int(found["n"])) == (2.0, 3)


def test_clients_that_have_examples_weigh_alike() -> None:
    assert [equally(examples) for examples in (0, 1, 7)] == [0.0, 1.0, 1.0]


def test_a_poisson_cohort_holds_each_client_with_the_same_probability() -> None:
    sample = poisson_cohort(20)
    everyone = Population(np.ones(200, dtype=np.int64))
    cohorts = [sample(everyone, number).clients for number in range(1, 101)]
    assert sum(map(len, cohorts)) / 100 == pytest.approx(20, abs=2)
    assert len(set(map(len, cohorts))) > 5
    assert {client for cohort in cohorts for client in cohort} == set(range(200))


def test_a_round_without_anybody_is_refused_unless_it_is_allowed() -> None:
    """An empty cohort is too few by default; with ``min_clients`` 0 it changes nothing."""
    nobody = Algorithm("nobody", lambda population, number: Cohort([]))
    with pytest.raises(TooFewClients, match="the cohort's rule drew nobody, and min_clients is 1"):
        outcome(nobody, [2, 3])
    unchanged = outcome(replace(nobody, min_clients=0), [2, 3])
    assert same(Linear().get_model_params(), unchanged)


def test_a_cohort_of_which_all_fail_is_refused_whatever_is_allowed() -> None:
    with pytest.raises(TooFewClients, match="0 of 1 clients answered, min_clients is 0"):
        outcome(fedavg(1, min_clients=0), [5], Failing())


def test_the_training_loss_is_the_mean_over_the_examples() -> None:
    clients = some_clients([2, 4])
    report = federate(Linear(), clients, fedavg(2), num_rounds=1).rounds[0]
    losses = [Linear().loss(client).item() for client in clients]
    assert report.train_loss == pytest.approx((2 * losses[0] + 4 * losses[1]) / 6)


def test_ten_rounds_where_nothing_is_said() -> None:
    assert len(federate(Linear(), some_clients([2]), fedavg(1)).rounds) == 10


@given(sizes=sizes)
@settings(deadline=None, max_examples=10)
def test_a_uniform_cohort_is_distinct_clients_in_order(sizes: list[int]) -> None:
    population = Population(np.array(sizes), seed=3)
    for number in range(1, 5):
        clients = uniform_cohort(4)(population, number).clients
        assert clients == sorted(set(clients))
        assert len(clients) == min(4, len(sizes))
        assert all(0 <= client < len(sizes) for client in clients)


def test_a_cohort_s_scale_is_a_factor_of_a_client_s_weight() -> None:
    """Half of 6 examples weighs as 3 do; it is the mean's denominator that sees it too."""
    clients = some_clients([2, 6])
    scaled = replace(fedavg(2), sample=lambda population, number: Cohort([0, 1], scale=[1.0, 0.5]))
    one = federate(Linear(), clients, scaled, num_rounds=2).params
    half = replace(fedavg(2), weight=lambda examples: 3.0 if examples == 6 else float(examples))
    assert same(one, federate(Linear(), clients, half, num_rounds=2).params)
    assert not same(one, federate(Linear(), clients, fedavg(2), num_rounds=2).params)


def test_clients_of_one_staleness_start_from_one_model() -> None:
    """The server says which: a late client gets the model of as many rounds ago."""
    asked: list[tuple[int, int]] = []

    class Keeping(ServerOptimizer):
        def model(self, state: State, staleness: int) -> torch.Tensor:
            asked.append((state.round, staleness))
            return state.params + staleness

    def client(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
        return Result({"model": torch.full_like(x, float(x[0]))}, metrics={"late": local.staleness})

    late = replace(
        fedavg(3),
        sample=lambda population, number: Cohort([0, 1, 2], staleness=[1, 0, 1], seconds=2.5),
        client=client,
        server=Keeping(),
    )
    result = federate(Mean({"w": 0.0}), [[1.0], [1.0], [1.0]], late, num_rounds=1)
    assert asked == [(0, 0), (0, 1)]
    assert [r.metrics["late"] for r in result.rounds[0].results] == [1, 0, 1]
    assert [r.client for r in result.rounds[0].results] == [0, 1, 2]
    assert result.rounds[0].seconds == 2.5
    assert float(result.params["w"]) == pytest.approx(2 / 3)


def test_clients_with_most_examples_are_told_first_and_the_rate_follows_its_schedule() -> None:
    slower = RateSchedule("linear", rounds=4)
    population = Population(np.array([2, 9, 5, 9]))
    for number, rate in ((1, 1.0), (2, 0.75), (3, 0.5)):
        plan = plan_round(fedavg(4, client_rate=slower), number, population, Cohort([0, 1, 2, 3]))
        requests = requests_of(plan)
        assert [request.client for request in requests] == [1, 3, 2, 0]
        assert {request.rate for request in requests} == {rate}
        assert sum(request.weight for request in requests) <= 1.0


def test_weights_are_functions_of_tokens_where_these_are_counted() -> None:
    population = Population(np.array([2, 9, 5]), tokens=np.array([40, 30, 0]))
    plan = plan_round(fedavg(2), 1, population, Cohort([0, 1]))
    assert plan.weights == {0: 40.0, 1: 30.0}
    assert plan.total_weight == 70.0
    assert [request.client for request in requests_of(plan)] == [1, 0]
    assert plan_round(fedavg(2, weight=equally), 1, population, Cohort([1, 2])).weights == {1: 1.0, 2: 0.0}
