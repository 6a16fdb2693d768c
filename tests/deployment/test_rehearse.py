"""A rehearsal is the simulation in processes; one that is killed takes its sites with it, and goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fednlp
import fednlp.deployment.operate.rehearse as rehearsing
from fednlp import config
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import FEDERATION, opened, split_out
from fednlp.errors import ConfigError
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

Make = Callable[..., Experiment]


def quiet(text: str) -> None:
    """Log nothing."""


def living(text: str) -> list[int]:
    """Return the processes whose command line has a text in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [number for number in found if number != os.getpid()]


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_rehearsal_that_is_killed_goes_on_and_ends_as_the_simulation(
    experiment: Make, tmp_path: Path
) -> None:
    made = experiment(
        {"num_rounds": 2, "clients_per_round": 2, "partition.clients": 2, "task.name": "text-classification"}
    )
    simulated = fednlp.run(made, tmp_path / "simulated")
    file, out, sites = tmp_path / "tiny.toml", tmp_path / "dress", tmp_path / "dress-sites"
    file.write_text(config.dump(made))
    command = [sys.executable, "-m", "fednlp.cli", "rehearse", str(file), "--out", str(out)]
    with (tmp_path / "log.txt").open("w") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(lambda: [*sites.glob("*/state/*/identity/key.pem")] or first.poll() is not None)
        assert first.poll() is None, (tmp_path / "log.txt").read_text()
        first.send_signal(signal.SIGKILL)
        first.wait()
        wait_for(lambda: not living(str(sites)))
        ended = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=200)
    assert ended.returncode == 0, (tmp_path / "log.txt").read_text()
    assert not living(str(sites))
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (simulated.folder, out)]
    assert weights[0] == weights[1]
    told, known = (RunDir(run).read_json("summary.json")["data"] for run in (out, simulated.folder))
    assert told["train"] == known["train"] > 0, "the sum of what the sites tell"
    assert "listening at 127.0.0.1:" in (tmp_path / "log.txt").read_text()


def test_a_split_that_was_killed_is_made_again_and_another_one_is_refused(
    experiment: Make, tmp_path: Path
) -> None:
    made = experiment({"partition.clients": 3, "clients_per_round": 3}).resolved()
    folder = tmp_path / "shards"
    (folder / "old").mkdir(parents=True)
    (folder / ".splitting").touch()
    assert opened(made, folder) is None
    shards = split_out(made, folder, quiet)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(shards.names)
    assert opened(made, folder) == shards
    assert (folder / FEDERATION).is_file()
    other = experiment({"partition.clients": 3, "clients_per_round": 3, "num_rounds": 9}).resolved()
    with pytest.raises(ConfigError, match=r"data of other settings \(num_rounds"):
        opened(other, folder)


@pytest.mark.parametrize(
    "changes", [{"algorithm": {"name": "fedbuff", "buffer_size": 2}}, {"rounds.over_selection": 1.5}]
)
def test_real_processes_need_no_simulated_clock(
    changes: dict[str, object], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = experiment({"partition.clients": 3, "clients_per_round": 2, **changes})
    with pytest.raises(ConfigError, match=r"needs the time that each client takes: set costs\.device"):
        made.resolved()
    served: list[Experiment] = []
    monkeypatch.setattr(rehearsing, "serve", lambda experiment, *rest, **more: served.append(experiment))
    for _ in range(2):  # as begun, and as gone on with
        rehearsing.rehearse(made, tmp_path / "dress", NullCallback())
    assert served[0] == served[1]
    assert served[0].data.at_sites
    assert served[0].resolved() == served[0]
