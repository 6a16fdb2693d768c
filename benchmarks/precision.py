"""What dropout and precision cost: a warm round against the bare PyTorch loop of the same local steps, in float32.

    python benchmarks/precision.py                              # three sizes, in float32 and in bfloat16
    python benchmarks/precision.py --only minilm --steps 2

BERT-tiny, a MiniLM (6 layers, width 384) and DistilBERT's size, with random weights and dropout 0.1; batch 8, length
128, SGD, one torch thread, one worker. The bare loop holds ready-made tensors and draws dropout by PyTorch's own
functions. Its rounds and those of both precisions alternate, and a figure is the median of the ratios. Prints a line of
JSON for each size.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

LENGTH, BATCH, RATE, VOCABULARY, DROPOUT = 128, 8, 0.01, 30522, 0.1
SIZES = {"bert-tiny": (2, 128, 2), "minilm": (6, 384, 12), "distilbert": (6, 768, 12)}
"""Layers, width and heads."""


def build(layers: int, width: int, heads: int, dropout: float) -> Any:
    """Return a classifier of two labels with random weights."""
    import torch
    from transformers import AutoModelForSequenceClassification, BertConfig

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return AutoModelForSequenceClassification.from_config(config)


def bare(size: tuple[int, int, int], dropout: float, batches: list[Any]) -> Callable[[], None]:
    """Return a round of the bare loop."""
    import torch

    model = build(*size, dropout).train()

    def work() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for ids, mask, labels in batches:
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    return work


def ours(
    size: tuple[int, int, int], dropout: float, rows: list[dict[str, Any]], bf16: bool
) -> Callable[[], None]:
    """Return a client's part of a round: weights loaded, local steps, the update."""
    import numpy as np
    import torch

    from fednlp.data.features import Features
    from fednlp.tasks.text_classification import TextClassification
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.model_layout import flat_weights
    from fednlp.training.replica import Replica

    model = build(*size, dropout)
    x, task, features = flat_weights(model), TextClassification(("0", "1")), Features.in_memory(rows)
    replica = Replica(model, torch.device("cpu"), True)
    options = LocalTraining(
        optimizer="sgd",
        learning_rate=RATE,
        per_device_train_batch_size=BATCH,
        group_by_length=False,
        bf16=bf16,
    )

    def work() -> None:
        local = LocalTrainer(replica, task, features, np.arange(len(rows)), options, x, 0, 1, 0)
        (local.steps(x) - x).take()

    return work


def measure(name: str, steps: int, rounds: int) -> dict[str, Any]:
    """Alternate all rounds of a size; return the ratios to the bare loop, and its seconds a step."""
    import torch

    torch.set_num_threads(1)
    ids = torch.randint(1000, VOCABULARY, (steps * BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(len(ids)) % 2
    rows = [{"input_ids": i, "label": label} for i, label in zip(ids.tolist(), labels.tolist(), strict=True)]
    parts = zip(ids.split(BATCH), labels.split(BATCH), strict=True)
    batches = [(i, torch.ones_like(i), y) for i, y in parts]
    size = SIZES[name]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FEDNLP_CACHE"] = str(Path(cache))
        works = {
            "bare": bare(size, DROPOUT, batches),
            "bare without dropout": bare(size, 0.0, batches),
            "float32": ours(size, DROPOUT, rows, bf16=False),
            "float32 without dropout": ours(size, 0.0, rows, bf16=False),
            "bf16": ours(size, DROPOUT, rows, bf16=True),
        }
        taken: dict[str, list[float]] = {what: [] for what in works}
        for _ in range(rounds + 1):
            for what, work in works.items():
                start = time.perf_counter()
                work()
                taken[what].append(time.perf_counter() - start)
    ratios = {
        what: statistics.median(own / of for own, of in zip(one[1:], taken["bare"][1:], strict=True))
        for what, one in taken.items()
    }
    return {
        "size": name,
        "bare_step_ms": round(1e3 * statistics.median(taken["bare"][1:]) / steps, 1),
        **{what: round(ratio, 3) for what, ratio in ratios.items() if what != "bare"},
        "dropout's share": round(1 - ratios["float32 without dropout"] / ratios["float32"], 3),
    }


def main() -> None:
    """Measure the sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SIZES, action="append", help="a size; may be repeated")
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="warm rounds a figure")
    options = parser.parse_args()
    for name in options.only or SIZES:
        print(json.dumps(measure(name, options.steps, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
