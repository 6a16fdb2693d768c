"""Ray: its actors end in the weights of one process, also where one is lost."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.simulation.engines import open_engine

pytestmark = pytest.mark.whole

pytest.importorskip("ray", reason="this engine needs Ray: the extra ray")

Make = Callable[..., Experiment]

METHODS: dict[str, dict[str, Any]] = {
    "ditto": {"algorithm": {"name": "ditto"}},
    "secagg+": {"secure": {"protocol": "secagg+", "clip": 4.0}},
}


def python(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder in a process of its own, which Ray's threads and processes end with."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.variants(1)
@pytest.mark.parametrize("method", METHODS)
def test_actors_end_in_the_weights_of_one_process(method: str, experiment: Make, tmp_path: Path) -> None:
    made = experiment({"num_rounds": 2} | METHODS[method])
    settings = made.model_dump(exclude_none=True) | {"runtime": {"engine": "ray", "workers": 2}}
    (tmp_path / "experiments.json").write_text(json.dumps({"there": settings}))
    done = python("cluster.py", "experiments.json", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    here = fednlp.run(made, tmp_path / "here")
    there = (tmp_path / "there" / "model" / "model.safetensors").read_bytes()
    assert there == (here.folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_what_a_lost_actor_had_answered_is_done_again_and_each_actor_finds_a_gpu(tmp_path: Path) -> None:
    done = python("lost_actor.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["clients"] == list(range(40))
    assert found["total"] == sum(range(40))
    assert found["processes"] > 1
    assert "has 3 cores, and runtime.workers = 4 with runtime.threads = 1 needs 4" in found["refused"]
    assert "out of cheese" in found["failed"]
    assert "has no attribute 'missing'" in found["unbuilt"]
    assert "Traceback" not in found["failed"]
    assert found["gpus left by workers on the CPU"] == 2


@pytest.mark.parametrize(("device", "gpus"), [("cpu", False), ("auto", True)])
def test_workers_on_the_cpu_ask_for_no_gpu(
    device: str, gpus: bool, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def made(*_: Any, **further: Any) -> None:
        asked.append(further)
        raise RunError("made up")

    monkeypatch.setattr("fednlp.runtime.ray.Ray", made)
    with pytest.raises(RunError, match="made up"):
        open_engine(experiment({"runtime": {"engine": "ray", "workers": 2, "device": device}}).resolved())
    assert asked == [{"gpus": gpus}]


def test_an_address_where_nobody_listens_is_named_at_once() -> None:
    from fednlp.runtime.ray import Ray

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=rf"Ray is not reached at {address} \(Connection refused\)"):
            Ray(2, "counting:build", address=address)
