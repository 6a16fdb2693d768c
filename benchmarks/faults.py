"""What a federation survives: its server and its sites are killed while it runs, and it ends as if nothing had been.

    python benchmarks/faults.py                                   # 20 kills, 5 clients, 10 rounds; prints JSON
    python benchmarks/faults.py --seed 7 --set algorithm.name=ditto

The processes are those of ``fednlp serve`` and ``fednlp join``, over TLS on this machine, and each site has its own
examples alone. The kills (``kill -9``) are drawn from the seed: in which round, in which phase, and who. A phase is
waited for by what lies on the disk while it lasts; the moment within it is random. What was killed is started again by
the command that started it first. At the end weights and rounds have to be those of the simulation, bit for bit, and no
site may have worked twice on a call that it had answered.

The processes are forks of one that has imported the library, so that a start takes tenths of a second and more kills
hit the work itself. One that is killed has no way to clean up, as on a machine of its own.
"""

import argparse
import json
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SERVER = "server"
EARLY = ("enrolment", "setup")
LATER = ("download", "training", "upload", "aggregation", "checkpoint", "any")
SIGNS = {
    "enrolment": "*-sites/*/state/*/identity/key.pem",
    "setup": "*-sites/*/state/*/objects/*",
    "download": "*-sites/*/state/*/objects/*.part",
    "training": "*-sites/*/state/*/setup.json",
    "upload": "server/federation/inbox/*.train.*[0-9a-f]",
    "aggregation": "server/federation/inbox/*.train.json",
    "checkpoint": "server/checkpoint/.state.part",
    "any": "server",
}
"""What lies in the folder of a trial while a phase lasts."""
SHORT = ("partition.alpha=5", "client.max_steps=4", "model.max_length=16", "evaluation.every=5")
"""Settings by which a round of the experiment "small" takes about a second."""
_LOOK = 0.002
_TOKEN = re.compile(r"^(\S+):  fednlp join (fednlp1:\S+) --data FILE\n", re.MULTILINE)
_MOST_RETRIES = 50


@dataclass
class Kill:
    """A kill.

    Attributes:
        after: Rounds that are done before.
        phase: What the federation is to be doing.
        victims: Who is killed.
        delay: Seconds into the phase.
        pause: Seconds until it is started again.
        seen: Whether the phase was met; else the kill came at some other time.
    """

    after: int
    phase: str
    victims: tuple[str, ...]
    delay: float
    pause: float
    seen: bool = False


def plan(seed: int, kills: int, rounds: int, sites: tuple[str, ...]) -> list[Kill]:
    """Draw the kills: the first fifth before the first round, the others spread over the rounds."""
    rng = Random(seed)
    early = -(-kills // 5)
    found = []
    for number in range(kills):
        after = 0 if number < early else (number - early) * rounds // (kills - early)
        phase = rng.choice(EARLY if number < early else LATER)
        victims = rng.choice([(SERVER,), (rng.choice(sites),), (SERVER, rng.choice(sites))])
        found.append(Kill(after, phase, victims, rng.uniform(0, 0.3), rng.uniform(0, 0.3)))
    return found


def command(arguments: list[str], home: Path, log: Path) -> None:
    """Be a ``fednlp`` command: the work of a process."""
    from fednlp.cli import main
    from fednlp.deployment.outbox import RunOutbox

    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    put = RunOutbox.put

    def noted(self: RunOutbox, reply: Any, body: Path | None) -> None:
        put(self, reply, body)
        with (home / "worked.txt").open("a") as file:
            file.write(f"{reply.id}\n")

    RunOutbox.put = noted  # type: ignore[method-assign]
    os.environ |= {"FEDNLP_HOME": str(home), "OMP_NUM_THREADS": "1"}
    sys.argv = ["fednlp", *arguments]
    main()


@dataclass
class Trial:
    """A federation of processes that are killed.

    Args:
        folder: For everything that it writes.
        shards: Each site's files, from :func:`fednlp.deployment.shards.split_out`.
    """

    folder: Path
    shards: Any
    processes: dict[str, Any] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    retried: Counter[str] = field(default_factory=Counter)
    killed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.server = self.folder / SERVER
        self.context: Any = multiprocessing.get_context("forkserver")
        preload = [__name__, "fednlp.cli.console", "fednlp.deployment.serve", "fednlp.deployment.join"]
        self.context.set_forkserver_preload([name for name in preload if name != "__main__"])

    def done(self) -> int:
        """Return how many rounds are saved."""
        path = self.server / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def log_of(self, name: str) -> Path:
        """Return the file of what a process has printed."""
        return self.folder / f"{name}.log"

    def token(self, name: str) -> str | None:
        """Return a site's token: as the server has printed it, or a new one where it was killed before it could."""
        from fednlp.deployment.enrolment import invite
        from fednlp.deployment.sites import Register

        log = self.log_of(SERVER)
        printed = dict(_TOKEN.findall(log.read_text())) if log.is_file() else {}
        if name in printed or self.retried[SERVER] == 0:
            return printed.get(name)
        folder = self.server / "federation"
        known = {site.name for site in Register(folder).sites()} if (folder / "server.json").is_file() else ()
        return str(invite(folder, name)) if name in known else None

    def arguments(self, name: str) -> list[str] | None:
        """Return what a process is told; None where its token is not there yet."""
        if name == SERVER:
            experiment = str(self.shards.folder / "federation.toml")
            names = ",".join(self.shards.names)
            return [
                "serve",
                experiment,
                "--out",
                str(self.server),
                "--sites",
                names,
                "--listen",
                self.address,
            ]
        token = self.token(name)
        train, test = self.shards.files(name)
        tests = ["--test-data", str(test)] if test else ["--test-fraction", "0"]
        return None if token is None else ["join", token, "--data", str(train), *tests]

    def tend(self) -> bool:
        """Start what is due to be started, and return whether the server has ended.

        Raises:
            RuntimeError: A process failed by itself.
        """
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
        home = self.folder / f"{SERVER}-sites" / name / "state"
        home.mkdir(parents=True, exist_ok=True)
        self.processes[name] = self.context.Process(target=command, args=(arguments, home, self.log_of(name)))
        self.processes[name].start()

    def _ended(self, name: str, code: int) -> None:
        """Have a process started again: one that was killed, or a site whose server was."""
        del self.processes[name]
        self.retried[name] += 1
        if name in self.killed:
            self.killed.discard(name)
            return
        said = self.log_of(name).read_text()[-2000:]
        if name == SERVER or self.retried[name] > _MOST_RETRIES or "Traceback" in said or code < 0:
            raise RuntimeError(f"{name} ended with {code}:\n{said}")
        self.due[name] = time.monotonic() + 0.2

    def kill(self, kill: Kill) -> None:
        """Kill the victims that live."""
        for name in kill.victims:
            process = self.processes.get(name)
            if process is not None and process.exitcode is None:
                self.killed.add(name)
                self.due[name] = time.monotonic() + kill.pause
                process.kill()
                process.join()
                if process.exitcode == 0:  # it had ended before the signal came
                    self.killed.discard(name)

    def wait(self, condition: Callable[[], bool], until: float) -> bool:
        """Tend the processes until a condition holds; return False if the server ends or the time is over before."""
        while not condition():
            if self.tend() or time.monotonic() > until:
                return False
            time.sleep(_LOOK)
        return True

    def sign(self, kill: Kill) -> bool:
        """Return whether the phase of a kill is there, and its victims live."""
        living = all(name in self.processes for name in kill.victims)
        return living and next(self.folder.glob(SIGNS[kill.phase]), None) is not None

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

    def run(self, kills: list[Kill], patience: float, limit: float) -> None:
        """Run the federation to its end.

        Args:
            kills: In the order of the rounds.
            patience: Seconds that a kill waits for its phase.
            limit: Seconds that the whole may take.

        Raises:
            RuntimeError: A process failed by itself, or the federation hangs.
        """
        end = time.monotonic() + limit
        with self.running():
            for kill in kills:
                self.wait(lambda kill=kill: self.done() >= kill.after, end)
                kill.seen = self.wait(
                    lambda kill=kill: self.sign(kill), min(end, time.monotonic() + patience)
                )
                moment = time.monotonic() + kill.delay
                self.wait(lambda moment=moment: time.monotonic() > moment, end)
                self.kill(kill)
            while not self.tend():
                if time.monotonic() > end:
                    logs = [f"{path.name}: {path.read_text()[-800:]}" for path in self.folder.glob("*.log")]
                    raise RuntimeError("the federation does not end:\n" + "\n".join(logs))
                time.sleep(0.02)

    def worked(self) -> Counter[str]:
        """Return how often each call was answered."""
        paths = (self.folder / f"{SERVER}-sites").glob("*/state/worked.txt")
        return Counter(line for path in paths for line in path.read_text().split())


def timeless(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's rounds without the time that they took."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
        line.get("secure", {}).pop("seconds", None)
    return lines


def try_out(
    experiment: Any, folder: Path, kills: int, seed: int, patience: float = 20.0, limit: float = 3600.0
) -> dict[str, Any]:
    """Run an experiment as a simulation and as a federation that is killed, and compare the two.

    Args:
        experiment: Of a simulation; each client of its partition is a process.
        folder: New or empty.
        kills: How many.
        seed: Of the kills.
        patience: Seconds that a kill waits for its phase.
        limit: Seconds that the federation may take.
    """
    import fednlp
    from fednlp.deployment.shards import split_out

    quiet: Callable[[str], None] = lambda text: None  # noqa: E731
    simulated = fednlp.run(experiment, folder / "simulated").folder
    trial = Trial(folder, split_out(experiment.resolved(), folder / "shards", quiet))
    planned = plan(seed, kills, experiment.num_rounds, trial.shards.names)
    begun = time.monotonic()
    trial.run(planned, patience, limit)
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (simulated, trial.server)]
    twice = sorted(call for call, count in trial.worked().items() if count > 1)
    return {
        "same_weights": weights[0] == weights[1],
        "same_rounds": timeless(simulated) == timeless(trial.server),
        "worked_twice": twice,
        "kills": [asdict(kill) for kill in planned],
        "restarts": dict(trial.retried),
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    from fednlp import config

    parser = argparse.ArgumentParser(description="Kill the processes of a federation while it runs.")
    parser.add_argument("--experiment", default="small")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", help="change a setting: a.b=value"
    )
    arguments = parser.parse_args()
    changes = [
        f"num_rounds={arguments.rounds}",
        f"partition.clients={arguments.clients}",
        f"clients_per_round={arguments.clients}",
        "runtime.workers=1",
        *SHORT,
        *arguments.changes,
    ]
    experiment = config.load(arguments.experiment, changes)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        figures = try_out(experiment, Path(name), arguments.kills, arguments.seed)
    print(json.dumps(figures, indent=1))
    held = figures["same_weights"] and figures["same_rounds"] and not figures["worked_twice"]
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
