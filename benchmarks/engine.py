"""What the federation costs: a warm round against the bare PyTorch loop of the same local steps.

    python benchmarks/engine.py             # prints JSON

BERT-tiny (random weights), 50 clients, sequence 64, batch 8, SGD, no evaluation, one torch thread a
process. The bare loop holds ready-made tensors and does nothing but forward, backward and SGD; its time
is divided by the number of workers. Bare and federated rounds alternate within one process, so that both
meet the same machine; the figure is the median of their ratios.

Further figures: seconds from the start of ``fednlp run`` to the end of its first round with warm caches,
peak memory (proportional set size of all processes), and a round on short real text with batches padded
to their own longest example against the same round padded to ``max_length``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bare import VOCABULARY, as_batches, as_rows, bert_config, take_steps, watched_memory

CLIENTS, LENGTH, BATCH, RATE = 50, 64, 8, 0.05
BOUNDS = {"10x4 workers=1": 1.05, "10x4 workers=2": 1.10, "30x1 workers=1": 1.20, "30x1 workers=2": 1.30}


def client_texts(client: int, steps: int) -> tuple[Any, Any]:
    """Return a client's token ids (steps * BATCH, LENGTH) and labels: synthetic, but learnable."""
    import torch

    rng = torch.Generator().manual_seed(1000 + client)
    labels = torch.randint(0, 2, (steps * BATCH,), generator=rng)
    ids = torch.randint(1000, VOCABULARY // 2, (steps * BATCH, LENGTH), generator=rng)
    upper = torch.rand(ids.shape, generator=rng) < 0.5
    return ids + labels[:, None] * upper * (VOCABULARY // 2), labels


def bare_model(folder: Path) -> Any:
    """Build the model of the bare loop."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder)).train()


def bare_round(model: Any, batches: list[list[tuple[Any, Any, Any]]]) -> float:
    """Do nothing but the local steps; return the seconds."""
    import torch

    start = time.perf_counter()
    for client in batches:
        take_steps(model, torch.optim.SGD(model.parameters(), lr=RATE), client)
    return time.perf_counter() - start


def prepare(folder: Path, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write model configuration, features and partition; return a worker's specification and an experiment's."""
    import numpy as np

    from fednlp.data.features import write_features
    from fednlp.partition import Partition
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.worker_spec import WorkerSpec

    bert_config("bert-tiny").save_pretrained(folder)
    rows = []
    for client in range(CLIENTS):
        ids, labels = client_texts(client, steps)
        rows += as_rows(ids, labels)
    write_features(folder / "features", iter([rows]))
    each = steps * BATCH
    numbers, offsets = np.arange(CLIENTS * each), np.arange(CLIENTS + 1) * each
    nobody = np.zeros(CLIENTS + 1, dtype=np.int64)
    Partition(offsets, numbers, nobody, numbers[:0], np.arange(CLIENTS)).save(folder / "partition.npz")
    np.save(folder / "test.npy", numbers[:0])
    options = LocalTraining(
        optimizer="sgd", learning_rate=RATE, per_device_train_batch_size=BATCH, group_by_length=False
    )
    spec = WorkerSpec(
        source=str(folder),
        model_config={},
        peft=None,
        train="all",
        task="text-classification",
        task_fields={"labels": ["0", "1"]},
        train_features=str(folder / "features"),
        test_features=str(folder / "features"),
        test_numbers=str(folder / "test.npy"),
        partition=str(folder / "partition.npz"),
        options=options.model_dump(),
        federated=True,
        records=str(folder / "clients.bin"),
        unlabelled=False,
        seed=0,
        device="cpu",
        cache_activations=False,
        evaluation_batch=64,
    )
    return asdict(spec), {"data": {"name": "synthetic"}, "algorithm": {"name": "fedavg"}}


class Federation:
    """An engine as ``fednlp run`` drives it, less evaluation and files."""

    def __init__(
        self,
        folder: Path,
        cohort: int,
        steps: int,
        workers: int,
        engine: str = "pool",
        prepared: tuple[dict[str, Any], dict[str, Any]] | None = None,
    ) -> None:
        from fednlp.config import parse
        from fednlp.federated.runtime import MODEL
        from fednlp.federated.state import State
        from fednlp.models.pretrained import new_model
        from fednlp.partition import Partition
        from fednlp.plugins import load
        from fednlp.runtime import ENGINES
        from fednlp.simulation.configured_algorithm import build_algorithm
        from fednlp.simulation.context import RunContext
        from fednlp.simulation.rounds import FederatedTraining
        from fednlp.tasks import task_from
        from fednlp.training.model_layout import flat_weights
        from fednlp.training.worker import ClientWorker
        from fednlp.training.worker_spec import WorkerSpec

        spec, settings = prepared or prepare(folder, steps)
        settings = {
            "clients_per_round": cohort,
            "partition": {"clients": CLIENTS},
            "evaluation": {"every": 10**9},
            **settings,
        }
        settings["num_rounds"] = 10**9
        self.pool = load(ENGINES[engine], "engine")(workers, "fednlp.simulation.workers:open_worker")
        built, experiment = WorkerSpec(**spec), parse(settings).resolved()
        task = task_from(built.task, built.task_fields)
        model = new_model(built.source, task.model_class, task.settings(), {})
        weights = flat_weights(model)
        worker = ClientWorker(built, model, build_algorithm(experiment))
        self.pool.start(worker, {"spec": spec, "experiment": experiment.model_dump(exclude_none=True)})
        self.pool.publish(MODEL, weights)
        partition = Partition.load(Path(built.partition))
        state = State(0, worker.layout, self.pool.vectors[MODEL])
        context = RunContext(experiment, partition, self.pool, worker, state, _nothing, print, list)
        self.rounds = FederatedTraining(context, worker.algorithm)

    def round(self) -> tuple[float, list[int]]:
        """Do one round; return its seconds and its cohort."""
        start = time.perf_counter()
        do_round = self.rounds.prepare()
        line = self.rounds.line(do_round())
        return time.perf_counter() - start, line["cohort"]


def _nothing(done: int, of: int, what: str) -> None:
    return None


def measure_ratio(cohort: int, steps: int, workers: int, rounds: int) -> dict[str, Any]:
    """Alternate bare and federated rounds; return the median ratio and both medians."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = Federation(folder, cohort, steps, workers)
        model = bare_model(folder)
        batches = {}
        for client in range(CLIENTS):
            ids, labels = client_texts(client, steps)
            batches[client] = as_batches(ids, labels, BATCH)
        ours, bare, ratios = [], [], []
        for number in range(rounds + 2):
            seconds, clients = federation.round()
            bound = bare_round(model, [batches[client] for client in clients])
            if number >= 2:
                ours.append(seconds)
                bare.append(bound)
                ratios.append(seconds * workers / bound)
        federation.pool.close()
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "round_s": round(statistics.median(ours), 4),
        "bare_s": round(statistics.median(bare), 4),
    }


def measure_memory(cohort: int, steps: int, workers: int) -> dict[str, float]:
    """Do rounds alone; return the peak of the summed proportional set size in MB."""
    with tempfile.TemporaryDirectory() as name, watched_memory(os.getpid()) as seen:
        federation = Federation(Path(name), cohort, steps, workers)
        for _ in range(5):
            federation.round()
        federation.pool.close()
    return {"peak_mb": round(max(seen))}


def measure_start(workers: int) -> dict[str, float]:
    """Return the seconds from the start of ``fednlp run`` to the end of its first round, with warm caches."""
    taken = []
    for _ in range(4):  # the first fills the caches
        with tempfile.TemporaryDirectory() as name:
            command = [
                sys.executable,
                "-m",
                "fednlp.cli",
                "run",
                "--out",
                f"{name}/run",
                "--workers",
                str(workers),
            ]
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("round "):
                    taken.append(time.perf_counter() - start)
                    break
            process.terminate()
            process.communicate()
    return {"first_round_s": round(statistics.median(taken[1:]), 2)}


def short_texts(name: str | None, path: str | None) -> tuple[list[str], list[int]]:
    """Return real short texts and labels: of a known data set, or the headlines of BBC News."""
    from fednlp.data import load_data

    data = load_data(name or "bbc", path)
    texts = [text if name else text.splitlines()[0] for text in data.train["text"].to_pylist()]
    return [texts[n] for n in data.train_numbers], data.labels("train")[data.train_numbers].tolist()


def measure_padding(name: str | None, path: str | None, rounds: int) -> dict[str, Any]:
    """Compare rounds on short texts, padded to their own longest, with rounds padded to 128."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer

    from fednlp.data.features import Features
    from fednlp.hubs.package_index import named_model
    from fednlp.models.pretrained import pretrained_model
    from fednlp.tasks.text_classification import TextClassification
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.model_layout import flat_weights
    from fednlp.training.replica import Replica

    class Padded(TextClassification):
        """The same task, every batch padded to 128."""

        def collate(self, features: Any, numbers: Any, device: Any, *, training: bool = False) -> Any:
            batch = super().collate(features, numbers, device, training=training)
            for key in ("input_ids", "attention_mask"):
                batch[key] = torch.nn.functional.pad(batch[key], (0, 128 - batch[key].shape[1]))
            return batch

    torch.set_num_threads(1)
    folder = named_model("bert-tiny")
    texts, labels = short_texts(name, path)
    names = tuple(str(label) for label in sorted(set(labels)))
    own, padded = TextClassification(names), Padded(names)
    rows = own.encode(
        ({"text": t, "label": str(y)} for t, y in zip(texts, labels, strict=True)),
        AutoTokenizer.from_pretrained(folder),
        128,
    )
    features = Features.in_memory(rows)
    model = pretrained_model(str(folder), own.model_class, own.settings(), {}, 0)
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), True)
    clients = np.array_split(np.random.default_rng(0).permutation(len(rows)), 50)

    def seconds(task: TextClassification, by_length: bool, number: int) -> float:
        options = LocalTraining(learning_rate=2e-4, group_by_length=by_length)
        start = time.perf_counter()
        for client in range(10):
            LocalTrainer(replica, task, features, clients[client], options, x, 0, number, client).steps(x)
        return time.perf_counter() - start

    ratios = [seconds(own, True, n) / seconds(padded, False, n) for n in range(rounds + 1)][1:]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "mean_tokens": round(float(features.all_lengths.mean()), 1),
    }


def alone(what: str, *arguments: Any) -> dict[str, Any]:
    """Measure something in a process of its own."""
    command = [sys.executable, __file__, "--measure", json.dumps([what, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure everything and print it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="warm rounds a figure")
    parser.add_argument("--short-text", metavar="NAME=FOLDER", help="e.g. trec=folder; else BBC headlines")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, *arguments = json.loads(options.measure)
        print(json.dumps(globals()[f"measure_{what}"](*arguments)))
        return
    result: dict[str, Any] = {"cores": os.cpu_count()}
    for cohort, steps in ((10, 4), (30, 1)):
        for workers in (1, 2):
            name = f"{cohort}x{steps} workers={workers}"
            result[name] = alone("ratio", cohort, steps, workers, options.rounds) | {"bound": BOUNDS[name]}
    for workers, bound in ((1, 800), (2, 1500)):
        result[f"memory workers={workers}"] = alone("memory", 10, 4, workers) | {"bound": bound}
        result[f"start workers={workers}"] = alone("start", workers) | {"bound": 7}
    name, _, path = (options.short_text or "").partition("=")
    result["short text"] = alone("padding", name or None, path or None, 5) | {"bound": 0.4}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
