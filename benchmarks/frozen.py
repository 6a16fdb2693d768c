"""What caching the activations of the frozen prefix of a model saves: warm rounds with the cache over rounds without.

    python benchmarks/frozen.py             # prints JSON

MiniLM (6 layers), sequence classification, 64 tokens a text, AdamW on what is not frozen, one torch thread.
Both sides run the frozen prefix without dropout, start from the same weights and draw the same dropout. They
alternate within one process, so that both meet the same machine; the figure is the median of their ratios.
The first round, in which every text is run through the prefix alone, is given too, over a plain round.
"""

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXTS, LENGTH, RATE = 64, 64, 5e-5
BOUNDS = {"train 4 of 6": 0.7, "train 6 of 6": 0.15, "predict 5 of 6": 0.2, "label 5 of 6": 0.2}
GAP = 1e-5


def texts(batch: int) -> tuple[Any, Any, list[Any]]:
    """Return a task, features of random texts, and batches of their numbers."""
    import numpy as np

    from fednlp.data.features import Features
    from fednlp.tasks.text_classification import TextClassification

    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 30000, (TEXTS, LENGTH))
    rows = [{"input_ids": row, "label": number % 2} for number, row in enumerate(ids.tolist())]
    numbers = rng.permutation(TEXTS)
    return (
        TextClassification(("0", "1")),
        Features.in_memory(rows),
        [numbers[i : i + batch] for i in range(0, TEXTS, batch)],
    )


class Side:
    """A model with a frozen prefix of ``depth`` layers, trained and run with the cache or without."""

    def __init__(self, model: Any, depth: int, folder: Path | None) -> None:
        import torch

        from fednlp.training.activation_cache import ActivationCache, activation_cache_folder
        from fednlp.training.frozen_prefix import find_frozen_prefix

        body = model.base_model
        for part in (body.embeddings, *body.encoder.layer[:depth]):
            part.requires_grad_(False)
        self.model = model
        found = find_frozen_prefix(model)
        assert found is not None
        assert len(found.blocks) == depth
        self.prefix = found
        self.cache = ActivationCache(found, activation_cache_folder(found, folder), 0) if folder else None
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=RATE, fused=True)

    def attached(self) -> AbstractContextManager[None]:
        """Use the cache, if there is one."""
        return self.cache.attached() if self.cache else nullcontext()

    def train(self, task: Any, features: Any, batches: list[Any], number: int) -> None:
        """Take one round's steps."""
        import torch

        torch.manual_seed(number)
        self.model.train()
        self.prefix.eval_mode()
        with self.attached():
            for numbers in batches:
                batch = task.collate(features, numbers, torch.device("cpu"), training=True)
                self.optimizer.zero_grad()
                task.loss(self.model, batch).backward()
                self.optimizer.step()

    def predict(self, task: Any, features: Any, batches: list[Any], number: int) -> None:
        """Predict all texts."""
        import torch

        self.model.eval()
        with torch.inference_mode(), self.attached():
            for numbers in batches:
                task.predict(self.model, features, numbers, torch.device("cpu"))

    def label(self, task: Any, features: Any, batches: list[Any], number: int) -> None:
        """Give all texts the probability of every label, as clients that label do."""
        import torch

        self.model.eval()
        with torch.inference_mode(), self.attached():
            for numbers in batches:
                task.probabilities(self.model, features, numbers, torch.device("cpu"))


def gap(first: Any, second: Any) -> float:
    """Return the largest difference between the weights of two models."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def seconds(work: Callable[..., None], *arguments: Any) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def measure(what: str, batch: int, rounds: int) -> dict[str, Any]:
    """Alternate rounds with the cache and without; return the median ratio."""
    import torch

    from fednlp.hubs.package_index import named_model
    from fednlp.models.pretrained import pretrained_model

    torch.set_num_threads(1)
    kind, depth = what.split()[0], int(what.split()[1])
    task, features, batches = texts(batch)
    model = pretrained_model(str(named_model("minilm")), task.model_class, task.settings(), {}, 0)
    plain, warm, ratios = [], [], []
    with tempfile.TemporaryDirectory() as name:
        without, cached = Side(copy.deepcopy(model), depth, None), Side(model, depth, Path(name))
        first = seconds(getattr(cached, kind), task, features, batches, 0)
        getattr(without, kind)(task, features, batches, 0)
        for number in range(1, rounds + 1):
            plain.append(seconds(getattr(without, kind), task, features, batches, number))
            warm.append(seconds(getattr(cached, kind), task, features, batches, number))
            ratios.append(warm[-1] / plain[-1])
        if cached.cache:
            cached.cache.store.close()
    same = {"gap": gap(without.model, cached.model), "gap_bound": GAP} if kind == "train" else {}
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "bound": BOUNDS[what],
        "plain_s": round(statistics.median(plain), 3),
        "first_over_plain": round(first / statistics.median(plain), 2),
    } | same


def main() -> None:
    """Measure everything and print it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="warm rounds a figure")
    options = parser.parse_args()
    result = {
        f"{what} batch={batch}": measure(what, batch, options.rounds) for what in BOUNDS for batch in (8, 16)
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
