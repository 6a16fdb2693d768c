"""Other frameworks on one workload: the time of a warm round, the time to the first round, and memory.

    python -m venv PEERS
    PEERS/bin/pip install torch==2.13.0 transformers==5.23.0 "flwr[simulation]==1.41.0" "pfl[pytorch]==0.6.0"
    python benchmarks/peers.py --python PEERS/bin/python            # a line of JSON for each row of the table
    python benchmarks/peers.py --python PEERS/bin/python --only pfl --processes 2

BERT-tiny with random weights and without dropout, 50 clients, sequence 64, batch 8, plain SGD, no evaluation, one torch
thread a process, and two workloads: 10 clients a round with 4 local steps each, and 30 clients with one step each.
Every framework is set up to its advantage: texts are tensors in memory, a process builds its model once, and nothing is
written or logged in a round (``peer_rounds.py``).

A framework and the bare PyTorch loop of the same steps do rounds in turns, each in processes of its own. ``ratio`` is
the median of the framework's time times its processes over the bare time in the same turn. ``first_round_s`` is the
time from the start of the framework's command to the end of its first round, while the machine does nothing else.
``memory_mb`` is the largest sum of the proportional set sizes of all its processes, in a run of its own, since looking
takes time.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bare import let_round, ratios, start_side, watched_memory

WORKLOADS = {"10x4": (10, 4), "30x1": (30, 1)}
FRAMEWORKS = ("fednlp", "pfl", "flower")
WARM_UP, ROUNDS_WATCHED = 2, 3


def command(python: str, framework: str, processes: int, cohort: int, steps: int, rounds: int) -> list[str]:
    """Return the command of a side of ``peer_rounds.py``."""
    # torchrun is how pfl documents several processes
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    told = [framework, str(cohort), str(steps), str(processes), str(rounds)]
    script = str(Path(__file__).with_name("peer_rounds.py"))
    return [python, *(launcher if framework == "pfl" and processes > 1 else []), script, *told]


def measure(
    python: str, framework: str, processes: int, cohort: int, steps: int, rounds: int
) -> dict[str, Any]:
    """Let a framework and the bare loop do rounds in turns."""
    every = rounds + WARM_UP
    begun = time.perf_counter()
    with start_side(command(python, framework, processes, cohort, steps, every)) as side:
        let_round(side)
        first = time.perf_counter() - begun
        with start_side(command(sys.executable, "bare", 1, cohort, steps, every)) as bare:
            let_round(bare)
            turns = [(let_round(side), let_round(bare)) for _ in range(every - 1)][WARM_UP - 1 :]
    own, bound = zip(*turns, strict=True)
    return {
        "ratio": round(processes * ratios({"own": own, "bare": bound})["own"], 2),
        "round_s": round(statistics.median(own), 3),
        "bare_s": round(statistics.median(bound), 3),
        "first_round_s": round(first, 1),
    }


def memory(python: str, framework: str, processes: int, cohort: int, steps: int) -> int:
    """Return what all processes of a framework hold at most during its start and some rounds, in MB."""
    told = command(python, framework, processes, cohort, steps, ROUNDS_WATCHED)
    with start_side(told) as side, watched_memory(side.pid) as seen:
        for _ in range(ROUNDS_WATCHED):
            let_round(side)
    return round(max(seen))


def main() -> None:
    """Measure the frameworks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="of the environment of the other frameworks")
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--processes", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--rounds", type=int, default=10, help="warm rounds a figure")
    options = parser.parse_args()
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}
    for framework in options.only:
        python = sys.executable if framework == "fednlp" else options.python
        for processes in options.processes:
            row: dict[str, Any] = {"framework": framework, "processes": processes}
            for name in options.workloads:
                row[name] = measure(python, framework, processes, *WORKLOADS[name], options.rounds)
            row["memory_mb"] = memory(python, framework, processes, *WORKLOADS[next(iter(options.workloads))])
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
