"""What a deployment costs: a section for each part.

    python benchmarks/deployment.py                          # all sections; prints JSON
    python benchmarks/deployment.py transfer --megabytes 90 --repeats 7
    python benchmarks/deployment.py memory                   # not a timing: the machine need not be idle

``transfer``  an upload of 90 MB over loopback, against a plain TCP copy: gRPC at least 70 %, with mTLS at least
              45 %, and by way of an MQTT broker at least 35 %
``codec``     making and reading the bytes of the wire, against a memory copy: at most 1.5
``round``     two clients as processes over mTLS, 10 x 4 steps of BERT-tiny, against the pool with two workers: at most
              1.15
``many``      1,000 connected light clients, 25, 50 and 100 of them a round with an update of 1 MB: the server's time
              for a round grows linearly, and its memory does not grow with the clients
``memory``    six clients with a model of 400 MB: at most 3 models resident at the server
``join``      a site with BERT-tiny: at most 450 MB, and 6 s from its start until it is ready

Each section's module says how it is measured (``benchmarks/speed/``).
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def transfer(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the section ``transfer``."""
    from speed.transfer import transfer

    return transfer(given.megabytes, given.repeats)


def codec(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the section ``codec``."""
    from speed.codec import codec

    return codec(given.megabytes, given.repeats)


def round_(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the section ``round``."""
    from speed.rounds import rounds

    return rounds(given.rounds, given.steps, given.pairs)


def many(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the section ``many``."""
    from speed.light import many

    return many(given.connected, given.cohorts, 3)


def memory(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the section ``memory``."""
    from speed.light import memory

    return memory(given.hidden, given.layers, given.uploads, 2)


def join(given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the section ``join``."""
    from speed.joining import join

    return join(given.joins)


SECTIONS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "transfer": transfer,
    "codec": codec,
    "round": round_,
    "many": many,
    "memory": memory,
    "join": join,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a deployment.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--megabytes", type=float, default=90.0, help="of transfer and codec")
    parser.add_argument("--repeats", type=int, default=7, help="of transfer and codec")
    parser.add_argument("--rounds", type=int, default=12, help="of a run of the section round")
    parser.add_argument("--steps", type=int, default=40, help="local steps of the section round")
    parser.add_argument("--pairs", type=int, default=3, help="of runs of the section round")
    parser.add_argument("--connected", type=int, default=1000, help="clients of the section many")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[25, 50, 100], help="of the section many")
    parser.add_argument("--hidden", type=int, default=1024, help="size of the model of the section memory")
    parser.add_argument("--layers", type=int, default=8, help="of the model of the section memory")
    parser.add_argument("--uploads", type=int, default=6, help="clients of the section memory")
    parser.add_argument("--joins", type=int, default=5, help="sites of the section join, one after the other")
    given = parser.parse_args()
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]}: choose among {', '.join(SECTIONS)}")
    figures = {name: SECTIONS[name](given) for name in given.sections or SECTIONS}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
