"""What a federation survives: faults are done to it while it runs, and it ends as if nothing had been.

    python benchmarks/faults.py                                   # 20 kills, 5 clients, 10 rounds; prints JSON
    python benchmarks/faults.py --seed 7 --set algorithm.name=ditto
    python benchmarks/faults.py cuts network slow disk clock secure planted hostile mutated crowd
    python benchmarks/faults.py hostile --frames 1000000
    python benchmarks/faults.py kills secure broker stranger --broker

The processes are those of ``fednlp serve`` and ``fednlp join``, over TLS on this machine, and each site has its own
examples alone. At the end weights and rounds have to be those of the simulation, bit for bit. Each site's process keeps
a log of its trainings and answers beside fednlp's own files: by these logs each update of the simulation was trained,
and no site trained again for a call that it had answered. The exit status is 0 if all of it held.

``kills``    server and sites are killed (kill -9) at moments that are drawn from the seed
``cuts``     a site's connection is cut at every chunk boundary of its update
``network``  100 ms each way, 1 Mbit/s, and 1 % of the packets lost, between the server and each site
``slow``     a site is ten times slower, and another one stands still (SIGSTOP) for ``--stop`` seconds
``disk``     the server's disk is full for a while, several times (needs the right to mount a disk in memory)
``clock``    a site's clock is a day slow, and another one's a day fast (needs a C compiler)
``secure``   under each protocol of secure aggregation, a site is killed in each phase, before and after its answer
``hostile``  mutated frames and messages against the sessions of both sides (``--frames``)
``mutated``  mutated tokens, renewals, invitations, certificates and sites' files (``--mutations``)
``planted``  the server's memory, disk and traffic are searched for planted updates, under each protocol and without one
``broker``   the broker is ended in the middle of each round, by kill -9 in every other one
``stranger`` somebody else on the broker repeats, alters and invents messages (``--messages``)
``crowd``    1,000 connections that say nothing, or speak slowly, beside a client that uploads

With ``--broker`` the sites reach the server by way of a mosquitto, in the parts ``kills`` and ``secure`` too; then the
kills hit the broker as well.

What was killed is started again by the command that started it first. All processes are forks of one that has imported
the library, so that more faults hit the work itself; one that is killed has no way to clean up.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from survival.trial import held

SHORT = ("partition.alpha=5", "client.max_steps=4", "model.max_length=16", "evaluation.every=5")
"""Settings by which a round of the experiment "small" takes about a second."""


@contextmanager
def by_way_of(folder: Path, given: argparse.Namespace) -> Iterator[Any]:
    """Run the broker that is asked for, for the time of a block; None where none is."""
    from survival.broker_faults import mosquitto

    if not given.broker:
        yield None
        return
    (own := folder / "broker").mkdir()
    with mosquitto(own) as broker:
        yield broker


def kills(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``kills``."""
    from survival.kills import kills

    from fednlp import config

    changes = [
        f"num_rounds={given.rounds}",
        f"partition.clients={given.clients}",
        f"clients_per_round={given.clients}",
        "runtime.workers=1",
        *SHORT,
        *given.changes,
    ]
    with by_way_of(folder, given) as broker:
        return kills(config.load(given.experiment, changes), folder, given.kills, given.seed, broker=broker)


def cuts(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``cuts``."""
    from made_up import experiment
    from survival.network import cuts

    found = cuts(experiment(folder / "made", hidden=256, clients=2, rounds=1), folder)
    return found | {"held": held(found) and found["cut_at_every_boundary"]}


def network(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``network``."""
    from made_up import experiment
    from survival.network import network

    found = network(experiment(folder / "made", hidden=64, clients=3, rounds=2), folder, given.seed)
    return found | {"held": held(found) and found["packets_lost"] > 0}


def slow(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``slow``."""
    from made_up import experiment
    from survival.site_faults import slow

    return slow(experiment(folder / "made", clients=3), folder, given.stop)


def disk(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``disk``."""
    from made_up import experiment
    from survival.server_faults import disk

    found = disk(experiment(folder / "made", hidden=256, clients=3, rounds=5), folder, given.seed, times=5)
    return found | {"held": held(found) and found["said"] > 0}


def clock(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``clock``."""
    from made_up import experiment
    from survival.site_faults import clock

    found = clock(experiment(folder / "made", clients=3), folder)
    return found | {"held": held(found) and found["clocks_off"][:2] == found["off"]}


def secure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``secure``."""
    from made_up import experiment
    from survival.site_faults import all_secure

    def make(own: Path, protocol: str) -> Any:
        return experiment(own / "made", clients=4, secure={"protocol": protocol})

    with by_way_of(folder, given) as broker:
        found = all_secure(make, folder, broker)
    return found | {"held": all(one["held"] for one in found.values())}


def planted(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``planted``."""
    from made_up import experiment
    from survival.planted import kept_to_themselves, planted
    from survival.site_faults import PHASES

    found = {}
    for number, protocol in enumerate((None, *PHASES)):
        if given.protocol not in (None, protocol or "none"):
            continue
        (own := folder / str(number)).mkdir()
        changes = {"secure": {"protocol": protocol}} if protocol else {}
        made = experiment(
            own / "made",
            clients=4,  # as few as SecAgg+ takes
            rounds=3,
            algorithm={"name": "fedavg", "weighting": "uniform"},
            **changes,
        )
        found[protocol or "none"] = one = planted(made, own, limit=900)
        one["held"] = kept_to_themselves(one, protocol)
    return found | {"held": all(one["held"] for one in found.values())}


def broker(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``broker``."""
    from made_up import experiment
    from survival.broker_faults import restarts

    rounds = 6
    with by_way_of(folder, given) as running:
        found = restarts(experiment(folder / "made", hidden=256, rounds=rounds), folder, running)
    return found | {"held": held(found) and found["restarted"] == rounds}


def stranger(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``stranger``."""
    from made_up import experiment
    from survival.broker_faults import stranger

    made = experiment(folder / "made", rounds=10)
    with by_way_of(folder, given) as running:
        found = stranger(made, folder, running, given.messages, given.seed)
    bounded = found["memory_grew_by"] < 128 << 20 and not found["tracebacks"]
    return found | {"held": held(found) and bounded and found["messages"] == given.messages}


def hostile(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``hostile``."""
    from survival.hostile import hostile

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else folder) as name:
        found = hostile(Path(name), given.frames, given.seed)
    return found | {"held": found["memory_grew_by"] < 64 << 20}


def mutated(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``mutated``."""
    from survival.hostile import mutated

    found = mutated(folder, given.mutations, given.seed)
    return found | {"held": found["memory_grew_by"] < 64 << 20}


def crowd(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the part ``crowd``."""
    from survival.hostile import crowd

    found = crowd(folder, given.connections)
    bounded = found["memory_grew_by"] < given.connections << 18
    return found | {"held": bounded and found["all_closed_after"]}


PARTS: Mapping[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    part.__name__: part
    for part in (
        kills,
        cuts,
        network,
        slow,
        disk,
        clock,
        secure,
        planted,
        broker,
        stranger,
        hostile,
        mutated,
        crowd,
    )
}
BY_BROKER = {"kills", "secure", "broker", "stranger"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Do faults to a federation while it runs.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--experiment", default="small", help="of the part kills")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=5, help="of the part kills")
    parser.add_argument("--rounds", type=int, default=10, help="of the part kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", help="change a setting of kills: a.b=value"
    )
    parser.add_argument("--stop", type=float, default=100.0, help="seconds that a site stands still")
    parser.add_argument("--protocol", help="of the part planted: none, secagg, secagg+ or lightsecagg alone")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--mutations", type=int, default=200_000, help="of the part mutated")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument(
        "--broker", action="store_true", help=f"by way of mosquitto: {', '.join(sorted(BY_BROKER))}"
    )
    parser.add_argument("--messages", type=int, default=20_000, help="of the part stranger")
    given = parser.parse_args()
    given.parts = given.parts or ["kills"]
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: choose among {', '.join(PARTS)}")
    if given.broker and not BY_BROKER.issuperset(given.parts):
        parser.error(f"--broker goes with {', '.join(sorted(BY_BROKER))}")
    if not given.broker and {"broker", "stranger"}.intersection(given.parts):
        parser.error("the parts broker and stranger need --broker")
    figures = {}
    for part in given.parts:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
            found = PARTS[part](Path(name), given)
        figures[part] = {"held": held(found)} | found if "same_weights" in found else found
        print(json.dumps({part: figures[part]}, indent=1), flush=True)
    sys.exit(0 if all(one["held"] for one in figures.values()) else 1)


if __name__ == "__main__":
    main()
