"""The status and the rounds of a run, federation or simulation, read from its directory: once, or as it grows."""

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fednlp.checked_json import parse_json
from fednlp.checked_json.shapes import Round
from fednlp.config.tables import lookup
from fednlp.deployment.server.status import Status, read_status, status_folder
from fednlp.errors import FednlpError
from fednlp.formatting.units import plural
from fednlp.reports.read import Run, read_file, read_run

_MOST_AT_ONCE = 16 << 20
"""Bytes of new lines that one look reads."""


class Feed:
    """The status and the rounds of a run.

    Attributes:
        status: The present status; None as long as there is none.
        problem: Why it could not be read; None if it could.
        points: One for each round, see :func:`point`.
        begun: How many times the rounds were read from the first one on.

    Args:
        every: Seconds for which what was read is good.
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, run: Path, every: float = 0.5, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._every, self._now = run, every, now
        self._read_at, self._file, self._place = -math.inf, (0, 0), 0
        self._metric: str | None = None
        self.status: Status | None = None
        self.problem: str | None = None
        self.points: list[dict[str, Any]] = []
        self.begun = 0

    @property
    def metric(self) -> str:
        """The metric that stands for the run's task."""
        return self._metric or "accuracy"

    def look(self, anew: bool = False) -> None:
        """Read what is new.

        Args:
            anew: Also if the last look was just now.
        """
        if not anew and self._now() - self._read_at < self._every:
            return
        self._read_at = self._now()
        try:
            folder = status_folder(self._run)
            self.status = None if folder is None else read_status(folder)
            if self._metric is None:
                self._metric = lookup(read_file(self._run / "environment.json") or {}, "data.metric")
            self._read_rounds()
            self.problem = None
        except FednlpError as error:
            self.problem = str(error)

    def _read_rounds(self) -> None:
        """Read the lines that were added; all of them if the file is another one than before, or shorter."""
        try:
            file = (self._run / "rounds.jsonl").open("rb")
        except OSError:  # before the first round
            return
        with file:
            known = os.fstat(file.fileno())
            if (known.st_dev, known.st_ino) != self._file or known.st_size < self._place:
                self._file, self._place = (known.st_dev, known.st_ino), 0
                self.points, self.begun = [], self.begun + 1
            self._read_lines(file)

    def _read_lines(self, file: BinaryIO) -> None:
        file.seek(self._place)
        new = file.read(_MOST_AT_ONCE)
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                self.points.append(point(parse_json(line, Round)))
            except ValueError:  # a damaged line; the command line tells of it
                continue
        self._place += len(whole)


def point(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a round.

    >>> point({"round": 3, "train_loss": 0.5, "bytes_up": 8, "cohort": [1, 2], "seconds": 2.0})["clients"]
    2
    """
    evaluation = line.get("evaluation") or {}
    return {
        "round": line["round"],
        "loss": _finite(line.get("train_loss")),
        "scores": {
            part: {name: _finite(value) for name, value in evaluation[part].items()}
            for part in ("global", "federated", "personal", "finetuned")
            if part in evaluation
        },
        "bytes_up": line.get("bytes_up", 0),
        "bytes_down": line.get("bytes_down", 0),
        "seconds": _finite(line.get("seconds")),
        "clients": len(line.get("cohort", ())),
        "dropped": len(line.get("dropped", ())),
        "aborted": "aborted" in line,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class Overview:
    """A run as it is now.

    Attributes:
        run: What the run directory says.
        points: What is shown of each round, see :func:`point`.
        federation: Whether it is a federation.
        status: What its server says; None for a simulation, and before a server has started.
        alive: Whether a server is at work.

    Args:
        now: Seconds since 1970.

    Raises:
        RunError: It is no run directory, or is damaged.
    """

    def __init__(self, folder: Path, now: float | None = None) -> None:
        self.now = time.time() if now is None else now
        self.run: Run = read_run(folder)
        self.points = [point(line) for line in self.run.rounds]
        inner = status_folder(folder)
        self.federation = inner is not None
        self.status: Status | None = None if inner is None else read_status(inner)
        self.alive = self.status is not None and self.status.alive(self.now)
        if self.status is not None and self.run.finished and not self.alive:
            self.status = _at_rest(self.status)

    @property
    def rounds(self) -> int:
        """Rounds of the whole run."""
        return int(self.run.setting("num_rounds", len(self.points)))

    @property
    def ended(self) -> bool:
        """Whether nothing changes any more until somebody starts it again."""
        return self.run.finished or (self.federation and not self.alive)

    @property
    def phase(self) -> str:
        """What the run does, in words."""
        if self.run.finished:
            return "finished"
        if self.status is not None:
            return self.status.phase if self.alive else "stopped"
        return f"{len(self.points)} of {plural(self.rounds, 'round')} done"

    @property
    def server(self) -> str:
        """Whether the server's process is at work, and what to do if it is not."""
        if not self.federation:
            return "this run is a simulation: it has no server and no sites"
        if self.run.finished:
            return "the federation has ended"
        if self.status is None:
            return "no server has started yet"
        where = f"process {self.status.pid} on {self.status.host}"
        if self.alive:
            return f"the server is at work ({where})"
        return f"the server is not at work ({where} has ended): go on with the same fednlp serve command"

    def as_json(self) -> dict[str, Any]:
        """Return all of it for a program."""
        return {
            "run": str(self.run.folder),
            "experiment": self.run.name,
            "federation": self.federation,
            "phase": self.phase,
            "server_alive": self.alive,
            "metric": self.run.metric,
            "rounds": self.rounds,
            "rounds_done": self.points,
            "status": None if self.status is None else self.status.model_dump(),
        }


def _at_rest(status: Status) -> Status:
    """Return what a server said before it ended, without what its sites did then: nobody works any more."""
    at_rest = {"state": "enrolled", "doing": ""}
    sites = [one.model_copy(update=at_rest if one.doing else {}) for one in status.sites]
    return status.model_copy(update={"sites": sites, "awaited": []})
