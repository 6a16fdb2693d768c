"""Laws of whole runs in which not all parameters travel, or not as they are."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import Experiment
from fednlp.data.profiling import profile
from fednlp.errors import ConfigError, RunError
from fednlp.inference.score import evaluate_run
from fednlp.models.pretrained import pretrained_model
from fednlp.partition import Partition, make_partition
from fednlp.simulation import assignment
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.callback import Callback
from fednlp.simulation.components import build_components, open_data
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.workers import worker_spec
from fednlp.training.client_record import ClientInit
from fednlp.training.model_layout import flat_weights
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import personal_names

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers")]

METHODS: dict[str, dict[str, Any]] = {
    "frozen": {"model.train": {"frozen": ["embeddings", "layer.0"]}},
    "split": {"model.train": {"critical_layer": 1, "embeddings": "shared"}, "algorithm.name": "fedyogi"},
    "nothing shared": {"model.train": {"critical_layer": 0, "embeddings": "personal"}},
    "sparse": {"exchange": {"up": ["topk:0.1", "int8"], "error_feedback": True, "down": ["bfloat16"]}},
    "low": {"pull.rule": "low", "algorithm.name": "fedopt"},
    "high": {"pull": {"rule": "high", "push": "selected", "share": 0.33}, "client.finetune_steps": 30},
    "random": {"pull": {"rule": "random", "of": "parameters"}, "evaluation.cross_client_evaluation": True},
    "all at once": {
        "model.train": {"frozen": "embeddings", "personal": "head"},
        "exchange": {"up": ["float16"], "down": ["float16"], "error_feedback": True},
        "pull": {"rule": "low", "push": "selected"},
        "client.keep_optimizer": True,
        "client.finetune_steps": 1,
        "evaluation.cross_client_evaluation": True,
    },
}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, experiment: Make) -> Callable[[str], RunDir]:
    """Return the uninterrupted run of a method, one worker, made once."""
    made: dict[str, RunDir] = {}

    def run(method: str) -> RunDir:
        if method not in made:
            settings = experiment(METHODS.get(method, {}))
            made[method] = fednlp.run(settings, tmp_path_factory.mktemp("whole") / "run")
        return made[method]

    return run


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def x_of(run: RunDir) -> torch.Tensor:
    return load_file(run.state)["params"]


@pytest.mark.parametrize("method", ["nothing shared", "all at once"])
@pytest.mark.slow
def test_stopped_within_a_round_and_resumed_with_two_workers(
    method: str,
    whole: Callable[[str], RunDir],
    experiment: Make,
    outcome: Outcome,
    stopping: Stopping,
    tmp_path: Path,
) -> None:
    """Bit for bit what one worker makes without a stop, as the laws have it of each way to travel alone."""
    pieces = 4 + 3 if "evaluation" in lines_of(whole(method))[0] else 6
    with stopping(pieces=pieces + 5) as callback:
        fednlp.run(experiment(METHODS[method]), tmp_path / "run", callback=callback)
    resumed = fednlp.resume(tmp_path / "run", workers=2)
    assert outcome(resumed) == outcome(whole(method))


def test_identity_changes_nothing(whole: Callable[[str], RunDir], experiment: Make, tmp_path: Path) -> None:
    """A selection that shares everything, said at length, is FedAvg, bit for bit."""
    settings = experiment({"model.train": {"shared": ["embeddings", "layer.0-1", "head"]}})
    assert torch.equal(x_of(fednlp.run(settings, tmp_path / "run")), x_of(whole("fedavg")))


def test_all_layers_shared_is_fedavg(experiment: Make, tmp_path: Path) -> None:
    split = experiment({"model.train": {"critical_layer": 2, "embeddings": "frozen"}, "num_rounds": 2})
    frozen = experiment({"model.train": {"frozen": "embeddings"}, "num_rounds": 2})
    one, other = fednlp.run(split, tmp_path / "split"), fednlp.run(frozen, tmp_path / "frozen")
    assert torch.equal(x_of(one), x_of(other))
    assert lines_of(one)[-1]["evaluation"] == lines_of(other)[-1]["evaluation"]


def test_nothing_shared_is_local_training(whole: Callable[[str], RunDir], tmp_path: Path) -> None:
    """Each client ends where its own local steps, one visit after the other, lead it; nothing is sent."""
    run = whole("nothing shared")
    settings = run.experiment()
    components = build_components(settings, lambda text: None)
    build_partition(settings, components.data, lambda text: None).save(tmp_path / "partition.npz")
    np.save(tmp_path / "test.npy", components.data.test_numbers)
    files = tmp_path / "partition.npz", tmp_path / "test.npy", tmp_path / "records"
    spec = worker_spec(settings, components, *files)
    task = components.task
    model = pretrained_model(components.source, task.model_class, task.settings(), {}, settings.seed)
    x = flat_weights(model, personal_names(model, spec.train, True, spec.peft))
    worker = ClientWorker(spec, model, build_algorithm(settings))
    assert x.numel() == 0
    own: dict[int, torch.Tensor] = {}
    for line in lines_of(run):
        assert line["bytes_up"] == line["bytes_down"] == 0
        for client in line["cohort"]:
            examples, init = worker.partition.train(client), ClientInit(own.get(client))
            local = worker.trainer.local(client, examples, line["round"], x, init)
            local.steps(x)
            own[client] = worker.replica.own()
    shutil.copy(run.records, tmp_path / "records")
    again = ClientWorker(spec, worker.replica.model, worker.algorithm)
    for client, expected in own.items():
        assert torch.equal(again.trainer.record(client, 4)["personal"], expected)


def test_clients_are_tried_with_their_own_tensors(whole: Callable[[str], RunDir], tmp_path: Path) -> None:
    """The score of a client in clients.csv is that of its own model on its own test examples."""
    run = whole("split")
    rows = list(csv.DictReader((run.folder / "clients.csv").read_text().splitlines()))
    part = np.load(run.partition)
    took_part = {client for line in lines_of(run) for client in line["cohort"]}
    texts = json.loads((run.folder / "environment.json").read_text())
    assert texts["data"]["test"] == 40
    compared = 0
    for client in sorted(took_part):
        first, last = part["test_offsets"][client : client + 2]
        numbers = set(part["test_indices"][first:last].tolist())
        evaluate_run(run.folder, None, tmp_path / "out.jsonl", client=str(client))
        said = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        own = [line["prediction"] == line["label"] for line in said if line["example"] in numbers]
        if own:
            compared += 1
            assert float(rows[client]["accuracy"]) == pytest.approx(np.mean(own), abs=1e-6)
    assert compared >= 3


def test_a_model_of_whom(whole: Callable[[str], RunDir]) -> None:
    with pytest.raises(RunError, match="say whose, with --client 0"):
        evaluate_run(whole("split").folder)
    with pytest.raises(RunError, match="no client '8': there are clients 0 to 7"):
        evaluate_run(whole("split").folder, client="8")
    with pytest.raises(RunError, match="have no models of their own"):
        evaluate_run(whole("frozen").folder, client="0")


def test_neither_a_full_disk_nor_remembering_nothing_changes_a_bit(
    whole: Callable[[str], RunDir], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.training import activation_store as states

    forgetful = experiment(METHODS["frozen"] | {"runtime.cache_activations": False})
    assert torch.equal(x_of(fednlp.run(forgetful, tmp_path / "forgetful")), x_of(whole("frozen")))
    monkeypatch.setattr(states, "_LEAVE_FREE", 2**80)
    monkeypatch.setenv("FEDNLP_CACHE", str(tmp_path / "cache"))
    full = fednlp.run(experiment(METHODS["frozen"]), tmp_path / "full")
    assert not list((tmp_path / "cache" / "states").glob("*/index-*.bin"))
    assert torch.equal(x_of(full), x_of(whole("frozen")))


def test_frozen_stays_and_is_saved(whole: Callable[[str], RunDir], tiny_model: Path) -> None:
    start = load_file(tiny_model / "model.safetensors")
    end = load_file(whole("frozen").model / "model.safetensors")
    still = [n for n in start if n.startswith(("embeddings.", "encoder.layer.0."))]
    assert still
    assert all(torch.equal(end[f"bert.{name}"], start[name]) for name in still)
    moved = "encoder.layer.1.output.dense.weight"
    assert not torch.equal(end[f"bert.{moved}"], start[moved])


def test_bytes_are_those_of_the_messages(whole: Callable[[str], RunDir]) -> None:
    """float32 down is half in bfloat16; a tenth of the values up, an index and a byte each, and the header."""
    plain, sparse = lines_of(whole("fedavg"))[0], lines_of(whole("sparse"))[0]
    assert plain["parameters_up"] == sparse["parameters_up"]
    assert plain["bytes_up"] - sparse["bytes_up"] > 0.8 * 4 * plain["parameters_up"] - 4 * 8000
    assert 0.5 * plain["bytes_down"] < sparse["bytes_down"] < 0.6 * plain["bytes_down"]
    summary = json.loads((whole("sparse").folder / "summary.json").read_text())
    for key in ("bytes_up", "bytes_down", "tensors_up", "tensors_down", "parameters_up"):
        assert summary[key] == sum(line[key] for line in lines_of(whole("sparse")))


def test_exact_averaging_sends_adapters_transformed_and_the_rest_as_factors(
    experiment: Make, tmp_path: Path
) -> None:
    """The first message is that of plain LoRA, the second has float32 factors of W's change beside it."""
    lora = {"method": "lora", "r": 2}
    found = {}
    for averaging in ("plain", "exact"):
        changes = {"model.peft": lora | {"averaging": averaging}, "exchange.down": ["int4"], "num_rounds": 2}
        found[averaging] = lines_of(fednlp.run(experiment(changes), tmp_path / averaging))
    plain, exact = found["plain"], found["exact"]
    assert exact[0]["bytes_down"] == plain[0]["bytes_down"]
    assert exact[0]["train_loss"] == plain[0]["train_loss"]  # the base weights are not rounded either way
    assert exact[1]["bytes_down"] > plain[1]["bytes_down"]


def test_pulling_sends_what_it_says(whole: Callable[[str], RunDir]) -> None:
    for method in ("low", "high", "random"):
        for line in lines_of(whole(method)):
            parts = sum(len(slices) for slices in line.get("sent_slices", {}).values())
            assert line["tensors_up"] == sum(len(sent) for sent in line["sent"].values()) + parts
            assert line["tensors_up"] < line["tensors_down"] or method == "high"
    for line in lines_of(whole("random")):
        half = len(x_of(whole("random"))) // 2
        assert line["parameters_up"] == half * len(line["cohort"])
    first, later = lines_of(whole("high"))[0], lines_of(whole("high"))[1:]
    assert any(line["tensors_down"] < first["tensors_down"] for line in later)
    low = lines_of(whole("low"))[0]
    for client, moved in low["update_norms"].items():
        chosen = set(low["sent"][client])
        assert max(moved[n] for n in chosen) <= min(d for n, d in enumerate(moved) if n not in chosen)


def test_the_matrix_holds_every_model_on_every_client_s_test(whole: Callable[[str], RunDir]) -> None:
    alone = json.loads((whole("all at once").folder / "cross_client_evaluation.json").read_text())
    assert [row["model"] for row in alone["rows"]] == alone["tests"] == [str(n) for n in range(8)]
    common = json.loads((whole("random").folder / "cross_client_evaluation.json").read_text())
    assert [row["model"] for row in common["rows"]] == ["server"]


def test_the_server_s_model_can_be_tried_where_clients_have_their_own(
    whole: Callable[[str], RunDir], experiment: Make, tmp_path: Path
) -> None:
    """In every evaluation and on every client's test; the rounds are the same."""
    run = fednlp.run(experiment(METHODS["all at once"] | {"evaluation.server_model": True}), tmp_path / "run")
    matrix = json.loads((run.folder / "cross_client_evaluation.json").read_text())
    alone = json.loads((whole("all at once").folder / "cross_client_evaluation.json").read_text())
    assert [row["model"] for row in matrix["rows"]] == ["server", *alone["tests"]]
    assert matrix["rows"][1:] == alone["rows"]
    assert torch.equal(x_of(run), x_of(whole("all at once")))
    tried = [line["evaluation"]["global"] for line in lines_of(run) if "evaluation" in line]
    owned = [line["evaluation"] for line in lines_of(whole("all at once")) if "evaluation" in line]
    assert len(tried) == len(owned)
    assert sum("global" in line for line in owned) == 1
    assert tried[-1] != owned[-1]["global"]


def test_the_matrix_outlives_a_stop_after_the_last_round(
    whole: Callable[[str], RunDir], experiment: Make, stopping: Stopping, tmp_path: Path
) -> None:
    with stopping(rounds=4) as callback:
        fednlp.run(experiment(METHODS["all at once"]), tmp_path / "run", callback=callback)
    assert not (tmp_path / "run" / "cross_client_evaluation.json").exists()
    resumed = fednlp.resume(tmp_path / "run")
    expected = (whole("all at once").folder / "cross_client_evaluation.json").read_bytes()
    assert (resumed.folder / "cross_client_evaluation.json").read_bytes() == expected


def test_finetune_steps_are_for_the_clients_alone(whole: Callable[[str], RunDir]) -> None:
    last = lines_of(whole("high"))[-1]["evaluation"]
    assert set(last["finetuned"]) == set(last["personal"])
    assert last["finetuned"] != last["personal"]


def test_baselines_ignore_personal_tensors(experiment: Make, outcome: Outcome, tmp_path: Path) -> None:
    changes = {"algorithm.name": "centralised", "num_rounds": 2}
    split = {"model.train": {"personal": ["head"]}}
    one = fednlp.run(experiment(changes), tmp_path / "one")
    other = fednlp.run(experiment(changes | split), tmp_path / "other")
    assert torch.equal(x_of(one), x_of(other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.train": {"frozen": ["layer.7"]}},
            "the model has no layer.7; there are embeddings, layer.0-1",
        ),
        ({"model.train": ["emb"]}, "is no part of a model"),
        ({"exchange.up": ["int8", "topk:0.1"]}, "topk"),
        ({"exchange.error_feedback": True}, "error_feedback"),
        ({"pull.share": 0.2}, 'say pull.rule = "low"'),
        ({"costs.device": "jetson"}, "jetson-tx2"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], message: str, experiment: Make, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        fednlp.run(experiment(changes), tmp_path / "run")


def test_tests_split_off_the_clients_own_examples(experiment: Make, tmp_path: Path) -> None:
    """A fifth of each client's; together they are the global test set, also for a run that is evaluated later."""
    run = fednlp.run(experiment({"partition.test_sets": "own-split", "num_rounds": 1}), tmp_path / "run")
    part, tests = Partition.load(run.partition), np.load(run.test_numbers)
    assert sorted(part.test_indices) == tests.tolist()
    assert not np.isin(part.train_indices, tests).any()
    for client in range(part.num_clients):
        both = len(part.train(client)) + len(part.test(client))
        assert abs(len(part.test(client)) - both / 5) <= 0.5 or len(part.test(client)) == 1
    plain = Partition.load(fednlp.run(experiment({"num_rounds": 1}), tmp_path / "plain").partition)
    assert sorted([*part.train_indices, *tests]) == sorted([*plain.train_indices, *plain.test_indices])
    said = lines_of(run)[-1]["evaluation"]["global"]["accuracy"]
    assert evaluate_run(run.folder).metrics["accuracy"] == pytest.approx(said)


def test_own_tests_are_split_off_once_and_the_first_line_says_so(
    experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition that the test set was made of is the run's: the examples are shared out a single time."""
    shared_out = []

    def counted(*given: Any, **named: Any) -> Partition:
        shared_out.append(make_partition(*given, **named))
        return shared_out[-1]

    monkeypatch.setattr(assignment, "make_partition", counted)
    settings = experiment({"partition.test_sets": "own-split"}).resolved()
    data = open_data(settings)
    partition = assignment.build_partition(settings, data, lambda text: None)
    assert len(shared_out) == 1
    assert np.array_equal(np.sort(partition.test_indices), data.test_numbers)
    assert profile(data).lines()[0].endswith("test examples (split off each client's examples)")
    validated = experiment({"evaluation.validation_fraction": 0.25}).resolved()
    plain = open_data(validated)
    parts = assignment.build_partition(validated, plain, lambda text: None)
    assert profile(assignment.tested_on_parts(plain, parts)).statistics.own_tests


def test_weights_in_16_bits_stay_so_at_the_server(experiment: Make, tmp_path: Path) -> None:
    """With one client a round, the model is what that client sent: 16-bit weights, round after round."""
    settings = {"clients_per_round": 1, "num_rounds": 2, "exchange": {"up": ["float16"], "down": ["float16"]}}
    lost = {}
    for send in ("weights", "updates"):
        run = fednlp.run(experiment(settings | {"exchange.send": send}), tmp_path / send)
        weights = x_of(run)
        lost[send] = float((weights - weights.half().float()).abs().max())
        assert lines_of(run)[0]["bytes_up"] == lines_of(run)[0]["bytes_down"]
    assert lost["weights"] < 1e-7 < 1e-5 < lost["updates"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exchange.send": "weights"}, 'say exchange.up = ["float16"]'),
        ({"exchange": {"send": "weights", "up": ["topk:0.1"]}}, "topk:0.1 is for updates"),
        (
            {"exchange": {"send": "weights", "up": ["int8"], "error_feedback": True}},
            "is for updates: leave it out",
        ),
        (
            {"partition": {"method": "file", "file": "x.npz", "test_sets": "own-split"}},
            "the file has the clients' tests",
        ),
        ({"pull.norm": "l1"}, "no effect with pull.rule"),
    ],
)
def test_new_ways_to_travel_say_what_they_cannot_go_with(
    changes: dict[str, Any], message: str, experiment: Make
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        experiment(changes).resolved()
