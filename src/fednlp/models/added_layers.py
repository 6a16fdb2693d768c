"""Layers that are put into a trained model, such as those that silos exchange (Controllers, Roosta et al. 2021)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fednlp.disk import writing
from fednlp.errors import ModelError
from fednlp.models.encoder_decoder import source_identity
from fednlp.models.folder_cache import cache_key, make_once, model_cache_folder
from fednlp.models.groups import groups_of
from fednlp.models.loading import explain_load_errors, has_weights, load_pretrained
from fednlp.models.pretrained import load_tokenizer, save_tokenizers, target_tokenizer
from fednlp.models.selection_spec import layer_places
from fednlp.seeds import torch_stream

_COUNTS = {
    "": ("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    "encoder": ("encoder_layers", "num_hidden_layers", "num_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers", "num_hidden_layers"),
}
"""Settings that hold the number of layers of a stack, by the side of an encoder-decoder that it is on."""
_WRITES_TO_THE_STREAM = re.compile(
    r"(?:^|\.)(?:out_proj|o_proj|out_lin|o|wo|fc2|lin2|down_proj|c_proj|dense|dense_4h_to_h)\.(?:weight|bias)$"
)
"""What the last matrix of an attention or of a feed-forward part is called within a layer."""


def added_layers_folder(source: str, at: Sequence[str], initial: str, seed: int) -> str:
    """Return the folder of a trained model with further layers, made once and kept in the cache.

    Args:
        source: Of the trained model, from :func:`fednlp.models.resolve_model`.
        at: The added layers, named and numbered as in the model with them: ``["encoder.layer.0,6"]``.
        initial: ``"copy"`` for the weights of the trained layer that follows (of the last one at the end),
            ``"zero"`` for the same without effect: what its parts add to the residual stream is zero,
            ``"random"`` for weights as the architecture draws them.

    Raises:
        ModelError: The model has no weights, has no such places, or its layers are not all alike; or ``"zero"``
            for layers that normalise after adding, which have an effect with any weights.
    """
    if not has_weights(source):
        raise ModelError(
            f"model.added_layers puts layers into a trained model, and {source} has no weights: "
            "set the number of layers in [model.config]"
        )
    places = layer_places(at)
    drawn = seed if initial == "random" else None
    folder = model_cache_folder(f"layers-{cache_key(source_identity(source), places, initial, drawn)}")
    return str(make_once(folder, lambda work: _write(source, places, initial, seed, work)))


def _write(source: str, places: Mapping[str, Sequence[int]], initial: str, seed: int, folder: Path) -> None:
    with explain_load_errors(source), torch_stream(seed, "added layers"):
        import torch
        from transformers import AutoConfig

        cls = _own_class(load_pretrained(AutoConfig, source))
        engine = load_pretrained(cls, source, dtype=torch.float32).eval()
        deeper = with_added_layers(engine, places, initial)
    tokenizer = load_tokenizer(source)
    with writing(folder):
        deeper.save_pretrained(folder)
        save_tokenizers(tokenizer, target_tokenizer(source), folder)


def _own_class(config: Any) -> Any:
    """Return the class whose weights a checkpoint has, so that its head is kept."""
    import transformers

    name = next(iter(config.architectures or ()), "")
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ModelError(
            f"model.added_layers puts layers into a model that was trained whole, by transformers' own class; this "
            f"{config.model_type} model was not: train it first, or leave added_layers out"
        )
    return cls


def with_added_layers(engine: Any, places: Mapping[str, Sequence[int]], initial: str) -> Any:
    """Return a new model with further layers, and with all weights of the trained one.

    Args:
        places: From :func:`fednlp.models.selection_spec.layer_places`.
        initial: As for :func:`added_layers_folder`.

    Raises:
        ModelError: As for :func:`added_layers_folder`.
    """
    import copy

    stacks = {side: _stack(engine, side) for side in places}
    config = copy.deepcopy(engine.config)
    moves: dict[str, list[int | None]] = {}
    for side, added in places.items():
        path, length = stacks[side]
        moves[path] = _moved(length, added, side)
        _set_count(config, side, length, length + len(added))
    deeper = type(engine)(config).eval()
    weights = _weights(engine.state_dict(), deeper.state_dict(), moves, initial)
    deeper.load_state_dict(weights)
    if hasattr(engine, "generation_config"):
        deeper.generation_config = engine.generation_config
    if initial == "zero" and not _same_outputs(engine, deeper):
        raise ModelError(
            f'model.added_layers.initial = "zero": the layers of {config.model_type} models normalise after they add, '
            'so that none is without effect; say "copy" or "random"'
        )
    return deeper


def _stack(model: nn.Module, side: str) -> tuple[str, int]:
    """Return the path and the length of the list of layers on a side."""
    prefix = f"{side}.layer." if side else "layer."
    groups = groups_of(model)
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            continue
        inside = {name: group for name, group in groups.items() if name.startswith(f"{path}.")}
        numbered = all(
            group == f"{prefix}{name[len(path) + 1 :].split('.')[0]}" for name, group in inside.items()
        )
        whole = {group for group in groups.values() if group.startswith(prefix)} == set(inside.values())
        if inside and numbered and whole:
            return path, len(module)
    parts = sorted({group.rpartition(".")[0] for group in groups.values() if ".layer." in f".{group}"})
    raise ModelError(
        f"model.added_layers: this model has no list of {prefix.removesuffix('.')} to put layers into; it has "
        f"{', '.join(parts) or 'none'}"
    )


def _moved(length: int, added: Sequence[int], side: str) -> list[int | None]:
    """Return for each place of the deeper stack which layer of the trained one it holds; None for an added one.

    >>> _moved(6, [0, 6], "encoder")
    [None, 0, 1, 2, 3, 4, None, 5]
    """
    total = length + len(added)
    if added[-1] >= total:
        raise ModelError(
            f"model.added_layers.at names {f'{side}.' if side else ''}layer.{added[-1]}: with the added ones there are "
            f"layers 0 to {total - 1}"
        )
    old = iter(range(length))
    return [None if place in added else next(old) for place in range(total)]


def _set_count(config: Any, side: str, old: int, new: int) -> None:
    part = getattr(config, side, None) if side else None
    config, keys = (part, _COUNTS[""]) if hasattr(part, "model_type") else (config, _COUNTS[side])
    fitting = [key for key in keys if getattr(config, key, None) == old]
    if not fitting:
        raise ModelError(f"model.added_layers: {config.model_type} models state no number of layers")
    setattr(config, fitting[0], new)


def _weights(
    trained: Mapping[str, Tensor],
    fresh: Mapping[str, Tensor],
    moves: Mapping[str, list[int | None]],
    initial: str,
) -> dict[str, Tensor]:
    """Return all tensors of the deeper model.

    Raises:
        ModelError: A layer has other tensors than the place that it moves to.
    """
    weights: dict[str, Tensor] = {}
    used = set()
    for name, drawn in fresh.items():
        path = next((path for path in moves if name.startswith(f"{path}.")), None)
        place, _, within = name[len(path) + 1 :].partition(".") if path else ("", "", "")
        holds = moves[path][int(place)] if path else None
        origin = name if path is None else f"{path}.{holds}.{within}"
        if path is not None and holds is None:
            if initial == "random":
                weights[name] = drawn
                continue
            origin = f"{path}.{_following(moves[path], int(place))}.{within}"
        if origin not in trained or trained[origin].shape != drawn.shape:
            raise _unlike(name)
        used.add(origin)
        silent = (
            initial == "zero" and path is not None and holds is None and _WRITES_TO_THE_STREAM.search(within)
        )
        weights[name] = trained[origin] * 0 if silent else trained[origin]
    lost = sorted(trained.keys() - used)
    if lost:
        raise _unlike(lost[0])
    return weights


def _unlike(name: str) -> ModelError:
    return ModelError(
        f"model.added_layers: the layers of this model are not alike: {name} is in one of them only"
    )


def _following(holds: Sequence[int | None], place: int) -> int:
    """Return the trained layer that follows a place, or the last one.

    >>> _following([None, 0, 1, None], 0), _following([None, 0, 1, None], 3)
    (0, 1)
    """
    return next(
        (layer for layer in holds[place:] if layer is not None), max(h for h in holds if h is not None)
    )


def _same_outputs(engine: Any, deeper: Any) -> bool:
    """Say whether two models compute the same of some tokens, bit for bit."""
    import torch

    words = engine.get_input_embeddings().weight.shape[0]
    ids = torch.arange(2 * min(words // 2, 8)).reshape(2, -1)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if engine.config.is_encoder_decoder:
        given["decoder_input_ids"] = ids
    with torch.no_grad():
        first, second = engine(**given), deeper(**given)
    return torch.equal(first[0], second[0])
