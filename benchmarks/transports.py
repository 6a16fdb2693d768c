"""What engines and transports cost on this machine, in one run: rounds beside the pool, copies beside plain TCP.

    python benchmarks/transports.py         # prints JSON

The federation is that of ``benchmarks/engine.py``: BERT-tiny, 10 clients a round, 4 steps each. Rounds of the pool
and of the other engine alternate within one process, so that both meet the same machine; the figure is the median
of their ratios. MPI is left out where there is no ``mpirun`` beside this Python, and Ray where it is not installed.
``transports`` sends 90 MB by gRPC, by gRPC with TLS on both sides, by way of a broker, and by MPI, each in turns with a
copy over TCP (``benchmarks/speed/transfer.py`` and ``benchmarks/speed/broadcast.py``).
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine import Federation
from speed.broadcast import broadcast
from speed.transfer import transfer

from fednlp.runtime.launch import rank_of

BOUND = 1.25
MEGABYTES = 90.0


def compared(engine: str, rounds: int) -> dict[str, Any]:
    """Alternate rounds of the pool and of another engine, two workers each; return the ratio and both medians."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"pool": [], engine: []}
    with tempfile.TemporaryDirectory() as name:
        federations = {}
        for one in found:
            (folder := Path(name) / one).mkdir()
            federations[one] = Federation(folder, 10, 4, 2, one)
        for number in range(rounds + 2):
            for one, federation in federations.items():
                seconds, _ = federation.round()
                if number >= 2:
                    found[one].append(seconds)
        for federation in federations.values():
            federation.pool.close()
    ratios = [there / here for here, there in zip(*found.values(), strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "pool_s": round(statistics.median(found["pool"]), 4),
        f"{engine}_s": round(statistics.median(found[engine]), 4),
        "bound": BOUND,
    }


def measured(what: str, rounds: int) -> dict[str, Any]:
    """Measure an engine, or ``broadcast``, in processes of its own."""
    ranks = what in ("mpi", "broadcast")
    launcher = [str(Path(sys.executable).with_name("mpirun")), "-n", "2"] if ranks else []
    command = [*launcher, sys.executable, __file__, "--rounds", str(rounds), "--measure", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def main() -> None:
    """Measure the engines that are here and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="warm rounds a figure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "broadcast":
        print(json.dumps(broadcast(MEGABYTES, options.rounds)))
    elif options.measure == "mpi":
        from fednlp.runtime.mpi import leading

        with leading():
            print(json.dumps(compared("mpi", options.rounds)))
    elif options.measure:
        print(json.dumps(compared(options.measure, options.rounds)))
    else:
        result: dict[str, Any] = {"cores": os.cpu_count()}
        if Path(sys.executable).with_name("mpirun").exists():
            result["mpi"] = measured("mpi", options.rounds)
            result["broadcast"] = measured("broadcast", 9)
        if importlib.util.find_spec("ray"):
            result["ray"] = measured("ray", options.rounds)
        result["transports"] = transfer(MEGABYTES, 7)
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    if rank_of()[0] and "broadcast" in sys.argv:
        broadcast(MEGABYTES, int(sys.argv[sys.argv.index("--rounds") + 1]))
    elif rank_of()[0]:
        from fednlp.runtime.mpi import follow

        follow()
    else:
        main()
