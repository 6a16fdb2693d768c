"""What several clients at once cost: local steps of adapters over one frozen base, against the bare loop of them.

    python benchmarks/at_once.py                           # two sizes, batches of 1, 4 and 8
    python benchmarks/at_once.py --only minilm --batch 1

BERT-tiny and a MiniLM (6 layers, width 384) with random weights and without dropout, low-rank adapters (r = 8, on
queries and values) and the head trained with AdamW, length 64, one torch thread, one worker; 8 clients of 4 steps,
in groups of ``runtime.clients_at_once``, also with ``client.padding_free`` and with ``runtime.onednn``. The bare loop
(peft and PyTorch, ready-made tensors) takes the steps of one client after the other. The rounds of all kinds alternate,
each in a process of its own, and a figure is the median of the ratios to the bare loop. Prints a line of JSON for each
size and batch, with the bounds for four clients at once.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bare import as_batches, build, in_turns, local_training, random_texts, ratios, serve_rounds, take_steps

CLIENTS, STEPS, LENGTH, RATE = 8, 4, 64, 1e-3
BOUNDS = {1: 0.70, 4: 0.92, 8: 1.0}
SIDES: dict[str, dict[str, Any]] = {
    "bare": {"at_once": 0},
    "1": {"at_once": 1},
    "4": {"at_once": 4},
    "8": {"at_once": 8},
    "1, padding-free": {"at_once": 1, "padding_free": True},
    "4, padding-free": {"at_once": 4, "padding_free": True},
    "1, oneDNN": {"at_once": 1, "onednn": True},
    "4, oneDNN": {"at_once": 4, "onednn": True},
}


def adapted(size: str) -> Any:
    """Return a classifier of random weights with low-rank adapters."""
    import peft

    config = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=["query", "value"])
    return peft.get_peft_model(build(size), config)


def bare(size: str, batch: int) -> Callable[[], None]:
    """Return a round of the bare loop: one client after the other, each from the same weights."""
    import torch

    model = adapted(size).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained]
    batches = as_batches(*random_texts(CLIENTS * STEPS * batch, LENGTH), batch)

    def work() -> None:
        for first in range(0, len(batches), STEPS):
            with torch.no_grad():
                for parameter, weights in zip(trained, start, strict=True):
                    parameter.copy_(weights)
            optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0, fused=True)
            take_steps(model, optimizer, batches[first : first + STEPS])

    return work


def side(size: str, batch: int, at_once: int, **ways: Any) -> Callable[[], None]:
    """Return a round: weights loaded, local steps of so many clients at once, the updates; of the bare loop for 0."""
    if not at_once:
        return bare(size, batch)
    from fednlp.training.client_stack import ClientStack
    from fednlp.training.client_stack import take_steps as take_steps_at_once

    each = STEPS * batch
    texts = random_texts(CLIENTS * each, LENGTH)
    trainer = local_training(
        adapted(size), *texts, learning_rate=RATE, per_device_train_batch_size=batch, **ways
    )
    first = trainer(range(each))
    stack = ClientStack(first.replica, first.task, at_once)

    def work() -> None:
        clients = [trainer(range(one * each, (one + 1) * each), one) for one in range(CLIENTS)]
        for start in range(0, CLIENTS, at_once):
            group = clients[start : start + at_once]
            if at_once > 1:
                take_steps_at_once(stack, group)
            for client in group:
                (client.steps(client.x) - client.x).take()

    return work


def measure(size: str, batch: int, names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Return the ratios of all kinds to the bare loop, and the bare loop's milliseconds a step."""
    sides = {name: {"size": size, "batch": batch, **SIDES[name]} for name in ("bare", *names)}
    taken = in_turns(__file__, sides, rounds)
    found = ratios(taken)
    step = statistics.median(taken["bare"]) / CLIENTS / STEPS
    return {
        "size": size,
        "batch": batch,
        "bare_step_ms": round(1e3 * step, 2),
        "clients at once": found,
        "bound of 4": BOUNDS[batch],
        "held": None if "4" not in found else found["4"] <= BOUNDS[batch],
    }


def main() -> None:
    """Measure the sizes and batches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("bert-tiny", "minilm"), action="append", help="may be repeated")
    parser.add_argument("--batch", type=int, choices=BOUNDS, action="append", help="may be repeated")
    others = [name for name in SIDES if name != "bare"]
    parser.add_argument("--sides", nargs="+", choices=others, default=others, help="what is measured")
    parser.add_argument("--rounds", type=int, default=7, help="warm rounds a figure")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve_rounds(side(**json.loads(options.side)))
        return
    for size in options.only or ("bert-tiny", "minilm"):
        for batch in options.batch or BOUNDS:
            print(json.dumps(measure(size, batch, options.sides, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
