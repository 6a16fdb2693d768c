"""A deployment ends as the simulation does, bit for bit: each client has its own examples alone, and gets bytes."""

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.operate.homes import models_here, used_folder
from fednlp.deployment.operate.shards import Shards, split_out
from fednlp.deployment.server import site_engine
from fednlp.deployment.server.ending import await_shutdown_acks
from fednlp.deployment.server.federation import FOLDER, Federation
from fednlp.deployment.server.run_directory import noise_secret, open_directory, run_name
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.site.participate import Participant
from fednlp.deployment.site.policy import SitePolicy, parse_policy
from fednlp.deployment.site.site import Site
from fednlp.errors import RunError
from fednlp.inference.model import open_trained
from fednlp.models.adapters import is_adapted
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

from .memory_link import MemoryLink

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.1}},
    "fedadam": {"algorithm": {"name": "fedadam"}},
    "scaffold": {"algorithm": {"name": "scaffold"}, "client.optimizer": "sgd"},
    "fednova": {"algorithm": {"name": "fednova"}, "client.optimizer": "sgd"},
    "ditto": {"algorithm": {"name": "ditto"}, "rounds.send_model": False},
    "8 bits": {"exchange.up": ["int8"], "exchange.down": ["bfloat16"], "exchange.error_feedback": True},
    "pull": {"pull": {"rule": "high", "share": 0.4}},
    "lora": {"model.peft": {"method": "lora", "r": 2}},
    "frozen": {"model.train": {"frozen": ["embeddings"]}},
    "pull nothing": {"pull": {"rule": "low", "share": 0.01}},
    "pull and push half of the parameters": {
        "pull": {"rule": "random", "of": "parameters", "push": "selected"},
        "exchange.up": ["int8"],
    },
    "16-bit weights": {"exchange": {"up": ["float16"], "down": ["float16"], "send": "weights"}},
    "own split": {"partition.test_sets": "own-split"},
    "pull and push": {"pull": {"rule": "high", "share": 0.4, "push": "selected"}, "client.finetune_steps": 2},
    "exact lora": {"model.peft": {"method": "lora", "r": 2, "averaging": "exact"}},
    "exact lora, rounded": {
        "model.peft": {"method": "lora", "r": 2, "averaging": "exact"},
        "exchange.up": ["int8"],
        "exchange.down": ["bfloat16"],
    },
    "splitbert": {"model.train": {"personal": ["head"]}, "client.finetune_steps": 2},
}
OFTEN = (
    "splitbert",
    "ditto",
    "fedprox",
    "pull nothing",
    "pull and push half of the parameters",
    "exact lora",
)
"""Those whose sites keep different models; the others are in tests/laws."""
NO_GLOBAL_MODEL = ("pull and push", "pull and push half of the parameters", "splitbert")
"""Their models are at the sites, and the server's test set is not: there is no global test."""


OLD_NAMES = ("fedprox", "lora")
"""They begin with a checkpoint of the names of TensorFlow, under which transformers writes it again."""


def with_old_names(model: Path, folder: Path) -> Path:
    """Return a copy of a model's folder in which layer norms have gamma and beta."""
    shutil.copytree(model, folder)
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@dataclass
class Member:
    """A site of the register."""

    name: str
    client: int
    state: str = "enrolled"
    certificate_expires: float | None = None


def allows(train: Path, test: Path | None, allow: dict[str, Any] | None = None) -> SitePolicy:
    """Return the policy of a site that allows everything but what it says by default, or otherwise, in ``allow``."""
    data = {"path": str(train), "test_fraction": 0.0} | ({"test_path": str(test)} if test else {})
    return parse_policy({"data": data, "allow": allow or {}})


class OneAtATime(Site):
    """A site among several in one process, which share torch's generator."""

    lock = threading.Lock()

    def answer(self, *arguments: Any) -> Any:
        with self.lock:
            return super().answer(*arguments)


def quiet(text: str) -> None:
    """Log nothing."""


def deploy(shards: Shards, folder: Path, allow: dict[str, Any] | None = None) -> RunDir:
    """Run a federation whose sites are threads, over memory links."""
    directory = open_directory(shards.experiment, folder / "server")
    hub = Hub(directory.folder / FOLDER, run_name(directory))
    parts, failed = [], list[Exception]()

    def work(part: Participant) -> None:
        try:
            part.work()
        except Exception as error:
            failed.append(error)

    def members() -> list[Member]:
        if failed:
            raise failed[0]
        return [Member(name, client) for client, name in enumerate(shards.names)]

    for client, name in enumerate(shards.names):
        own = folder / f"site-{client}"
        own.mkdir()
        policy = allows(*shards.files(name), allow)
        part = Participant(own, OneAtATime(own, name, policy, quiet), None, quiet)
        link = MemoryLink(
            part.session.begin, lambda wake, client=client: hub.session(client, wake, time.monotonic)
        )
        parts.append((part, threading.Thread(target=link.run), threading.Thread(target=work, args=[part])))
    for _, driver, worker in parts:
        driver.start()
        worker.start()
    try:
        Federation(directory, hub, members, NullCallback()).run()
        assert await_shutdown_acks(hub, members, quiet) == []
    finally:
        hub.finish("done")
        for _, driver, worker in parts:
            driver.join(10)
            worker.join(10)
            assert not worker.is_alive()
    return directory


def rounds(run: RunDir) -> list[dict[str, Any]]:
    """Return the lines of a run without what differs from day to day."""
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.get("secure", {}).pop("seconds", None)
    return lines


@pytest.mark.variants(1)
@pytest.mark.parametrize("method", OFTEN)
def test_a_deployment_is_the_simulation(
    method: str, experiment: Make, tiny_model: Path, tmp_path: Path
) -> None:
    settings = {
        "num_rounds": 2,
        "clients_per_round": 3,
        "partition.clients": 4,
        "task.name": "text-classification",
    }
    if method in OLD_NAMES:
        settings["model.name_or_path"] = str(with_old_names(tiny_model, tmp_path / "tiny"))
    made = experiment(settings | METHODS[method])
    simulated = fednlp.run(made, tmp_path / "simulated")
    deployed = deploy(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path)
    expected = rounds(simulated)
    if method in NO_GLOBAL_MODEL:
        assert expected[-1]["evaluation"].pop("global")
    assert rounds(deployed) == expected
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]
    assert not [*(deployed.folder / FOLDER).glob("model*")], "models of old rounds stay on the disk"
    for client in range(4):
        _has_models(tmp_path / f"site-{client}", client, simulated, deployed)


def _has_models(site: Path, client: int, simulated: RunDir, deployed: RunDir) -> None:
    """Check that a site has the server's model, file by file, unless the server keeps it; and its own as simulated."""
    if deployed.experiment().rounds.send_model:
        assert _files(site / "model") == _files(deployed.model)
    elif (site / "own").exists():
        with pytest.raises(RunError, match=r"the server keeps the final one.*say --own"):
            open_trained(used_folder(site), device="cpu")
        assert models_here(site)[0] == f"this site's own model: {site / 'own'}"
    try:
        own = open_trained(simulated.folder, client, device="cpu")
    except RunError:
        assert not (site / "own").exists()
        return
    kept = open_trained(site, own=True, device="cpu")
    expected = own.model.merge_and_unload() if is_adapted(own.model) else own.model
    for name, tensor in kept.model.state_dict().items():
        assert torch.equal(tensor, expected.state_dict()[name]), name


def _files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "method",
    [
        METHODS["scaffold"],
        METHODS["8 bits"],
        {"secure.protocol": "secagg"},
        {"aggregator": {"name": "median"}, "algorithm.weighting": "uniform"},
    ],
)
@pytest.mark.variants(1)
def test_a_server_that_gives_memory_back_ends_as_the_simulation(
    method: dict[str, Any], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does with a large model: here, with a small one."""
    monkeypatch.setattr(site_engine, "_LARGE", 0)
    settings = {
        "num_rounds": 2,
        "clients_per_round": 3,
        "partition.clients": 3,
        "task.name": "text-classification",
    }
    made = experiment(settings | method)
    simulated = fednlp.run(made, tmp_path / "simulated")
    deployed = deploy(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path)
    assert rounds(deployed) == rounds(simulated)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]


def test_a_site_works_within_its_hours(tmp_path: Path) -> None:
    now, lines = datetime.now(), list[str]()
    begin, end = ((now + timedelta(hours=hours)).strftime("%H:%M") for hours in (6, 7))
    for hours, said in ((f"{begin}-{end}", 1), (f"{end}-{begin}", 0)):
        policy = parse_policy({"device": {"hours": hours}})
        part = Participant(tmp_path, Site(tmp_path, "north", policy, quiet), None, lines.append)
        part.session.leave("it waits no longer")
        part._wait_for_hours("1.0.train")
        assert len(lines) == said
        lines.clear()


def test_the_server_s_noise_is_not_the_experiment_s(experiment: Make, tmp_path: Path) -> None:
    """Every site knows the seed: whoever could draw the noise could take it off again. A restart draws it again."""
    made = experiment(
        {
            "num_rounds": 1,
            "clients_per_round": 4,
            "partition.clients": 4,
            "task.name": "text-classification",
            "privacy": {"clip": 1.0, "noise": 1.0},
            "algorithm.weighting": "uniform",
        }
    )
    simulated = fednlp.run(made, tmp_path / "simulated")
    deployed = deploy(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] != weights[1]
    folder = deployed.folder / FOLDER
    assert noise_secret(folder) == noise_secret(folder) > 2**128
    assert (folder / "noise.key").stat().st_mode & 0o077 == 0
