"""Build or load a model and its tokenizer, quietly, with one clear error when it cannot be had."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from fednlp.errors import FednlpError, ModelError
from fednlp.seeds import torch_stream


def quiet() -> None:
    """Keep transformers' own banners, bars and reports off the screen."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def find_model(name_or_path: str) -> str:
    """Return what transformers can load: the folder of a known model, a folder given, or a hub name.

    Raises:
        ModelError: Neither a known name, nor a model folder, nor shaped like a hub name.
        FetchError: A known model cannot be fetched and is not cached.
    """
    from fednlp.data.sources import MODEL_NAMES, named_model

    known = named_model(name_or_path)
    if known is not None:
        return str(known)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"{folder} is no model: it has no config.json; give a folder that save_pretrained wrote"
            )
        return str(folder)
    if folder.exists() or name_or_path.startswith((".", "/", "~")):
        raise ModelError(f"there is no model folder {name_or_path}; known names: {', '.join(MODEL_NAMES)}")
    return name_or_path


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Turn what transformers raises for a missing or unfit model into one sentence."""
    from fednlp.data.sources import MODEL_NAMES

    quiet()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FednlpError:
        raise
    except Exception as error:  # loaders of many hands raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if Path(source).is_dir():
            raise ModelError(f"the model in {source} cannot be loaded: {reason}") from None
        raise ModelError(
            f'there is no model "{source}" here and the hub did not give it ({reason}): pass one of '
            f"{', '.join(MODEL_NAMES)}, or the folder of a model"
        ) from None


def load_tokenizer(source: str) -> Any:
    """Load a model's fast tokenizer.

    Raises:
        ModelError: It cannot be found or loaded.
    """
    with _explained(source):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(source)
        if not tokenizer.is_fast:
            raise ValueError("its tokenizer has no fast version (tokenizer.json)")
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("it has no vocabulary: tokenizer.json is missing")
        return tokenizer


def longest_text(source: str, tokenizer: Any) -> int:
    """Return how many tokens a model can read at most, by its own word and its tokenizer's."""
    with _explained(source):
        from transformers import AutoConfig

        positions = getattr(AutoConfig.from_pretrained(source), "max_position_embeddings", None)
    limits = [limit for limit in (tokenizer.model_max_length, positions) if limit and limit > 0]
    return int(min(limits))


def _config(source: str, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    unknown = [key for key in overrides if not hasattr(config, key)]
    if unknown:
        raise ModelError(
            f"[model.config] {', '.join(unknown)}: {config.model_type} models have no such setting; "
            f"see the model's config.json for the names"
        )
    taken = [key for key in overrides if key in settings]
    if taken:
        raise ModelError(f"[model.config] {', '.join(taken)}: the task sets it: leave it out")
    for key, value in {**settings, **overrides}.items():
        setattr(config, key, value)
    return config


def pretrained_model(
    source: str, model_class: str, settings: Mapping[str, Any], overrides: Mapping[str, Any], seed: int
) -> nn.Module:
    """Load a checkpoint with a fresh head; the head is a function of the seed.

    Args:
        source: From :func:`find_model`.
        model_class: Name of an auto class, from the task.
        settings: What the task says of the configuration.
        overrides: ``[model.config]`` of the experiment.
        seed: Of the experiment.

    Raises:
        ModelError: It cannot be loaded, or has no head for the task.
    """
    with _explained(source), torch_stream(seed, "model"):
        import transformers

        config = _config(source, settings, overrides)
        auto = getattr(transformers, model_class)
        model: nn.Module = auto.from_pretrained(source, config=config, ignore_mismatched_sizes=True)
        return model.float()


def new_model(
    source: str, model_class: str, settings: Mapping[str, Any], overrides: Mapping[str, Any]
) -> nn.Module:
    """Build the same architecture with weights to be filled in by the caller, without reading the checkpoint."""
    with _explained(source), torch_stream(0, "architecture"):
        import transformers

        config = _config(source, settings, overrides)
        model: nn.Module = getattr(transformers, model_class).from_config(config)
        return model.float()


def save_model(model: nn.Module, tokenizer: Any, folder: Path, card: str) -> None:
    """Write a model folder that ``from_pretrained`` reads, with its tokenizer and card."""
    quiet()
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")
