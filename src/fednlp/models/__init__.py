"""Models: found by name, folder or hub name, or built, with the right head for the task."""

from fednlp.models.build import (
    has_weights,
    load_tokenizer,
    longest_text,
    new_model,
    pretrained_model,
    save_model,
)
from fednlp.models.built import VOCABULARY_SIZE, built_model, built_source
from fednlp.models.find import find_model
from fednlp.models.known import ALL_NAMES, BUILT_NAMES, FETCHED_NAMES
from fednlp.models.vocabulary import train_vocabulary

__all__ = [
    "ALL_NAMES",
    "BUILT_NAMES",
    "FETCHED_NAMES",
    "VOCABULARY_SIZE",
    "built_model",
    "built_source",
    "find_model",
    "has_weights",
    "load_tokenizer",
    "longest_text",
    "new_model",
    "pretrained_model",
    "save_model",
    "train_vocabulary",
]
