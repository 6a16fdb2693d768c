"""MPI: any number of ranks ends in the weights of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp import config
from fednlp.config import Experiment

pytestmark = pytest.mark.whole

pytest.importorskip("mpi4py", reason="MPI needs mpi4py: the extra mpi")
MPIRUN = Path(sys.executable).with_name("mpirun")
needs_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="there is no mpirun beside this Python")

Make = Callable[..., Experiment]

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ditto": {"algorithm": {"name": "ditto"}},
    "median": {"aggregator": {"name": "median"}, "algorithm.weighting": "uniform"},
    "secagg+": {"secure": {"protocol": "secagg+", "clip": 4.0}},
}


def mpirun(ranks: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [str(MPIRUN), "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


@needs_mpirun
@pytest.mark.variants(1)
@pytest.mark.parametrize("methods", [("ditto", "median"), ("fedavg", "secagg+")])
def test_the_number_of_ranks_changes_nothing(
    methods: tuple[str, ...], experiment: Make, tmp_path: Path
) -> None:
    made = {name: experiment({"num_rounds": 2} | METHODS[name]) for name in methods}
    settings = tmp_path / "experiments.json"
    settings.write_text(json.dumps({name: one.model_dump(exclude_none=True) for name, one in made.items()}))
    done = mpirun(3, str(Path(__file__).with_name("ranks.py")), str(settings), str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, one in made.items():
        here = fednlp.run(one, tmp_path / f"{name}-here")
        there = (tmp_path / name / "model" / "model.safetensors").read_bytes()
        assert there == (here.folder / "model" / "model.safetensors").read_bytes(), name


@needs_mpirun
@pytest.mark.slow
def test_a_mistake_ends_all_ranks_with_its_message(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('num_rounds = "many"\n')
    done = mpirun(2, "-m", "fednlp.cli", "run", "wrong.toml", cwd=tmp_path)
    assert done.returncode != 0
    assert "num_rounds" in done.stderr
    assert "Traceback" not in done.stderr


@needs_mpirun
@pytest.mark.slow
def test_a_rank_that_fails_says_why_and_is_there_for_the_next_run(tmp_path: Path) -> None:
    done = mpirun(2, str(Path(__file__).with_name("failing_rank.py")), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    unbuilt, failed, whole = json.loads(done.stdout.splitlines()[-1])
    assert "rank 1: AttributeError" in unbuilt
    assert "rank 1: ValueError: out of cheese" in failed
    assert whole == str(sum(range(40)))


@needs_mpirun
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_and_it_goes_on_with_fewer(
    experiment: Make, tmp_path: Path
) -> None:
    """mpirun ends the others by SIGKILL, so how to go on is said before."""
    made = experiment({"num_rounds": 4, "evaluation.every": 4})
    (tmp_path / "tiny.toml").write_text(config.dump(made))
    program = str(Path(__file__).with_name("lost_rank.py"))
    done = mpirun(2, program, "run", "tiny.toml", "--out", "run", cwd=tmp_path)
    assert done.returncode != 0
    assert (
        "2 ranks: when one is lost, mpirun ends them all; then go on with: fednlp run --resume run"
        in done.stdout
    )
    saved = (tmp_path / "run" / "rounds.jsonl").read_bytes().count(b"\n")
    assert 0 < saved < 4
    fednlp.resume(tmp_path / "run")
    here = fednlp.run(made, tmp_path / "here")
    there = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert there == (here.folder / "model" / "model.safetensors").read_bytes()


@needs_mpirun
@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_mpi_adds_nothing(experiment: Make, tmp_path: Path) -> None:
    made = experiment({"num_rounds": 4000, "evaluation.every": 4000})
    (tmp_path / "tiny.toml").write_text(config.dump(made))
    command = [str(MPIRUN), "-n", "2", sys.executable, "-m", "fednlp.cli", "run", "tiny.toml", "--out", "run"]
    pipe, rounds = subprocess.PIPE, tmp_path / "run" / "rounds.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        while not (rounds.is_file() and rounds.read_bytes().count(b"\n") >= 2):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    lines = [line for line in said.splitlines() if line and not line.startswith("[mpiexec")]
    assert lines == ["stopped; the rounds that are done are saved; go on with: fednlp run --resume run"]


@needs_mpirun
@pytest.mark.slow
def test_an_error_within_a_round_is_said_before_the_ranks_are_stopped(tmp_path: Path) -> None:
    (tmp_path / "within.py").write_text(
        "import fednlp.runtime.mpi as mpi\n"
        "from fednlp import cli\n"
        "from fednlp.errors import RunError\n"
        "def app():\n"
        "    mpi._within_round.set()\n"
        "    raise RunError('the disk is full')\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    done = mpirun(2, "within.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "error: the disk is full" in done.stderr


@needs_mpirun
def test_the_command_line_is_used_as_it_is(tmp_path: Path) -> None:
    done = mpirun(2, "-m", "fednlp.cli", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"fednlp {fednlp.__version__}\n")


def test_a_rank_that_is_not_the_first_runs_nothing(monkeypatch: pytest.MonkeyPatch, experiment: Make) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(fednlp.FednlpError, match="only rank 0 runs an experiment: start it as mpirun"):
        fednlp.run(experiment({"runtime.engine": "mpi"}))


def test_ray_under_mpirun_is_refused(monkeypatch: pytest.MonkeyPatch, experiment: Make) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    with pytest.raises(
        fednlp.FednlpError, match="the 3 ranks of mpirun would be idle: start the command without mpirun"
    ):
        fednlp.run(experiment({"runtime.engine": "ray"}))
