"""Tokenizers and tiny random models for the tests of tasks, made on the spot from configurations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

WORDS = [f"w{i}" for i in range(20)]
CPU = torch.device("cpu")


def wordpiece(folder: Path, words: Sequence[str] = WORDS, **special: str | None) -> Any:
    """Save and load a tokenizer of whole words with BERT's special tokens, and others by name.

    It splits at spaces alone, so that a special token written out in a text is one word.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    extra = [name for name in dict.fromkeys(special.values()) if name and name not in names]
    inner = Tokenizer(
        WordPiece({word: i for i, word in enumerate([*names, *extra, *words])}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = WhitespaceSplit()
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    given = {f"{name[1:-1].lower()}_token": name for name in names} | special
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, model_max_length=64, **{key: name for key, name in given.items() if name}
    )
    made.save_pretrained(folder)
    return loaded(folder)


def byte_level(folder: Path, texts: Sequence[str]) -> Any:
    """Save and load a byte-level BPE as RoBERTa's: a space belongs to the word behind it, the mask eats it."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(BPE())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = BpeTrainer(
        vocab_size=400, initial_alphabet=ByteLevel.alphabet(), special_tokens=names, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    inner.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True),
    ).save_pretrained(folder)
    return loaded(folder)


def loaded(folder: Path) -> Any:
    """Load a tokenizer as a run does."""
    from fednlp.models.pretrained import load_tokenizer

    return load_tokenizer(str(folder))


def built(task: Any, config: Any) -> Any:
    """Return a random model with the task's head and settings, in evaluation mode, always the same."""
    import transformers

    for key, value in task.settings().items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, task.model_class).from_config(config)
    return model.eval()


def bert(words: int, **options: Any) -> Any:
    """A configuration of a BERT of two small layers, without dropout unless asked for."""
    from transformers import BertConfig

    given = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BertConfig(vocab_size=words, **(given | options))


def gpt2(words: int, **options: Any) -> Any:
    """A configuration of a GPT-2 of two small layers, without dropout unless asked for."""
    from transformers import GPT2Config

    given = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "initializer_range": 0.1,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    return GPT2Config(vocab_size=words, **(given | options))


def fit(task: Any, model: Any, features: Any, numbers: Any, steps: int, rate: float) -> None:
    """Train a model on all examples at once, some steps, and put it back into evaluation mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.train()
        for _ in range(steps):
            optimizer.zero_grad()
            task.loss(model, task.collate(features, numbers, CPU, training=True)).backward()
            optimizer.step()
    model.eval()
