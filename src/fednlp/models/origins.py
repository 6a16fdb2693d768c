"""Where a model comes from, in words that hold on any machine: a name at the hub, or a folder's bare name."""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from fednlp.disk import write
from fednlp.hubs.checksums import BERT_TINY, MINILM, SMOLLM2

_HUB_NAMES: Mapping[str, str] = {
    "bert-tiny": "google/bert_uncased_L-2_H-128_A-2",
    "minilm": "sentence-transformers/all-MiniLM-L6-v2",
    "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
"""The hub's name of each model that is fetched by a name of fednlp's own."""

_CACHED = {
    BERT_TINY.folder: _HUB_NAMES["bert-tiny"],
    MINILM.folder: _HUB_NAMES["minilm"],
    f"gguf-{next(iter(SMOLLM2.files.values()))[:32]}": _HUB_NAMES["smollm2"],
}
"""The same by the folder of the cache that holds the model."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAMING = ("_name_or_path", "name_or_path", "base_model_name_or_path")
"""Keys of configuration files under which libraries note where a model was loaded from."""


def hub_names(name_or_path: str) -> list[str]:
    """Return the hub's names of what ``model.name_or_path`` names; none for a folder, a file or a model from scratch.

    >>> hub_names("bert-tiny+bert-tiny"), hub_names("owner/name"), hub_names("/home/me/model")
    (['google/bert_uncased_L-2_H-128_A-2'], ['owner/name'], [])
    """
    parts = dict.fromkeys(_HUB_NAMES.get(part, part) for part in name_or_path.split("+"))
    return list(parts) if all(_HUB_NAME.fullmatch(part) for part in parts) else []


def origin(source: str) -> str:
    """Return what names a model outside of this machine: its name at the hub, else its folder's or file's bare name.

    The model of a run is named after the run.

    >>> origin("/home/me/runs/first/model"), origin("owner/name"), origin("bert-tiny")
    ('first', 'owner/name', 'bert-tiny')
    """
    path = PurePath(source)
    cached = next((_CACHED[part] for part in path.parts if part in _CACHED), None)
    if cached is not None:
        return cached
    if not path.is_absolute() and not source.startswith((".", "~")) and len(path.parts) < 3:
        return source
    return path.parent.name if path.name == "model" else path.name


def name_origins(folder: Path, base: str | None = None) -> None:
    """Have the configuration files of a model folder name its origin, and no folder of this machine.

    Args:
        base: ``model.name_or_path`` of the run, which its adapters are for; a site has it in a folder of its own.
    """
    for path in sorted(folder.rglob("*config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        named = _name_within(config)
        if base is not None and "base_model_name_or_path" in config:
            config["base_model_name_or_path"] = (hub_names(base) or [origin(base)])[0]
            named = True
        if named:
            text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
            write(path, f"{text}\n".encode())


def _name_within(config: Any) -> bool:
    """Put origins in place of folders, in the parts of a configuration too; return whether there were any."""
    if not isinstance(config, dict):
        return False
    named = False
    for key, value in config.items():
        if key in _NAMING and isinstance(value, str) and origin(value) != value:
            config[key], named = origin(value), True
        else:
            named |= _name_within(value)
    return named
