"""The frozen prefix of a model: its embeddings and the first blocks of its stack, where none of it is trained.

The activations of a frozen prefix for a text are always the same, provided that it runs without dropout. So it
runs in evaluation mode (:meth:`FrozenPrefix.eval_mode`), and activations that are known can take the place of its
blocks (:meth:`FrozenPrefix.returning_states`, :mod:`fednlp.training.activation_cache`).

No architecture is known by name. The stack is the list with as many modules as the configuration has layers. Then
the model is tried: it reads a few tokens as it is, and again with its lower blocks replaced by what they computed
of each row alone. Where the two differ, or anything else is out of the ordinary (layers that are shared, or that
pass more to each other than hidden states, as T5's do), there is no frozen prefix.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_ALIKE = 1e-4
"""Tolerance between replaced and real blocks, as a share of the largest state."""


class _Reached(Exception):
    """Raised when the last block of the prefix has computed its states: nothing above it need run."""

    def __init__(self, made: Any) -> None:
        self.made = made


class FrozenPrefix:
    """The frozen prefix of a model, from :func:`find_frozen_prefix`.

    Args:
        owner: The innermost model around the stack, which is called with token ids.
        blocks: Of the frozen prefix, from the lowest up.
        modules: All modules of the owner that are part of the prefix: blocks, embeddings and what is around them.
        extra: How many None a block returns after its states, in one tuple; -1 for states without a tuple.
        width: Hidden size: numbers per token.

    Attributes:
        options: Further arguments of the owner: no cache of keys and values, where it has one.
        states: What the topmost block returns at its next call, (rows, tokens, width); None to compute it.
    """

    def __init__(
        self, owner: nn.Module, blocks: list[nn.Module], modules: list[nn.Module], extra: int, width: int
    ) -> None:
        self.owner = owner
        self.blocks = blocks
        self.modules = modules
        self.extra = extra
        self.width = width
        self.options = _options(owner)
        self.states: Tensor | None = None

    def eval_mode(self) -> None:
        """Put the prefix in evaluation mode; to be called after every ``train(True)`` of the model."""
        for module in self.modules:
            module.training = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the prefix, by their names in the owner."""
        inside = set(map(id, self.modules))
        return {
            f"{path}.{name}".lstrip("."): tensor
            for path, module in self.owner.named_modules()
            if id(module) in inside
            for own in (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
            for name, tensor in own
        }

    @torch.no_grad()
    def compute(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return what the topmost block computes, (rows, tokens, width); nothing above it runs.

        Args:
            inputs: Arguments of the owner, but for :attr:`options`.

        Raises:
            RuntimeError: The owner did not call the topmost block.
        """
        self.eval_mode()
        hook = self.blocks[-1].register_forward_hook(_stop)
        try:
            self.owner.forward(**inputs, **self.options)
        except _Reached as reached:
            states: Tensor = reached.made if self.extra < 0 else reached.made[0]
            return states
        finally:
            hook.remove()
        raise RuntimeError("the frozen prefix was not run")

    @contextmanager
    def returning_states(self) -> Iterator[None]:
        """Let the blocks return :attr:`states`, where there are any, inside the ``with`` block."""
        for block in self.blocks:
            vars(block)["forward"] = partial(self._run_block, block, block.forward)
        try:
            yield
        finally:
            self.states = None
            for block in self.blocks:
                del vars(block)["forward"]

    def _run_block(self, block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run one block as usual without states; else the topmost returns these, and the others their input."""
        if self.states is None:
            return forward(*args, **kwargs)
        if block is self.blocks[-1]:
            made, self.states = self.states, None
        else:
            made = args[0] if args else kwargs["hidden_states"]
        return made if self.extra < 0 else (made, *[None] * self.extra)


def _options(owner: nn.Module) -> dict[str, bool]:
    return {"use_cache": False} if "use_cache" in inspect.signature(owner.forward).parameters else {}


def _stop(block: nn.Module, args: Any, made: Any) -> None:
    raise _Reached(made)


def find_frozen_prefix(model: nn.Module) -> FrozenPrefix | None:
    """Return the frozen prefix of a model; of its encoder, where it has one.

    Args:
        model: Any module, with or without adapters.

    Returns:
        None where the embeddings or the first block are trained, the blocks read a trained prompt, or the
        architecture does not allow for it.
    """
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return None
    found = layer_stack(model)
    if found is None:
        return None
    owner, stack = found
    depth = 0
    while depth < len(stack) and _is_frozen(stack[depth].parameters()):
        depth += 1
    if not depth:
        return None
    modes = [(module, module.training) for module in owner.modules()]
    owner.eval()
    try:
        return _tried_prefix(owner, stack, depth)
    except Exception:  # an unknown architecture may raise anything for a few bare tokens
        return None
    finally:
        for module, mode in modes:
            module.training = mode


def _is_frozen(parameters: Any) -> bool:
    return not any(parameter.requires_grad for parameter in parameters)


def layer_stack(model: nn.Module) -> tuple[Any, list[nn.Module]] | None:
    """Return the list of blocks that reads token ids, and the innermost model around it."""
    config = getattr(model, "config", None)
    if config is None:
        return None
    body: Any = model
    if getattr(config, "is_encoder_decoder", False):
        body = body.get_encoder()
        config = body.config
    layers = getattr(config, "num_hidden_layers", 0)
    owners: dict[str, nn.Module] = {}
    for path, module in body.named_modules():
        if hasattr(module, "get_input_embeddings") and hasattr(module, "config"):
            owners[path] = module
        if isinstance(module, nn.ModuleList) and len(module) == layers > 0:
            around = [own for own in owners if not own or path.startswith(f"{own}.")]
            return (owners[max(around, key=len)], list(module)) if around else None
    return None


@torch.no_grad()
def _tried_prefix(owner: Any, stack: list[nn.Module], depth: int) -> FrozenPrefix | None:
    """Return the prefix if the model, in evaluation mode, does the same with it replaced."""
    # A trained embedding may lack the rows of the tokens tried here.
    if not _is_frozen(owner.get_input_embeddings().parameters()):
        return None
    batch = _few_tokens(owner)
    plain, made, calls = _watched(owner, stack[depth - 1], batch)
    if [module for module in calls if any(module is block for block in stack)] != stack:
        return None
    above = {id(part) for block in stack[depth:] for part in block.modules()}
    top = {id(part) for part in stack[depth - 1].modules()}
    until = max(place for place, module in enumerate(calls) if id(module) in top)
    above |= {id(part) for part in calls[until + 1 :]} - {id(part) for part in calls[: until + 1]}
    modules = [module for module in owner.modules() if id(module) not in above]
    if not all(_is_frozen(module.parameters(recurse=False)) for module in modules):
        return None
    extra = len(made) - 1 if isinstance(made, tuple) else -1
    if extra > 0 and any(part is not None for part in made[1:]):
        return None
    states = made[0] if extra >= 0 else made
    if states.dtype != torch.float32 or states.shape[:2] != batch["input_ids"].shape:
        return None
    prefix = FrozenPrefix(owner, stack[:depth], modules, extra, states.shape[-1])
    return prefix if _does_the_same(prefix, batch, plain) else None


def _few_tokens(owner: Any) -> dict[str, Tensor]:
    """Return two rows of tokens, the second shorter."""
    padding = getattr(owner.config, "pad_token_id", None)
    words = owner.get_input_embeddings().num_embeddings
    ids_tried = [word for word in range(min(words, 12)) if word != padding]
    device = owner.get_input_embeddings().weight.device
    ids = torch.tensor([ids_tried[:5], ids_tried[-5:]], device=device)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _watched(
    owner: nn.Module, block: nn.Module, batch: dict[str, Tensor]
) -> tuple[Tensor, Any, list[nn.Module]]:
    """Run a model; return its states, what a block returned, and the modules in the order of their calls."""
    calls: list[nn.Module] = []
    made: list[Any] = []
    hooks = [
        module.register_forward_pre_hook(lambda called, args: calls.append(called))
        for module in owner.modules()
    ]
    hooks.append(block.register_forward_hook(lambda called, args, output: made.append(output)))
    try:
        states = owner(**batch, **_options(owner))[0]
    finally:
        for hook in hooks:
            hook.remove()
    return states, made[0], calls


def _does_the_same(prefix: FrozenPrefix, batch: dict[str, Tensor], plain: Tensor) -> bool:
    """Return whether a model computes the same from the states of each row alone, without padding."""
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    states = plain.new_zeros(*ids.shape, prefix.width)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}
        states[row, :length] = prefix.compute(alone)[0]
    with prefix.returning_states():
        prefix.states = states
        again = prefix.owner(**batch, **prefix.options)[0]
    gap = (again - plain).abs()[mask].max()
    return bool(gap <= _ALIKE * plain.abs().max())
