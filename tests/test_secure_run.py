"""Laws of whole runs under secure aggregation and differential privacy."""

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.cli.console import closing_table
from fednlp.config import Experiment
from fednlp.errors import ConfigError, SecureAbort, TooFewClients
from fednlp.federated.algorithms.fedavg import fedavg
from fednlp.federated.cohort import Population, equally
from fednlp.privacy.dp import DPMechanism
from fednlp.reports import write_report
from fednlp.secure.params import make_params
from fednlp.secure.round import SecureRound
from fednlp.secure.session import Channel, open_session
from fednlp.simulation.callback import Callback, NullCallback
from fednlp.simulation.protection import dp_mechanism, secagg_params
from fednlp.simulation.run_dir import RunDir

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers", "undrawn")]
PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
LOSSY = {"secure.dropout": 0.25, "secure.simulated_dropout": 0.25, "num_rounds": 6}
METHODS: dict[str, dict[str, Any]] = {
    "secagg, active": {
        "secure.protocol": "secagg",
        "secure.malicious_server": True,
        "algorithm.name": "fedprox",
    },
    "secagg+, split": {
        "secure.protocol": "secagg+",
        "model.train": {"critical_layer": 1},
        "algorithm.name": "fedyogi",
    },
    "lightsecagg, losses": {"secure.protocol": "lightsecagg", **LOSSY},
    "secagg, losses": {"secure.protocol": "secagg", "secure.stochastic": True, **LOSSY},
    "secagg+, clipped, ffa": {
        "secure.protocol": "secagg+",
        "exchange": {"up": ["clip:0.5"], "down": ["bfloat16"]},
        "model.peft": {"method": "lora", "r": 2, "averaging": "ffa"},
    },
    "private, by the server": {
        "privacy": {"clip": 0.5, "noise": 0.3, "sampling": "poisson"},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "exchange.up": ["int8"],
    },
    "private, by the clients": {
        "privacy": {"clip": 0.5, "noise": 0.3},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "secure.protocol": "secagg+",
    },
}


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def x_of(run: RunDir) -> torch.Tensor:
    return load_file(run.state)["params"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_stopped_and_resumed_with_two_workers(
    method: str, experiment: Make, outcome: Outcome, stopping: Stopping, tmp_path: Path
) -> None:
    """Keys and masks are other ones each time; what they add up to is the same, bit for bit."""
    whole = fednlp.run(experiment(METHODS[method]), tmp_path / "whole")
    with stopping(rounds=2, pieces=2) as callback:
        fednlp.run(experiment(METHODS[method]), tmp_path / "run", callback=callback)
    assert outcome(fednlp.resume(tmp_path / "run", workers=2)) == outcome(whole)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("bits", [8, 24])
def test_the_sum_is_the_plain_one_within_half_a_step_a_client(
    protocol: str, bits: int, experiment: Make, tmp_path: Path
) -> None:
    """Weighted by examples, with nobody's weight known to the server."""
    settings = {"num_rounds": 1, "client": {"optimizer": "sgd", "learning_rate": 0.1}}
    plain = fednlp.run(experiment(settings), tmp_path / "plain")
    secure = {"protocol": protocol, "bits": bits, "clip": 0.25, "dropout": 0.0, "max_colluding": 0.0}
    hidden = fednlp.run(experiment(settings | {"secure": secure}), tmp_path / "hidden")
    from fednlp.partition import Partition

    sizes = np.diff(Partition.load(plain.partition).train_offsets)
    cohort = lines_of(plain)[0]["cohort"]
    unit = 2.0 ** np.ceil(np.log2(sizes.max()))
    total = sum(sizes[client] / unit for client in cohort)
    gap = (x_of(plain) - x_of(hidden)).abs().max().item()
    step = 0.25 / 2 ** (bits - 1)
    # Both the sum and the weights are rounded; nothing here moves by more than the clip.
    assert gap <= len(cohort) * step / total + 1e-7
    assert gap > 0
    assert lines_of(hidden)[0]["secure"]["bytes"] > 0
    assert summary_of(hidden)["secure"]["protocol"] == protocol


def summary_of(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize(("protocol", "rate"), [("secagg", 0.6), ("secagg+", 0.4), ("lightsecagg", 0.25)])
def test_clients_drop_out_in_every_phase_and_the_run_goes_on(
    protocol: str, rate: float, experiment: Make, tmp_path: Path
) -> None:
    """A round with enough clients moves the model; one with too few is noted, and leaves it as it is."""
    secure = {"protocol": protocol, "dropout": 0.2, "max_colluding": 0.0, "simulated_dropout": rate}
    settings = {
        "num_rounds": 12,
        "clients_per_round": 6,
        "secure": secure,
        "client.max_steps": 1,
        "seed": 3,
        "evaluation.every": 12,
    }
    models: list[torch.Tensor] = []

    class Watch(NullCallback):
        def on_round(self, line: dict[str, Any], left: float | None) -> None:
            models.append(load_file(tmp_path / "run" / "checkpoint" / "state.safetensors")["params"])

    run = fednlp.run(experiment(settings), tmp_path / "run", callback=Watch())
    lines = lines_of(run)
    assert {phase for line in lines for phase in line["secure"]["dropped_out"].values()} >= {
        "keys",
        "update",
        "answer",
    }
    aborted = [number for number, line in enumerate(lines) if "aborted" in line]
    assert 0 < len(aborted) < 12
    for number in range(1, 12):
        assert torch.equal(models[number], models[number - 1]) == (number in aborted)
    assert summary_of(run)["secure"]["aborted"] == len(aborted)
    for line in lines:
        gone = {int(client) for client, phase in line["secure"]["dropped_out"].items() if phase != "answer"}
        if "aborted" not in line:
            assert {one["client"] for one in line["dropped"]} == gone if gone else "dropped" not in line


def test_bytes_are_those_of_the_messages(experiment: Make, tmp_path: Path) -> None:
    """SecAgg among n: keys, shares, the masked update with the weight, and a share of everybody at the end."""
    run = fednlp.run(experiment({"num_rounds": 1, "secure.protocol": "secagg"}), tmp_path / "run")
    line, n = lines_of(run)[0], 4
    d = summary_of(run)["parameters"]
    header = 5
    advertise, shares = header + 64, header + (n - 1) * (4 + 100)
    upload, answer = header + 4 * (d + 1), header + n * (4 + 1 + 36)
    assert line["bytes_up"] == n * (advertise + shares + upload + answer)
    roster, delivered, survivors = header + (n - 1) * (4 + 64), shares, header + 4 * n
    plain = lines_of(fednlp.run(experiment({"num_rounds": 1}), tmp_path / "plain"))[0]
    assert line["bytes_down"] == plain["bytes_down"] + n * (roster + delivered + survivors)


def test_all_parties_of_a_run_go_by_one_fresh_nonce(experiment: Make) -> None:
    found = set()
    for protocol in PROTOCOLS:
        params = secagg_params(experiment({"secure.protocol": protocol}), 4, 10, 1.0, 0.0)
        session: Any = SecureRound(params, 1, dict.fromkeys(range(4), 1.0), 10).session
        assert all(
            getattr(client.spec, "round", client.spec).run == params.run
            for client in session.clients.values()
        )
        found.add(params.run)
    assert len(found) == 3
    assert {len(run) for run in found} == {16}


@pytest.mark.parametrize(("protocol", "dropout", "least"), [("secagg+", 0.1, 27), ("secagg", 0.4, 17)])
def test_dropouts_are_bounded_where_a_malicious_server_could_split_the_sum(
    protocol: str, dropout: float, least: int
) -> None:
    """In SecAgg a list of the threshold's length is enough; in SecAgg+ no more than ``dropout`` may be missing."""
    numbers: dict[str, Any] = {
        "clip": 1.0,
        "dropout": dropout,
        "max_colluding": 0.1,
        "malicious_server": True,
    }
    params, ids = make_params(protocol, 30, 10, 1.0, 0, **numbers), list(range(30))
    for staying in (least, least - 1):
        session = open_session(params, ids, Channel({}), 1, 11)
        session.setup()
        if staying == least:
            assert session.unmask(ids[:staying]).masks
            continue
        with pytest.raises(SecureAbort, match=f"{least} (must have|are needed)"):
            session.unmask(ids[:staying])


@pytest.mark.slow
def test_noise_of_the_stated_size_and_nothing_else(experiment: Make, tmp_path: Path) -> None:
    """Without local movement the model moves by the noise alone, on the server or from the clients."""
    still = {
        "num_rounds": 1,
        "client": {"optimizer": "sgd", "learning_rate": 1e-30},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
    }
    start = x_of(fednlp.run(experiment(still), tmp_path / "start"))
    for name, secure in {"server": "none", "secagg": "secagg", "light": "lightsecagg"}.items():
        privacy = {"clip": 2.0, "noise": 0.5}
        changes = still | {"privacy": privacy, "secure.protocol": secure, "seed": 0}
        run = fednlp.run(experiment(changes), tmp_path / name)
        moved = (x_of(run) - start).double()
        # Secure: dropout 0.1 and max_colluding 0.1 of 4 clients are none, so 4 clients' noise makes up the whole.
        expected = 0.5 * 2.0 / 4
        assert abs(moved.mean().item()) < 5 * expected / len(moved) ** 0.5
        assert moved.std().item() == pytest.approx(expected, rel=5 / len(moved) ** 0.5)
        promise = summary_of(run)["privacy"]
        assert promise["where"] == ("server" if secure == "none" else "clients")
        assert promise["epsilon"] > 0


def test_what_one_client_can_change_is_bounded(experiment: Make, tmp_path: Path) -> None:
    """The mean of m updates cut to norm C, divided by m whoever answered, is no longer than C."""
    changes: dict[str, Any] = {
        "num_rounds": 1,
        "client": {"optimizer": "sgd", "learning_rate": 50.0, "max_steps": 1},
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {"clip": 0.01, "noise": 0.0},
    }
    still = {**changes, "client": {"optimizer": "sgd", "learning_rate": 1e-30, "max_steps": 1}}
    start = x_of(fednlp.run(experiment(still), tmp_path / "start"))
    run = fednlp.run(experiment(changes), tmp_path / "run")
    norm = (x_of(run) - start).double().norm().item()
    assert 0.002 < norm <= 0.01 * (1 + 1e-4)
    assert summary_of(run)["privacy"]["epsilon"] is None


@pytest.mark.slow
def test_epsilon_decides_the_noise(experiment: Make, tmp_path: Path) -> None:
    changes = {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {"clip": 0.5, "epsilon": 20.0, "delta": 1e-3},
    }
    promise = summary_of(fednlp.run(experiment(changes), tmp_path / "run"))["privacy"]
    assert 19.5 < promise["epsilon"] <= 20.0
    assert promise["noise"] > 0.1


UNIFORM = {"algorithm": {"name": "fedavg", "weighting": "uniform"}}
THOUSAND = UNIFORM | {"clients_per_round": 20, "num_rounds": 100, "seed": 0}


def test_clients_noise_is_worth_its_epsilon_against_the_server(experiment: Make) -> None:
    """Of 1,000 clients, 20 a round, the one drawn most often comes 7 times; the server knows that."""

    def mechanism(privacy: dict[str, float], protocol: str = "secagg+") -> DPMechanism:
        changes = THOUSAND | {"privacy": {"clip": 0.5, **privacy}, "secure.protocol": protocol}
        made = experiment(changes)
        found = dp_mechanism(made, fedavg(20, weight=equally), Population(np.full(1000, 7), made.seed))
        assert found is not None
        return found

    central = mechanism({"noise": 1.24935}, "none").facts()
    same = mechanism({"noise": 1.24935}).facts()
    assert central["epsilon"] == central["epsilon_models"] == pytest.approx(8, abs=0.01)
    assert not central.keys() & {"epsilon_server", "most_rounds"}
    assert same["most_rounds"] == 7
    assert same["epsilon"] == same["epsilon_server"] == pytest.approx(28.065, abs=0.01)
    assert same["epsilon_models"] == pytest.approx(8, abs=0.01)
    kept = mechanism({"epsilon": 8.0})
    assert 7.99 < kept.epsilon() <= 8.0
    assert kept.models_epsilon() < 4
    assert "against the server, which knows who took part, (8, 1e-05)" in kept.statement


def test_both_epsilons_are_written_down_and_shown(experiment: Make, tmp_path: Path) -> None:
    changes = METHODS["private, by the clients"] | {
        "privacy": {"clip": 0.5, "noise": 3.0},
        "num_rounds": 3,
        "clients_per_round": 3,
        "client.max_steps": 1,
        "secure.protocol": "secagg",
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    promise = summary_of(run)["privacy"]
    drawn = Counter(client for line in lines_of(run) for client in line["cohort"])
    assert promise["most_rounds"] == max(drawn.values())
    assert promise["epsilon"] == promise["epsilon_server"] > promise["epsilon_models"] > 0
    shown = [str(cell) for column in closing_table(summary_of(run)).columns for cell in column.cells]
    (found,) = [cell for cell in shown if cell.startswith("epsilon")]
    assert f"epsilon {promise['epsilon_server']:.3g} against the server" in found
    assert f"{promise['epsilon_models']:.3g} against whoever sees the models" in found


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two": ({"secure.protocol": "secagg", "clients_per_round": 2}, "3 clients or more"),
    "bits": ({"secure.protocol": "lightsecagg", "secure.bits": 31}, "has room for 28 bits"),
    "active": ({"secure.protocol": "lightsecagg", "secure.malicious_server": True}, "is for protocol"),
    "threshold": ({"secure.protocol": "lightsecagg", "secure.dropout": 0.5}, "lower dropout"),
    "both": ({"privacy": {"clip": 1.0, "noise": 1.0, "epsilon": 1.0}}, "say either noise"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_before_anything_starts(case: str, experiment: Make) -> None:
    changes, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        experiment(changes).resolved()


def test_an_epsilon_that_rounding_breaks_is_refused(experiment: Make, tmp_path: Path) -> None:
    changes = {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "privacy": {"clip": 0.5, "epsilon": 3000.0},
        "secure": {"protocol": "secagg", "bits": 2},
    }
    with pytest.raises(ConfigError, match=r"raise secure\.bits"):
        fednlp.run(experiment(changes), tmp_path / "run")


@pytest.mark.parametrize("changes", [{"secure.protocol": "secagg"}, METHODS["private, by the server"]])
def test_a_run_in_which_nobody_comes_through_stops(
    changes: dict[str, Any], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("fednlp.training.local.LocalTrainer.steps", broken)
    with pytest.raises(TooFewClients, match="no such luck"):
        fednlp.run(experiment(changes), tmp_path / "run")


def test_an_empty_cohort_moves_the_model_by_noise_alone(experiment: Make, tmp_path: Path) -> None:
    """Poisson sampling may draw nobody; the lines stay JSON for everybody."""
    changes = METHODS["private, by the server"] | {"clients_per_round": 1, "num_rounds": 8, "seed": 1}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    lines = lines_of(run)
    empty = [line for line in lines if not line["cohort"]]
    assert empty
    assert len(empty) < len(lines)
    assert all(line["train_loss"] is None for line in empty)
    assert "NaN" not in (run.folder / "rounds.jsonl").read_text()
    write_report([run.folder], tmp_path / "report")
