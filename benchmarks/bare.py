"""What benchmarks of local steps share: sizes of models, the bare PyTorch loop, and sides that take turns.

Each side is a process of its own, so that none meets the allocator or the caches that another has set up. A side does a
round whenever it is told to, and says how long it took. The sides alternate, so that all meet the same machine.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 30522
SIZES = {
    "bert-tiny": (2, 128, 2),
    "minilm": (6, 384, 12),
    "distilbert": (6, 768, 12),
    "bert-base": (12, 768, 12),
    "roberta-large": (24, 1024, 16),
}
"""Layers, width and heads."""

Batch = tuple[Any, Any, Any]
"""Token ids, mask and labels."""


def bert_config(size: str, dropout: float = 0.0) -> Any:
    """Return the configuration of a classifier of two labels.

    Args:
        size: One of :data:`SIZES`.
        dropout: Everywhere.
    """
    from transformers import BertConfig

    layers, width, heads = SIZES[size]
    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        architectures=["BertForSequenceClassification"],
    )


def build(size: str, dropout: float = 0.0) -> Any:
    """Return such a classifier with random weights, the same each time."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(bert_config(size, dropout))


def random_texts(count: int, length: int) -> tuple[Any, Any]:
    """Return token ids, (count, length), and labels, the same each time."""
    import torch

    ids = torch.randint(1000, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(count) % 2


def as_rows(ids: Any, labels: Any) -> list[dict[str, Any]]:
    """Return texts as the rows that features are made of."""
    return [{"input_ids": i, "label": y} for i, y in zip(ids.tolist(), labels.tolist(), strict=True)]


def as_batches(ids: Any, labels: Any, size: int, device: str = "cpu") -> list[Batch]:
    """Return texts as ready-made tensors of batches, which lie on the device."""
    import torch

    parts = zip(ids.to(device).split(size), labels.to(device).split(size), strict=True)
    return [(part, torch.ones_like(part), own) for part, own in parts]


def take_steps(model: Any, optimizer: Any, batches: Iterable[Batch]) -> None:
    """Do nothing but forward, backward and the optimiser's step for each batch."""
    for ids, mask, labels in batches:
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def local_training(
    model: Any, ids: Any, labels: Any, *, device: str = "cpu", onednn: bool = False, **options: Any
) -> Callable[[Sequence[int]], Any]:
    """Return what makes the local trainer of fednlp for a client's examples, as a worker process has it.

    Args:
        model: Changed in place.
        ids: Of all texts.
        labels: Theirs.
        device: That trains.
        onednn: As ``runtime.onednn``.
        options: Of local training.
    """
    import numpy as np
    import torch

    from fednlp.data.features import Features
    from fednlp.tasks.text_classification import TextClassification
    from fednlp.training.kernels.onednn import use_onednn
    from fednlp.training.kernels.padding_free import find_padding_free
    from fednlp.training.local import LocalTrainer
    from fednlp.training.local_training import LocalTraining
    from fednlp.training.model_layout import flat_weights
    from fednlp.training.replica import Replica

    if onednn:
        use_onednn(model)
    x, task, features = (
        flat_weights(model),
        TextClassification(("0", "1")),
        Features.in_memory(as_rows(ids, labels)),
    )
    replica = Replica(model, torch.device(device), True)
    chosen = LocalTraining(group_by_length=False, **options)
    if chosen.padding_free:
        find_padding_free(model).install()

    def trainer(examples: Sequence[int], client: int = 0) -> Any:
        return LocalTrainer(replica, task, features, np.asarray(examples), chosen, x, 0, 1, client)

    return trainer


def serve_rounds(work: Callable[[], None]) -> None:
    """Be a side: do a round for each line of standard input, and print its seconds."""
    import torch

    torch.set_num_threads(1)
    for _ in sys.stdin:
        start = time.perf_counter()
        work()
        print(time.perf_counter() - start, flush=True)


def in_turns(script: str, sides: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Let sides do a round in turns; return the seconds of each side's warm rounds.

    Args:
        script: The benchmark, which is a side when it is called with ``--side`` and JSON.
        sides: What tells each of them what to do, JSON values.
        rounds: Warm ones; one more comes first.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as running:
        processes = {
            name: running.enter_context(start_side([sys.executable, script, "--side", json.dumps(told)]))
            for name, told in sides.items()
        }
        for _ in range(rounds + 1):
            for name, process in processes.items():
                taken[name].append(let_round(process))
    return {name: seconds[1:] for name, seconds in taken.items()}


def start_side(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start the process of a side, which waits for what :func:`let_round` writes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen(command, **pipes, **options)
    return process


def let_round(side: subprocess.Popen[str]) -> float:
    """Let a side do a round; return the seconds that it says."""
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write("\n")
    side.stdin.flush()
    return float(side.stdout.readline())


@contextmanager
def watched_memory(process: int, every: float = 0.1) -> Iterator[list[float]]:
    """Watch the memory of a process and its descendants; the list gets the summed proportional set sizes in MB.

    Args:
        process: Its number.
        every: Seconds between two looks.
    """
    import psutil

    root, seen, over = psutil.Process(process), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(every):
            with suppress(psutil.Error):  # the process has ended
                seen.append(sum(map(_proportional, [root, *root.children(recursive=True)])) / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _proportional(process: Any) -> int:
    import psutil

    try:
        size: int = process.memory_full_info().pss
    except psutil.Error:
        return 0
    return size


def ratios(taken: dict[str, list[float]], of: str = "bare") -> dict[str, float]:
    """Return the median ratio of each other side's seconds to those of one side in the same turn."""
    return {
        name: round(statistics.median(own / bound for own, bound in zip(seconds, taken[of], strict=True)), 3)
        for name, seconds in taken.items()
        if name != of
    }
