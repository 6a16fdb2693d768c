"""What tuning a language model costs: local steps of SmolLM2 with LoRA against the bare loop of transformers and PEFT.

    python benchmarks/llm.py                        # a line of JSON
    python benchmarks/llm.py --steps 2 --rounds 3

Conversations of ``bbc-chats``, batch 4, at most 128 tokens, LoRA r = 8 on PEFT's choice of layers, AdamW, one torch
thread, one worker. The bare loop holds ready-made batches, padded to their own longest conversation, and computes
transformers' loss with the label -100 outside the answers. Its rounds and those of fednlp alternate, each in a process
of its own, and a figure is the median of the ratios. ``share_of_peak`` is 4 N FLOP a token that is not padding (two
passes through N frozen parameters without the table of words, forward and for the inputs' gradients), over the float32
matrix products that one thread was measured to do in the same run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from bare import in_turns, ratios, serve_rounds

LENGTH, BATCH, RATE, PEFT = 128, 4, 1e-4, {"method": "lora", "r": 8, "lora_alpha": 16}
SIDES: dict[str, dict[str, Any]] = {
    "bare": {"bare": True},
    "fednlp": {},
    "fednlp oneDNN": {"onednn": True},
    "fednlp bfloat16": {"bf16": True},
}


def material(steps: int) -> tuple[Any, Any, Any]:
    """Return the model with adapters, the task, and the features of a round's conversations."""
    from fednlp.data import load_data
    from fednlp.data.features import Features
    from fednlp.models.pretrained import load_tokenizer, pretrained_model
    from fednlp.models.resolve import resolve_model
    from fednlp.tasks.chat import Chat

    source = resolve_model("smollm2")
    tokenizer = load_tokenizer(source)
    task = Chat.build((), tokenizer)
    rows = [
        {"messages": text} for text in load_data("bbc-chats").train["messages"].to_pylist()[: steps * BATCH]
    ]
    features = Features.in_memory(task.encode(rows, tokenizer, LENGTH))
    model = pretrained_model(source, task.model_class, task.settings(), {}, 0, PEFT)
    return model, task, features


def side(steps: int, *, bare: bool = False, onednn: bool = False, **ways: Any) -> Callable[[], None]:
    """Return what does one round of a side."""
    import numpy as np
    import torch

    model, task, features = material(steps)
    if bare:
        batches = []
        for first in range(0, steps * BATCH, BATCH):
            numbers = np.arange(first, first + BATCH)
            ids = torch.from_numpy(features.padded("input_ids", numbers, task.padding)[0]).long()
            learnt = torch.from_numpy(features.padded("learnt", numbers, 0)[0]).bool()
            seen = torch.arange(ids.shape[1]) < torch.from_numpy(features.lengths(numbers))[:, None]
            labels = ids.masked_fill(~learnt, -100)
            batches.append({"input_ids": ids, "attention_mask": seen.long(), "labels": labels})

        def bare_round() -> None:
            model.train()
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
            for batch in batches:
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()

        return bare_round

    from fednlp.training.kernels.onednn import use_onednn
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.model_layout import flat_weights
    from fednlp.training.replica import Replica

    if onednn:
        use_onednn(model)
    x, replica = flat_weights(model), Replica(model, torch.device("cpu"), True)
    options = LocalTraining(
        group_by_length=False, learning_rate=RATE, per_device_train_batch_size=BATCH, **ways
    )

    def fednlp_round() -> None:
        local = LocalTrainer(replica, task, features, np.arange(steps * BATCH), options, x, 0, 1, 0)
        (local.steps(x) - x).take()

    return fednlp_round


def peak() -> float:
    """Return the float32 FLOP a second of one thread in matrix products of the model's size, as measured here."""
    import torch

    torch.set_num_threads(1)
    one, other = torch.randn(BATCH * LENGTH, 576), torch.randn(576, 1536)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(20):
            one @ other
        best = max(best, 20 * 2 * one.numel() * 1536 / (time.perf_counter() - start))
    return best


def main() -> None:
    """Measure all sides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="warm rounds a figure")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES)[1:], help="what is measured")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve_rounds(side(**json.loads(options.side)))
        return
    names = ["bare", *(options.sides or list(SIDES)[1:])]
    taken = in_turns(
        __file__, {name: {"steps": options.steps, **SIDES[name]} for name in names}, options.rounds
    )
    model, _, features = material(options.steps)
    base = sum(
        p.numel() for name, p in model.named_parameters() if not p.requires_grad and "embed" not in name
    )
    tokens, most = int(features.all_lengths.sum()), peak()
    speeds = {name: tokens / statistics.median(seconds) for name, seconds in taken.items()}
    found = {
        "tokens": tokens,
        "peak_gflops": round(most / 1e9, 1),
        "ratio_to_bare": ratios(taken),
        "tokens_a_second": {name: round(speed) for name, speed in speeds.items()},
        "share_of_peak": {name: round(4 * base * speed / most, 3) for name, speed in speeds.items()},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
