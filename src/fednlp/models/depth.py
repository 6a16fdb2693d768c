"""How deep a model is trained, read off what is frozen in it."""

from torch import nn

from fednlp.models.groups import groups_of


def trained_depth(model: nn.Module) -> tuple[int, int, int] | None:
    """Return a model's layers, how many at the top are trained whole, and how many below these by their biases.

    None where that is not what is trained: in an encoder-decoder, with trained embeddings, with adapters, or where a
    layer is frozen above one that is not.

    >>> layer = lambda: nn.ModuleDict({"dense": nn.Linear(2, 2)})
    >>> model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "layers": nn.ModuleList([layer(), layer()])})
    >>> for parameter in [*model["embed"].parameters(), *model["layers"][0].parameters()]:
    ...     _ = parameter.requires_grad_(False)
    >>> trained_depth(model)
    (2, 1, 0)
    """
    layers: dict[int, list[str]] = {}
    parameters = dict(model.named_parameters())
    for name, group in groups_of(model).items():
        stack, _, number = group.rpartition("layer.")
        trained = name in parameters and parameters[name].requires_grad
        if stack or (group == "embeddings" and trained and not name.endswith("bias")) or "lora_" in name:
            return None
        if number.isdigit():
            layers.setdefault(int(number), [])
            if trained:
                layers[int(number)].append("bias" if name.endswith("bias") else "whole")
    kinds = ["whole" if "whole" in kind else "bias" if kind else "" for _, kind in sorted(layers.items())]
    whole, biased = kinds.count("whole"), kinds.count("bias")
    if not kinds or kinds != [""] * (len(kinds) - whole - biased) + ["bias"] * biased + ["whole"] * whole:
        return None
    return len(kinds), whole, biased
