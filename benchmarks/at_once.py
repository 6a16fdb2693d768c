"""What several clients at once cost: local steps of adapters over one frozen base, against the bare loop of them.

    python benchmarks/at_once.py                           # two sizes, batches of 1, 4 and 8
    python benchmarks/at_once.py --only minilm --batch 1

BERT-tiny and a MiniLM (6 layers, width 384) with random weights and without dropout, low-rank adapters (r = 8, on
queries and values) and the head trained with AdamW, length 64, one torch thread, one worker; 8 clients of 4 steps,
in groups of ``runtime.clients_at_once``. The bare loop (peft and PyTorch, ready-made tensors) takes the steps of one
client after the other. The rounds of all kinds alternate, and a figure is the median of the ratios to the bare loop.
Prints a line of JSON for each size and batch, with the bounds for four clients at once.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

CLIENTS, STEPS, LENGTH, RATE = 8, 4, 64, 1e-3
BOUNDS = {1: 0.70, 4: 0.92, 8: 1.0}
AT_ONCE = (1, 4, 8)


def adapted(name: str) -> Any:
    """Return a classifier of random weights with low-rank adapters."""
    import peft
    from precision import SIZES, build

    config = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"])
    return peft.get_peft_model(build(*SIZES[name], 0.0), config)


def bare(name: str, batches: list[list[Any]]) -> Callable[[], None]:
    """Return a round of the bare loop: one client after the other, each from the same weights."""
    import torch

    model = adapted(name).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained]

    def work() -> None:
        for client in batches:
            with torch.no_grad():
                for parameter, weights in zip(trained, start, strict=True):
                    parameter.copy_(weights)
            optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True)
            for ids, mask, labels in client:
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                loss.item()

    return work


def ours(name: str, rows: list[dict[str, Any]], batch: int, at_once: int) -> Callable[[], None]:
    """Return the same round by fednlp: weights loaded, local steps of so many clients at once, the updates."""
    import numpy as np
    import torch

    from fednlp.data.features import Features
    from fednlp.tasks.text_classification import TextClassification
    from fednlp.training.at_once import take_steps
    from fednlp.training.client_stack import ClientStack
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.model_layout import flat_weights
    from fednlp.training.replica import Replica

    model = adapted(name)
    x, task, features = flat_weights(model), TextClassification(("0", "1")), Features.in_memory(rows)
    replica = Replica(model, torch.device("cpu"), True)
    stack = ClientStack(replica, task, at_once)
    options = LocalTraining(learning_rate=RATE, per_device_train_batch_size=batch, group_by_length=False)
    examples = np.split(np.arange(len(rows)), CLIENTS)

    def work() -> None:
        clients = [
            LocalTrainer(replica, task, features, own, options, x, 0, 1, number)
            for number, own in enumerate(examples)
        ]
        for start in range(0, CLIENTS, at_once):
            group = clients[start : start + at_once]
            if at_once > 1:
                take_steps(stack, group)
            for client in group:
                (client.steps(x) - x).take()

    return work


def measure(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Alternate the rounds of all kinds; return the ratios to the bare loop."""
    import torch

    torch.set_num_threads(1)
    count = CLIENTS * STEPS * batch
    ids = torch.randint(1000, 30000, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 2
    rows = [{"input_ids": i, "label": label} for i, label in zip(ids.tolist(), labels.tolist(), strict=True)]
    steps = [(i, torch.ones_like(i), y) for i, y in zip(ids.split(batch), labels.split(batch), strict=True)]
    works = {"bare": bare(name, [steps[i : i + STEPS] for i in range(0, len(steps), STEPS)])}
    works |= {str(at_once): ours(name, rows, batch, at_once) for at_once in AT_ONCE}
    taken: dict[str, list[float]] = {what: [] for what in works}
    for _ in range(rounds + 1):
        for what, work in works.items():
            start = time.perf_counter()
            work()
            taken[what].append(time.perf_counter() - start)
    ratios = {
        what: round(
            statistics.median(own / of for own, of in zip(one[1:], taken["bare"][1:], strict=True)), 3
        )
        for what, one in taken.items()
        if what != "bare"
    }
    step = statistics.median(taken["bare"][1:]) / CLIENTS / STEPS
    return {
        "size": name,
        "batch": batch,
        "bare_step_ms": round(1e3 * step, 2),
        "clients at once": ratios,
        "bound of 4": BOUNDS[batch],
        "held": ratios["4"] <= BOUNDS[batch],
    }


def main() -> None:
    """Measure the sizes and batches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("bert-tiny", "minilm"), action="append", help="may be repeated")
    parser.add_argument("--batch", type=int, choices=BOUNDS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=7, help="warm rounds a figure")
    options = parser.parse_args()
    for name in options.only or ("bert-tiny", "minilm"):
        for batch in options.batch or BOUNDS:
            print(json.dumps(measure(name, batch, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
