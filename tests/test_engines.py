"""Workers that start before PyTorch is imported: those that the run takes, and none where that is not known."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fednlp.config import Experiment
from fednlp.runtime.worker_process import WorkerCommand, WorkerProcess
from fednlp.simulation import engines

Make = Callable[..., Experiment]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_run_starts_no_other_workers(
    workers: int, experiment: Make, started_workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_DRIVERS", ())
    resolved = experiment({"runtime.workers": workers, "runtime.device": "cpu"}).resolved()
    with engines.early_workers(resolved):
        assert len(started_workers) == workers - 1
        with engines.open_engine(resolved) as pool:
            assert len(pool) == workers
    assert len(started_workers) == workers - 1
    assert all(one._child._process.poll() is not None for one in started_workers)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which the numbers of workers are added that would be started."""
    asked: list[int] = []

    @contextmanager
    def noted(commands: Iterable[WorkerCommand]) -> Iterator[None]:
        asked.extend(command.number for command in commands)
        yield

    monkeypatch.setattr(engines, "_DRIVERS", ())
    monkeypatch.setattr(engines, "started_ahead", noted)
    return asked


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"runtime.workers": 3}, 2),
        ({"runtime.workers": 0, "clients_per_round": 2}, min(2, len(os.sched_getaffinity(0))) - 1),
        ({"runtime.workers": 0, "runtime.threads": 64}, 0),
        ({"runtime.workers": 3, "runtime.device": "cuda"}, 0),
        ({"runtime.workers": 3, "runtime.engine": "ray"}, 0),
        ({"runtime.workers": 1, "algorithm.name": "__main__:mine"}, 0),
    ],
)
def test_as_many_as_a_run_on_a_cpu_has(
    changes: dict[str, Any], count: int, experiment: Make, numbers: list[int]
) -> None:
    with engines.early_workers(experiment(changes)):
        assert numbers == list(range(1, count + 1))


def test_none_where_there_may_be_a_gpu(
    experiment: Make, numbers: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_DRIVERS", (str(tmp_path),))
    for device, expected in (("auto", []), ("cpu", [1, 2])):
        with engines.early_workers(experiment({"runtime.workers": 3, "runtime.device": device})):
            assert numbers == expected


@pytest.mark.whole
def test_the_command_starts_them_before_it_imports_torch(document: Any, tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(document({"runtime.workers": 2, "runtime.device": "cpu"})))
    program = (
        "import sys\n"
        "from fednlp import cli\n"
        "from fednlp.runtime.worker_process import WorkerProcess\n"
        "def begun(self, command):\n"
        "    print(command.number, 'torch' in sys.modules, flush=True)\n"
        "    raise KeyboardInterrupt\n"
        "WorkerProcess.__init__ = begun\n"
        f"sys.argv[1:] = ['run', {str(file)!r}, '--out', {str(tmp_path / 'run')!r}]\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "1 False\n"), done.stderr
    assert not (tmp_path / "run").exists()
