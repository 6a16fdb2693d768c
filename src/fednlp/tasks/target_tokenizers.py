"""The tokenizers of an encoder-decoder: of its sources, and of its targets where they have one of their own."""

import functools
import hashlib
from typing import Any

from fednlp.errors import ModelError


@functools.cache
def cached_tokenizer(source: str) -> Any:
    """Load the tokenizer of sources, once a process."""
    from fednlp.models.pretrained import load_tokenizer

    return load_tokenizer(source)


@functools.cache
def own_target_tokenizer(source: str) -> Any | None:
    """Load the targets' own tokenizer, once a process; None where they share that of the sources."""
    from fednlp.models.pretrained import target_tokenizer

    return target_tokenizer(source)


def require_target_tokenizer(source: str) -> Any:
    """Load the targets' own tokenizer.

    Raises:
        ModelError: There is none.
    """
    found = own_target_tokenizer(source)
    if found is None:
        raise ModelError(
            f"{source}: the tokenizer of its targets is missing, that was in its folder target: "
            "put it back, or run again"
        )
    return found


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer, whatever texts it has been used for."""
    inner = tokenizer.backend_tokenizer
    inner.no_truncation()
    inner.no_padding()
    return hashlib.sha256(inner.to_str().encode()).hexdigest()


def decode_texts(tokenizer: Any, ids: Any) -> list[str]:
    """Return token ids as texts, without special tokens and the blanks around."""
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return [text.strip() for text in tokenizer.batch_decode(ids, **options)]


def target_start_token(tokenizer: Any) -> int | None:
    """Return the special token that every target begins with, if there is one."""
    special = set(tokenizer.all_special_ids)
    ids = tokenizer(text_target="a")["input_ids"]
    return int(ids[0]) if len(ids) > 1 and ids[0] in special else None
