"""``fednlp rehearse``: a federation on one machine, with a process for each site, real TLS, and each its own texts."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fednlp import config
from fednlp.config import Experiment
from fednlp.deployment.serve import Listening, serve
from fednlp.deployment.shards import FEDERATION, Shards, split_out
from fednlp.errors import ConfigError, RunError
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir

MOST_SITES = 16
"""Processes on one machine: each holds torch and a model."""
_GRACE = 20.0


def rehearse(experiment: Experiment, out: Path, callback: Callback, page: str | None = None) -> RunDir:
    """Run an experiment as a federation of processes on this machine, or go on with one that was stopped.

    Args:
        experiment: With the data and the partition of a simulation.
        out: The run directory. The sites' folders are made beside it, in ``<out>-sites``.
        callback: Reports progress.
        page: ``host:port`` of a page that shows the run, for a browser; no page if left out.

    Raises:
        FednlpError: As for a simulation; a site's process has ended early; or there are too many clients.
    """
    shards = _shards(experiment.resolved(), out, callback.log)
    if len(shards.names) > MOST_SITES:
        raise ConfigError(
            f"the partition has {len(shards.names)} clients, and a rehearsal has at most {MOST_SITES} processes: lower "
            f"partition.clients, for example --set partition.clients={MOST_SITES}"
        )
    with _Sites(shards, callback.log).running() as sites:
        where = Listening("127.0.0.1:0")
        return serve(
            shards.experiment,
            out,
            shards.names,
            where,
            callback,
            sites.join,
            sites.go_on,
            sites.require_alive,
            page,
        )


def _shards(experiment: Experiment, out: Path, log: Callable[[str], None]) -> Shards:
    """Split the data into the sites' folders, or find them split."""
    folder = out.with_name(f"{out.name}-sites")
    if not (folder / FEDERATION).is_file():
        return split_out(experiment, folder, log)
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))
    return Shards(folder, names, config.load(folder / FEDERATION).resolved())


@dataclass
class _Sites:
    """The processes of the sites.

    Attributes:
        shards: Each site's files.
        log: Called with what happens.
    """

    shards: Shards
    log: Callable[[str], None]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def join(self, name: str, token: str) -> None:
        """Start the process of a site that joins with a token."""
        train, test = self.shards.files(name)
        tests = ["--test-data", str(test)] if test else ["--test-fraction", "0"]
        self._start(name, ["-", "--data", str(train), *tests], token)

    def go_on(self) -> None:
        """Start the processes of the sites that have joined before."""
        for name in self.shards.names:
            if name not in self.processes:
                joined = sorted((self.shards.folder / name / "state").glob("*/identity"))
                if joined:
                    self._start(name, [joined[0].parent.name], "")

    def _start(self, name: str, arguments: list[str], token: str) -> None:
        folder = self.shards.folder / name
        environment = os.environ | {"FEDNLP_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fednlp.cli", "join", *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the sites
            )
        assert process.stdin is not None
        process.stdin.write(f"{token}\n".encode())
        process.stdin.close()
        self.processes[name] = process

    def require_alive(self) -> None:
        """Stop where a site's process has ended before the federation.

        Raises:
            RunError: It has; the message says what it said last.
        """
        for name, process in self.processes.items():
            if process.poll() is not None:
                path = self.shards.folder / name / "log.txt"
                lines = path.read_text(errors="replace").strip().splitlines()
                last = lines[-1].removeprefix("error: ") if lines else "without a word"
                raise RunError(f"the process of {name} has ended: {last} (its log is {path})")

    @contextmanager
    def running(self) -> Iterator["_Sites"]:
        """Stop the processes at the end of a block; they get time to hear that the federation has ended."""
        try:
            yield self
            for process in self.processes.values():
                process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            raise RunError(
                "a site did not hear that the federation has ended; its log is in its folder"
            ) from None
        finally:
            for process in self.processes.values():
                process.terminate()
            for process in self.processes.values():
                process.wait()
