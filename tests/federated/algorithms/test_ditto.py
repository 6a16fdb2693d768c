"""Ditto: the paper's Algorithm 1 in plain PyTorch, and what becomes of two models a client in a run."""

import copy
import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError, TooFewClients
from fednlp.federated.algorithms.ditto import ditto
from fednlp.inference.client_models import NoClientModel
from fednlp.inference.model import open_trained
from fednlp.partition import Partition
from fednlp.reports.groups import algorithm_title
from fednlp.simulation.components import build_components
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.start_model import start_model
from fednlp.training.scores import joined

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Weights = dict[str, torch.Tensor]

RATE, EPOCHS, ROUNDS = 0.2, 2, 3
WHOLE = {
    "num_rounds": ROUNDS,
    "clients_per_round": 2,
    "partition.clients": 2,
    "model.config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "client.optimizer": "sgd",
    "client.learning_rate": RATE,
    "client.num_train_epochs": EPOCHS,
    "client.per_device_train_batch_size": 200,
}
"""Every step is over all of a client's examples: no order of batches and no dropout, so a plain loop does the same."""


def personal(run: RunDir, client: int) -> Weights:
    """Return a client's personal model, as everybody gets it from a run directory."""
    return {
        name: tensor.clone() for name, tensor in open_trained(run.folder, client).model.state_dict().items()
    }


def shared(run: RunDir) -> Weights:
    return dict(open_trained(run.folder).model.state_dict())


def flat(weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat(
        [weights[name].flatten() for name in sorted(weights) if weights[name].is_floating_point()]
    )


def algorithm_1(experiment: Experiment, run: RunDir, lam: float) -> tuple[Weights, dict[int, Weights]]:
    """Return the global and the personal models after all rounds, by the paper's pseudo-code."""
    resolved = experiment.resolved()
    components, partition = build_components(resolved, lambda text: None), Partition.load(run.partition)
    model = start_model(resolved, components.source, components.task)
    names = [name for name, _ in model.named_parameters()]

    def trained(client: int, start: Weights, x: Weights, pull: float) -> Weights:
        model.load_state_dict(start)
        numbers = partition.train(client)
        for _ in range(EPOCHS):
            model.zero_grad()
            batch = components.task.collate(components.train, numbers, torch.device("cpu"), training=True)
            components.task.loss(model, batch).backward()
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight -= RATE * (weight.grad + pull * (weight - x[name]))
        return copy.deepcopy(dict(model.state_dict()))

    x = copy.deepcopy(dict(model.state_dict()))
    v = dict.fromkeys(range(partition.num_clients), x)
    sizes = np.diff(partition.train_offsets)
    for _ in range(ROUNDS):
        y = {client: trained(client, x, x, 0.0) for client in v}
        v = {client: trained(client, v[client], x, lam) for client in v}
        mean = {name: sum(sizes[c] * y[c][name] for c in y) / sizes.sum() for name in names}
        x = x | mean
    return x, v


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_it_is_algorithm_1(experiment: Make, tmp_path: Path, lam: float) -> None:
    asked = experiment(WHOLE | {"algorithm": {"name": "ditto", "lam": lam}})
    run = fednlp.run(asked, tmp_path / "run")
    x, v = algorithm_1(asked, run, lam)
    torch.testing.assert_close(flat(shared(run)), flat(x), rtol=1e-4, atol=1e-5)
    for client, weights in v.items():
        torch.testing.assert_close(flat(personal(run, client)), flat(weights), rtol=1e-4, atol=1e-5)
        assert float((flat(weights) - flat(x)).norm()) > 0.05, "models that are told apart"


def test_without_the_pull_a_client_trains_on_alone(experiment: Make, tmp_path: Path) -> None:
    """Three rounds of two epochs are one client's six, in a federation of which it learns nothing."""
    run = fednlp.run(experiment(WHOLE | {"algorithm": {"name": "ditto", "lam": 0.0}}), tmp_path / "ditto")
    alone = WHOLE | {
        "num_rounds": 1,
        "client.num_train_epochs": EPOCHS * ROUNDS,
        "model.train": {"rest": "personal"},
    }
    other = fednlp.run(experiment(alone), tmp_path / "alone")
    for client in (0, 1):
        torch.testing.assert_close(
            flat(personal(run, client)), flat(personal(other, client)), rtol=1e-4, atol=1e-5
        )


def test_the_stronger_the_pull_the_nearer_to_the_global_model(experiment: Make, tmp_path: Path) -> None:
    gaps = []
    for lam in (0.0, 1.0, 4.0):
        run = fednlp.run(
            experiment(WHOLE | {"algorithm": {"name": "ditto", "lam": lam}}), tmp_path / str(lam)
        )
        x = flat(shared(run))
        gaps.append(max(float((flat(personal(run, client)) - x).norm()) for client in (0, 1)))
    assert gaps[0] > 1.5 * gaps[1] > 2 * gaps[2] > 0


def test_the_global_model_is_that_of_fedavg(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    """Bit for bit, with dropout, Adam and a cohort: the personal steps change nothing of it, nor of what is sent."""
    mine, theirs = (
        outcome(fednlp.run(experiment({"algorithm.name": name}), tmp_path / name))
        for name in ("ditto", "fedavg")
    )
    assert mine["weights"] == theirs["weights"]
    for one, other in zip(mine["rounds"], theirs["rounds"], strict=True):
        assert one["evaluation"]["global"] == other["evaluation"]["global"]
        assert one["evaluation"]["personal"] != other["evaluation"]["personal"]
        for key in ("cohort", "bytes_up", "bytes_down", "tensors_up", "parameters_up"):
            assert one[key] == other[key]
        assert one["steps"] == 2 * other["steps"]
    assert mine["summary"]["personalised"]
    assert not theirs["summary"]["personalised"]


def own_score(run: RunDir, client: int) -> float:
    """Return the accuracy of a client's own model on its own tests, computed from the run directory."""
    partition, trained = Partition.load(run.partition), open_trained(run.folder, client)
    components = build_components(trained.experiment, lambda text: None)
    with torch.inference_mode():
        found = trained.task.predict(trained.model, components.test, partition.test(client), trained.device)
    numbers, predictions = joined([found])
    return float(trained.task.metrics(predictions, components.test, numbers)["accuracy"])


def test_scores_are_of_the_personal_models_and_of_the_global_one(experiment: Make, tmp_path: Path) -> None:
    asked = {"num_rounds": 2, "algorithm.name": "ditto", "evaluation.cross_client_evaluation": True}
    run = fednlp.run(experiment(asked), tmp_path / "run")
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    drawn = {client for line in lines for client in line["cohort"]}
    assert 4 <= len(drawn) < 8
    with (run.folder / "clients.csv").open(newline="") as file:
        scores = {int(row["client"]): row["accuracy"] for row in csv.DictReader(file)}
    table = run.read_json("cross_client_evaluation.json")
    assert [row["model"] for row in table["rows"]] == ["server", *map(str, range(8))]
    for client in range(8):
        if scores[client] == "":
            continue
        if client in drawn:
            assert float(scores[client]) == pytest.approx(own_score(run, client), abs=1e-6)
        else:  # it has the global model
            assert float(scores[client]) == pytest.approx(table["rows"][0]["scores"][client], abs=1e-6)
            with pytest.raises(NoClientModel, match=f"client {client} of .* never took part"):
                open_trained(run.folder, client)
    summary = run.read_json("summary.json")
    personal_scores = [line["evaluation"]["personal"]["accuracy"] for line in lines]
    assert summary["best"]["accuracy"] == max(personal_scores)
    assert (run.folder / "by_label.json").is_file()


def test_both_models_can_be_written_and_loaded(experiment: Make, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    asked = {"num_rounds": 1, "clients_per_round": 2, "partition.clients": 2, "algorithm.name": "ditto"}
    run = fednlp.run(experiment(asked), tmp_path / "run")
    loaded = {}
    for client in (None, 0, 1):
        folder = fednlp.export(run.folder, tmp_path / f"out-{client}", client)
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        loaded[client] = flat(dict(model.state_dict()))
    torch.testing.assert_close(loaded[None], flat(shared(run)), rtol=0, atol=0)
    for client in (0, 1):
        torch.testing.assert_close(loaded[client], flat(personal(run, client)), rtol=0, atol=0)
        assert not torch.equal(loaded[client], loaded[None])
        card = (tmp_path / f"out-{client}" / "README.md").read_text()
        assert (
            f"the model of one client, {client}: the personal model that it had after its last round" in card
        )
    card = (tmp_path / "out-None" / "README.md").read_text()
    assert "Each client has a personal model beside this one, which is the server's." in card
    assert "the mean of these" not in card
    assert "federated learning with Ditto" in card
    assert algorithm_title("ditto") == "Ditto"


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_in_the_same_models(
    experiment: Make, tmp_path: Path, stopping: Callable[..., Any], outcome: Callable[..., dict[str, Any]]
) -> None:
    asked = experiment({"algorithm.name": "ditto", "num_rounds": 3})
    whole = fednlp.run(asked, tmp_path / "whole")
    with stopping(rounds=2, pieces=2) as listener:  # within the third round: some records are written already
        fednlp.run(asked, tmp_path / "cut", callback=listener)
    cut = fednlp.resume(tmp_path / "cut")
    assert outcome(cut) == outcome(whole)
    assert_same_personal_models(whole, cut)


@pytest.mark.slow
def test_two_workers_train_the_same_models(
    experiment: Make, tmp_path: Path, outcome: Callable[..., dict[str, Any]]
) -> None:
    asked = {"algorithm": {"name": "ditto", "lam": 0.3}, "num_rounds": 2}
    one, two = (fednlp.run(experiment(asked | {"runtime.workers": n}), tmp_path / str(n)) for n in (1, 2))
    assert outcome(one) == outcome(two)
    assert_same_personal_models(one, two)


def assert_same_personal_models(one: RunDir, other: RunDir) -> None:
    """Compare all clients' models, bit for bit."""
    compared = 0
    for client in range(8):
        try:
            mine = personal(one, client)
        except NoClientModel:
            with pytest.raises(NoClientModel):
                personal(other, client)
            continue
        theirs = personal(other, client)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange.up": "int8", "exchange.down": "float16", "exchange.error_feedback": True},
        {"pull": {"rule": "low", "share": 0.5}},
        {"model.peft": {"method": "lora", "r": 2}},
        {"model.train": {"frozen": ["embeddings"]}},
        {"secure": {"protocol": "secagg"}, "clients_per_round": 3, "partition.clients": 3},
        {"algorithm.weighting": "uniform", "privacy": {"clip": 1.0, "noise": 0.1}},
        {"server": {"optimizer": "adam", "learning_rate": 0.01}},
        {"client.finetune_steps": 2},
        {"fewshot": {"gold": 64, "pacing": "static", "per_client": 4, "f": 1}},
    ],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.variants(3)
def test_what_it_goes_with(experiment: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Each leaves clients personal models that differ from the global one, and from each other."""
    asked = {"num_rounds": 2, "clients_per_round": 2, "partition.clients": 2, "algorithm.name": "ditto"}
    run = fednlp.run(experiment(asked | changes), tmp_path / "run")
    models = [flat(personal(run, 0)), flat(personal(run, 1)), flat(shared(run))]
    assert all(bool(model.isfinite().all()) for model in models)
    assert all(not torch.equal(models[a], models[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_personal_models_are_those_of_the_method_that_was_used(experiment: Make, tmp_path: Path) -> None:
    """By whatever name: the run directory says what clients keep, and no code is imported to read it."""
    short = {"num_rounds": 1, "runtime.workers": 1}
    named = fednlp.run(experiment(short | {"algorithm.name": "ditto"}), tmp_path / "named")
    given = fednlp.run(experiment(short), tmp_path / "given", algorithm=ditto(4))
    own = fednlp.run(experiment(short), tmp_path / "own", algorithm="fednlp.federated.algorithms.ditto:ditto")
    client = json.loads((named.folder / "rounds.jsonl").read_text())["cohort"][0]
    wanted = flat(personal(named, client))
    for run in (named, given, own):
        loaded = dict(open_trained(run.folder, client).model.state_dict())
        torch.testing.assert_close(flat(loaded), wanted, rtol=0, atol=0)
    (named.folder / "algorithm.json").unlink()  # as a run of an older version is
    loaded = dict(open_trained(named.folder, client).model.state_dict())
    torch.testing.assert_close(flat(loaded), wanted, rtol=0, atol=0)
    for run in (given, own):
        (run.folder / "algorithm.json").unlink()
        with pytest.raises(RunError, match=r"has no algorithm\.json, which says what the clients of .* keep"):
            open_trained(run.folder, client)
        assert open_trained(run.folder).model is not None


def test_a_personal_model_that_is_not_kept_is_none(experiment: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='personal_model = "mine" is none of keeps'):
        replace(ditto(4), personal_model="mine")
    run = fednlp.run(experiment({"num_rounds": 1, "algorithm.name": "ditto"}), tmp_path / "run")
    (run.folder / "algorithm.json").write_text('{"name": "a", "keeps": ["b"], "personal_model": "c"}')
    with pytest.raises(RunError, match=r"algorithm\.json.*personal_model is none of keeps"):
        open_trained(run.folder, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model.train": {"shared": "head", "rest": "personal"}},
            "and model.train keeps layers with each client",
        ),
        ({"algorithm.lam": -0.1}, "algorithm.lam = -0.1: input should be greater than or equal to 0"),
        ({"algorithm.lam": float("inf")}, "algorithm.lam"),
        ({"algorithm.mu": 0.1}, "algorithm.mu is not supported by ditto"),
    ],
)
def test_what_it_does_not_go_with(experiment: Make, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        experiment({"algorithm.name": "ditto"} | changes).resolved()


def test_the_default_is_written_out(experiment: Make) -> None:
    assert experiment({"algorithm.name": "ditto"}).resolved().algorithm.function_options == {"lam": 1.0}


def test_a_client_whose_personal_model_diverges_is_dropped(experiment: Make, tmp_path: Path) -> None:
    """However sound what it would send is."""
    asked = WHOLE | {"algorithm": {"name": "ditto", "lam": 1e12}}
    with pytest.raises(TooFewClients, match="training ended in NaN, infinity or a number beyond"):
        fednlp.run(experiment(asked), tmp_path / "run")
    with pytest.raises(RunError):
        open_trained(tmp_path / "run", 0)


class Points:
    """A trainer whose model is one number, and whose loss is half the squared distance to its data's mean."""

    learning_rate, steps = 0.25, 2

    def __init__(self) -> None:
        self.w = torch.zeros(1, requires_grad=True)

    def get_model_params(self) -> dict[str, torch.Tensor]:
        return {"w": self.w.detach().clone()}

    def set_model_params(self, params: dict[str, torch.Tensor]) -> None:
        self.w = params["w"].clone().requires_grad_()

    def train(self, data: list[float], adjust: Callable[..., None]) -> float:
        for _ in range(self.steps):
            self.w.grad = self.w.detach() - sum(data) / len(data)
            adjust({"w": self.w})
            with torch.no_grad():
                self.w -= self.learning_rate * self.w.grad
        return 0.0

    def test(self, data: Any) -> dict[str, float]:
        return {}


def test_federate_returns_personal_models() -> None:
    clients, lam = [[8.0], [0.0, 4.0]], 0.5
    found = fednlp.federate(Points(), clients, ditto(2, lam=lam), num_rounds=3)
    x, v = 0.0, [0.0, 0.0]

    def trained(start: float, client: int, x: float, pull: float) -> float:
        mean = sum(clients[client]) / len(clients[client])
        for _ in range(Points.steps):
            start -= Points.learning_rate * (start - mean + pull * (start - x))
        return start

    for _ in range(3):
        y = [trained(x, client, x, 0.0) for client in (0, 1)]
        v = [trained(v[client], client, x, lam) for client in (0, 1)]
        x = (y[0] + 2 * y[1]) / 3
    assert float(found.params["w"]) == pytest.approx(x)
    assert [float(found.personal[client]["w"]) for client in (0, 1)] == pytest.approx(v)
    assert [report.steps for report in found.rounds] == [8, 8, 8]


def test_federate_gives_none_to_a_client_that_was_never_drawn() -> None:
    found = fednlp.federate(Points(), [[1.0], [2.0], [3.0]], ditto(1), num_rounds=1)
    assert list(found.personal) == list(found.rounds[0].cohort)
    assert fednlp.federate(Points(), [[1.0]], fednlp.fedavg(1), num_rounds=1).personal == {}
