"""What dropout, products and precision cost: a warm round against the bare PyTorch loop of the same local steps.

    python benchmarks/precision.py                              # three sizes
    python benchmarks/precision.py --only minilm --steps 2
    python benchmarks/precision.py --device cuda --steps 40     # five sizes on a GPU

BERT-tiny, a MiniLM (6 layers, width 384) and DistilBERT's size, and on a GPU those of BERT-base and RoBERTa-large, with
random weights and dropout 0.1; batch 8, length 128, SGD, one torch thread, one worker. The bare loop is in float32,
holds ready-made tensors and draws dropout by PyTorch's own functions. Its rounds and those of fednlp alternate, each in
a process of its own, and a figure is the median of the ratios: in float32 by PyTorch's products, by those of oneDNN
(``runtime.onednn``), and in bfloat16. On a GPU, the batches of the bare loop lie there beforehand, the loop is measured
with PyTorch's autocast to bfloat16 too, and fednlp with float16. Prints a line of JSON for each size.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bare import (
    SIZES,
    as_batches,
    build,
    in_turns,
    local_training,
    random_texts,
    ratios,
    serve_rounds,
    take_steps,
)

LENGTH, BATCH, RATE, DROPOUT = 128, 8, 0.01, 0.1
SIDES: dict[str, dict[str, Any]] = {
    "bare": {"bare": True},
    "bare without dropout": {"bare": True, "dropout": 0.0},
    "float32": {},
    "float32 without dropout": {"dropout": 0.0},
    "oneDNN": {"onednn": True},
    "oneDNN without dropout": {"onednn": True, "dropout": 0.0},
    "bf16": {"bf16": True},
}
ON_CPU = ("bert-tiny", "minilm", "distilbert")
"""The sizes that are measured on a CPU unless others are named."""
ON_GPU: dict[str, dict[str, Any]] = {
    **{name: SIDES[name] for name in SIDES if "oneDNN" not in name},
    "bare bf16": {"bare": True, "bf16": True},
    "fp16": {"fp16": True},
}


def side(
    size: str, steps: int, device: str, bare: bool = False, dropout: float = DROPOUT, **ways: Any
) -> Callable[[], None]:
    """Return a round of the bare loop, or a client's part of a round: weights loaded, local steps, the update.

    Args:
        size: Of the model.
        steps: Of the round.
        device: That trains.
        bare: Whether it is the bare loop.
        dropout: Everywhere.
        ways: How fednlp computes them.
    """
    import torch

    model, texts = build(size, dropout), random_texts(steps * BATCH, LENGTH)
    if bare:
        batches = as_batches(*texts, BATCH, device)
        model.to(device).train()
        if ways:  # within each pass: autocast keeps the weights that it has cast until its block ends
            model.forward = torch.autocast(device, torch.bfloat16)(model.forward)
        return lambda: take_steps(model, torch.optim.SGD(model.parameters(), lr=RATE), batches)
    told = {"optimizer": "sgd", "learning_rate": RATE, "per_device_train_batch_size": BATCH, **ways}
    trainer = local_training(model, *texts, device=device, **told)

    def work() -> None:
        local = trainer(range(steps * BATCH))
        (local.steps(local.x) - local.x).take()

    return work


def measure(size: str, names: Sequence[str], steps: int, rounds: int, device: str) -> dict[str, Any]:
    """Return the ratios of a size to the bare loop, and the bare loop's seconds a step."""
    known = SIDES | ON_GPU
    sides = {
        name: {"size": size, "steps": steps, "device": device, **known[name]} for name in ("bare", *names)
    }
    taken = in_turns(__file__, sides, rounds)
    found = ratios(taken)
    shares = {
        f"dropout's share, {way}": round(1 - found[f"{way} without dropout"] / found[way], 3)
        for way in ("float32", "oneDNN")
        if {way, f"{way} without dropout"} <= {*found}
    }
    step = statistics.median(taken["bare"]) / steps
    return {"size": size, "bare_step_ms": round(1e3 * step, 1), **found, **shares}


def main() -> None:
    """Measure the sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SIZES, action="append", help="a size; may be repeated")
    others = [name for name in SIDES | ON_GPU if name != "bare"]
    parser.add_argument("--sides", nargs="+", choices=others, help="what is measured")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what trains")
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="warm rounds a figure")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve_rounds(side(**json.loads(options.side)))
        return
    if options.device == "cpu" and {"fp16", "bare bf16"} & {*(options.sides or ())}:
        parser.error("fp16 and bare bf16 are measured on a GPU: add --device cuda")
    names = options.sides or [
        name for name in (SIDES if options.device == "cpu" else ON_GPU) if name != "bare"
    ]
    sizes = options.only or (SIZES if options.device == "cuda" else ON_CPU)
    for size in sizes:
        found = measure(size, names, options.steps, options.rounds, options.device)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
