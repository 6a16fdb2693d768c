"""Linear layers that add to their gradients in place: outputs and gradients are PyTorch's."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fednlp.training.kernels.gradient_in_place import GradientInPlace, add_gradients_in_place

WIDTH = 768
"""Of layers that are large enough."""


def both(bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """Return a layer of PyTorch, and one that adds in place, with the same weights and the same gradients."""
    torch.manual_seed(0)
    plain, changed = (nn.Linear(WIDTH, WIDTH, bias) for _ in range(2))
    changed.load_state_dict(plain.state_dict())
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    add_gradients_in_place([changed])
    assert type(changed) is GradientInPlace
    return plain, changed


def passed(layer: nn.Linear, rows: Tensor, call: Callable[..., Tensor] | None = None) -> list[Tensor]:
    """Return a layer's output, and the gradients of the rows and of its parameters after a backward pass."""
    own = rows.clone().requires_grad_()
    found = layer(own) if call is None else call(layer, own)
    found.sin().sum().backward()
    return [found, *(one.grad for one in (own, *layer.parameters()) if one.grad is not None)]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


@settings(max_examples=8, deadline=None)
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), bias=st.booleans())
def test_gradients_are_added_to_those_that_are_there(shape: list[int], bias: bool) -> None:
    plain, changed = both(bias)
    rows, place = torch.randn(*shape, WIDTH), changed.weight.grad
    assert_same(passed(plain, rows), passed(changed, rows))
    assert changed.weight.grad is place


def test_a_weight_without_a_gradient_gets_one() -> None:
    plain, changed = both(True)
    plain.zero_grad(), changed.zero_grad()
    rows = torch.randn(5, WIDTH)
    found = passed(changed, rows)
    assert len(found) == 4
    assert_same(passed(plain, rows), found)


def test_what_waits_for_a_gradient_is_told() -> None:
    _, changed = both(True)
    told: list[Tensor] = []
    changed.weight.register_post_accumulate_grad_hook(told.append)
    passed(changed, torch.randn(5, WIDTH))
    assert told == [changed.weight]


def test_a_hook_of_the_weight_changes_the_gradient() -> None:
    plain, changed = both(True)
    for layer in (plain, changed):
        layer.weight.register_hook(lambda gradient: -gradient)
    rows = torch.randn(5, WIDTH)
    assert_same(passed(plain, rows), passed(changed, rows))


def test_what_is_asked_for_by_itself_is_added_to_nothing() -> None:
    plain, changed = both(True)
    rows = torch.randn(5, WIDTH, requires_grad=True)
    before = changed.weight.grad.clone()
    for asked in ([rows], [changed.weight], [rows, changed.weight, changed.bias]):
        theirs = [plain.weight if one is changed.weight else one for one in asked]
        theirs = [plain.bias if one is changed.bias else one for one in theirs]
        found = torch.autograd.grad(changed(rows).sin().sum(), asked)
        assert_same(list(torch.autograd.grad(plain(rows).sin().sum(), theirs)), list(found))
    changed(rows).sum().backward(inputs=[rows])
    assert torch.equal(changed.weight.grad, before)


def test_a_layer_that_is_called_twice_adds_twice() -> None:
    plain, changed = both(True)
    rows = torch.randn(5, WIDTH)
    assert_same(
        passed(plain, rows, lambda layer, own: layer(layer(own).sin())),
        passed(changed, rows, lambda layer, own: layer(layer(own).sin())),
    )


def test_a_weight_that_is_computed_and_rows_of_which_there_are_none() -> None:
    plain, changed = both(True)
    computed = [
        torch.func.functional_call(layer, {"weight": layer.weight * 2}, torch.ones(3, WIDTH))
        for layer in (plain, changed)
    ]
    assert_same(*([found] for found in computed))
    assert changed(torch.zeros(2, 0, WIDTH)).shape == (2, 0, WIDTH)


def test_gradient_checkpointing_adds_once() -> None:
    plain, changed = both(True)
    rows = torch.randn(5, WIDTH)
    assert_same(
        passed(plain, rows),
        passed(changed, rows, lambda layer, own: checkpoint(layer, own, use_reentrant=False)),
    )


@pytest.mark.parametrize("low", [False, True], ids=["frozen", "bfloat16"])
def test_other_layers_compute_as_before(low: bool) -> None:
    plain, changed = both(True)
    for layer in (plain, changed):
        layer.weight.requires_grad_(low)
    rows = torch.randn(5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        found = [passed(layer, rows) for layer in (plain, changed)]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_small_layers_stay_as_they_are_and_all_can_be_undone() -> None:
    small, large = nn.Linear(8, 8), nn.Linear(WIDTH, WIDTH)
    undo = add_gradients_in_place([small, large, nn.LayerNorm(8)])
    assert type(small) is nn.Linear
    assert isinstance(large, GradientInPlace)
    undo()
    assert type(large) is nn.Linear
