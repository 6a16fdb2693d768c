"""The whole quickstart against the sum of its parts' bounds, part by part.

    python benchmarks/quickstart.py                     # prints JSON
    python benchmarks/quickstart.py --rounds 4 --every 2

``fednlp run`` is started as a user starts it, with warm caches, and its ``profile.json`` says what each worker spent on
each part. Then the bounds are measured in this process, with one torch thread:

* local steps: the bare PyTorch loop over the same batches of the same clients, ready-made tensors, AdamW, divided by
  the workers;
* evaluation: a bare prediction loop over the same test texts, sorted by length, in batches of the same size, divided
  by the workers and times the number of evaluations;
* start: a new Python that imports PyTorch, scikit-learn and the model's and the tokenizer's modules of transformers,
  and loads both;
* disk: the bytes of a checkpoint, written and flushed, for each round.

What has no bound of its own (data, sums, messages, idle, other) counts as nothing, so it is in the ratio of the whole.
A figure of a worker is the mean over the workers: the parts sum to the time of the command, up to the time in which a
worker did not exist yet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORKERS, BOUND_WHOLE, BOUND_EVALUATION, BOUND_IDLE = 2, 1.10, 1.05, 0.03
START = """
import sklearn.metrics, torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
AutoModelForSequenceClassification.from_pretrained({0!r}, num_labels=20)
AutoTokenizer.from_pretrained({0!r})
"""


def run(folder: Path, rounds: int, every: int) -> float:
    """Run the quickstart as a user does; return its seconds."""
    command = [sys.executable, "-m", "fednlp.cli", "run", "--out", str(folder), "--workers", str(WORKERS)]
    command += ["--set", f"num_rounds={rounds}", "--set", f"evaluation.every={every}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def start_bound(source: str) -> float:
    """Return the seconds of a Python process that imports and loads what the run needs, at best of three."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", START.format(source)], check=True, capture_output=True)
        taken.append(time.perf_counter() - start)
    return min(taken)


def disk_bound(folder: Path, rounds: int) -> float:
    """Return the seconds of writing and flushing a checkpoint's bytes, once a round."""
    data = (folder / "checkpoint" / "state.safetensors").read_bytes()
    start = time.perf_counter()
    for _ in range(rounds):
        with (folder / "checkpoint" / "bound").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    return time.perf_counter() - start


class Bare:
    """The model, the task and the features of a run, for loops that do nothing else.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification

        from fednlp.partition import Partition
        from fednlp.simulation.components import build_components
        from fednlp.simulation.run_dir import RunDir

        torch.set_num_threads(1)
        self.run = RunDir(folder)
        self.experiment = self.run.experiment()
        self.components = build_components(self.experiment, lambda text: None)
        self.partition = Partition.load(self.run.partition)
        labels = len(self.components.data.label_names)
        self.config = {"num_labels": labels, **self.experiment.model.config}
        self.model = AutoModelForSequenceClassification.from_pretrained(self.components.source, **self.config)

    def batches(self, lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches of each client of each round, as its local trainer draws them, ready-made."""
        import torch

        from fednlp.seeds import generator
        from fednlp.training.batches import local_batches

        options, parts = self.experiment.client, self.components
        for line in lines:
            for client in line["cohort"]:
                examples = self.partition.train(client)
                order = generator(self.experiment.seed, "batches", line["round"], client)
                lengths, steps = parts.train.lengths(examples), options.steps(len(examples))
                drawn = local_batches(
                    examples, lengths, options.examples_per_step, steps, order, options.group_by_length
                )
                cpu = torch.device("cpu")
                yield [parts.task.collate(parts.train, one, cpu, training=True) for one in drawn]

    def steps(self, lines: list[dict[str, Any]]) -> float:
        """Return the seconds of all local steps of some rounds."""
        import torch

        self.model.train()
        total, options = 0.0, self.experiment.client
        for batches in self.batches(lines):
            start = time.perf_counter()
            optimizer = torch.optim.AdamW(
                self.model.parameters(), options.learning_rate, weight_decay=options.weight_decay, fused=True
            )
            for batch in batches:
                self.model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            total += time.perf_counter() - start
        return total

    def evaluation(self) -> float:
        """Return the seconds of one prediction of all test texts, the shorter of two."""
        import numpy as np
        import torch

        self.model.eval()
        parts, size = self.components, self.experiment.evaluation.batch_size
        numbers = np.load(self.run.test_numbers)
        order = numbers[np.argsort(-parts.test.lengths(numbers), kind="stable")]
        groups = [order[start : start + size] for start in range(0, len(order), size)]
        batches = [parts.task.collate(parts.test, one, torch.device("cpu")) for one in groups]
        taken = []
        for _ in range(2):
            start = time.perf_counter()
            with torch.inference_mode():
                for batch in batches:
                    self.model(**batch).logits.argmax(1).tolist()
            taken.append(time.perf_counter() - start)
        return min(taken)


def main() -> None:
    """Measure everything and print it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--every", type=int, default=5, help="evaluation.every")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        seconds = run(folder, options.rounds, options.every)
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        workers = json.loads((folder / "profile.json").read_text())["workers"]
        bare = Bare(folder)
        bounds = {
            "start": start_bound(bare.components.source),
            "local steps": bare.steps(lines) / WORKERS,
            "evaluation": sum("evaluation" in line for line in lines) * bare.evaluation() / WORKERS,
            "disk": disk_bound(folder, options.rounds),
        }
    print(json.dumps(table(seconds, workers, bounds), indent=1))


def table(seconds: float, workers: list[dict[str, float]], bounds: dict[str, float]) -> dict[str, Any]:
    """Return each part's seconds, bound and ratio, and those of the whole.

    Args:
        seconds: Of the command.
        workers: Seconds by part of each.
        bounds: Seconds by part.
    """
    first, parts = workers[0], dict.fromkeys(part for one in workers for part in one if part != "total")
    starting = ("imports", "data", "model")
    mean = {part: sum(one.get(part, 0.0) for one in workers) / len(workers) for part in parts}
    took = {"start": sum(first.get(part, 0.0) for part in starting), "disk": first["disk"]}
    took |= {part: mean[part] for part in parts if part not in (*starting, "disk", "idle")}
    rows = {
        part: {"took_s": round(spent, 3)}
        | (
            {"bound_s": round(bounds[part], 3), "ratio": round(spent / bounds[part], 3)}
            if part in bounds
            else {}
        )
        for part, spent in took.items()
    }
    waited = [one.get("idle", 0.0) for one in workers]
    working = [one["total"] - sum(one.get(part, 0.0) for part in starting) for one in workers]
    return {
        "parts": rows,
        "idle_s": [round(one, 3) for one in waited],
        "idle_share": round(sum(waited) / sum(working), 4),
        "idle_bound": BOUND_IDLE,
        "evaluation_bound": BOUND_EVALUATION,
        "whole": {
            "took_s": round(seconds, 2),
            "bound_s": round(sum(bounds.values()), 2),
            "ratio": round(seconds / sum(bounds.values()), 3),
            "bound": BOUND_WHOLE,
        },
    }


if __name__ == "__main__":
    main()
