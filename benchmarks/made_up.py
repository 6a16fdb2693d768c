"""An experiment that needs nothing from a network: its texts and its model are made on the spot."""

import csv
import sys
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

LABELS = ("arts", "economy", "science")
_COMMON = [f"word{number}" for number in range(30)]
_TELLING = [f"{label}{number}" for label in LABELS for number in range(4)]


def experiment(
    folder: Path,
    hidden: int = 64,
    clients: int = 3,
    rounds: int = 2,
    layers: int = 2,
    words: int = 12,
    vocabulary: int = 0,
    **changes: Any,
) -> Any:
    """Return an experiment on texts whose words give their labels away.

    Args:
        folder: Takes the texts and the model.
        hidden: Size of the model's hidden states: with two layers, 64 makes it 0.4 MB, and 256 makes it 6.4 MB.
        clients: Of the partition; all take part in each round.
        rounds: How many.
        layers: Of the model.
        words: Of a text, besides those that tell its label.
        vocabulary: Rows of the word embedding, if more than there are words.
        changes: Further sections of the experiment.
    """
    from fednlp import config

    folder.mkdir(parents=True, exist_ok=True)
    rng, path = Random(0), folder / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number in range(60 * clients):
            label = LABELS[number % len(LABELS)]
            telling = [one for one in _TELLING if one.startswith(label)]
            writer.writerow((" ".join([*rng.choices(_COMMON, k=words), *rng.choices(telling, k=3)]), label))
    sections: dict[str, Any] = {
        "num_rounds": rounds,
        "clients_per_round": clients,
        "data": {"path": str(path)},
        "task": {"name": "text-classification"},
        "partition": {"method": "label", "clients": clients, "alpha": 5.0},
        "model": {"name_or_path": str(save_encoder(folder / "model", hidden, layers, vocabulary))},
        "algorithm": {"name": "fedavg"},
        "client": {"optimizer": "adamw", "learning_rate": 1e-3, "max_steps": 4},
        "runtime": {"workers": 1},
    }
    return config.parse({**sections, **changes}, "made-up")


def save_encoder(folder: Path, hidden: int, layers: int, vocabulary: int = 0) -> Path:
    """Save a BERT encoder with random weights, and its tokenizer of the words above."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    from tests.conftest import save_tokenizer

    logging.disable_progress_bar()
    folder.mkdir(exist_ok=True)
    settings = BertConfig(
        vocab_size=max(vocabulary, save_tokenizer(folder, [*_COMMON, *_TELLING])),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        intermediate_size=4 * hidden,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(settings).save_pretrained(folder)
    return folder
