"""Secure sums between machines: the simulation's, whichever machine is killed when; and no update is anywhere else."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import Shards, split_out
from fednlp.deployment.server.components import require_servable
from fednlp.errors import ConfigError
from fednlp.federated.client import Result, TrainRequest
from fednlp.secure.deployment.site.sums import SecureSite
from fednlp.simulation.run_dir import RunDir
from fednlp.training import sending
from fednlp.training.local import LocalTrainer
from fednlp.training.requests import train as train_requests

from .machines import Machines
from .secure_rig import PROTOCOLS, STEPS_OF
from .test_federation import quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Split = Callable[[Experiment], Shards]
SETTINGS: dict[str, Any] = {
    "num_rounds": 2,
    "clients_per_round": 4,
    "partition.clients": 4,
    "client.max_steps": 2,
    "task.name": "text-classification",
}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How many times each client took its local steps in each round."""
    found: Counter[tuple[int, int]] = Counter()
    steps = LocalTrainer.steps

    def counted(self: LocalTrainer, *arguments: Any, **options: Any) -> Any:
        found[self.round, self.client] += 1
        return steps(self, *arguments, **options)

    monkeypatch.setattr(LocalTrainer, "steps", counted)
    return found


def weights(run: RunDir) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


def shards_of(made: Experiment, folder: Path) -> Shards:
    return split_out(made.resolved(), folder, quiet)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.variants(1)
def test_a_deployment_is_the_simulation_and_goes_on_wherever_it_is_killed(
    protocol: str, experiment: Make, tmp_path: Path, trained: Counter[tuple[int, int]]
) -> None:
    """The server in every step, sites before and after the work of each; nobody trains twice."""
    last = STEPS_OF[protocol][-1]
    made = experiment(SETTINGS | {"secure.protocol": protocol})
    simulated = fednlp.run(made, tmp_path / "simulated")
    trained.clear()
    machines = Machines(
        shards_of(made, tmp_path / "shards"),
        tmp_path,
        server_deaths=[
            (1, "keys", 2),
            (1, "shares", 4),
            (1, "deliver", 1),
            (1, "train", 2),
            (1, last, 1),
            (2, "train", 4),
            (2, last, 4),
        ],
        site_deaths=[
            (0, "keys", True),
            (1, "shares", False),
            (2, "shares", True),
            (1, "deliver", True),
            (3, "train", False),
            (0, "train", True),
            (2, last, False),
            (3, last, True),
        ],
    )
    deployed = machines.run()
    assert (machines.server_deaths, machines.site_deaths) == ([], set())
    for client in range(4):
        assert [path.name for path in (tmp_path / f"site-{client}" / "secure").iterdir()] == ["over.json"]
    assert not list((deployed.folder / "federation" / "secure").glob("*.pieces"))
    assert rounds(deployed) == rounds(simulated)
    assert weights(deployed) == weights(simulated)
    assert trained == Counter((number, client) for number in (1, 2) for client in range(4))


@pytest.mark.parametrize("lost", [{"keys": 0, "train": 1}, {"shares": 2, "last": 3}])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.variants(1)
def test_without_those_that_vanish_the_sum_is_that_of_the_others(
    protocol: str, lost: dict[str, int], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = STEPS_OF[protocol][-1]
    phases = {"train": "update", "last": "answer"}
    dropped = {client: phases.get(step, step) for step, client in lost.items()}
    changes = {"clients_per_round": 6, "partition.clients": 6, "num_rounds": 1}
    secure = {"protocol": protocol, "dropout": 0.34, "max_colluding": 0.0}
    made = experiment(SETTINGS | changes | {"secure": secure})
    machines = Machines(
        shards_of(made, tmp_path / "shards"),
        tmp_path,
        absent=[(client, last if step == "last" else step) for step, client in lost.items()],
    )
    deployed = machines.run()
    monkeypatch.setattr("fednlp.secure.round._simulated_dropouts", lambda *arguments: dropped)
    simulated = fednlp.run(made, tmp_path / "simulated")
    assert weights(deployed) == weights(simulated)
    lines = rounds(deployed)[0], rounds(simulated)[0]
    assert len({tuple(one["client"] for one in line["dropped"]) for line in lines}) == 1


def windows(values: np.ndarray) -> Iterator[bytes]:
    """Yield a few stretches of numbers that are no zeros: 32 bytes and more that stand nowhere else."""
    for start in np.flatnonzero(values)[:: max(1, len(values) // 12)]:
        stretch = values[start : start + 8]
        if len(stretch) == 8 and np.count_nonzero(stretch) == 8:
            yield stretch.tobytes()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Stretches of all clients' updates, as floats, and encoded without masks, as an upload or a total has them."""
    found: list[bytes] = []
    train = SecureSite.train

    def encoding(algorithm: Any, request: Any, local: Any, result: Result, record: Any) -> Any:
        change = result.update["model"]
        found.extend(windows(change.flat().numpy()))  # type: ignore[union-attr]
        return sending.encode(algorithm, request, local, result, record)

    def training(
        self: SecureSite, request: TrainRequest, digest: str, work: Callable[[TrainRequest], Any]
    ) -> Any:
        def watched(masked: TrainRequest) -> Any:
            answer = work(masked)
            assert answer.upload.masked is not None
            found.extend(windows(answer.upload.masked.astype("<u4")))
            found.extend(windows(answer.upload.masked.astype("<i8")))
            return answer

        return train(self, request, digest, watched)

    monkeypatch.setattr(train_requests, "encode", encoding)
    monkeypatch.setattr(SecureSite, "train", training)
    return found


def hits(patterns: Iterable[bytes], places: Iterable[bytes]) -> int:
    """Return how many of some patterns are in any of some places."""
    left = set(patterns)
    for place in places:
        left -= {pattern for pattern in left if pattern in place}
    return len(set(patterns)) - len(left)


def files(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


@pytest.mark.variants(2)
@pytest.mark.parametrize("protocol", ["none", *PROTOCOLS])
def test_an_update_is_neither_in_the_traffic_nor_on_the_server_s_disk(
    protocol: str, experiment: Make, tmp_path: Path, planted: list[bytes]
) -> None:
    """Without secure aggregation the same search finds each of them."""
    changes = {} if protocol == "none" else {"secure.protocol": protocol}
    made = experiment(SETTINGS | {"num_rounds": 1} | changes)
    machines = Machines(shards_of(made, tmp_path / "shards"), tmp_path)
    deployed = machines.run()
    assert len(planted) >= 40
    found = hits(planted, [b"".join(machines.frames)]), hits(planted, files(deployed.folder))
    if protocol == "none":  # a stretch may go beyond its tensor, which travels in another order
        assert min(found) > 0.9 * len(set(planted))
    else:
        assert found == (0, 0)


SERVER = """
import sys
from pathlib import Path
from types import SimpleNamespace

from fednlp.deployment.server.federation import FOLDER, Federation
from fednlp.deployment.server.run_directory import run_name
from fednlp.deployment.session.hub import Hub
from fednlp.secure.deployment.server.sums import SecureSiteSession
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

def pause(where):
    print(where, flush=True)
    sys.stdin.readline()

opened = SecureSiteSession.unmask

def unmask(self, uploaded):
    pause("uploaded")
    found = opened(self, uploaded)
    pause("revealed")
    return found

class Watch(NullCallback):
    def on_round(self, line, left):
        pause("saved")

SecureSiteSession.unmask = unmask
directory = RunDir(Path(sys.argv[1]))
members = [SimpleNamespace(name=name, client=client, state="enrolled") for client, name in enumerate(sys.argv[2:])]
hub = Hub(directory.folder / FOLDER, run_name(directory))
Federation(directory, hub, lambda: members, Watch()).run()
"""
"""A server that is started again after all has arrived; it waits where its memory is to be searched."""


_PAGES = 1 << 20


def memory_of(process: int) -> Iterator[bytes]:
    """Yield all that another process may write to, region by region."""
    with (
        Path(f"/proc/{process}/maps").open() as maps,
        Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory,
    ):
        for line in maps:
            place, rights = line.split()[:2]
            first, last = (int(number, 16) for number in place.split("-"))
            if rights.startswith("rw") and "[v" not in line:
                memory.seek(first)
                region = memory.read(last - first) or b""
                pages = (region[start : start + _PAGES + 64] for start in range(0, len(region), _PAGES))
                yield from (page for page in pages if np.frombuffer(page, np.uint8).any())


@pytest.mark.slow
def test_an_update_is_never_in_the_server_s_memory(
    experiment: Make, tmp_path: Path, planted: list[bytes]
) -> None:
    """Searched once all uploads are added up, once the sum is opened, and once the round is saved."""
    changes = {"num_rounds": 1, "secure.protocol": "secagg+", "evaluation.personal": False}
    made = experiment(SETTINGS | changes)
    shards = shards_of(made, tmp_path / "shards")
    machines = Machines(shards, tmp_path, server_deaths=[(1, "reveal", 4)])
    directory = machines.run(restart=False)
    assert len(planted) >= 40
    some = planted[:: len(planted) // 5]  # of all clients and kinds: a memory is large
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", SERVER, str(directory.folder), *shards.names]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, env=environment, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        found = {}
        for _ in range(3):
            where = server.stdout.readline().strip()
            try:
                whole = b"".join(memory_of(server.pid))
            except PermissionError:
                server.kill()
                pytest.skip("this system does not let a process read the memory of its own child")
            updates = hits(some, [whole])
            params = fednlp_state(directory) if where == "saved" else b""
            found[where] = updates, params in whole
            server.stdin.write("\n")
            server.stdin.flush()
        assert server.wait(60) == 0
    assert found == {"uploaded": (0, True), "revealed": (0, True), "saved": (0, True)}


def fednlp_state(directory: RunDir) -> bytes:
    """Return a stretch of the global model as it was saved: what a search of the server's memory does find."""
    from safetensors.numpy import load_file

    return next(windows(load_file(directory.state)["params"]))


def test_a_server_that_may_lie_needs_a_directory_that_it_does_not_have(experiment: Make) -> None:
    made = experiment(
        {
            "data": {"name": "sites", "labels": ["a", "b"]},
            "task.name": "text-classification",
            "partition": None,
            "secure": {"protocol": "secagg", "malicious_server": True},
        }
    )
    with pytest.raises(
        ConfigError, match=r"a directory of the sites' signing keys .*malicious_server = false"
    ):
        require_servable(made.resolved())
