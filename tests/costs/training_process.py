"""A process that trains models, and prints how much memory each took at its peak.

It reads a JSON list of cases from its arguments, and forks for each: what a case counts is its highest resident set
(VmHWM of /proc/self/status) less its resident set before the model was built. At that point all libraries are loaded
and have trained a tiny model, so they are not counted; weights, gradients, optimiser, activations, and what the
allocator holds beside, are. The plan "label" trains nothing, and a "prompt" is learned by the model's own head, which
gives logits at one place of a row. A "method" is the client of a method of federated learning, by its name and options,
whose local steps are the same loop. With "max_tokens" a step of texts of several lengths is made in passes of so many
tokens. In an "exact" case the allocator gives every freed block of 64 kB or more back at
once.
"""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

import fednlp
from fednlp.models.checkpointing import checkpoint_layers
from fednlp.tasks.blocks import logits_at
from fednlp.training.batches import passes

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


def _passes(case: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the texts of each pass of a step: one pass, or as many as texts of several lengths need."""
    if not case.get("max_tokens"):
        yield _texts(case)
        return
    lengths = np.random.default_rng(0).integers(8, case["length"] + 1, case["batch"])
    for rows in passes(np.arange(case["batch"]), lengths.take, 1, case["max_tokens"]):
        yield _texts({**case, "batch": len(rows), "length": int(lengths[rows].max())})


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
    if case.get("checkpointing"):
        checkpoint_layers(model)
    local = _Local(model, case, steps)
    if case.get("method") is None:
        local.train()
    else:
        _take_part(local, *case["method"])
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for p in local.trained)


def _take_part(local: "_Local", name: str, options: dict[str, Any]) -> None:
    """Compute what a client of a method sends and keeps in a round that is not its first."""
    algorithm = getattr(fednlp, name)(1, **options)
    x = local.weights.clone()
    server = {vector: torch.zeros_like(x) for vector in algorithm.receives}
    own = {vector: x.clone() for vector in algorithm.keeps}
    result = algorithm.client(local, x, server, own)
    assert {*result.keep} == {*algorithm.keeps}
    assert {*result.update} == {*algorithm.sends}
    result.update["model"].take()


class _Local:
    """A client's local steps as everybody writes them, with the weights in one tensor (:class:`fednlp.Local`)."""

    momentum = 0.0

    def __init__(self, model: torch.nn.Module, case: dict[str, Any], steps: int) -> None:
        self.model, self.case, self.num_steps, self.rate_sum = model, case, steps, 1e-4 * steps
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._last: _Weights | None = None
        if case.get("method") is not None:
            self.weights = torch.cat([parameter.detach().flatten() for parameter in self.trained])
            for place, parameter in self._places():
                parameter.data = self.weights[place].view_as(parameter)

    def train(self, change: Callable[[], None] = lambda: None) -> None:
        optimizer = self._optimizer()
        self.model.train()
        for _ in range(self.num_steps):
            for number, texts in enumerate(_passes(self.case)):
                loss = self._loss(*texts)
                if number == 0:
                    optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            change()
            optimizer.step()
        optimizer.zero_grad()

    def steps(
        self, start: Tensor, gradient: Any = None, *vectors: Tensor, sparse: bool = False
    ) -> "_Weights":
        def change() -> None:
            for place, parameter in self._places() if gradient is not None else ():
                parts = (vector[place].view_as(parameter) for vector in vectors)
                parameter.grad = gradient(parameter.grad, parameter.detach(), *parts)

        if self._last is not None:
            self._last.values = self.weights.clone()
        self.weights.copy_(start)
        self.train(change)
        self._last = _Weights(self.weights)
        return self._last

    def gradient(self, at: Tensor) -> Tensor:
        self.model.train(False)
        for _ in range(self.num_steps):
            self._loss(*_texts(self.case)).backward()  # type: ignore[no-untyped-call]
        found = torch.cat([parameter.grad.flatten() for parameter in self.trained])  # type: ignore[union-attr]
        self.model.zero_grad()
        return found

    def _places(self) -> Iterator[tuple[slice, torch.nn.Parameter]]:
        start = 0
        for parameter in self.trained:
            yield slice(start, start + parameter.numel()), parameter
            start += parameter.numel()

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.case.get("optimizer") == "sgd":
            return torch.optim.SGD(self.trained, lr=1e-4)
        return torch.optim.AdamW(self.trained, lr=1e-4, fused=True)

    def _loss(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = _logits(self.model, ids, mask, self.case)
        return torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


class _Weights:
    """The weights that steps ended with, until the next begin (:class:`fednlp.federated.client.Weights`)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def flat(self) -> Tensor:
        return self.values.clone()

    def __sub__(self, other: Tensor) -> "_Change":
        return _Change(self, other)

    def __rsub__(self, other: Tensor) -> Tensor:
        return other - self.values


class _Change:
    """``y - x``, computed in place of the weights (:class:`fednlp.federated.client.Change`)."""

    def __init__(self, weights: _Weights, x: Tensor, divisor: float = 1.0) -> None:
        self.weights, self.x, self.divisor = weights, x, divisor

    def __truediv__(self, number: float) -> "_Change":
        return _Change(self.weights, self.x, number)

    def take(self) -> Tensor:
        return self.weights.values.sub_(self.x).div_(self.divisor)


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
