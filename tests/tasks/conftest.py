"""Tokenizers and tiny models of all kinds for the tests of tasks, made on the spot."""

import os
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.data.features import Features

WORDS = [
    "up",
    "down",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "north",
    "south",
    "east",
    "west",
    "the",
    "what",
    "is",
]
CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data, where there is one."""
    if "FEDNLP_TEST_DATA" not in os.environ:
        pytest.skip("set FEDNLP_TEST_DATA to the folder of real data sets")
    return Path(os.environ["FEDNLP_TEST_DATA"])


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """BERT's WordPiece: a few words, and letters, digits and punctuation for all others; drops control characters."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_lowercase + string.digits
    pieces = [*letters, *(f"##{letter}" for letter in letters), *string.punctuation, *WORDS]
    vocabulary = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces])}
    inner = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    """GPT-2's byte-level BPE: a space belongs to the word behind it, no special token is added, none is for padding."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(BPE())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=300,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    inner.train_from_iterator([" ".join(WORDS)] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")


@pytest.fixture(scope="session")
def model_for(tokenizer: Any) -> Callable[..., Any]:
    """Return a tiny random BERT with the head that a task asks for, in evaluation mode."""

    def make(task: Any) -> Any:
        import transformers

        config = transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=128,
            initializer_range=0.1,
        )
        for key, value in task.settings().items():
            setattr(config, key, value)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return getattr(transformers, task.model_class).from_config(config).eval()

    return make


@pytest.fixture(scope="session")
def predicted() -> Callable[..., Any]:
    """Return a task's outcome for examples, as a worker would have it."""

    def predict(task: Any, model: Any, features: Features, numbers: Any = None) -> Any:
        with torch.inference_mode():
            return task.predict(
                model, features, np.arange(len(features)) if numbers is None else numbers, CPU
            )

    return predict


@pytest.fixture(scope="session")
def fitted(model_for: Callable[..., Any], predicted: Callable[..., Any]) -> Callable[..., dict[str, float]]:
    """Fit a tiny model to some rows and return its metrics on them."""

    def fit(task: Any, features: Features, steps: int, rate: float = 3e-3) -> dict[str, float]:
        model, numbers = model_for(task).train(), np.arange(len(features))
        optimizer = torch.optim.Adam(model.parameters(), rate)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for _ in range(steps):
                drawn = torch.randperm(len(features))[:16].numpy()
                optimizer.zero_grad()
                task.loss(model, task.collate(features, drawn, CPU, training=True)).backward()
                optimizer.step()
        metrics: dict[str, float] = task.metrics(
            predicted(task, model.eval(), features).predictions, features, numbers
        )
        return metrics

    return fit
