"""Federated averaging on real news in plain PyTorch.

    python examples/fedavg_by_hand.py

The data are BBC News over 20 clients under label shift, and the model is a bag of words. `tests/test_examples.py`
checks that `federated_round` and the library's round give the same weights.
"""

import re
import zlib

import numpy as np
import torch
from torch import Tensor, nn

import fednlp

WORDS, LABELS = 4096, 5
Example = tuple[list[int], int]


def tokens(text: str) -> list[int]:
    """Return a number for each word: a checksum instead of a vocabulary, the same on every client."""
    return [zlib.crc32(word.encode()) % WORDS for word in re.findall(r"[a-z]+", text.lower())[:200]]


def new_model() -> nn.Module:
    """A bag of words: every word has a score for each label, and a text has the mean of its words' scores."""
    torch.manual_seed(0)
    return nn.EmbeddingBag(WORDS, LABELS, mode="mean")


def logits(model: nn.Module, examples: list[Example]) -> Tensor:
    """Score the labels of a batch of texts."""
    offsets = np.cumsum([0] + [len(words) for words, _ in examples[:-1]])
    flat = [word for words, _ in examples for word in words]
    scores: Tensor = model(torch.tensor(flat), torch.tensor(offsets))
    return scores


def local_training(model: nn.Module, examples: list[Example], rate: float = 50.0) -> None:
    """Train one client: one epoch of SGD on its own texts, in batches of 8."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for start in range(0, len(examples), 8):
        batch = examples[start : start + 8]
        loss = nn.functional.cross_entropy(logits(model, batch), torch.tensor([y for _, y in batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def federated_round(model: nn.Module, cohort: list[list[Example]]) -> None:
    """Run one round of the server: send the model, and average the clients' models weighted by examples."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = sum(len(examples) for examples in cohort)
    mean = {name: torch.zeros_like(value) for name, value in start.items()}
    for examples in cohort:
        model.load_state_dict(start)
        local_training(model, examples)
        for name, value in model.state_dict().items():
            mean[name] += len(examples) / total * value
    model.load_state_dict(mean)


def accuracy(model: nn.Module, examples: list[Example]) -> float:
    """Return the fraction of texts whose most likely label is right."""
    with torch.no_grad():
        guess = logits(model, examples).argmax(1)
    return float((guess == torch.tensor([y for _, y in examples])).float().mean())


def main(rounds: int = 20) -> float:
    """Partition the news over 20 clients and run some rounds with ten clients each."""
    data = fednlp.load_data("bbc")
    labels = data.labels("train")
    examples = [
        (tokens(text), int(y)) for text, y in zip(data.train["text"].to_pylist(), labels, strict=True)
    ]
    spec = fednlp.PartitionSpec("label", clients=20, alpha=1.0)
    train, test = data.train_numbers, data.test_numbers
    split = fednlp.make_partition(spec, labels[train], labels[test], num_labels=LABELS, train_numbers=train)
    clients = [[examples[number] for number in split.train(client)] for client in range(20)]
    held_out = [examples[number] for number in test]
    model, rng, score = new_model(), np.random.default_rng(0), 0.0
    for number in range(1, rounds + 1):
        federated_round(model, [clients[client] for client in rng.choice(20, 10, replace=False)])
        score = accuracy(model, held_out)
        print(f"round {number:2d}  accuracy {score:.3f}")
    return score


if __name__ == "__main__":
    main()
