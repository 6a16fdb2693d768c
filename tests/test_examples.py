"""The examples run, learn, and say the same as the library."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from fednlp import config, errors
from fednlp.deployment.session.servable import require_servable
from fednlp.deployment.site.policy import load_policy
from fednlp.deployment.site.refusals import check_settings
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithms.fedavg import fedavg
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import Population
from fednlp.federated.params import Layout
from fednlp.federated.round import run_round
from fednlp.federated.state import State
from fednlp.federated.update import Update
from fednlp.runtime.shared import PrivateRoom

from . import docs_blocks

pytestmark = pytest.mark.whole

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def news_or_skip(main: ModuleType, rounds: int) -> float:
    try:
        return main.main(rounds)
    except errors.FetchError as error:
        pytest.skip(f"BBC News cannot be fetched: {error}")


def test_fedavg_by_hand_is_short_and_learns() -> None:
    assert len((EXAMPLES / "fedavg_by_hand.py").read_text().splitlines()) <= 100
    assert news_or_skip(load("fedavg_by_hand"), 12) > 0.4


def test_the_library_makes_the_round_that_is_made_by_hand() -> None:
    """The same clients, the same local steps, and the library's sum and server step."""
    hand = load("fedavg_by_hand")
    rng = np.random.default_rng(0)
    clients = [
        [(rng.integers(0, hand.WORDS, 6).tolist(), int(rng.integers(5))) for _ in range(size)]
        for size in (9, 3, 20)
    ]
    model = hand.new_model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    layout = Layout.of({name: (tuple(value.shape), "parameter") for name, value in start.items()})

    class Runtime:
        """Clients of this process, trained by the example's own function."""

        total = WeightedMean().init(layout, ["model"], PrivateRoom())

        def __len__(self) -> int:
            return 1

        def publish(self, name: str, vector: torch.Tensor, message: bytes | None = None) -> None:
            self.x = vector

        def do(self, requests: Sequence[TrainRequest], on_progress: Any = None) -> list[ClientResult]:
            results = []
            for request in requests:
                model.load_state_dict(layout.views(self.x))
                hand.local_training(model, clients[request.client])
                update = Update(layout.flatten(model.state_dict()) - self.x)
                WeightedMean().add(self.total, request, {"model": update})
                size = len(clients[request.client])
                results.append(ClientResult(request.client, request.weight, size, 1))
            return results

    everyone = Population(np.array([len(client) for client in clients]))
    state = State(0, layout, layout.flatten(start))
    for _ in range(3):
        run_round(fedavg(3), state, everyone, Runtime())
    model.load_state_dict(start)
    for _ in range(3):
        hand.federated_round(model, clients)
    for name, value in model.state_dict().items():
        assert not torch.equal(value, start[name])
        torch.testing.assert_close(layout.views(state.params)[name], value, rtol=1e-5, atol=1e-5)


def test_bring_your_own_trainer_learns() -> None:
    assert news_or_skip(load("bring_your_own_trainer"), 5) > 0.5


@pytest.mark.parametrize("ward", range(1, 6))
def test_the_wards_of_the_hospital_allow_its_experiment(ward: int) -> None:
    folder = EXAMPLES / "hospital"
    experiment = config.load(folder / "hospital.toml")
    require_servable(experiment)
    policy = load_policy(folder / "policies" / f"ward-{ward}.toml")
    assert check_settings(policy, experiment) == []


@pytest.mark.slow
def test_the_hospital_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = Path(sys.executable).with_name("fednlp")
    given = os.environ | {"FEDNLP": str(command), "PORT": str(port)}
    script = EXAMPLES / "hospital" / "run.sh"
    done = subprocess.run(
        [str(script), str(tmp_path)], env=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "server" / "summary.json").is_file()


def test_the_containers_of_the_hospital_fit_the_project() -> None:
    """Their commands exist, each ward has its own folder, and the image is built of what the package needs alone."""
    here = EXAMPLES / "hospital"
    services = yaml.safe_load((here / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert set(services) == {"server", *(f"ward-{n}" for n in range(1, 6))}
    for name, service in services.items():
        command = re.sub(r"\$\{TOKEN_\d:-\}", "fednlp1:AbMAAA", service["command"])
        docs_blocks.check_command(docs_blocks.Command(command.split(), {}, None))
        if name != "server":
            number = int(name.removeprefix("ward-"))
            assert service["volumes"] == [f"./data/wards/client-{number - 1}:/ward"]
            assert f"${{TOKEN_{number}:-}}" in service["command"]
            assert (here / "policies" / f"{name}.toml").is_file()
    copied = [
        source
        for line in (here / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY")
        for source in line.split()[1:-1]
    ]
    ignored = (here / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == set(copied)
    root = here.parent.parent
    built = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {built["readme"], *built["license-files"], "pyproject.toml", "src", "experiments"} <= set(copied)
    assert all((root / source).exists() for source in copied)
