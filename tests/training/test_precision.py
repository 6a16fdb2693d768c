"""Low precision: float32 weights, outputs and losses; the same for every worker; float16 with a scaled loss."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from fednlp.errors import ConfigError
from fednlp.training import local as local_module
from fednlp.training.local_training import LocalTraining
from fednlp.training.precision import low_dtype, low_precision

from .small import changed, small
from .test_local import SGD, trained, trainer

CPU = torch.device("cpu")


def test_which_precision() -> None:
    assert low_dtype(CPU, False) is None
    assert low_dtype(CPU, True) is torch.bfloat16
    assert low_dtype(torch.device("cuda"), False, True) is torch.float16
    with pytest.raises(ConfigError, match=r"client\.fp16 = true is for GPUs.*say client\.bf16 = true"):
        low_dtype(CPU, False, True)
    with pytest.raises(ValidationError, match="two precisions"):
        LocalTraining(bf16=True, fp16=True)


def test_products_are_low_and_outputs_losses_and_gradients_float32() -> None:
    model, seen = small(), []
    model.out.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    ids, labels = torch.ones(3, 4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    with low_precision(model, torch.bfloat16):
        logits = model(ids)
        loss = F.cross_entropy(logits.bfloat16(), labels)
    assert (seen, logits.dtype, loss.dtype) == ([torch.bfloat16], torch.float32, torch.float32)
    loss.backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert model(ids).dtype is torch.float32
    assert seen[-1] is torch.float32
    assert F.cross_entropy.__module__ == "torch.nn.functional"


def test_steps_in_bf16_are_near_those_in_float32_and_see_each_new_weight() -> None:
    """Twelve steps: a weight that autocast had kept from the step before would train something else."""
    options = changed(SGD, num_train_epochs=2)
    plain, low = (trained(changed(options, bf16=bf16)) for bf16 in (False, True))
    for name, weights in plain.weights.items():
        assert not torch.equal(weights, low.weights[name]) or name == "words.weight"
        torch.testing.assert_close(low.weights[name], weights, rtol=0.02, atol=0.01)
    again = trained(changed(options, bf16=True))
    assert all(torch.equal(again.weights[name], weights) for name, weights in low.weights.items())


def test_a_float16_loss_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: gradients that float16 cannot hold arrive, and weights end near those of float32."""
    monkeypatch.setattr(local_module, "low_dtype", lambda *_: torch.float16)
    options = changed(SGD, num_train_epochs=2, max_grad_norm=1.0)
    plain, half = trained(options), trained(changed(options, fp16=True))
    for name, weights in plain.weights.items():
        torch.testing.assert_close(half.weights[name], weights, rtol=0.02, atol=0.01)
    assert half.local.total_loss == pytest.approx(plain.local.total_loss, rel=0.01)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_nothing_waits_for_a_device_step_by_step(accumulated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a number from a tensor waits for a GPU: how often that happens does not grow with the steps."""
    counted: list[str] = []

    def counting(name: str) -> Any:
        original = getattr(Tensor, name)

        def read(*arguments: Any, **options: Any) -> Any:
            counted.append(name)
            return original(*arguments, **options)

        return read

    for name in (
        "item",
        "cpu",
        "tolist",
        "numpy",
        "__float__",
        "__int__",
        "__bool__",
        "__index__",
        "nonzero",
    ):
        monkeypatch.setattr(Tensor, name, counting(name))

    def reads(steps: int) -> int:
        options = changed(SGD, max_steps=steps, gradient_accumulation_steps=accumulated, max_grad_norm=1.0)
        local = trainer(options)
        counted.clear()
        local.steps(local.x)
        return len(counted)

    assert reads(3) == reads(9)
