"""What a model's folder may say before transformers reads it: the folder may be a stranger's.

A configuration can name other models, which transformers would fetch, and sizes that no machine has.
"""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fednlp.disk import read_whole
from fednlp.errors import ModelError

_MOST_LAYERS = 1000
"""Layers, blocks or experts of a kind at most."""
MOST_MODULES = 40_000
"""Modules of a model at most, from its layers down to each matrix."""
_MOST_LABELS = 1_000_000
_MOST_POSITIONS = 1 << 24
_MOST_LISTED = 1 << 24
"""Numbers in a list: they are counts of layers, sizes of windows or tokens."""
_MOST_ENTRIES = 10_000
"""Entries of a list or table in a configuration, but for the names of labels."""
_DEEPEST = 16
_FRESH = 1 << 28
"""Numbers of a model that its checkpoint may lack, such as a head and a table of positions."""
LONGEST_CONFIG, _LONGEST_FILE = 64 << 20, 256 << 20
"""Bytes of a configuration, and of a vocabulary, at most; the largest that are published have some 40 MB."""
_READ_WHOLE = frozenset({".json", ".jinja", ".model", ".txt"})

_OTHER_MODELS = ("backbone", "use_timm_backbone", "use_pretrained_backbone", "timm_model_name")
"""Settings that name a model which is not in the folder."""
_COMPUTED_TABLES = frozenset({"distilbert", "flaubert", "marian", "pegasus", "roformer", "xlm"})
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
_WIDTHS = ("d_model", "dim", "emb_dim", "hidden_size", "embedding_size")
_MOST_COMPUTED = 1 << 24
_LABELS = ("id2label", "label2id")
_MOST_GROWTH = 1 << 16
"""Characters that a tokenizer may make of one, step by step."""
_MOST_ADDED = 64
"""Special tokens that a tokenizer may put around a text."""
_GROWTH = {"ByteLevel": 2, "BertNormalizer": 3, "Metaspace": 2}
_STEPS = ("normalizer", "pre_tokenizer", "decoder")
_COUNTS = re.compile(
    r"(?:(?:num|n|encoder|decoder|e|d)_(?:\w+_)?)?(?:layers?|blocks?|depths?|stages?|experts|groups|repeats)"
)


def folder_config(source: str | Path) -> dict[str, Any]:
    """Return the configuration of a model's folder, after its bounds were checked; empty for a name at the hub.

    Raises:
        ModelError: A file is too long, or the configuration names another model or a size beyond all models.
    """
    folder = Path(source)
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.suffix in _READ_WHOLE and file.is_file():
            _require_length(file)
    path = folder / "config.json"
    if not path.is_file():
        return {}
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{folder} has an adapter_config.json, which names another model, beside its config.json: merge the "
            "adapters into the model, or remove this file"
        )
    config = _json(path)
    generation = folder / "generation_config.json"
    if generation.is_file():
        require_bounded(_json(generation), str(generation))
    require_bounded(config, str(path))
    return config


def require_bounded(settings: Mapping[str, Any], place: str) -> None:
    """Check settings of a model, and those of its parts.

    Args:
        settings: As JSON has them.
        place: Where they stand, for messages.

    Raises:
        ModelError: They name another model, or a size beyond all models.

    >>> require_bounded({"num_hidden_layers": 500, "encoder": {"layer_norm_eps": 1e-12}}, "config.json")
    >>> require_bounded({"encoder": {"num_hidden_layers": 10**7}}, "config.json")
    Traceback (most recent call last):
        ...
    fednlp.errors.ModelError: config.json: num_hidden_layers = 10000000: a model has 0 to 1000
    """
    _require_table(settings, place)
    for key, value in _settings(settings, place, 0):
        if isinstance(value, Mapping):
            _require_table(value, place)
        if key in _OTHER_MODELS and value:
            raise ModelError(
                f"{place}: {key} = {str(value)[:80]!r} names another model, and a model's folder is loaded without any "
                "other: use a model of texts alone"
            )
        most = _most(key)
        if isinstance(value, list) and any((_number(one) or 0) > _MOST_LISTED for one in _flat(value)):
            raise ModelError(
                f"{place}: {key} has a number beyond {_MOST_LISTED:,}, which no model has in a list"
            )
        if most is None:
            continue
        for number in value if isinstance(value, list) else [value]:
            if (found := _number(number)) is not None and not 0 <= found <= most:
                raise ModelError(f"{place}: {key} = {str(number)[:40]}: a model has 0 to {most}")


def _require_table(settings: Mapping[str, Any], place: str) -> None:
    """Check the size of a table of positions that transformers computes number by number.

    Raises:
        ModelError: It is larger than any such table.
    """
    if settings.get("model_type") not in _COMPUTED_TABLES:
        return
    rows, width = (
        max((_number(settings.get(key)) or 1 for key in keys), default=1) for keys in (_POSITIONS, _WIDTHS)
    )
    if rows * width > _MOST_COMPUTED:
        raise ModelError(
            f"{place}: a table of {rows:.0f} positions of {width:.0f} numbers is larger than any such model has"
        )


def _flat(value: list[Any]) -> Iterator[Any]:
    """Yield what stands in lists of lists."""
    rest = [*value]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        else:
            yield one


def _settings(settings: Mapping[str, Any], place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield all settings, those of parts too."""
    for key, value in settings.items():
        yield key, value
        yield from _within(key, value, place, depth)


def _within(key: str, value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the settings that stand within the value of a setting."""
    if not isinstance(value, Mapping | list):
        return
    most = _MOST_LABELS if key in _LABELS else _MOST_ENTRIES
    if depth == _DEEPEST or len(value) > most:
        raise ModelError(
            f"{place}: {key} has more than {_DEEPEST} levels or {most:,} entries, which no model has"
        )
    if isinstance(value, list):
        for one in value:
            yield from _within(key, one, place, depth + 1)
    elif key not in _LABELS:
        yield from _settings(value, place, depth + 1)


def _most(key: str) -> int | None:
    """Return the largest value of a setting that counts what a model is built of; None for another setting."""
    if key in ("num_labels", "_num_labels"):
        return _MOST_LABELS
    if _COUNTS.fullmatch(key):
        return _MOST_LAYERS
    if key == "num_virtual_tokens":
        return _MOST_ENTRIES
    return _MOST_POSITIONS if "position_embeddings" in key or key in _POSITIONS else None


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool | Mapping | list) else float(value)
    except (ValueError, OverflowError):
        return None if isinstance(value, str) else float("inf")


def _json(path: Path, most: int = LONGEST_CONFIG) -> dict[str, Any]:
    try:
        found = json.loads(read_whole(path, most))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {str(error) or 'it is nested too deep'}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} is no configuration of a model, or of its tokenizer")
    return found


def _require_length(path: Path) -> None:
    most = LONGEST_CONFIG if path.name.endswith("config.json") else _LONGEST_FILE
    if path.stat().st_size > most:
        raise ModelError(
            f"{path} has {path.stat().st_size:,} bytes, and such a file of a model at most {most:,}"
        )


def require_tokenizer(source: str | Path) -> None:
    """Check the files from which a tokenizer is loaded, which may have any steps in any number.

    A step that replaces one character by two makes 2^40 of it in forty steps.

    Args:
        source: A model's folder, or a name at the hub, of which nothing is checked.

    Raises:
        ModelError: The tokenizer makes far more of a text than it is, or cannot be read.
    """
    folder = Path(source)
    for path in sorted(folder.glob("tokenizer*.json")) if folder.is_dir() else ():
        if path.name == "tokenizer_config.json" or not path.is_file():
            continue
        _require_length(path)
        tokenizer = _json(path, _LONGEST_FILE)
        try:
            growth = max(math.prod(_growth(step) for step in _tables(tokenizer.get(kind))) for kind in _STEPS)
            added = max(map(_added, _tables(tokenizer.get("post_processor"))), default=0)
            largest = max(_ids(tokenizer), default=0)
        except (ValueError, TypeError, AttributeError, LookupError):
            raise ModelError(f"{path} is no tokenizer: copy it from the model again") from None
        if growth > _MOST_GROWTH or added > _MOST_ADDED:
            raise ModelError(
                f"{path}: it makes more than {_MOST_GROWTH:,} characters of one, or puts more than {_MOST_ADDED} "
                "tokens around a text, which no tokenizer does: copy it from the model again"
            )
        if largest > _MOST_LISTED:
            raise ModelError(f"{path}: a token has the number {largest}: a model has 0 to {_MOST_LISTED}")


def _ids(tokenizer: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of the tokens that a tokenizer names with their numbers."""
    vocabulary = tokenizer["model"].get("vocab")
    yield from vocabulary.values() if isinstance(vocabulary, Mapping) else ()
    yield from (token["id"] for token in tokenizer.get("added_tokens") or ())
    for step in _tables(tokenizer.get("post_processor")):
        for token in (step.get("special_tokens") or {}).values():
            yield from token["ids"]


def _tables(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all tables within a part of a tokenizer."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, Mapping):
            yield one
        rest += one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()


def _growth(step: Mapping[str, Any]) -> int:
    """Return how many characters a step makes of one at most.

    >>> _growth({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    1
    >>> _growth({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})
    2
    """
    kind = step.get("type")
    if kind == "Replace":
        pattern, content = step["pattern"], len(step["content"])
        words = pattern.get("String")
        # An expression may fit between any two characters.
        return max(1, -(-content // len(words))) if words else 1 + content
    if kind == "Prepend":
        return 1 + len(step["prepend"])
    if kind == "Precompiled":
        charsmap = base64.b64decode(step["precompiled_charsmap"] or "")
        trie = 4 + int.from_bytes(charsmap[:4], "little")
        if not 4 < trie <= len(charsmap):
            raise ValueError("its table of characters is cut short")
        return max(map(len, charsmap[trie:].decode().split("\0")), default=1) or 1
    return _GROWTH.get(str(kind), 1)


def _added(step: Mapping[str, Any]) -> int:
    """Return how many tokens a template puts around a text, or a pair of texts."""
    if step.get("type") != "TemplateProcessing":
        return 0
    length = {name: len(token["ids"]) for name, token in step["special_tokens"].items()}
    return max(
        sum(length[piece["SpecialToken"]["id"]] for piece in step[form] if "SpecialToken" in piece)
        for form in ("single", "pair")
    )


def require_weights(plan: Any, source: str) -> None:
    """Check that a model is about as large as the weights in its folder: what is missing there takes memory too.

    Args:
        plan: The model, which may have no memory.
        source: Its folder, or a name at the hub, of which nothing is checked.

    Raises:
        ModelError: The configuration makes it far larger.
    """
    folder = Path(source)
    if not folder.is_dir():
        return
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    numbers = sum(tensor.numel() for tensors in (plan.parameters(), plan.buffers()) for tensor in tensors)
    if numbers > _FRESH + 2 * stored:
        raise ModelError(
            f"the configuration in {source} asks for {numbers:,} numbers, and its files have {stored:,} bytes: give "
            "the folder of a whole model"
        )


@contextmanager
def within_bounds() -> Iterator[None]:
    """Build models of at most :data:`MOST_MODULES` modules inside the ``with`` block.

    Raises:
        ModelError: One has more, whatever its configuration calls them.
    """
    from torch.nn.modules.module import register_module_module_registration_hook

    made = 0

    def count(module: Any, name: str, part: Any) -> None:
        nonlocal made
        made += 1
        if made > MOST_MODULES:
            raise ModelError(f"a model of more than {MOST_MODULES:,} modules is too large: lower its layers")

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def without_hub() -> Iterator[None]:
    """Refuse all requests to the hub inside the ``with`` block, in this whole process.

    Its client reads whether it may make requests from a constant, at each request.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
