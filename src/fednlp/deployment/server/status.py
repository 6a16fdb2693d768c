"""The status of a federation: one small file that its server keeps up to date, for who watches.

``fednlp status``, the page and the metrics read this file and ``rounds.jsonl``, and nothing of the server's process.
"""

import json
import os
import socket
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fednlp.checked_json import damaged
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.disk import atomic, regular
from fednlp.errors import RunError

FILE = "status.json"
"""In the federation's folder."""
STALE = 15.0
"""Seconds without a new status after which a server counts as gone; it writes one a second."""
_MOST_BYTES = 16 << 20
_REMEDY = "delete it; the server writes it again"

State = Literal["invited", "enrolled", "connected", "working", "awaited", "removed"]
_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SiteStatus(_Strict):
    """What is known of a site.

    Attributes:
        client: Its number.
        state: "working" and "connected" sites have a connection, "awaited" ones have none and something to do.
        since: When it came into this state, seconds since 1970.
        heard: When something arrived from it last; None if nothing has since the server started.
        bytes_in: Bytes that arrived from it, over all connections.
        bytes_out: Bytes that were sent to it.
        doing: What it does, in words; empty if it does nothing.
        certificate: Until when its certificate is good, seconds since 1970; None where it has none of this federation.
    """

    client: _Count
    name: str
    state: State
    since: _Seconds
    heard: _Seconds | None
    bytes_in: _Count
    bytes_out: _Count
    doing: str
    certificate: float | None = None


class Awaited(_Strict):
    """A site whose answer the round needs before it can go on.

    Attributes:
        client: Its number.
        seconds: For how long it has been awaited.
        release: What would let the round go on, in words.
    """

    client: _Count
    name: str
    seconds: _Seconds
    release: str


class Spent(_Strict):
    """What a run has spent of privacy so far.

    Attributes:
        epsilon: Of the site that took part most often, nothing counted for sampling; None for infinity.
        delta: In (0, 1).
        rounds: Rounds that this site took part in.
        where: Who adds the noise: with "clients" it holds against the server, else against whoever sees the models.
    """

    epsilon: _Seconds | None
    delta: _Seconds
    rounds: _Count
    where: Literal["server", "clients"]


class Status(_Strict):
    """How a federation stands.

    Attributes:
        version: Of this file.
        run: Name of the run directory.
        phase: In words: "waiting for sites", "round 7 of 30", "evaluating", "finished", "stopped".
        round: The round under way; 0 before the first.
        rounds: Rounds of the whole run.
        sites: All that were ever invited, by number.
        awaited: Those that the run waits for.
        started: When this server started, seconds since 1970.
        round_ended: When the last round was saved; None before the first.
        privacy: What was spent; None without ``[privacy]``.
        host: The machine that it runs on.
    """

    version: Literal[1] = 1
    run: str
    experiment: str
    phase: str
    round: _Count
    rounds: _Count
    sites: list[SiteStatus]
    awaited: list[Awaited]
    started: _Seconds
    updated: _Seconds
    round_ended: _Seconds | None
    privacy: Spent | None
    pid: Annotated[int, Field(gt=0)]
    host: str

    def alive(self, now: float | None = None) -> bool:
        """Return whether the server's process still runs.

        Args:
            now: Seconds since 1970; the present if left out.
        """
        if self.phase in ENDED or (time.time() if now is None else now) - self.updated > STALE:
            return False
        return self.host != socket.gethostname() or _runs(self.pid)


ENDED = ("finished", "stopped")
"""Phases after which the server's process ends."""


def write_status(folder: Path, status: Status) -> None:
    """Replace the status of a federation.

    Args:
        folder: The federation's folder in the run directory.

    Raises:
        RunError: The folder cannot be written.
    """
    with atomic(folder / FILE, "then it is written again") as file:
        file.write(json.dumps(status.model_dump(), ensure_ascii=False, allow_nan=False).encode())


def read_status(folder: Path) -> Status | None:
    """Return the status of a federation; None if none was written yet.

    Args:
        folder: The federation's folder in the run directory.

    Raises:
        RunError: The file is damaged, or cannot be read.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise damaged(path, ValueError(f"it is longer than {_MOST_BYTES} bytes"), _REMEDY)
        return Status.model_validate_json(regular(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        what = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in what["loc"]) or "it"
        raise damaged(path, ValueError(f"{place}: {what['msg']}"), _REMEDY) from None
    except OSError as error:
        raise RunError(
            f"cannot read {path} ({error.strerror}): read it as the user who runs the server"
        ) from None


def status_folder(run: Path) -> Path | None:
    """Return the federation's folder of a run directory; None if the run is a simulation."""
    folder = run / FOLDER
    return folder if folder.is_dir() else None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True
