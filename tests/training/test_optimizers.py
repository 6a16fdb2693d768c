"""How many steps a client takes, at what learning rate, and what its optimiser remembers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fednlp.training.flat_tensors import Group
from fednlp.training.local_training import LocalTraining
from fednlp.training.optimizers import (
    make_optimizer,
    make_schedule,
    memory_sizes,
    remember,
    restore,
)


@pytest.mark.parametrize(
    ("epochs", "max_steps", "examples", "steps"),
    [(1, -1, 8, 1), (1, -1, 9, 2), (2, -1, 9, 4), (2, -1, 0, 0), (2, 3, 9, 3), (1, 5, 1, 5)],
)
def test_steps_are_whole_epochs_of_batches_or_as_asked(
    epochs: int, max_steps: int, examples: int, steps: int
) -> None:
    options = LocalTraining(num_train_epochs=epochs, max_steps=max_steps)
    assert options.steps(examples) == steps


@given(examples=st.integers(0, 60), batch=st.integers(1, 20), epochs=st.integers(1, 5))
def test_steps_are_epochs_times_batches_rounded_up(examples: int, batch: int, epochs: int) -> None:
    options = LocalTraining(num_train_epochs=epochs, per_device_train_batch_size=batch)
    assert options.steps(examples) == epochs * math.ceil(examples / batch)


@given(
    st.sampled_from(["linear", "cosine", "constant_with_warmup", "polynomial"]),
    st.integers(1, 12),
    st.one_of(st.integers(0, 12), st.floats(0.01, 0.99)),
)
def test_rates_are_those_of_transformers(schedule: str, steps: int, warmup: float) -> None:
    from transformers import get_scheduler

    options = LocalTraining(learning_rate=0.5, lr_scheduler_type=schedule, warmup_steps=warmup)
    rate = make_schedule(options, steps)
    assert rate is not None
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    rising = int(warmup) if warmup >= 1 else math.ceil(warmup * steps)
    scheduler = get_scheduler(schedule, optimizer, rising, steps)
    expected = [float(optimizer.param_groups[0]["lr"])]
    for _ in range(steps - 1):
        optimizer.step()
        scheduler.step()
        expected.append(float(optimizer.param_groups[0]["lr"]))
    assert [rate(step) for step in range(steps)] == pytest.approx(expected)


def test_a_constant_rate_needs_no_schedule() -> None:
    assert make_schedule(LocalTraining(), 5) is None


def groups() -> list[Group]:
    """Two stretches, of which the first decays."""
    made = [nn.Parameter(torch.ones(size)) for size in (3, 2)]
    for parameter in made:
        parameter.grad = torch.full_like(parameter, 0.5)
    return [Group(made[0], True), Group(made[1], False)]


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "adagrad"])
def test_memory_has_the_sizes_that_are_announced_and_comes_back(name: str) -> None:
    """An optimiser that got another's memory goes on as that one does, bit for bit."""
    momentum = 0.9 if name == "momentum" else 0.0
    options = LocalTraining(optimizer="sgd" if momentum else name, learning_rate=0.1, momentum=momentum)
    mine, theirs, fresh = groups(), groups(), groups()
    first, second = make_optimizer(options, mine), make_optimizer(options, theirs)
    for _ in range(2):
        first.step()
    memory = {name: value.reshape(-1).clone() for name, value in remember(first).items()}
    assert {name: value.numel() for name, value in memory.items()} == (
        memory_sizes(options, mine) if memory else {}
    )
    assert bool(memory) == (name != "sgd")
    restore(second, memory)
    for one, other in zip(mine, theirs, strict=True):
        other.parameter.data.copy_(one.parameter.data)
    for group in mine + theirs:
        group.parameter.grad = torch.full_like(group.parameter, -0.3)
    first.step()
    second.step()
    for one, other, start in zip(mine, theirs, fresh, strict=True):
        assert torch.equal(one.parameter, other.parameter)
        assert not torch.equal(one.parameter, start.parameter)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_weight_decay_is_for_the_groups_that_decay(name: str) -> None:
    made = groups()
    for group in made:
        group.parameter.grad = torch.zeros_like(group.parameter)
    make_optimizer(LocalTraining(optimizer=name, learning_rate=0.1, weight_decay=0.5), made).step()
    assert torch.allclose(made[0].parameter, torch.tensor(0.95))
    assert torch.equal(made[1].parameter, torch.ones(2))


@pytest.mark.parametrize(
    ("options", "alone"),
    [
        (LocalTraining(), True),
        (LocalTraining(weight_decay=0.1), False),
        (LocalTraining(keep_optimizer=True), False),
        (LocalTraining(weight_decay=0.1, keep_optimizer=True), False),
    ],
)
def test_when_zero_gradients_change_nothing(options: LocalTraining, alone: bool) -> None:
    assert options.leaves_zero_gradients_alone is alone


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_long_moments_are_those_that_pytorch_makes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Steps with moments in huge pages are those with PyTorch's own, bit for bit."""
    options, mine, theirs = LocalTraining(optimizer=name, learning_rate=0.1), groups(), groups()
    own = make_optimizer(options, theirs)
    monkeypatch.setattr("fednlp.training.optimizers.LARGE_BLOCK", 0)
    given = make_optimizer(options, mine)
    assert not own.state
    assert len(given.state) == 2
    for _ in range(3):
        own.step()
        given.step()
    assert all(torch.equal(*(g.parameter for g in pair)) for pair in zip(mine, theirs, strict=True))
    assert remember(given).keys() == remember(own).keys()
    assert all(torch.equal(value, remember(own)[key]) for key, value in remember(given).items())
