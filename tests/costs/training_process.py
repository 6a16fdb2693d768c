"""A process that trains models, and prints how much memory each took at its peak.

It reads a JSON list of cases from its arguments, and forks for each: what a case counts is its highest resident set
(VmHWM of /proc/self/status) less its resident set before the model was built. At that point all libraries are loaded
and have trained a tiny model, so they are not counted; weights, gradients, optimiser, activations, and what the
allocator holds beside, are. The plan "label" trains nothing, and a "prompt" is learned by the model's own head, which
gives logits at one place of a row. In an "exact" case the allocator gives every freed block of 64 kB or more back at
once.
"""

import ctypes
import gc
import json
import os
import sys
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from fednlp.tasks.blocks import logits_at

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h

torch.set_num_threads(1)
TINY = {
    "plan": "full",
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "intermediate": 64,
    "vocabulary": 50,
    "batch": 4,
    "length": 32,
}


def _status(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(key))


def _is_trained(name: str, case: dict[str, Any]) -> bool:
    if case["plan"] == "full" or name.startswith(("classifier", "bert.pooler")):
        return True
    if case["plan"] == "bias":
        return name.endswith("bias")
    layer = name.partition(".layer.")[2].partition(".")[0]
    return case["plan"] == "top-2" and layer != "" and int(layer) >= case["layers"] - 2


def _texts(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, case["vocabulary"], (case["batch"], case["length"]))
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    return ids, mask


def _logits(
    model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, case: dict[str, Any]
) -> torch.Tensor:
    inputs = {"input_ids": ids, "attention_mask": mask}
    if case.get("prompt"):
        return logits_at(model, inputs, torch.arange(len(ids)) * ids.shape[1], ids.shape)[:, [7, 8, 9]]
    logits: torch.Tensor = model(**inputs).logits
    return logits


def _train(case: dict[str, Any], steps: int) -> tuple[int, int]:
    """Build a model and train it; return its parameters, and how many of them are trained."""
    config = BertConfig(
        hidden_size=case["hidden"],
        num_hidden_layers=case["layers"],
        num_attention_heads=case["heads"],
        intermediate_size=case["intermediate"],
        vocab_size=case["vocabulary"],
    )
    model = BertForMaskedLM(config) if case.get("prompt") else BertForSequenceClassification(config)
    if case["plan"] == "label":
        with torch.inference_mode():
            model.eval()
            for _ in range(steps):
                _logits(model, *_texts(case), case)
        return sum(p.numel() for p in model.parameters()), 0
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_trained(name, case))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    model.train()
    for _ in range(steps):
        logits = _logits(model, *_texts(case), case)
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for p in trained)


def _measure(case: dict[str, Any], out: int) -> None:
    """Train one case, and write what it took; never returns."""
    if case["exact"]:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 16)
    _train(TINY, steps=2)  # a fork has to find the pages of its libraries anew
    gc.collect()
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts anew
    parameters, trained = _train(case, steps=3)
    found = {"parameters": parameters, "trained": trained, "peak": _status("VmHWM") - before}
    os.write(out, json.dumps(found).encode())
    os._exit(0)


def main() -> None:
    """Measure all cases, each in a fork of its own."""
    _train(TINY, steps=2)
    found = []
    for case in json.loads(sys.argv[1]):
        reading, writing = os.pipe()
        if os.fork() == 0:
            _measure(case, writing)
        os.close(writing)
        with os.fdopen(reading) as file:
            found.append(json.loads(file.read()))
        os.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
