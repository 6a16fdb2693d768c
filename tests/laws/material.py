"""What the configurations train on: tiny models and examples that are made on the spot."""

import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.conftest import example_rows, save_bert, write_csv
from tests.laws.configurations import Configuration
from tests.test_every_task import WORDS, asked, copied, paired, scored, sentence, spoken, tagged
from tests.test_prompt_decoder_run import save_decoder

Row = Callable[[random.Random], dict[str, Any]]

_EXAMPLES = 100


def answered(rng: random.Random) -> dict[str, Any]:
    """Return a conversation of one or two exchanges."""
    turns = [" ".join(sentence(rng)[:4]) for _ in range(2 * rng.randint(1, 2))]
    return {
        "messages": [
            {"role": role, "content": text}
            for role, text in zip(("user", "assistant") * 2, turns, strict=False)
        ]
    }


def chosen(rng: random.Random) -> dict[str, Any]:
    """Return a question with three options, of which its answer is one."""
    options = rng.sample(WORDS, 3)
    return {"question": " ".join(sentence(rng)[:4]), "choices": options, "answer": rng.choice(options)}


def preferred(rng: random.Random) -> dict[str, Any]:
    """Return a prompt and two answers, of which the one that begins with a name is chosen."""
    words = [" ".join(sentence(rng)[:4]) for _ in range(3)]
    return {"prompt": words[0], "chosen": f"anna {words[1]}", "rejected": f"word1 {words[2]}"}


ROWS: dict[str, Row] = {
    "tagged": tagged,
    "asked": asked,
    "scored": scored,
    "paired": paired,
    "copied": copied,
    "spoken": spoken,
    "chats": answered,
    "choices": chosen,
    "preferences": preferred,
}
"""How an example of each kind is drawn; ``texts`` is the kind of :func:`tests.conftest.example_rows`."""
_TASKS = {"texts": "text-classification", "paired": "text-classification"}


def save_masked(encoder: Path, folder: Path) -> Path:
    """Save the encoder with a head for masked language modelling and a mask token."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForMaskedLM.from_pretrained(encoder).save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder, mask_token="poison").save_pretrained(folder)
    return folder


class Material:
    """Files of examples and models in one folder, each made when it is first needed.

    Args:
        folder: Of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, kind: str) -> Path:
        """Return the file of a kind of examples."""
        if kind == "texts":
            path = self.folder / "texts.csv"
            return path if path.exists() else write_csv(path, example_rows(_EXAMPLES))
        path = self.folder / f"{kind}.jsonl"
        if not path.exists():
            rng = random.Random(kind)
            path.write_text(
                "".join(json.dumps(ROWS[kind](rng)) + "\n" for _ in range(_EXAMPLES)), encoding="utf-8"
            )
        return path

    def model(self, kind: str) -> Path:
        """Return the folder of a model: ``encoder``, ``masked`` or ``decoder``."""
        folder = self.folder / kind
        if folder.exists():
            return folder
        if kind == "encoder":
            return save_bert(folder)
        return (save_masked if kind == "masked" else save_decoder)(self.model("encoder"), folder)

    def document(self, configuration: Configuration) -> dict[str, Any]:
        """Return the experiment of a configuration as nested tables."""
        made: dict[str, Any] = {
            "name": "law",
            "num_rounds": 3,
            "clients_per_round": 4,
            "data": {"path": str(self.rows(configuration.rows))},
            "partition": {"method": "label", "clients": 5, "alpha": 1.0},
            "model": {"name_or_path": str(self.model(configuration.model)), "max_length": 32},
            "task": {"name": _TASKS.get(configuration.rows)},
            "algorithm": {"name": "fedavg"},
            "client": {"optimizer": "adamw", "learning_rate": 0.01, "per_device_train_batch_size": 8},
            "runtime": {"workers": 1},
        }
        if configuration.rows != "texts":
            made["partition"] = {"method": "uniform", "clients": 5}
        for key, value in deepcopy(dict(configuration.changes)).items():
            *path, last = key.split(".")
            table = made
            for part in path:
                table = table.setdefault(part, {})
            whole = isinstance(value, dict) and isinstance(table.get(last), dict) and not path
            table[last] = table[last] | value if whole else value
        return _given(made)


def _given(table: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables without values that are None."""
    return {
        key: _given(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
