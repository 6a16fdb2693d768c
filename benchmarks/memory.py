"""What a worker holds in memory: its peak against that of the bare loop, and what two workers share of a frozen base.

    python benchmarks/memory.py             # prints JSON
    python benchmarks/memory.py peak        # one of its sections

* ``peak``: DistilBERT's size (6 layers, width 768, random weights), Adam, batch 8, length 128, one torch thread. The
  bare loop holds ready-made tensors. The worker is a worker process of ``fednlp run`` with two workers, with the quick
  import of that command: it has the published model and its total of updates beside what it trains. Both take the same
  local steps, and the figure is the largest resident set (``VmHWM``) of each.
* ``frozen``: two processes that train low-rank adapters of MiniLM, as workers do. The pages of the frozen weights are
  those of the model's file: what each process holds of them (``Rss``), and its share (``Pss``).

Only Linux tells these figures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bare import as_batches, as_rows, bert_config, build, random_texts, take_steps

LENGTH, BATCH, STEPS, CLIENTS = 128, 8, 2, 4
TEXTS = CLIENTS * STEPS * BATCH
PEAK_BOUND, SHARED_BOUND = 1.1, 0.6


def measure_bare() -> dict[str, Any]:
    """Take the steps of the bare loop; return the peak."""
    import torch
    from big_data import memory

    torch.set_num_threads(1)
    model = build("distilbert", 0.1).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    take_steps(model, optimizer, as_batches(*random_texts(TEXTS, LENGTH), BATCH))
    return memory()


def measure_worker() -> dict[str, Any]:
    """Do a round of two workers; return the peak of the worker process."""
    import engine
    import numpy as np
    import torch

    from fednlp.data.features import write_features
    from fednlp.partition import Partition
    from fednlp.startup.quick_import import quick_imports
    from fednlp.training.local_training import LocalTraining

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, quick_imports():
        folder = Path(name)
        spec, settings = engine.prepare(folder, 1)
        bert_config("distilbert", 0.1).save_pretrained(folder)
        rows = as_rows(*random_texts(TEXTS, LENGTH))
        write_features(folder / "texts", iter([rows]))
        numbers, nobody = np.arange(len(rows)), np.zeros(CLIENTS + 1, dtype=np.int64)
        offsets = np.arange(CLIENTS + 1) * STEPS * BATCH
        Partition(offsets, numbers, nobody, numbers[:0], np.arange(CLIENTS)).save(folder / "partition.npz")
        options = LocalTraining(optimizer="adam", learning_rate=1e-4, per_device_train_batch_size=BATCH)
        spec |= {
            "train_features": str(folder / "texts"),
            "test_features": str(folder / "texts"),
            "options": options.model_dump(),
        }
        federation = engine.Federation(
            folder, CLIENTS, STEPS, 2, prepared=(spec, settings | {"partition": {"clients": CLIENTS}})
        )
        federation.round()
        (child,) = federation.pool._children
        status = Path(f"/proc/{child._process.pid}/status").read_text().splitlines()
        held = dict(line.split(":", 1) for line in status)
        federation.pool.close()
    return {"peak_mb": round(int(held["VmHWM"].split()[0]) * 1024 / 1e6)}


def measure_adapters() -> None:
    """Train low-rank adapters of MiniLM, say so, and wait."""
    import numpy as np
    import torch

    from fednlp.data.features import Features
    from fednlp.hubs.package_index import named_model
    from fednlp.models.pretrained import pretrained_model
    from fednlp.tasks.text_classification import TextClassification
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.model_layout import flat_weights
    from fednlp.training.replica import Replica

    torch.set_num_threads(1)
    task, source = TextClassification(("0", "1")), str(named_model("minilm"))
    model = pretrained_model(source, task.model_class, task.settings(), {}, 0, {"method": "lora"})
    x, replica = flat_weights(model), Replica(model, torch.device("cpu"), True)
    features = Features.in_memory(as_rows(*random_texts(BATCH, LENGTH)))
    options = LocalTraining(per_device_train_batch_size=BATCH, optimizer="adam")
    LocalTrainer(replica, task, features, np.arange(BATCH), options, x, 0, 1, 0).steps(x)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    print(json.dumps({"frozen_mb": round(4 * frozen / 1e6, 1)}), flush=True)
    sys.stdin.readline()


def shared_pages(process: int) -> dict[str, float]:
    """Return what a process holds of the pages of model files, in MB."""
    held, of_model = {"Rss": 0, "Pss": 0}, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            of_model = line.endswith(".safetensors")
        elif of_model and first[:-1] in held:
            held[first[:-1]] += int(line.split()[1])
    return {f"{name.lower()}_mb": round(kb * 1024 / 1e6, 1) for name, kb in held.items()}


def measure_frozen() -> dict[str, Any]:
    """Run two processes that train adapters; return what they hold of the frozen weights."""
    command = [sys.executable, __file__, "--measure", "adapters"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    said = [json.loads(one.stdout.readline()) for one in running]
    held = [shared_pages(one.pid) for one in running]
    for one in running:
        one.communicate("\n")
    ratio = max(one["pss_mb"] for one in held) / max(one["rss_mb"] for one in held)
    figures = {"frozen_mb": said[0]["frozen_mb"], "workers": held, "share": round(ratio, 3)}
    return figures | {"bound": SHARED_BOUND, "held": ratio <= SHARED_BOUND}


def alone(what: str) -> dict[str, Any]:
    """Measure something in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure the sections and print them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="peak, frozen; both by default")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        found = globals()[f"measure_{options.measure}"]()
        if found is not None:
            print(json.dumps(found))
        return
    sections, result = options.sections or ["peak", "frozen"], dict[str, Any]()
    if "peak" in sections:
        bare, worker = alone("bare")["peak_mb"], alone("worker")["peak_mb"]
        ratio = round(worker / bare, 3)
        result["peak"] = {
            "bare_mb": bare,
            "worker_mb": worker,
            "ratio": ratio,
            "bound": PEAK_BOUND,
            "held": ratio <= PEAK_BOUND,
        }
    if "frozen" in sections:
        result["frozen"] = measure_frozen()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
