"""Linear layers by oneDNN: outputs and gradients but for rounding, and PyTorch's own where they are not float32."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fednlp.training.kernels import onednn
from fednlp.training.kernels.onednn import OneDnnLinear, onednn_is_faster, use_onednn

SIZES = st.integers(1, 70)


def both(inputs: int, outputs: int, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """Return a layer of PyTorch and one of oneDNN with the same weights."""
    torch.manual_seed(inputs)
    plain, fast = nn.Linear(inputs, outputs, bias), nn.Linear(inputs, outputs, bias)
    fast.load_state_dict(plain.state_dict())
    use_onednn(fast)
    assert type(fast) is OneDnnLinear
    return plain, fast


def passed(layer: nn.Linear, rows: Tensor) -> list[Tensor]:
    """Return a layer's output and the gradients of the rows and of its weights."""
    own = rows.clone().requires_grad_()
    found = layer(own)
    (found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum().backward()
    return [found, own.grad, *(parameter.grad for parameter in layer.parameters())]  # type: ignore[list-item]


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), inputs=SIZES, outputs=SIZES, bias=st.booleans()
)
def test_outputs_and_gradients_are_those_of_pytorch(
    shape: list[int], inputs: int, outputs: int, bias: bool
) -> None:
    plain, fast = both(inputs, outputs, bias)
    rows = torch.randn(*shape, inputs)
    for one, other in zip(passed(plain, rows), passed(fast, rows), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=3e-6 * (1 + float(one.detach().abs().max())))


def test_rows_may_lie_in_any_order_in_memory() -> None:
    plain, fast = both(24, 40, True)
    rows = torch.randn(24, 7, 5).permute(2, 1, 0)
    torch.testing.assert_close(fast(rows), plain(rows), rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(fast(rows[:0]), plain(rows[:0]))


def test_gradients_can_be_differentiated_in_turn() -> None:
    """As a loss with a penalty on gradients does."""
    rows = torch.randn(5, 12)
    found = []
    for layer in both(12, 7, True):
        own = rows.clone().requires_grad_()
        (of_rows,) = torch.autograd.grad(layer(own).pow(3).sum(), own, create_graph=True)
        found.append(torch.autograd.grad(of_rows.pow(2).sum(), [own, *layer.parameters()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-4)


def test_functional_transforms_are_pytorch_s_own() -> None:
    """Such as a gradient for each row."""
    plain, fast = both(12, 7, True)
    rows = torch.randn(5, 12)

    def found(layer: nn.Linear) -> list[Tensor]:
        def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
            made: Tensor = functional_call(layer, weights, (row,)).pow(2).sum()
            return made

        each = vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), rows)
        return list(each.values())

    assert all(torch.equal(one, other) for one, other in zip(found(plain), found(fast), strict=True))


def test_frozen_weights_get_no_gradient() -> None:
    _, fast = both(8, 8, True)
    fast.weight.requires_grad_(False)
    passed_on = fast(torch.randn(3, 8, requires_grad=True))
    passed_on.sum().backward()
    assert fast.weight.grad is None
    assert fast.bias.grad is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_pytorch_s_own(dtype: torch.dtype) -> None:
    plain, fast = both(16, 16, True)
    rows = torch.randn(4, 16)
    assert torch.equal(fast.to(dtype)(rows.to(dtype)), plain.to(dtype)(rows.to(dtype)))


def test_autocast_has_its_way() -> None:
    plain, fast = both(16, 16, True)
    rows = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        found = fast(rows)
        assert torch.equal(found, plain(rows))
    assert found.dtype is torch.bfloat16


def test_a_layer_of_another_class_is_left_alone() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(2, 2), Own(2, 2), nn.LayerNorm(2))
    use_onednn(model)
    assert [type(one) for one in model] == [OneDnnLinear, Own, nn.LayerNorm]


def test_a_pytorch_without_onednn_computes_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    layer = nn.Linear(2, 2)
    use_onednn(layer)
    assert type(layer) is nn.Linear
    assert not onednn_is_faster()


@pytest.mark.parametrize(
    ("vendor", "family", "capability", "faster"),
    [
        ("AuthenticAMD", "26", "AVX512", True),
        ("AuthenticAMD", "25", "AVX512", False),  # Zen 4 computes 256 bits at once
        ("AuthenticAMD", "26", "AVX2", False),
        ("GenuineIntel", "26", "AVX512", False),
        ("", "", "AVX512", False),
    ],
)
def test_it_is_faster_where_mkl_leaves_avx_512_unused(
    monkeypatch: pytest.MonkeyPatch, vendor: str, family: str, capability: str, faster: bool
) -> None:
    monkeypatch.setattr(onednn, "processor", {"vendor_id": vendor, "cpu family": family}.__getitem__)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn_is_faster() is faster
