"""How a run stands, whether it is a federation or a simulation: what ``fednlp status`` shows."""

import time
from pathlib import Path
from typing import Any

from fednlp.deployment.operate.feed import point
from fednlp.deployment.server.status import Status, read_status, status_folder
from fednlp.formatting.units import plural
from fednlp.reports.read import Run, read_run


class Overview:
    """A run as it is now.

    Attributes:
        run: What the run directory says.
        points: What is shown of each round, see :func:`fednlp.deployment.operate.feed.point`.
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
