"""The layout of a model: which of its tensors are shared, trained, decayed, or looked up by rows, and in what order."""

import re
from collections.abc import Callable, Collection

from torch import Tensor, nn

from fednlp.federated.params import Kind, Layout

Personal = Collection[str]
"""Names of tensors that each client keeps to itself."""
_NORMS = ("LayerNorm", "RMSNorm")
_NOT_DECAYED = re.compile(
    r"bias|layernorm|layer_norm|rmsnorm|(?:^|\.)ln_|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE
)


def decayed_names(model: nn.Module) -> frozenset[str]:
    """Return the parameters that weight decay applies to: not biases and norms, as in Hugging Face's Trainer.

    A norm is known by its name or by its type, ``nn.LayerNorm``, ``nn.RMSNorm`` or a class that is named after one.
    """
    norms = {
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        if isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(_NORMS)
        for name, _ in module.named_parameters(recurse=False)
    }
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)} - norms
    return frozenset(name for name in names if _NOT_DECAYED.search(name) is None)


def word_embedding(model: nn.Module, personal: Personal) -> tuple[str, nn.Embedding] | None:
    """Return the input embedding's name and module if it is shared and no other module uses its weight."""
    get = getattr(model, "get_input_embeddings", None)
    embedding = get() if callable(get) else None
    if not isinstance(embedding, nn.Embedding) or embedding.max_norm is not None:
        return None
    if not embedding.weight.requires_grad:
        return None
    owners = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter is embedding.weight
    ]
    return (owners[0], embedding) if len(owners) == 1 and owners[0] not in personal else None


def _is_trained(model: nn.Module, buffer: str) -> bool:
    """Say whether the innermost module around a buffer that has parameters is trained as a whole."""
    path = buffer
    while path:
        path = path.rpartition(".")[0]
        trained = [parameter.requires_grad for parameter in model.get_submodule(path).parameters()]
        if trained:
            return all(trained)
    return True


def buffer_names(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of the floating-point persistent buffers: those that travel, and those of frozen parts."""
    persistent = model.state_dict().keys()
    names = [n for n, b in model.named_buffers() if b.is_floating_point() and n in persistent]
    travel = [n for n in names if _is_trained(model, n)]
    return travel, [n for n in names if n not in travel]


def layout_of(
    model: nn.Module, personal: Personal = frozenset(), derived: Collection[str] = frozenset()
) -> Layout:
    """Lay out a model's shared parameters and floating-point persistent buffers, by name.

    Decayed parameters come first, then the others, then buffers, and the untied word embedding last.

    Args:
        model: Frozen parameters (``requires_grad`` is False) have no part.
        personal: Names of the parameters and buffers that each client keeps to itself.
        derived: Names of frozen parameters that the server sets.
    """
    words = word_embedding(model, personal)
    shapes = _shapes(model, lambda name: name not in personal)
    tensors = dict(model.named_parameters())
    shapes |= {name: (tuple(tensors[name].shape), "derived") for name in derived}
    return Layout.of(shapes, table=words[0] if words else None)


def personal_layout(model: nn.Module, personal: Personal) -> Layout:
    """Lay out the tensors that each client keeps to itself."""
    return Layout.of(_shapes(model, lambda name: name in personal))


def _shapes(model: nn.Module, wanted: Callable[[str], bool]) -> dict[str, tuple[tuple[int, ...], Kind]]:
    shapes: dict[str, tuple[tuple[int, ...], Kind]] = {}
    parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad and wanted(n)]
    decayed = decayed_names(model)
    for first in (True, False):
        shapes |= {n: (tuple(p.shape), "parameter") for n, p in parameters if (n in decayed) is first}
    buffers = dict(model.named_buffers())
    shapes |= {n: (tuple(buffers[n].shape), "buffer") for n in buffer_names(model)[0] if wanted(n)}
    return shapes


def flat_weights(
    model: nn.Module, personal: Personal = frozenset(), derived: Collection[str] = frozenset()
) -> Tensor:
    """Return a model's shared tensors as one flat float32 tensor in its layout, copied."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return layout_of(model, personal, derived).flatten(tensors)


def special_words(model: nn.Module, words: int) -> list[int]:
    """Return the token ids that a model may put into its input by itself, by its own configuration."""
    config = getattr(model, "config", None)
    kinds = ("pad", "bos", "eos", "sep", "cls", "mask", "decoder_start")
    found = (getattr(config, f"{kind}_token_id", None) for kind in kinds)
    return sorted({number for number in found if isinstance(number, int) and 0 <= number < words})
