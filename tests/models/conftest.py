"""Small random models of many architectures, saved with a small tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WORDS = [f"w{i}" for i in range(40)]
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    "roberta": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    "llama": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "tie_word_embeddings": True,
    },
    "xlnet": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
    "xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2},
    "bart": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    },
    "fnet": {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32},
    "longformer": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "attention_window": 4,
    },
    "t5": {"d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "d_ff": 32},
}


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the folder of a small random model: its type, the auto class to save it with, more settings."""
    made: dict[str, Path] = {}

    def make(kind: str, auto: str | None = "AutoModel", **more: Any) -> Path:
        key = repr((kind, auto, more))
        if key not in made:
            made[key] = _save(tmp_path_factory.mktemp(kind), kind, auto, more)
        return made[key]

    return make


def _save(folder: Path, kind: str, auto: str | None, more: dict[str, Any]) -> Path:
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    transformers.utils.logging.disable_progress_bar()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": len(vocabulary)} | ids | SIZES[kind] | more
    config = transformers.AutoConfig.for_model(kind, **sizes)
    if auto is None:
        config.save_pretrained(folder)
        return folder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(transformers, auto).from_config(config).save_pretrained(folder)
    return folder
