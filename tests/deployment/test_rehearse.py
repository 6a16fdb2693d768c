"""A rehearsal is the simulation in processes; one that is killed takes its sites with it, and goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fednlp
import fednlp.deployment.operate.rehearse as rehearsing
from fednlp import config
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import FEDERATION, opened, split_out
from fednlp.deployment.site.policy import Allow, load_policy
from fednlp.deployment.site.refusals import check_settings
from fednlp.errors import ConfigError
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

Make = Callable[..., Experiment]


class Heard(NullCallback):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


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


OWN = """
from fednlp import fedavg
from fednlp.federated.cohort import Cohort


def mine(clients_per_round, **common):
    return fedavg(clients_per_round, **common)


def turns(clients_per_round):
    return lambda population, round_number: Cohort([0])


def near(prediction, truth):
    return float(prediction == truth)
"""


@pytest.mark.parametrize("own", [True, False])
def test_the_sites_allow_the_code_of_the_experiment_and_nothing_else(
    own: bool, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each site of a rehearsal is the user's, who named the code; the file of each says so, and one line."""
    (tmp_path / "rehearsed_code.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    code = ["rehearsed_code:mine", "rehearsed_code:near", "rehearsed_code:turns"] if own else []
    keys = ["algorithm.name", "task.metric", "cohort.name"]
    made = experiment(
        {"partition.clients": 2, "clients_per_round": 2, "task.name": "text-classification"}
        | dict(zip(keys, code, strict=False))
    )
    typed: list[list[str]] = []

    def serve(served: Experiment, out: Path, names: Sequence[str], *rest: Any, **more: Any) -> None:
        _, _, on_token, on_listening, *_ = rest
        on_token(names[0], "token")
        on_listening()  # starts the other one
        for words in typed:
            site = load_policy(Path(words[words.index("--policy") + 1]))
            assert (site.data.test_path is None) is (site.data.test_fraction == 0)
            assert check_settings(site, served) == []
            assert site.allow.code == code
            assert site.model_copy(update={"allow": Allow(code=site.allow.code)}) == site

    started = SimpleNamespace(wait=lambda *_: 0, terminate=lambda: None)
    monkeypatch.setattr(rehearsing, "serve", serve)
    monkeypatch.setattr(rehearsing, "typed_by", lambda *_: "token")
    monkeypatch.setattr(rehearsing.subprocess, "Popen", lambda words, **_: typed.append(words) or started)
    heard = Heard()
    rehearsing.rehearse(made, tmp_path / "dress", heard)
    assert len(typed) == 2
    assert [line for line in heard.lines if "allow.code" in line] == (
        [f"each site's file allows the code that this experiment names: {', '.join(code)} (allow.code)"]
        if own
        else []
    )


@pytest.mark.parametrize(
    "changes", [{"algorithm": {"name": "fedbuff", "buffer_size": 2}}, {"rounds.over_selection": 1.5}]
)
def test_real_processes_need_no_simulated_clock(
    changes: dict[str, object], experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = experiment({"partition.clients": 3, "clients_per_round": 2, **changes})
    with pytest.raises(
        ConfigError, match=r"needs the time that each client takes, and costs\.device is not given"
    ):
        made.resolved()
    served: list[Experiment] = []
    monkeypatch.setattr(rehearsing, "serve", lambda experiment, *rest, **more: served.append(experiment))
    for _ in range(2):  # as begun, and as gone on with
        rehearsing.rehearse(made, tmp_path / "dress", NullCallback())
    assert served[0] == served[1]
    assert served[0].data.at_sites
    assert served[0].resolved() == served[0]
