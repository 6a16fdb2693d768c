"""Models: found by name, folder or hub name, with the right head for the task."""

from fednlp.models.build import (
    find_model,
    load_tokenizer,
    longest_text,
    new_model,
    pretrained_model,
    save_model,
)

__all__ = ["find_model", "load_tokenizer", "longest_text", "new_model", "pretrained_model", "save_model"]
