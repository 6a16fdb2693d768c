"""The low-rank adapters of a model whose products are averaged exactly."""

from collections import Counter

from torch import nn

from fednlp.errors import ModelError
from fednlp.federated.lora import LoraPair
from fednlp.models.adapters import ADAPTER


def lora_pairs(model: nn.Module) -> list[LoraPair]:
    """Return the names of a model's adapters, each with that of the weight that it adapts.

    Raises:
        ModelError: A layer is not linear, or its weight is used elsewhere too: the product cannot be added to it.
    """
    from peft.tuners.lora import LoraLayer

    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    pairs = []
    for path, module in model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        weight = getattr(module.base_layer, "weight", None)
        if ADAPTER not in module.lora_A or weight is None or weight.dim() != 2 or owners[id(weight)] > 1:
            layer = path.removeprefix("base_model.model.")
            raise ModelError(
                f'[model.peft] averaging = "exact" needs linear layers with weights of their own, and {layer} is '
                "none: leave it out of target_modules"
            )
        a, b = (f"{path}.{name}.{ADAPTER}.weight" for name in ("lora_A", "lora_B"))
        transposed = bool(module.fan_in_fan_out)
        pairs.append(LoraPair(a, b, f"{path}.base_layer.weight", module.scaling[ADAPTER], transposed))
    return pairs
