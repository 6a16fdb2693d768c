"""The status and the rounds of a run, read from its directory as it grows."""

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
from fednlp.reports.read import read_file

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
