"""Models by name, folder or hub name, or from scratch, with the right head for the task."""

from fednlp.models.from_scratch import VOCABULARY_SIZE, from_scratch_folder, from_scratch_source
from fednlp.models.pretrained import (
    has_weights,
    load_tokenizer,
    longest_text,
    new_model,
    pretrained_model,
    save_model,
)
from fednlp.models.registry import ALL_NAMES, FETCHED_NAMES, FROM_SCRATCH_NAMES
from fednlp.models.resolve import resolve_model
from fednlp.models.vocabulary import train_vocabulary

__all__ = [
    "ALL_NAMES",
    "FETCHED_NAMES",
    "FROM_SCRATCH_NAMES",
    "VOCABULARY_SIZE",
    "from_scratch_folder",
    "from_scratch_source",
    "has_weights",
    "load_tokenizer",
    "longest_text",
    "new_model",
    "pretrained_model",
    "resolve_model",
    "save_model",
    "train_vocabulary",
]
