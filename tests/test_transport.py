"""A transport changes nothing: clients that get nothing but bytes, in another thread, end in the same weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]

METHODS: dict[str, dict[str, Any]] = {
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.1}},
    "fedadam": {"algorithm": {"name": "fedadam"}},
    "scaffold": {"algorithm": {"name": "scaffold"}, "client.optimizer": "sgd"},
    "fednova": {"algorithm": {"name": "fednova"}, "client.optimizer": "sgd"},
    "ditto": {"algorithm": {"name": "ditto"}},
    "median": {"aggregator": {"name": "median"}, "algorithm.weighting": "uniform"},
    "8 bits": {"exchange.up": ["int8"], "exchange.down": ["bfloat16"], "exchange.error_feedback": True},
    "pull": {"pull": {"rule": "high", "share": 0.4, "push": "selected"}},
    "pull half of the parameters": {
        "pull": {
            "rule": "random",
            "of": "parameters",
            "push": "selected",
            "embeddings": "apart",
            "norm": "l1",
        },
        "exchange.up": ["int8"],
    },
    "16-bit weights": {"exchange": {"up": ["float16"], "down": ["float16"], "send": "weights"}},
    "exact lora": {"model.peft": {"method": "lora", "r": 2, "averaging": "exact"}},
    "fedbuff": {
        "algorithm": {"name": "fedbuff", "buffer_size": 2},
        "costs": {"device": {"jetson-tx2": 0.5, "raspberry-pi-4b": 0.5}},
        "num_rounds": 4,
    },
    "splitbert": {"model.train": {"personal": ["head"]}},
    "secagg+": {"secure": {"protocol": "secagg+", "clip": 4.0}},
    "lightsecagg": {"secure": {"protocol": "lightsecagg", "clip": 4.0}},
    "privacy": {"privacy": {"clip": 1.0, "noise": 0.1}, "algorithm.weighting": "uniform"},
    "few labels": {"fewshot": {"gold": 16, "n": 2}},
}


def rounds(run: RunDir) -> list[dict[str, Any]]:
    """Return the lines of a run without what differs from day to day."""
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.get("secure", {}).pop("seconds", None)
    return lines


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_clients_that_get_nothing_but_bytes_end_in_the_same_weights(
    method: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "runtime"))
    settings = {"num_rounds": 2, "runtime.workers": 1} | METHODS[method]
    here = fednlp.run(experiment(settings), tmp_path / "here")
    there = fednlp.run(experiment(settings | {"runtime.engine": "letters:Letters"}), tmp_path / "there")
    assert rounds(there) == rounds(here)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (here, there)]
    assert weights[0] == weights[1]


def test_an_engine_that_is_not_there_is_named(experiment: Make) -> None:
    with pytest.raises(fednlp.FednlpError, match='there is no engine "cloud": known are pool'):
        experiment({"runtime.engine": "cloud"})


def test_a_machine_without_the_files_makes_them_again(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "runtime"))
    settings = {"num_rounds": 2, "runtime.workers": 1}
    here = fednlp.run(experiment(settings), tmp_path / "here")
    there = fednlp.run(experiment(settings | {"runtime.engine": "apart:Apart"}), tmp_path / "there")
    assert rounds(there) == rounds(here)


@pytest.mark.parametrize("method", ["ditto", "8 bits", "splitbert"])
def test_what_clients_keep_needs_a_disk_that_all_machines_share(
    method: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednlp.simulation.workers import open_worker

    monkeypatch.syspath_prepend(str(Path(__file__).parent / "runtime"))
    run = fednlp.run(
        experiment(
            {"num_rounds": 1, "runtime.workers": 1, "runtime.engine": "noted:Noted"} | METHODS[method]
        ),
        tmp_path / "run",
    )
    assert run.finished
    from noted import Noted

    spec = Noted.arguments["spec"] | {"partition": "/nowhere/partition.npz"}
    with pytest.raises(fednlp.FednlpError, match="give --out a folder on a disk that all machines share"):
        open_worker(**(Noted.arguments | {"spec": spec}))


def test_an_address_is_for_a_cluster_of_ray(experiment: Make) -> None:
    assert (
        experiment({"runtime.engine": "ray", "runtime.address": "head:6379"}).runtime.address == "head:6379"
    )
    with pytest.raises(
        fednlp.FednlpError, match=r'address is that of a cluster of Ray: say runtime.engine = "ray"'
    ):
        experiment({"runtime.address": "head:6379"}).resolved()


def test_ray_lays_its_actors_over_the_gpus_by_itself(experiment: Make) -> None:
    mapped = {"runtime.gpu_mapping": "gpus.toml"}
    with pytest.raises(fednlp.FednlpError, match=r"runtime\.gpu_mapping: Ray lays its actors"):
        experiment(mapped | {"runtime.engine": "ray"}).resolved()
    assert experiment(mapped).resolved().runtime.gpu_mapping == "gpus.toml"
