"""A federation of processes on this machine that faults are done to, and what has to be true of it in the end."""

import json
import multiprocessing
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from survival.process import Work, command, trained_by

SERVER, BROKER = "server", "broker"
_LOOK = 0.002
_TOKEN = re.compile(r"^(\S+):  fednlp join (\S+) --data FILE\n", re.MULTILINE)
_MOST_RETRIES = 50


@dataclass
class Trial:
    """A federation of processes that faults are done to.

    The processes are forks of one that has imported the library, so that a start takes tenths of a second.

    Args:
        folder: For everything that it writes.
        shards: Each site's files, from :func:`fednlp.deployment.operate.shards.split_out`.
        place: Of the run directory; in ``folder`` if left out.
        through: Addresses that sites connect to in place of the server's, by name.
        fatal: Calls at which a site kills itself, by name; see :func:`command`.
        environment: Further variables of a site, by name; such a process is no fork.
        hooks: Called in a process with its folder before its command begins, by name; functions of a module.
        may_stop: Whether the server may end with an error by itself, and is then started again.
        broker: By which the sites reach the server, a ``Mosquitto`` that runs; without it they connect to the server.
    """

    folder: Path
    shards: Any
    place: Path | None = None
    through: Mapping[str, str] = field(default_factory=dict)
    fatal: Mapping[str, Sequence[tuple[str, bool]]] = field(default_factory=dict)
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hooks: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)
    may_stop: bool = False
    broker: Any = None
    processes: dict[str, Any] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    retried: Counter[str] = field(default_factory=Counter)
    killed: set[str] = field(default_factory=set)
    invited: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.server = self.place or self.folder / SERVER
        self.context: Any = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(
            [
                "survival.process",
                "fednlp.cli.console",
                "fednlp.deployment.operate.serve",
                "fednlp.deployment.operate.join",
                "fednlp.training.worker",
                "transformers.models.bert.modeling_bert",
            ]
        )

    def done(self) -> int:
        """Return how many rounds are saved."""
        path = self.server / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def log_of(self, name: str) -> Path:
        """Return the file of what a process has printed."""
        return self.folder / f"{name}.log"

    def home_of(self, name: str) -> Path:
        """Return the folder of what a site keeps."""
        return self.folder / f"{SERVER}-sites" / name / "state"

    def token(self, name: str) -> str | None:
        """Return a site's token: of its file, or a new one where the server was killed before it could name that."""
        from fednlp.deployment.identity.enrolment import invite
        from fednlp.deployment.identity.site_registry import Register

        log = self.log_of(SERVER)
        printed = {
            site: Path(file).read_text().strip()
            for site, file in (_TOKEN.findall(log.read_text()) if log.is_file() else ())
        }
        if name in self.invited:  # one that the server has printed since then is void
            return self.invited[name]
        if name in printed or self.retried[SERVER] == 0:
            return printed.get(name)
        folder = self.server / "federation"
        known = {site.name for site in Register(folder).sites()} if (folder / "server.json").is_file() else ()
        if name in known:
            self.invited[name] = str(invite(folder, name))
        return self.invited.get(name)

    def arguments(self, name: str) -> list[str] | None:
        """Return what a process is told; None where its token is not there yet."""
        if name == SERVER:
            experiment = str(self.shards.folder / "federation.toml")
            names = ",".join(self.shards.names)
            reached = ["--listen", self.address] if self.broker is None else ["--broker", self.broker.address]
            return ["serve", experiment, "--out", str(self.server), "--sites", names, *reached]
        token = self.token(name)
        if token is None:
            return None
        train, test = self.shards.files(name)
        tests = ["--test-data", str(test)] if test else ["--test-fraction", "0"]
        return ["join", self._through(name, token), "--data", str(train), *tests]

    def _through(self, name: str, token: str) -> str:
        from fednlp.deployment.identity.tokens import JoinToken

        if name not in self.through:
            return token
        return str(replace(JoinToken.parse(token), address=self.through[name]))

    def tend(self) -> bool:
        """Start what is due to be started, and return whether the server has ended.

        Raises:
            RuntimeError: A process failed by itself.
        """
        if self.broker is not None and BROKER in self.killed and time.monotonic() >= self.due[BROKER]:
            self.killed.discard(BROKER)
            self.retried[BROKER] += 1
            self.broker.start()
        for name in (SERVER, *self.shards.names):
            process = self.processes.get(name)
            if process is None:
                arguments = self.arguments(name) if time.monotonic() >= self.due.get(name, 0) else None
                if arguments is not None:
                    self._start(name, arguments)
            elif process.exitcode is not None and process.exitcode != 0:
                self._ended(name, process.exitcode)
        server = self.processes.get(SERVER)
        return server is not None and server.exitcode == 0

    def _start(self, name: str, arguments: list[str]) -> None:
        home, more = self.home_of(name), self.environment.get(name)
        home.mkdir(parents=True, exist_ok=True)
        told = (arguments, home, self.log_of(name), self.fatal.get(name, ()), self.hooks.get(name))
        context = self.context if more is None else multiprocessing.get_context("spawn")
        before = dict(os.environ)
        os.environ.update(more or {})
        try:
            self.processes[name] = context.Process(target=command, args=told)
            self.processes[name].start()
        finally:
            for key in more or {}:
                del os.environ[key]
            os.environ.update(before)

    def _ended(self, name: str, code: int) -> None:
        """Have a process started again: one that was killed, or a site whose server was."""
        del self.processes[name]
        self.retried[name] += 1
        if name in self.killed or (code == -signal.SIGKILL and name in self.fatal):
            self.killed.discard(name)
            return
        said = self.log_of(name).read_text()[-2000:]
        stopped = name == SERVER and not self.may_stop and self.broker is None  # a broker may be away
        if stopped or self.retried[name] > _MOST_RETRIES or "Traceback" in said or code < 0:
            raise RuntimeError(f"{name} ended with {code}:\n{said}")
        self.due[name] = time.monotonic() + 0.2

    def kill(self, names: Sequence[str], pause: float) -> None:
        """Kill processes that live; they start again after a pause, in seconds."""
        for name in names:
            process = self.processes.get(name)
            if name == BROKER and BROKER not in self.killed:
                self.killed.add(BROKER)
                self.due[BROKER] = time.monotonic() + pause
                self.broker.stop()
            elif process is not None and process.exitcode is None:
                self.killed.add(name)
                self.due[name] = time.monotonic() + pause
                process.kill()
                process.join()
                if process.exitcode == 0:  # it had ended before the signal came
                    self.killed.discard(name)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process that lives."""
        process = self.processes.get(name)
        if process is not None and process.exitcode is None:
            os.kill(process.pid, number)

    def wait(self, condition: Callable[[], bool], until: float) -> bool:
        """Tend the processes until a condition holds; return False if the server ends or the time is over before."""
        while not condition():
            if self.tend() or time.monotonic() > until:
                return False
            time.sleep(_LOOK)
        return True

    def lasting(self, seconds: float, until: float) -> None:
        """Tend the processes for some seconds."""
        moment = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > moment, until)

    def finish(self, until: float) -> None:
        """Tend the processes until the server has ended.

        Raises:
            RuntimeError: It does not.
        """
        while not self.tend():
            if time.monotonic() > until:
                logs = [f"{path.name}: {path.read_text()[-800:]}" for path in self.folder.glob("*.log")]
                raise RuntimeError("the federation does not end:\n" + "\n".join(logs))
            time.sleep(0.02)

    @contextmanager
    def running(self) -> Iterator[None]:
        """End all processes at the end of a block."""
        try:
            yield
        finally:
            for process in self.processes.values():
                process.kill()
            for process in self.processes.values():
                process.join()

    def work(self) -> Work:
        """Return what the sites' own logs say about their work."""
        return trained_by(sorted((self.folder / f"{SERVER}-sites").glob("*/state/worked.txt")))

    def compared(self, simulated: Path) -> dict[str, Any]:
        """Return whether it has ended as the simulation did, and what the sites' logs say about their work."""
        weights = [(run / "model" / "model.safetensors").read_bytes() for run in (simulated, self.server)]
        lines, work = timeless(simulated), self.work()
        wanted = {(line["round"], client) for line in lines for client in line["cohort"]}
        return {
            "same_weights": weights[0] == weights[1],
            "same_rounds": lines == timeless(self.server),
            "updates": len(wanted),
            "not_trained": sorted(wanted - work.begun.keys()),
            "trainings": work.begun.total(),
            "worked_twice": work.twice,
            "restarts": dict(self.retried),
        }


def held(figures: Mapping[str, Any]) -> bool:
    """Return whether a part came out as it has to."""
    same = figures["same_weights"] and figures["same_rounds"]
    return bool(same and not figures["not_trained"] and not figures["worked_twice"])


def timeless(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's rounds without the time that they took."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.get("secure", {}).pop("seconds", None)
    return lines


def prepared(experiment: Any, folder: Path, **options: Any) -> tuple[Path, Trial]:
    """Run an experiment as a simulation, and return its folder and a federation of the same, not yet started.

    Args:
        experiment: Of a simulation; each client of its partition is a process.
        folder: New or empty.
        options: Of the :class:`Trial`.
    """
    import fednlp
    from fednlp.deployment.operate.shards import split_out

    simulated = fednlp.run(experiment, folder / "simulated").folder
    return simulated, Trial(
        folder, split_out(experiment.resolved(), folder / "shards", lambda text: None), **options
    )
