"""Part ``disk``: the server's disk is full for a while."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from survival.trial import SERVER, prepared

_PIECE = 1 << 16
_PATIENCE = 20.0
"""Seconds that a server has to notice a full disk: it may write nothing while it waits for sites."""


class Disk:
    """A disk in memory that can be filled.

    Args:
        folder: Where it is mounted.
        size: Its bytes.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self._ballast = folder / "ballast"

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Mount it for the time of a block.

        Raises:
            PermissionError: This process may not mount.
        """
        self.folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self.size}", "fednlp-faults", str(self.folder)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise PermissionError(
                f"the part disk has to mount a disk ({done.stderr.strip()}): run it as root, or under unshare -Urm"
            )
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def fill(self) -> None:
        """Take all that is left."""
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(_PIECE))

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)


def disk(
    experiment: Any, folder: Path, seed: int, times: int, full: float = 2.0, limit: float = 600.0
) -> dict[str, Any]:
    """Fill the server's disk while updates arrive, and at drawn moments of later rounds; free it some seconds later.

    A server that ends is started again by its command, as whoever runs it would.

    Args:
        experiment: Of a simulation.
        folder: New or empty.
        seed: Of the moments.
        times: How often.
        full: Seconds that the disk is full after the server has said so.
        limit: Seconds that the federation may take.
    """
    rng, begun = Random(seed), time.monotonic()
    end = begun + limit
    place = Disk(folder / "disk", 512 << 20)
    with place.mounted():
        simulated, trial = prepared(experiment, folder, place=place.folder / SERVER, may_stop=True)
        inbox, log = trial.server / "federation" / "inbox", trial.log_of(SERVER)

        def said() -> int:
            return log.read_text().count("no space left")

        with trial.running():
            for number in range(times):
                after = number * experiment.num_rounds // times
                trial.wait(
                    lambda after=after: trial.done() >= after and any(inbox.glob(f"{after + 1}.*")), end
                )
                trial.lasting(rng.uniform(0, 0.3) if number else 0.0, end)
                before = said()
                trial.signal(SERVER, signal.SIGSTOP)  # no round ends while the disk fills up
                place.fill()
                trial.signal(SERVER, signal.SIGCONT)
                trial.wait(lambda before=before: said() > before, min(end, time.monotonic() + _PATIENCE))
                trial.lasting(full, end)
                place.free()
            trial.finish(end)
        compared = trial.compared(simulated)
    lines = trial.log_of(SERVER).read_text().splitlines()
    said = [line.replace(str(folder), "") for line in lines if "no space left" in line]
    return {
        **compared,
        "filled": times,
        "said": len(said),
        "for_example": sorted({line[line.find("no space left") :] for line in said})[:3],
        "seconds": round(time.monotonic() - begun, 1),
    }


def resident(process: int) -> int:
    """Return the bytes of a process that are in memory."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
