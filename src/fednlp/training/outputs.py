"""What a method sees of a batch beside its loss: logits and features, with the weights as they stand or with others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fednlp.errors import ConfigError
from fednlp.tasks.base import Batch, Task
from fednlp.training.frozen_prefix import layer_stack


class BatchOutputs:
    """What a model computed of a batch (:class:`fednlp.federated.client.Outputs`).

    Args:
        task: Whose loss called the model.
        made: What the model returned, at each call.
        states: What its body returned, at each call.
    """

    def __init__(self, task: Task, batch: Batch, made: Sequence[Any], states: Sequence[Any]) -> None:
        self._task, self._batch, self._made, self._states = task, batch, made, states
        self.loss = torch.zeros(())

    @property
    def logits(self) -> Tensor:
        """What the model's head returned.

        Raises:
            ConfigError: The task does not ask the model for them, or not once a batch.
        """
        made = self._made[0] if len(self._made) == 1 else None
        logits = made if isinstance(made, Tensor) else getattr(made, "logits", None)
        if not isinstance(logits, Tensor):
            raise ConfigError(
                f"a method's objective reads the logits of a batch, and {self._task.name} does not compute them at "
                "once: choose another method or task"
            )
        return logits

    @property
    def features(self) -> Tensor:
        """The mean of the last hidden states over a text's tokens, (texts, width), float32.

        Raises:
            ConfigError: The model's body is not known or is not called once a batch, or does not compute all tokens.
        """
        states = _hidden(self._states[0]) if len(self._states) == 1 else None
        if states is None:
            raise ConfigError(
                f"a method's objective reads the features of a batch's texts, and {self._task.name} with this model "
                "does not compute them at once: choose another method, task or model"
            )
        mask = self._batch.get("attention_mask")
        if mask is None:
            return states.float().mean(1)
        if states.shape[1] < mask.shape[1]:
            raise ConfigError(
                "a method's objective reads features of all tokens, and client.padding_free computes the first token "
                "of each text alone in the last layer: leave client.padding_free out"
            )
        states, seen = (
            states[:, -mask.shape[1] :].float(),
            mask.unsqueeze(-1),
        )  # trained prompts come before a text
        return (states * seen).sum(1) / seen.sum(1).clamp(min=1)


@contextmanager
def watching(model: nn.Module, task: Task, batch: Batch) -> Iterator[BatchOutputs]:
    """Note what a model computes of a batch inside the ``with`` block, where its task's loss is computed."""
    made: list[Any] = []
    states: list[Any] = []
    hooks = [
        called.register_forward_hook(lambda module, args, output, kept=kept: kept.append(output))
        for called, kept in ((model, made), (_body(model), states))
    ]
    try:
        yield BatchOutputs(task, batch, made, states)
    finally:
        for hook in hooks:
            hook.remove()


def called_with(model: nn.Module, tensors: Mapping[str, Tensor], function: Callable[[nn.Module], Any]) -> Any:
    """Return what a function makes of a model that has other tensors meanwhile; its own are not touched.

    Gradients with regard to the others are to be taken by the function itself: what is computed again on the way back
    would see the model's own.

    Args:
        tensors: The others, by the names of the model's parameters and buffers.
    """
    named = {f"model.{name}": tensor for name, tensor in tensors.items()}
    return functional_call(_Call(model, function), named)


class _Call(nn.Module):
    """A call of a function with a model, as a module of its own: the names of its parameters begin with ``model.``."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self) -> Any:
        return self._function(self.model)


def _body(model: nn.Module) -> nn.Module:
    """Return the innermost model around the layers, which reads token ids; of an encoder-decoder, the encoder."""
    found = layer_stack(model)
    body: nn.Module = found[0] if found is not None else getattr(model, "base_model", model)
    return body


def _hidden(output: Any) -> Tensor | None:
    states = getattr(output, "last_hidden_state", output[0] if isinstance(output, tuple) else None)
    return states if isinstance(states, Tensor) and states.dim() == 3 else None
