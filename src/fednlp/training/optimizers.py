"""A client's optimiser and learning-rate schedule, by their Hugging Face names."""

import math
from collections.abc import Callable, Mapping

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from fednlp.federated.pages import huge_zeros
from fednlp.runtime.allocator import LARGE_BLOCK
from fednlp.training.flat_tensors import Group
from fednlp.training.local_training import LocalTraining

Schedule = Callable[[int], float]


class Descent:
    """The steps of one model's optimiser in one training: clipped, at the rate of the schedule, with its memory.

    Args:
        groups: What is trained; their gradients are there when a step is taken.
        steps: That the schedule is for.
        factor: The learning rate is multiplied by this.
        memory: What the optimiser remembers, as :meth:`memory` gives it.
        scaler: Of a float16 loss; None for none.

    Attributes:
        rate: The learning rate of each step, by its number from 0; None for that of the options throughout.
        move: Moves the weights by a step.
    """

    def __init__(
        self,
        options: LocalTraining,
        groups: list[Group],
        steps: int,
        factor: float = 1.0,
        memory: Mapping[str, torch.Tensor] | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        self.rate = make_schedule(options, steps, factor)
        self._max_grad_norm, self._scaler = options.max_grad_norm, scaler
        self._parameters = [group.parameter for group in groups]
        self._optimizer = make_optimizer(options, groups)
        restore(self._optimizer, memory or {})
        self.move: Callable[[], object] = self._optimizer.step if scaler is None else self._scaled_step

    def unscale(self) -> None:
        """Divide the gradients by the scale of a float16 loss."""
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)

    def prepare(self, number: int) -> None:
        """Clip the gradients, and set the learning rate of a step: :attr:`move` then takes it.

        Args:
            number: Of the step in the schedule, from 0.
        """
        if self._max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        if self.rate is not None:
            _set_rate(self._optimizer, self.rate(number))

    def _scaled_step(self) -> None:
        assert self._scaler is not None
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def memory(self) -> dict[str, torch.Tensor]:
        """Return what the optimiser remembers."""
        return remember(self._optimizer)


def make_optimizer(options: LocalTraining, groups: list[Group]) -> Optimizer:
    """Build a fresh optimiser over a replica's parameter groups."""
    parameters = [
        {"params": [g.parameter], "weight_decay": options.weight_decay if g.decayed else 0.0} for g in groups
    ]
    rate = options.learning_rate
    match options.optimizer:
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, momentum=options.momentum, fused=True)
        case "adam":
            return _with_moments(torch.optim.Adam(parameters, lr=rate, fused=True))
        case "adamw":
            return _with_moments(torch.optim.AdamW(parameters, lr=rate, fused=True))
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=rate)


def _with_moments(adam: Optimizer) -> Optimizer:
    """Give Adam the moments of long parameters on a CPU that it would make itself, at a third of the time.

    The allocator has no memory of that size at hand: each client's moments would be pages that the system makes ready
    one by one.
    """
    for group in adam.param_groups:
        (parameter,) = group["params"]
        if parameter.device.type == "cpu" and parameter.numel() * 4 > LARGE_BLOCK:
            adam.state[parameter] = {"step": torch.zeros(())} | {
                name: huge_zeros(parameter.numel()).view_as(parameter) for name in ("exp_avg", "exp_avg_sq")
            }
    return adam


def make_schedule(options: LocalTraining, steps: int, factor: float = 1.0) -> Schedule | None:
    """Return the learning rate of each local step, by its number from 0; None for the one in the options throughout.

    Args:
        steps: That the schedule is for.
        factor: The learning rate is multiplied by this.

    >>> rate = make_schedule(LocalTraining(learning_rate=0.1, lr_scheduler_type="linear"), 4)
    >>> [round(rate(step), 3) for step in range(4)]
    [0.1, 0.075, 0.05, 0.025]
    """
    if options.lr_scheduler_type == "constant":
        return None if factor == 1.0 else lambda step: options.learning_rate * factor
    from transformers import get_scheduler

    nothing = torch.optim.SGD([torch.zeros(1)], lr=options.learning_rate)
    wanted = options.warmup_steps
    warmup = int(wanted) if wanted >= 1 else math.ceil(wanted * steps)
    scheduler = get_scheduler(
        options.lr_scheduler_type, nothing, num_warmup_steps=warmup, num_training_steps=steps
    )
    (shape,) = scheduler.lr_lambdas
    return lambda step: options.learning_rate * factor * float(shape(step))


def _set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def memory_sizes(options: LocalTraining, groups: list[Group]) -> dict[str, int]:
    """Return the names and sizes of what an optimiser remembers, as :func:`remember` gives it."""
    adam = ("step", "exp_avg", "exp_avg_sq")
    kinds = {
        "adam": adam,
        "adamw": adam,
        "adagrad": ("step", "sum"),
        "sgd": ("momentum_buffer",) if options.momentum else (),
    }[options.optimizer]
    return {
        f"{number}.{kind}": 1 if kind == "step" else group.parameter.numel()
        for number, group in enumerate(groups)
        for kind in kinds
    }


def remember(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return an optimiser's state as float32 tensors, by the number of the group and the name."""
    return {
        f"{number}.{name}": torch.as_tensor(value, dtype=torch.float32).cpu()
        for number, group in enumerate(optimizer.param_groups)
        for name, value in optimizer.state[group["params"][0]].items()
    }


def restore(optimizer: Optimizer, memory: Mapping[str, torch.Tensor]) -> None:
    """Give an optimiser its memory back; tensors may come flat."""
    for name, value in memory.items():
        number, _, kind = name.partition(".")
        parameter = optimizer.param_groups[int(number)]["params"][0]
        if kind == "step":
            optimizer.state[parameter][kind] = value.reshape(()).to(
                parameter.device if parameter.is_cuda else "cpu"
            )
        else:
            optimizer.state[parameter][kind] = value.view_as(parameter).to(parameter.device, copy=True)
