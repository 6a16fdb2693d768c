"""Sequential fine-tuning: the order of the clients is the given one, or the one that a search finds."""

import json
import random
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.simulation.baselines import best_greedily, best_of_all
from fednlp.simulation.callback import NullCallback

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


def searched(scores: dict[tuple[int, ...], float], clients: int, search: Any) -> tuple[list[int], float, int]:
    """Search with models that are the tuples of the clients that they were trained on."""
    trials: list[tuple[int, ...]] = []

    def trained(model: tuple[int, ...], client: int) -> tuple[int, ...]:
        trials.append((*model, client))
        return (*model, client)

    order, value = search((), list(range(clients)), trained, lambda model: scores[model])
    assert len(set(trials)) == len(trials), "no model is trained twice"
    return order, value, len(trials)


@given(clients=st.integers(1, 4), seed=st.integers(0, 999))
def test_all_orders_have_the_best_and_the_greedy_one_is_the_best_step_by_step(
    clients: int, seed: int
) -> None:
    rng = random.Random(seed)
    models = [model for n in range(clients + 1) for model in permutations(range(clients), n)]
    scores = {model: float(rng.randint(0, 5)) for model in models}
    whole = [model for model in models if len(model) == clients]
    order, value, trials = searched(scores, clients, best_of_all)
    best = max(whole, key=lambda model: scores[model])
    assert (tuple(order), value) == (best, scores[best])
    assert trials == len(models) - 1
    order, value, trials = searched(scores, clients, best_greedily)
    for place in range(clients):
        others = [(*order[:place], client) for client in range(clients) if client not in order[:place]]
        assert scores[tuple(order[: place + 1])] == max(scores[model] for model in others)
    assert (value, trials) == (scores[tuple(order)], clients * (clients + 1) // 2)


CHAINED = {"algorithm.name": "chained", "num_rounds": 1, "partition.clients": 3, "clients_per_round": 3}


def test_a_given_order_is_followed_and_that_of_the_names_is_the_default(
    experiment: Make, tmp_path: Path
) -> None:
    def weights(name: str, **order: Any) -> torch.Tensor:
        run = fednlp.run(experiment(CHAINED | order), tmp_path / name)
        return torch.cat([t.flatten() for t in load_file(run.model / "model.safetensors").values()])

    plain = weights("plain")
    assert torch.equal(weights("named", **{"algorithm.order": ["0", "1", "2"]}), plain)
    assert not torch.equal(weights("other", **{"algorithm.order": ["2", "0", "1"]}), plain)


@pytest.mark.parametrize(("search", "trials"), [("greedy", 6), ("exhaustive", 15)])
@pytest.mark.variants(1)
def test_a_run_in_the_order_that_was_found_is_a_run_in_that_order(
    search: str, trials: int, experiment: Make, tmp_path: Path
) -> None:
    found = fednlp.run(experiment(CHAINED | {"algorithm.order": search}), tmp_path / "found")
    fact = json.loads((found.folder / "summary.json").read_text())["order"]
    assert fact["trials"] == trials
    assert sorted(fact["clients"]) == ["0", "1", "2"]
    assert 0 <= fact["accuracy"] <= 1
    given = fednlp.run(experiment(CHAINED | {"algorithm.order": fact["clients"]}), tmp_path / "given")
    first, second = (load_file(run.model / "model.safetensors") for run in (found, given))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_search_that_was_made_is_not_made_again(experiment: Make, tmp_path: Path) -> None:
    class Stop(NullCallback):
        trials = 0

        def log(self, text: str) -> None:
            self.trials += "trial" in text

        def on_round(self, line: dict[str, Any], seconds_left: float) -> None:
            raise KeyboardInterrupt

    asked = experiment(CHAINED | {"algorithm.order": "greedy"})
    whole = fednlp.run(asked, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fednlp.run(asked, tmp_path / "run", callback=Stop())
    quiet = Stop()
    quiet.on_round = lambda line, seconds_left: None  # type: ignore[method-assign]
    run = fednlp.resume(tmp_path / "run", callback=quiet)
    assert quiet.trials == 0
    first, second = (load_file(one.model / "model.safetensors") for one in (whole, run))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert json.loads((run.folder / "summary.json").read_text())["order"]["trials"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm.order": ["0", "1"]}, "order: '2' is not there: name every client: 0, 1, 2"),
        ({"algorithm.order": ["0", "1", "1"]}, "order: '1' is there twice: name clients, each once: 0, 1, 2"),
        ({"algorithm.order": ["0", "9", "1"]}, "order: '9' is no client: name clients, each once: 0, 1, 2"),
        (
            {"algorithm.order": "exhaustive", "partition.clients": 5},
            '5 clients have 120 orders, .*say "greedy"',
        ),
        ({"algorithm.order": "best"}, 'give "greedy", "exhaustive", or a list'),
        ({"algorithm.order": "greedy", "algorithm.name": "fedavg"}, "is for the baseline chained"),
    ],
)
def test_orders_that_are_none(
    changes: dict[str, Any], message: str, experiment: Make, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fednlp.run(experiment(CHAINED | changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_order_that_no_example_can_judge_is_an_order(experiment: Make, tmp_path: Path) -> None:
    """Clients of one example each hold none out; what is written has no number that JSON lacks."""
    few = CHAINED | {"partition.clients": 3, "data.train_size": 3, "algorithm.order": "greedy"}
    run = fednlp.run(experiment(few), tmp_path / "run")
    fact = json.loads((run.folder / "summary.json").read_text())["order"]
    assert fact == {"clients": ["0", "1", "2"], "trials": 6, "accuracy": None}
