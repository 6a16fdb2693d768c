"""The examples run, learn, and say the same as the library."""

import importlib.util
import os
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
from fednlp.deployment.identity.enrolment import FOLDER, store_address, typed_by
from fednlp.deployment.identity.tokens import JoinToken, token_text
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


STAND_IN = """#!{python}
import os, sys, time
from pathlib import Path

command, *words = sys.argv[1:]
fails = os.environ.get("FAILS")


def option(name):
    return Path(words[words.index(name) + 1])


def wait_for(*paths):
    while not all(path.exists() for path in paths):
        time.sleep(0.05)


if command == fails:
    sys.exit(f"error: {{command}} stands in for one that fails")
if command == "partition":
    for ward in range(5):
        (option("--split-out") / f"client-{{ward}}" / "state").mkdir(parents=True)
elif command == "serve":
    from fednlp.cli.deployment import _show_token
    from fednlp.deployment.identity.enrolment import FOLDER, store_address, typed_by

    out, federation = option("--out"), option("--out") / FOLDER
    federation.mkdir(parents=True)
    (out / "pid").write_text(str(os.getpid()))
    store_address(federation, str(option("--listen")))
    for site in str(option("--sites")).split(","):
        _show_token(site, typed_by(federation, site))
    wait_for(*(out.parent / "wards" / f"client-{{ward}}" / "state" / "joined" for ward in range(5)))
    (out / "ended").touch()
    print("round 1/1  of the one that stands in")
elif command == "join":
    from fednlp.deployment.identity.tokens import JoinToken, token_text

    site = JoinToken.parse(token_text(words[0])).site
    assert option("--policy").is_file()
    home = Path(os.environ["FEDNLP_HOME"])
    assert home.parent.name == f"client-{{int(site.removeprefix('ward-')) - 1}}"
    if site == fails:
        sys.exit(f"error: {{site}} stands in for one that fails")
    (home / "joined").touch()
    wait_for(home.parents[2] / "server" / "ended")
"""
"""In place of fednlp: with the real tokens, and without a model."""


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("", None),
        ("ward-3", "ward-3 has failed; the end of "),
        ("serve", "the server has ended before it invited the wards; the end of "),
    ],
)
def test_the_script_of_the_hospital_ends_whoever_fails(tmp_path: Path, fails: str, said: str | None) -> None:
    """Its wards join by what the server writes; who fails is named with its error, and nobody stays behind."""
    command, out = tmp_path / "fednlp", tmp_path / "a run"
    command.write_text(STAND_IN.format(python=sys.executable))
    command.chmod(0o755)
    given = os.environ | {"FEDNLP": str(command), "FAILS": fails}
    script = [str(EXAMPLES / "hospital" / "run.sh"), str(out)]
    done = subprocess.run(script, env=given, capture_output=True, text=True, timeout=120, check=False)
    if said is None:
        assert (done.returncode, done.stderr) == (0, "")
        assert "round 1/1  of the one that stands in" in done.stdout
        return
    assert done.returncode == 1
    assert done.stderr.startswith(said)
    assert f"error: {fails} stands in for one that fails" in done.stderr
    if fails != "serve":
        with pytest.raises(ProcessLookupError):
            os.kill(int((out / "server" / "pid").read_text()), 0)


def test_the_containers_of_the_hospital_join_by_the_tokens_of_their_server(tmp_path: Path) -> None:
    """The README's recipe copies what the server writes to where each ward reads it."""
    here = EXAMPLES / "hospital"
    services = yaml.safe_load((here / "compose.yaml").read_text(encoding="utf-8"))["services"]
    words = services["server"]["command"].split()
    run = tmp_path / "container" / words[words.index("--out") + 1].removeprefix("/")
    (run / FOLDER).mkdir(parents=True)
    store_address(run / FOLDER, words[words.index("--address") + 1])
    wards = words[words.index("--sites") + 1].split(",")
    for ward in wards:
        typed_by(run / FOLDER, ward)
    docker = tmp_path / "docker"  # docker compose exec -T server cat FILE
    docker.write_text(f'#!/bin/sh\n[ "$4" = server ] && "$5" "{tmp_path}/container$6"\n')
    docker.chmod(0o755)
    recipe = [line for line in (here / "README.md").read_text("utf-8").splitlines() if "compose exec" in line]
    assert len(recipe) == 1
    for service in (services[ward] for ward in wards):
        (tmp_path / service["volumes"][0].partition(":")[0]).mkdir(parents=True)
    given = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", recipe[0]], cwd=tmp_path, env=given, check=True)
    for ward in wards:
        folder, _, place = services[ward]["volumes"][0].partition(":")
        read = Path(services[ward]["command"].split()[2])
        token = tmp_path / folder / read.relative_to(place)
        assert JoinToken.parse(token_text(str(token))).site == ward
        assert token.stat().st_mode & 0o777 == 0o600


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
        docs_blocks.check_command(docs_blocks.Command(service["command"].split(), {}, None))
        if name != "server":
            number = int(name.removeprefix("ward-"))
            assert service["volumes"] == [f"./data/wards/client-{number - 1}:/ward"]
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
