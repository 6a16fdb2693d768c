"""Fingerprints of what a run takes from its starting model, and of the tokenizer: a resumed run needs the same."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from fednlp.models.pretrained import target_tokenizer

_NOT_OURS = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}
"""Keys of a configuration that describe its file and not the model."""


def fingerprints(model: nn.Module, tokenizer: Any, saved: Collection[str]) -> dict[str, str]:
    """Return a fingerprint of each part that a resumed run reads again, by a readable name of the part.

    Args:
        model: The starting model, as it was loaded.
        tokenizer: From :func:`fednlp.models.load_tokenizer`.
        saved: Names of the tensors that the checkpoint holds: these are not read again.
    """
    targets = target_tokenizer(tokenizer.name_or_path)
    return {
        "frozen and personal weights": _of_tensors(model, saved),
        "configuration": _of_json(_own(_configuration(model))),
        "tokenizer": _of_json([_vocabulary(one) for one in (tokenizer, targets) if one is not None]),
    }


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the parts whose fingerprints are not the same."""
    return [part for part, found in after.items() if before.get(part, found) != found]


def _of_tensors(model: nn.Module, saved: Collection[str]) -> str:
    """Return the digest of a model's parameters and saved buffers but some; about as fast as a disk reads."""
    digest, persistent = hashlib.blake2b(digest_size=16), model.state_dict().keys()
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    for name in sorted(tensors.keys() - set(saved)):
        values = tensors[name].detach().cpu().contiguous().numpy()
        digest.update(json.dumps([name, list(values.shape), str(values.dtype)]).encode())
        digest.update(values.reshape(-1).view("u1").data)
    return digest.hexdigest()


def _of_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _configuration(model: Any) -> dict[str, Any]:
    """Return the settings that are not the library's defaults; none for a module without a configuration."""
    config: Any = getattr(model, "config", None)
    return dict(config.to_diff_dict()) if hasattr(config, "to_diff_dict") else {}


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _own(one) for key, one in value.items() if key not in _NOT_OURS}
    return [_own(one) for one in value] if isinstance(value, list | tuple) else value


def _vocabulary(tokenizer: Any) -> dict[str, Any]:
    """Return all that decides how a text is cut into tokens, but for how it was last truncated and padded."""
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    for passing in ("truncation", "padding"):
        made.pop(passing, None)
    return {"tokenizer": made, "longest": tokenizer.model_max_length, "special": tokenizer.special_tokens_map}
