"""The depth to which a model is trained, read off ``requires_grad`` of its parameters."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fednlp.models.groups import EMBEDDINGS, groups_of

Trained = Literal["whole", "bias", "frozen"]


@dataclass(frozen=True)
class TrainableLayers:
    """The trained parts of a model with one stack of layers.

    Attributes:
        layers: Of each layer, from the lowest up: more than biases, biases alone, or nothing.
        embeddings: The same of the embeddings.
        has_lora: Whether LoRA adapts the model.
    """

    layers: tuple[Trained, ...]
    embeddings: Trained
    has_lora: bool

    @property
    def whole(self) -> int:
        """Number of layers of which more than biases is trained."""
        return self.layers.count("whole")

    @property
    def biases(self) -> int:
        """Number of layers of which the biases alone are trained."""
        return self.layers.count("bias")

    @property
    def below_gradients(self) -> int:
        """Number of layers at the bottom that no gradient reaches."""
        if self.embeddings != "frozen":
            return 0
        trained = [number for number, kind in enumerate(self.layers) if kind != "frozen"]
        return min(trained, default=len(self.layers))


def _trainable_layers(model: nn.Module) -> TrainableLayers | None:
    """Return what is trained in each layer; None without layers, or with two stacks (an encoder-decoder).

    Args:
        model: Its frozen parameters have ``requires_grad`` False.
    """
    parameters = dict(model.named_parameters())
    parts: dict[str, list[str]] = {EMBEDDINGS: []}
    groups = groups_of(model)
    for name, group in groups.items():
        found = parts.setdefault(group, [])
        if name in parameters and parameters[name].requires_grad:
            found.append("bias" if name.endswith("bias") else "whole")
    numbers = sorted(int(group.removeprefix("layer.")) for group in parts if group.startswith("layer."))
    if not numbers or any(group.startswith(("encoder.", "decoder.")) for group in parts):
        return None
    layers = tuple(_trained(parts[f"layer.{number}"]) for number in numbers)
    return TrainableLayers(layers, _trained(parts[EMBEDDINGS]), any("lora_" in name for name in groups))


def _trained(kinds: list[str]) -> Trained:
    return "whole" if "whole" in kinds else "bias" if kinds else "frozen"


def trainable_depth(model: nn.Module) -> tuple[int, int, int] | None:
    """Return a model's layers, how many at the top are trained whole, and how many below these by their biases.

    None where that is not what is trained: in an encoder-decoder, with trained embeddings, with adapters, or where a
    layer is frozen above one that is not.

    >>> layer = lambda: nn.ModuleDict({"dense": nn.Linear(2, 2)})
    >>> model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "layers": nn.ModuleList([layer(), layer()])})
    >>> for parameter in [*model["embed"].parameters(), *model["layers"][0].parameters()]:
    ...     _ = parameter.requires_grad_(False)
    >>> trainable_depth(model)
    (2, 1, 0)
    """
    found = _trainable_layers(model)
    if found is None or found.embeddings == "whole" or found.has_lora:
        return None
    from_below = ("frozen", "bias", "whole")
    if list(found.layers) != sorted(found.layers, key=from_below.index):
        return None
    return len(found.layers), found.whole, found.biases


def backward_depth(model: nn.Module) -> tuple[int, int, int] | None:
    """Return a model's layers, how many are trained whole, and how many others the gradients pass.

    Gradients pass everything above the lowest part that is trained. A frozen layer that they pass keeps what a layer
    keeps whose biases alone are trained. None for two stacks, and for layers that run several times.

    Args:
        model: Its frozen parameters have ``requires_grad`` False.
    """
    found = _trainable_layers(model)
    runs = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    if found is None or runs != len(found.layers):
        return None
    return runs, found.whole, runs - found.below_gradients - found.whole
