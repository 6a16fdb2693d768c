"""Part ``kills``: server and sites are killed while they run, and all ends as if nothing had been.

The kills (``kill -9``) are drawn from the seed: in which round, in which phase, and who. A phase is waited for by what
lies on the disk while it lasts; the moment within it is random. What was killed is started again by the command that
started it first. By way of a broker, that is killed as well.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from survival.trial import BROKER, SERVER, Trial, prepared

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


def plan(seed: int, kills: int, rounds: int, sites: tuple[str, ...], broker: bool = False) -> list[Kill]:
    """Draw the kills: the first fifth before the first round, the others spread over the rounds."""
    rng = Random(seed)
    more = [(BROKER,), (BROKER, SERVER)] if broker else []
    early = -(-kills // 5)
    found = []
    for number in range(kills):
        after = 0 if number < early else (number - early) * rounds // (kills - early)
        phase = rng.choice(EARLY if number < early else LATER)
        victims = rng.choice([(SERVER,), (rng.choice(sites),), (SERVER, rng.choice(sites)), *more])
        found.append(Kill(after, phase, victims, rng.uniform(0, 0.3), rng.uniform(0, 0.3)))
    return found


def _met(trial: Trial, kill: Kill) -> bool:
    """Return whether the phase of a kill is there, and its victims live."""
    living = {*trial.processes, BROKER} - trial.killed
    return living.issuperset(kill.victims) and next(trial.folder.glob(SIGNS[kill.phase]), None) is not None


def kills(
    experiment: Any,
    folder: Path,
    kills: int,
    seed: int,
    patience: float = 20.0,
    limit: float = 3600.0,
    broker: Any = None,
) -> dict[str, Any]:
    """Run an experiment as a simulation and as a federation that is killed, and compare the two.

    Args:
        experiment: Of a simulation; each client of its partition is a process.
        folder: New or empty.
        kills: How many.
        seed: Of the kills.
        patience: Seconds that a kill waits for its phase.
        limit: Seconds that the federation may take.
        broker: By which the sites reach the server, if they do.
    """
    simulated, trial = prepared(experiment, folder, broker=broker)
    planned = plan(seed, kills, experiment.num_rounds, trial.shards.names, broker is not None)
    begun = time.monotonic()
    end = begun + limit
    with trial.running():
        for kill in planned:
            trial.wait(lambda kill=kill: trial.done() >= kill.after, end)
            met_until = min(end, time.monotonic() + patience)
            kill.seen = trial.wait(lambda kill=kill: _met(trial, kill), met_until)
            trial.lasting(kill.delay, end)
            trial.kill(kill.victims, kill.pause)
        trial.finish(end)
    return {
        **trial.compared(simulated),
        "kills": [asdict(kill) for kill in planned],
        "seconds": round(time.monotonic() - begun, 1),
    }
