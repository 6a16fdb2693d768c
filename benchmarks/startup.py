"""From the start of ``fednlp run`` to the end of its first round, against a bare script of the same work.

    python benchmarks/startup.py                                   # prints JSON
    python benchmarks/startup.py --workers 1 2 --pairs 3
    python benchmarks/startup.py PYTHONPATH=/base/src PYTHONPATH=$PWD/src

Each ``NAME=VALUE`` is a setting of the environment: the command is measured with each of them, in turns, after one run
that warms the caches. The seconds are those from starting the command until it prints the line of the first round. The
CPU seconds are those of the command and its workers, up to the same moment.

The bound is a script with one torch thread that imports PyTorch and the one modelling module of the model, loads the
model, and takes the same local steps on ready-made batches. Its steps are divided by the workers. In CPU seconds, each
worker has to import and to load for itself.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BARE = """
import importlib, json, sys, time
import torch
from safetensors import safe_open

given = json.loads(sys.argv[1])
torch.set_num_threads(1)
made = getattr(importlib.import_module(given["module"]), given["class"])
model = made.from_pretrained(given["source"], **given["config"])
model.train()
began, cpu = time.perf_counter(), time.process_time()
with safe_open(given["batches"], "pt") as file:
    for steps in given["clients"]:
        optimizer = torch.optim.AdamW(model.parameters(), given["lr"], weight_decay=given["decay"], fused=True)
        for step in steps:
            model(**{name: file.get_tensor(f"{step}.{name}") for name in given["names"]}).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
ended, used = time.perf_counter(), time.process_time()
print(json.dumps({"steps": ended - began, "steps_cpu": used - cpu, "cpu": used}), flush=True)
"""


def command(experiment: str, folder: Path, workers: int) -> list[str]:
    """Return the command that is measured."""
    run = [sys.executable, "-m", "fednlp.cli", "run", experiment, "--out", str(folder)]
    return [*run, "--workers", str(workers)]


def first_round(experiment: str, workers: int, setting: dict[str, str]) -> dict[str, float]:
    """Return the seconds and the CPU seconds until the command prints its first round's line."""
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        process = subprocess.Popen(
            command(experiment, Path(name) / "run", workers),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | setting,
        )
        assert process.stdout is not None
        try:
            if not any(line.startswith("round ") for line in process.stdout):
                raise SystemExit(f"fednlp run {experiment} ended before its first round")
            return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds(process.pid)}
        finally:
            process.terminate()
            process.communicate()


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process and of those that it has started, as Linux counts them."""
    folder = Path("/proc") / str(process)
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    own = sum(int(one) for one in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    children = (folder / "task" / str(process) / "children").read_text().split()
    return own + sum(cpu_seconds(int(child)) for child in children)


def bare_task(experiment: str, folder: Path) -> dict[str, Any]:
    """Run one round, and return what the bare script is given: the model, and the round's batches in a file."""
    from quickstart import Bare
    from safetensors.torch import save_file

    subprocess.run(
        [*command(experiment, folder / "run", 1), "--set", "num_rounds=1"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    bare = Bare(folder / "run")
    line = json.loads((folder / "run" / "rounds.jsonl").read_text().splitlines()[0])
    tensors: dict[str, Any] = {}
    clients = []
    for batches in bare.batches([line]):
        first = sum(map(len, clients))
        clients.append(list(range(first, first + len(batches))))
        for number, batch in enumerate(batches, first):
            tensors |= {f"{number}.{name}": tensor.contiguous() for name, tensor in batch.items()}
    save_file(tensors, folder / "batches.safetensors")
    options, model = bare.experiment.client, type(bare.model)
    return {
        "module": model.__module__,
        "class": model.__name__,
        "source": bare.components.source,
        "config": bare.config,
        "batches": str(folder / "batches.safetensors"),
        "names": list(batch),
        "clients": clients,
        "lr": options.learning_rate,
        "decay": options.weight_decay,
    }


def bare_script(task: dict[str, Any], workers: int) -> dict[str, float]:
    """Return the seconds and CPU seconds of the bare script, its steps divided by the workers."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", BARE, json.dumps(task)], check=True, capture_output=True, text=True
    )
    taken, told = time.perf_counter() - began, json.loads(done.stdout)
    return {
        "seconds": taken - told["steps"] + told["steps"] / workers,
        "cpu": workers * (told["cpu"] - told["steps_cpu"]) + told["steps_cpu"],
    }


def medians(figures: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median of each figure, and all the seconds."""
    found = {key: round(statistics.median(one[key] for one in figures), 2) for key in figures[0]}
    return {**found, "all": [round(one["seconds"], 2) for one in figures]}


def compared(settings: list[str], task: dict[str, Any], given: argparse.Namespace, workers: int) -> Any:
    """Return the figures of each setting and of the bound, measured in turns."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in [*settings, "bare"]}
    for _ in range(given.pairs):
        for setting in settings:
            name, _, value = setting.partition("=")
            environment = {name: value} if name else {}
            found[setting].append(first_round(given.experiment, workers, environment))
        found["bare"].append(bare_script(task, workers))
    figures = {name or "command": medians(all_of) for name, all_of in found.items()}
    for one in figures.values():
        one["of_bare"] = round(one["seconds"] / figures["bare"]["seconds"], 3)
    return figures


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="of the environment, in turns")
    parser.add_argument("--experiment", default="experiments/small.toml", help="what is run")
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--pairs", type=int, default=5, help="turns")
    given = parser.parse_args()
    wrong = [one for one in given.settings if "=" not in one]
    if wrong:
        parser.error(f"{wrong[0]} is no NAME=VALUE")
    with tempfile.TemporaryDirectory() as name:
        task = bare_task(given.experiment, Path(name))
        settings = given.settings or [""]
        figures = {
            f"workers {workers}": compared(settings, task, given, workers) for workers in given.workers
        }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
