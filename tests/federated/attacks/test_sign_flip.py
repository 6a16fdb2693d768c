"""Attackers that reverse the sign of what they send: who they are, and what arrives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import fednlp
from fednlp import fedavg, federate
from fednlp.config import Experiment
from fednlp.federated.attacks import draw_attackers, with_attackers
from fednlp.federated.attacks.sign_flip import sign_flip
from fednlp.federated.client import Result
from fednlp.federated.cohort import equally

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


@given(clients=st.integers(1, 200), percent=st.integers(1, 99), seed=st.integers(0, 9))
def test_that_fraction_of_all_clients_is_drawn_and_one_at_least(
    clients: int, percent: int, seed: int
) -> None:
    drawn = draw_attackers(clients, percent / 100, seed)
    assert drawn == sorted(set(drawn)) == draw_attackers(clients, percent / 100, seed)
    assert set(drawn) <= set(range(clients))
    assert len(drawn) == max(1, round(percent / 100 * clients))


def test_another_seed_draws_others() -> None:
    assert len({tuple(draw_attackers(100, 0.2, seed)) for seed in range(5)}) == 5


@dataclass
class Moved:
    """A change that is computed when it is asked for."""

    values: torch.Tensor

    def flat(self) -> torch.Tensor:
        return self.values.clone()


def test_every_vector_is_reversed_and_nothing_else() -> None:
    def honest(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
        update = {"model": Moved(torch.tensor([1.0, -2.0])), "control": torch.tensor([4.0, 0.5])}
        return Result(update, keep={"control": torch.ones(2)}, metrics={"tau": 3.0})  # type: ignore[arg-type]

    nothing: Mapping[str, torch.Tensor] = {}
    result = sign_flip(3.0)(honest)(SimpleNamespace(), torch.zeros(2), nothing, nothing)  # type: ignore[arg-type]
    sent = {name: value.tolist() for name, value in result.update.items()}  # type: ignore[union-attr]
    assert sent == {"model": [-3.0, 6.0], "control": [-12.0, -1.5]}
    assert result.keep["control"].tolist() == [1.0, 1.0]
    assert result.metrics == {"tau": 3.0}


def test_attackers_alone_are_malicious(number_trainer: Callable[..., Any]) -> None:
    algorithm = with_attackers(fedavg(3, weight=equally), sign_flip(2.0), [1])
    found = federate(number_trainer(), [[3.0], [6.0], [12.0]], algorithm, num_rounds=1).params
    assert float(found["w"]) == pytest.approx((3 - 2 * 6 + 12) / 3)


RUN = {"num_rounds": 1, "clients_per_round": 8, "algorithm.weighting": "uniform", "client.optimizer": "sgd"}


def weights(run: Any) -> torch.Tensor:
    state = load_file(run.folder / "checkpoint" / "state.safetensors")
    return state["params"]


def test_attackers_in_a_run_send_minus_scale_times_their_update(experiment: Make, tmp_path: Path) -> None:
    """With u the sum of the attackers' updates, the model is x + (h + u) / 8, x + (h - u) / 8 and x + (h - 3 u) / 8."""
    found = {}
    for scale in (None, 1.0, 3.0):
        attack = {} if scale is None else {"attack": {"name": "sign-flip", "fraction": 0.3, "scale": scale}}
        run = fednlp.run(experiment(RUN | attack), tmp_path / str(scale))
        found[scale] = weights(run)
        named = run.read_json("summary.json").get("attackers")
        assert named == (None if scale is None else draw_attackers(8, 0.3, 0))
    torch.testing.assert_close(found[None] - found[1.0], found[1.0] - found[3.0], rtol=1e-3, atol=5e-7)
    assert float((found[None] - found[1.0]).norm()) > 1e-3


@pytest.mark.slow
def test_workers_have_the_same_attackers(
    experiment: Make, tmp_path: Path, outcome: Callable[..., Any]
) -> None:
    changes = {"num_rounds": 2, "attack": {"name": "sign-flip", "fraction": 0.5, "scale": 2.0}}
    one = fednlp.run(experiment(changes), tmp_path / "one")
    three = fednlp.run(experiment(changes | {"runtime.workers": 3}), tmp_path / "three")
    assert outcome(one) == outcome(three)


def test_an_attack_goes_with_what_is_done_to_updates(experiment: Make, tmp_path: Path) -> None:
    """Compressed or masked, what attackers send arrives as theirs: it moves the model elsewhere."""
    attack = {"attack": {"name": "sign-flip", "fraction": 0.5, "scale": 2.0}}
    for name, changes in (("half", {"exchange.up": "float16"}), ("secure", {"secure.protocol": "secagg+"})):
        honest = fednlp.run(experiment(RUN | changes), tmp_path / name)
        under = fednlp.run(experiment(RUN | changes | attack), tmp_path / f"{name}-attacked")
        assert under.read_json("summary.json")["dropped"] == 0
        assert float((weights(honest) - weights(under)).norm()) > 1e-3


def test_an_attack_that_breaks_is_a_client_that_is_dropped(number_trainer: Callable[..., Any]) -> None:
    def broken(honest: Any) -> Any:
        def client(*arguments: Any) -> Result:
            return Result({"model": torch.full((1,), np.nan)})

        return client

    algorithm = replace(with_attackers(fedavg(2), broken, [0]), min_clients=1)
    found = federate(number_trainer(), [[3.0], [6.0]], algorithm, num_rounds=1)
    assert [result.client for result in found.rounds[0].dropped] == [0]
    assert float(found.params["w"]) == 6.0
