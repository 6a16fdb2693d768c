"""The parts of a model: which parameters are its embeddings, which its layers, which its head.

Nothing is known of any architecture but how they are all built: a base model around its input embedding
and one stack of equal blocks (two in an encoder-decoder), and a head outside.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

EMBEDDINGS = "embeddings"
HEAD = "head"

_LAYER_COUNTS = (
    *("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    *("encoder_layers", "decoder_layers", "num_decoder_layers"),
)
# Modules stand in a model in the order of their definition, which is not always that of their use. These
# names say where they belong; for all others the order decides.
_OF_THE_INPUT = re.compile(r"(?:^|[._])emb|embedding|(?:^|\.)wte\.|(?:^|\.)wpe\.|project_in\.", re.IGNORECASE)
_OF_THE_OUTPUT = re.compile(r"(?:^|\.)(?:final_|pooler\.|project_out\.|lm_head\.)")
_OF_A_RECURRENT_LAYER = re.compile(r"_l(\d+)(?:_reverse)?$")
_EXCEPTIONS = {
    # The norm of the relative positions, and a convolution whose result is added to that of the first layer.
    "deberta-v2": {"encoder.LayerNorm.": EMBEDDINGS, "encoder.conv.": "layer.0"}
}

_Find = Callable[[str], str]


def groups_of(model: nn.Module) -> dict[str, str]:
    """Return the part of the model that every parameter and every saved floating-point buffer belongs to.

    Parts are ``embeddings`` (of words, positions and token types, with their norms and projections),
    ``layer.0``, ``layer.1``, ..., and ``head``: what comes after the layers (a pooler, the last norm), and
    everything outside the base model. An encoder-decoder has ``encoder.embeddings``, ``encoder.layer.0``,
    ``decoder.embeddings`` and so on; an embedding that both use is ``embeddings``. A tied weight is one
    parameter, and no head. What PEFT adds belongs to the part that it adapts.

    Args:
        model: A Hugging Face model, one with PEFT adapters, or any module.

    >>> layer = nn.ModuleDict({"embed": nn.Embedding(3, 2), "layers": nn.ModuleList([nn.Linear(2, 2)])})
    >>> groups_of(layer)
    {'embed.weight': 'embeddings', 'layers.0.weight': 'layer.0', 'layers.0.bias': 'layer.0'}
    """
    find = _finder(model)
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    groups = {
        name: _one([find(owner) for owner in names[id(parameter)]])
        for name, parameter in model.named_parameters()
    }
    return groups | {name: find(name) for name in float_buffers(model)}


def float_buffers(model: nn.Module) -> list[str]:
    """Return the names of the buffers that hold floating-point numbers and are saved with the model."""
    persistent = model.state_dict().keys()
    return [name for name, b in model.named_buffers() if b.is_floating_point() and name in persistent]


def _one(groups: list[str]) -> str:
    """Return the part of a parameter that several parts use, the head least of all.

    >>> _one(["encoder.embeddings", "decoder.embeddings"]), _one(["head", "decoder.embeddings"]), _one(["head"])
    ('embeddings', 'decoder.embeddings', 'head')
    """
    used = list(dict.fromkeys(group for group in groups if group != HEAD))
    if len(used) > 1 and any(group.endswith(EMBEDDINGS) for group in used):
        return EMBEDDINGS
    return used[0] if used else HEAD


def _finder(model: nn.Module) -> _Find:
    """Return the function from a tensor's name to its part."""
    root, inner = next(
        ((path, module) for path, module in model.named_modules() if _is_pretrained(module)), ("", model)
    )
    path, base = _base(root, inner)
    parts = dict(base.named_children())
    config = getattr(inner, "config", None)
    if not (getattr(config, "is_encoder_decoder", False) and {"encoder", "decoder"} <= parts.keys()):
        return _stack_finder(path, base, config)
    stages = {
        f"{_join(path, stage)}.": (stage, _stage_finder(_join(path, stage), parts[stage], config))
        for stage in ("encoder", "decoder")
    }
    words = _input_embedding(base, path)

    def find(name: str) -> str:
        for prefix, (stage, within) in stages.items():
            if name.startswith(prefix):
                group = within(name)
                return group if group == HEAD else f"{stage}.{group}"
        inside = name.startswith(_prefix(path)) and not _OF_THE_OUTPUT.search(name)
        is_input = _OF_THE_INPUT.search(name) or (words is not None and name.startswith(f"{words}."))
        return EMBEDDINGS if inside and is_input else HEAD

    return find


def _stage_finder(path: str, stage: nn.Module, config: Any) -> _Find:
    """Return the finder of an encoder or a decoder, which may be a model with a head of its own."""
    if not _is_pretrained(stage):
        return _stack_finder(path, stage, config)
    return _stack_finder(*_base(path, stage), getattr(stage, "config", config))


def _stack_finder(path: str, base: nn.Module, config: Any) -> _Find:
    """Return the finder of a model with one stack of layers."""
    prefix = _prefix(path)
    lists = _stacks(base, config)
    exceptions: Mapping[str, str] = _EXCEPTIONS.get(getattr(config, "model_type", ""), {})
    recurrent = tuple(f"{name}." for name, module in base.named_modules() if isinstance(module, nn.RNNBase))
    order = {name: number for number, (name, _) in enumerate(base.named_modules())}
    first = min((order[name] for name in lists), default=-1)

    def find(name: str) -> str:
        if not name.startswith(prefix):
            return HEAD
        within = name.removeprefix(prefix)
        for stack in lists:
            if within.startswith(f"{stack}."):
                return f"layer.{within.removeprefix(f'{stack}.').partition('.')[0]}"
        layer = _OF_A_RECURRENT_LAYER.search(within)
        if layer and within.startswith(recurrent):
            return f"layer.{layer[1]}"
        for start, group in exceptions.items():
            if within.startswith(start):
                return group
        if _OF_THE_OUTPUT.search(within):
            return HEAD
        before = order.get(within.rpartition(".")[0], 0) < first
        return EMBEDDINGS if before or _OF_THE_INPUT.search(within) else HEAD

    return find


def _stacks(base: nn.Module, config: Any) -> list[str]:
    """Return the paths of the lists of layers: those as long as the configuration says, else the largest.

    Some architectures have a list for each piece of a layer (XLM); ALBERT has fewer layers than it runs.
    """
    found: dict[str, nn.ModuleList] = {}
    for path, module in base.named_modules():
        inner = any(path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and not inner and any(True for _ in module.parameters()):
            found[path] = module
    counts = {getattr(config, key, None) for key in _LAYER_COUNTS}
    fitting = [path for path, stack in found.items() if len(stack) in counts]
    largest = max(found, key=lambda path: sum(p.numel() for p in found[path].parameters()), default=None)
    return fitting or ([largest] if largest is not None else [])


def _is_pretrained(module: nn.Module) -> bool:
    """Return whether a module is itself a Hugging Face model; PEFT's wrappers only pass attributes on."""
    return hasattr(type(module), "base_model_prefix")


def _base(path: str, model: nn.Module) -> tuple[str, nn.Module]:
    """Return the path and module of a model's base, which is the model itself where there is no other."""
    name = getattr(model, "base_model_prefix", "")
    base = getattr(model, name, None) if name else None
    return (_join(path, name), base) if isinstance(base, nn.Module) else (path, model)


def _input_embedding(base: nn.Module, path: str) -> str | None:
    get = getattr(base, "get_input_embeddings", None)
    words = get() if callable(get) else None
    return next((_join(path, name) for name, module in base.named_modules() if module is words), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _prefix(path: str) -> str:
    return f"{path}." if path else ""
