"""``fednlp rehearse``: a federation on one machine, with a process for each site, real TLS, and each its own texts."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fednlp import config
from fednlp.config import Experiment
from fednlp.deployment.identity.enrolment import FOLDER, stored_address, typed_by
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.deployment.operate.serve import Listening, serve
from fednlp.deployment.operate.shards import Shards, opened, split_out
from fednlp.deployment.session.servable import servable
from fednlp.deployment.site.template import write_template
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
        out: The run directory. The sites' folders are made beside it, in ``<out>-sites``. The file of each allows the
            code that the experiment names, since its user is the user of all sites.
        page: ``host:port`` of a page that shows the run, for a browser; no page if left out.

    Raises:
        FednlpError: As for a simulation; a site's process has ended early; or there are too many clients.
    """
    resolved = servable(experiment.resolved(real_clients=True), callback.log)
    folder = out.with_name(f"{out.name}-sites")
    shards = opened(resolved, folder) or split_out(resolved, folder, callback.log)
    if len(shards.names) > MOST_SITES:
        raise ConfigError(
            f"the partition has {len(shards.names)} clients, and a rehearsal has at most {MOST_SITES} processes: lower "
            f"partition.clients, for example --set partition.clients={MOST_SITES}"
        )
    begun = (out / FOLDER / "server.json").is_file()
    where = Listening(stored_address(out / FOLDER) if begun else "127.0.0.1:0")
    code = sorted({name for _, name in config.own_code(shards.experiment)})
    if code:
        callback.log(
            f"each site's file allows the code that this experiment names: {', '.join(code)} (allow.code)"
        )
    with _Sites(shards, out / FOLDER, code, callback.log).running() as sites:
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
            rehearsed=True,
        )


@dataclass
class _Sites:
    """The processes of the sites.

    Attributes:
        shards: Each site's files.
        federation: The federation's folder on the server.
        code: Which each site allows, beside fednlp.
        log: Called with what happens.
    """

    shards: Shards
    federation: Path
    code: Sequence[str]
    log: Callable[[str], None]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def join(self, name: str, typed: str) -> None:
        """Start the process of a site that joins, with what it types after ``fednlp join``."""
        self._start(name, [*shlex.split(typed), *self._policy(name)])

    def go_on(self) -> None:
        """Start the processes of the sites that were invited before; one that has not joined gets a new token."""
        for name in self.shards.names:
            if name not in self.processes:
                folders = sorted((self.shards.folder / name / "state").glob("*/identity"))
                if folders and SiteIdentity(folders[0]).membership is not None:
                    self._start(name, [folders[0].parent.name, *self._policy(name)])
                else:
                    self.join(name, typed_by(self.federation, name))

    def _policy(self, name: str) -> list[str]:
        """Return the option that names a site's file, which is written unless it is there."""
        path = self.shards.folder / name / "site.toml"
        train, test = self.shards.files(name)
        if not path.exists():
            tests = {"test_path": test.name} if test else {"test_fraction": 0.0}
            write_template(path, {"path": train.name, **tests}, self.code)
        return ["--policy", str(path)]

    def _start(self, name: str, arguments: list[str]) -> None:
        folder = self.shards.folder / name
        environment = os.environ | {"FEDNLP_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
        with (folder / "log.txt").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "fednlp.cli.tied", str(os.getpid()), "join", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the sites
            )

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
            self.log(
                "a site did not hear that the federation has ended, and is stopped; its log is in its folder"
            )
        finally:
            for process in self.processes.values():
                process.terminate()
            for process in self.processes.values():
                process.wait()
