"""Parts ``slow``, ``clock`` and ``secure``: a site that is slow or stands still, whose clock is wrong, or that dies."""

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from survival.trial import SERVER, Trial, held, prepared

_CYCLE = 0.1
PHASES = {
    "secagg": ("keys", "shares", "deliver", "train", "reveal"),
    "secagg+": ("keys", "shares", "deliver", "train", "reveal"),
    "lightsecagg": ("keys", "shares", "deliver", "train", "answer"),
}
"""The calls of a round under each protocol, in their order."""
DAY = 24 * 3600
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long off(void) { const char *text = getenv("CLOCK_OFF"); return text ? atol(text) : 0; }

int clock_gettime(clockid_t which, struct timespec *found) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, found);
    if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) found->tv_sec += off();
    return code;
}
int gettimeofday(struct timeval *found, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(found, zone);
    found->tv_sec += off();
    return code;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""
"""What the C library is asked for the time, off by some seconds; loaded before it (LD_PRELOAD)."""


@contextmanager
def slowed(trial: Trial, name: str, times: int) -> Iterator[None]:
    """Let a site run for a part of the time alone, for the time of a block: all takes ``times`` as long."""
    over = threading.Event()

    def turn() -> None:
        while not over.wait(_CYCLE / times):
            trial.signal(name, signal.SIGSTOP)
            over.wait(_CYCLE - _CYCLE / times)
            trial.signal(name, signal.SIGCONT)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        trial.signal(name, signal.SIGCONT)


def slow(experiment: Any, folder: Path, stop: float, times: int = 10, limit: float = 900.0) -> dict[str, Any]:
    """Make one site slower than the others, and let another stand still for a while in the first round.

    Args:
        experiment: Of a simulation with two clients at least.
        folder: New or empty.
        stop: Seconds that a site stands still; beyond 90 the server takes it for lost.
        times: How many times slower the other one is.
        limit: Seconds that the federation may take.
    """
    simulated, trial = prepared(experiment, folder)
    slow_one, still_one = trial.shards.names[:2]
    begun, end = time.monotonic(), time.monotonic() + limit
    with trial.running():
        trial.wait(lambda: (trial.server / "rounds.jsonl").exists() or _called(trial, still_one), end)
        with slowed(trial, slow_one, times):
            trial.signal(still_one, signal.SIGSTOP)
            trial.lasting(stop, end)
            trial.signal(still_one, signal.SIGCONT)
            trial.finish(end)
    return {
        **trial.compared(simulated),
        "slower": times,
        "stood_still": stop,
        "waited_for": "waiting for" in trial.log_of(SERVER).read_text(),
        "seconds": round(time.monotonic() - begun, 1),
    }


def _called(trial: Trial, name: str) -> bool:
    """Return whether a site has heard of the experiment."""
    return next(trial.home_of(name).glob("*/setup.json"), None) is not None


def clock(experiment: Any, folder: Path, off: float = DAY, limit: float = 600.0) -> dict[str, Any]:
    """Let the clock of one site be slow, and that of another be fast.

    Args:
        experiment: Of a simulation with two clients at least.
        folder: New or empty.
        off: Seconds.
        limit: Seconds that the federation may take.

    Raises:
        RuntimeError: There is no C compiler to build the clock with.
    """
    simulated, trial = prepared(experiment, folder)
    library = wrong_clock(folder)
    names = trial.shards.names
    trial.environment = {
        name: {"LD_PRELOAD": str(library), "CLOCK_OFF": str(round(seconds))}
        for name, seconds in zip(names, (-off, off), strict=False)
    }
    with trial.running():
        trial.finish(time.monotonic() + limit)
    shown = [int((trial.home_of(name) / "clock.txt").read_text()) for name in names]
    return {**trial.compared(simulated), "off": [-off, off], "clocks_off": shown}


def wrong_clock(folder: Path) -> Path:
    """Build the library that gives a process another time.

    Raises:
        RuntimeError: There is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the part clock needs a C compiler: install cc")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def secure(
    experiment: Any,
    folder: Path,
    protocol: str,
    phases: tuple[str, ...],
    limit: float = 600.0,
    broker: Any = None,
) -> dict[str, Any]:
    """Kill a client in each phase of a secure sum, once before and once after its answer is on its disk.

    Args:
        experiment: Of a simulation with ``secure`` of the protocol.
        folder: New or empty.
        protocol: For the report.
        phases: Names of the calls of a round, in their order.
        limit: Seconds that the federation may take.
        broker: By which the sites reach the server, if they do.
    """
    simulated, trial = prepared(experiment, folder, broker=broker)
    names, deaths = trial.shards.names, dict[str, list[tuple[str, bool]]]()
    for number, phase in enumerate(phases):
        for stored in (False, True):
            client = (2 * number + stored) % len(names)
            deaths.setdefault(names[client], []).append((f"1.{client}.{phase}", stored))
    trial.fatal = deaths
    with trial.running():
        trial.finish(time.monotonic() + limit)
    died = len([*(folder / f"{SERVER}-sites").glob("*/state/killed.*")])
    # A site that dies before its answer is on the disk does that work again, and has answered it once.
    return {**trial.compared(simulated), "protocol": protocol, "killed": died, "planned": 2 * len(phases)}


def all_secure(make: Any, folder: Path, broker: Any = None) -> dict[str, Any]:
    """Return what came of :func:`secure` for each protocol, and of all together.

    Args:
        make: Returns the experiment of a protocol, given a folder and its name.
        folder: New or empty.
        broker: By which the sites reach the server, if they do.
    """
    found = {}
    for protocol, phases in PHASES.items():
        own = folder / protocol.replace("+", "-plus")
        own.mkdir()
        found[protocol] = secure(make(own, protocol), own, protocol, phases, broker=broker)
        found[protocol]["held"] = held(found[protocol]) and found[protocol]["killed"] == 2 * len(phases)
        shutil.rmtree(own)
    return found
