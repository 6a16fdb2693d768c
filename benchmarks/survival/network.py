"""Parts ``cuts`` and ``network``: connections that are cut, and a line that is slow, far and loses packets."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from survival.proxy import Line, Proxy
from survival.trial import SERVER, prepared

CHUNK = 1 << 20
BAD = Line(delay=0.1, rate=125_000, loss=0.01)
"""100 ms each way, 1 Mbit/s, and 1 % of the packets lost."""


class Boundaries:
    """Has a connection cut once the server has stored a further chunk of an upload, up to its last one.

    Args:
        inbox: Of the server.
        call: Whose upload it is.
        size: Its bytes.

    Attributes:
        stored: Bytes that the server had when the connection was cut.
    """

    def __init__(self, inbox: Path, call: str, size: int) -> None:
        self.inbox, self.call, self.size = inbox, call, size
        self.stored: list[int] = []

    def __call__(self) -> bool:
        before = self.stored[-1] if self.stored else 0
        length = max((path.stat().st_size for path in self._parts()), default=0)
        if length < min(before + CHUNK, self.size) or length == before:
            return False
        self.stored.append(length)
        return True

    def _parts(self) -> list[Path]:
        return [path for path in self.inbox.glob(f"{self.call}.*") if path.suffix != ".json"]


def cuts(experiment: Any, folder: Path, limit: float = 600.0) -> dict[str, Any]:
    """Cut the connection at every chunk boundary of the first client's update in the first round.

    Args:
        experiment: Of a simulation, with a model of several MiB.
        folder: New or empty.
        limit: Seconds that the federation may take.
    """
    simulated, trial = prepared(experiment, folder)
    size = update_bytes(experiment, simulated)
    name = trial.shards.names[0]
    boundaries = Boundaries(trial.server / "federation" / "inbox", "1.0.train", size)
    with Proxy(trial.address, cut=boundaries) as proxy:
        trial.through = {name: proxy.address}
        with trial.running():
            trial.finish(time.monotonic() + limit)
    beyond = proxy.up - size * experiment.num_rounds
    expected = [min(one * CHUNK, size) for one in range(1, -(-size // CHUNK) + 1)]
    return {
        **trial.compared(simulated),
        "update_bytes": size,
        "cuts": proxy.cuts,
        "cut_at_every_boundary": boundaries.stored == expected,
        "stored_when_cut": boundaries.stored,
        "bytes_beyond_the_updates": beyond,
        "of_the_updates": round(beyond / size, 4),
    }


def update_bytes(experiment: Any, simulated: Path) -> int:
    """Return the bytes of a client's update, as a simulation has counted them."""
    from fednlp.simulation.run_dir import RunDir

    line = RunDir(simulated).round_lines()[0]
    return int(line["bytes_up"]) // len(line["cohort"])


def network(
    experiment: Any, folder: Path, seed: int, line: Line = BAD, limit: float = 900.0
) -> dict[str, Any]:
    """Put a bad network between the server and each of the sites.

    Args:
        experiment: Of a simulation, with a small model.
        folder: New or empty.
        seed: Of the packets that are lost.
        line: What the network is like.
        limit: Seconds that the federation may take.
    """
    simulated, trial = prepared(experiment, folder)
    names = trial.shards.names
    begun = time.monotonic()
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(trial.address, line, seed=seed + number))
            for number in range(len(names))
        ]
        trial.through = {name: proxy.address for name, proxy in zip(names, proxies, strict=True)}
        stack.enter_context(trial.running())
        trial.finish(begun + limit)
    told = trial.log_of(SERVER).read_text()
    return {
        **trial.compared(simulated),
        "update_bytes": update_bytes(experiment, simulated),
        "packets_lost": sum(proxy.lost for proxy in proxies),
        "connections_lost": told.count("the connection was lost"),
        "seconds": round(time.monotonic() - begun, 1),
    }
