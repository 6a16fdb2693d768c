"""Dropout from cheap masks: its distribution, its gradient, attention with it, and every kind of model."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fednlp.seeds import random_words, torch_stream
from fednlp.training.kernels.dropout import attention, cheap_dropout, dropout

NUMBER = 200_000
UNDROPPED = 1e-9
"""A rate that is rounded to 0: attention takes the way that dropout takes, and drops nothing."""


def within(count: float, of: int, probability: float) -> bool:
    """Whether a binomial count is within six standard deviations."""
    return abs(count - of * probability) <= 6 * math.sqrt(of * probability * (1 - probability)) + 1


@settings(max_examples=30, deadline=None)
@given(p=st.floats(0.001, 0.999), seed=st.integers(0, 2**31))
def test_the_rate_is_right_and_what_is_kept_is_scaled_exactly(p: float, seed: int) -> None:
    with torch_stream(seed, "test"):
        found = dropout(torch.ones(NUMBER, dtype=torch.float64), p)
    rate = round(p * 65536) / 65536
    assert within(float((found == 0).sum()), NUMBER, p)
    assert set(found.tolist()) == {0.0, 1 / (1 - rate)}
    assert abs(1 / (1 - rate) - 1 / (1 - p)) * (1 - p) <= 2**-17 / (1 - rate) * 1.001


@settings(max_examples=10, deadline=None)
@given(p=st.sampled_from([0.1, 0.3, 0.5]), seed=st.integers(0, 2**31))
def test_places_steps_and_neighbours_are_independent(p: float, seed: int) -> None:
    """How often two masks drop alike is as often as for independent ones; so it is for a mask and itself, moved."""
    with torch_stream(seed, "test"):
        one, other = (dropout(torch.ones(NUMBER), p) == 0 for _ in range(2))
    with torch_stream(seed + 1, "test"):
        elsewhere = dropout(torch.ones(NUMBER), p) == 0
    for left, right in ((one, other), (one, elsewhere), *((one[:-lag], one[lag:]) for lag in (1, 4, 128))):
        assert within(float((left & right).sum()), len(left), p * p)


def test_random_words_are_uniform_and_follow_the_stream() -> None:
    with torch_stream(1, "a"):
        words, more = random_words(1 << 20), random_words(7)
    with torch_stream(1, "a"):
        assert (random_words(1 << 20) == words).all()
        assert (random_words(7) == more).all()
    with torch_stream(2, "a"):
        assert (random_words(7) != more).any()
    for bit in range(16):
        assert within(float(((words >> bit) & 1).sum()), len(words), 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inplace", [False, True])
def test_the_gradient_has_the_mask_of_the_forward_pass(dtype: torch.dtype, inplace: bool) -> None:
    x = torch.ones(8, 129, dtype=dtype, requires_grad=True)
    y = dropout(x * 1, 0.3, True, inplace)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y)
    assert 0 < int((y == 0).sum()) < y.numel()


def test_nothing_is_dropped_in_evaluation_and_all_at_rate_one() -> None:
    x = torch.randn(50)
    assert dropout(x, 0.5, training=False) is x
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(50))
    with pytest.raises(ValueError, match="between 0 and 1"):
        dropout(x, 1.5)


def test_a_layer_that_is_computed_again_has_the_same_mask() -> None:
    """Gradient checkpointing: the gradient is that of the plain pass, bit for bit."""

    def gradient(again: bool) -> Tensor:
        torch.manual_seed(3)
        x = torch.randn(16, 64, requires_grad=True)
        layer = nn.Sequential(nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.2))
        with cheap_dropout():
            y = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            (y * y).sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(False), gradient(True))


def _masks() -> dict[str, dict[str, Any]]:
    seen = torch.rand(2, 1, 6, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    seen[1, 0, 2] = False  # a row that sees nothing
    return {
        "none": {},
        "padding": {"attn_mask": torch.tensor([[True] * 7, [True] * 4 + [False] * 3])[:, None, None]},
        "rows": {"attn_mask": seen},
        "added": {"attn_mask": torch.zeros(2, 1, 6, 7).masked_fill(~seen, -torch.inf)},
        "position bias": {"attn_mask": torch.linspace(-1, 1, 42).view(1, 1, 6, 7)},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.3},
        "grouped": {"enable_gqa": True},
    }


@pytest.mark.parametrize("case", _masks())
def test_attention_is_that_of_pytorch_where_nothing_is_dropped(case: str) -> None:
    options = _masks()[case]
    torch.manual_seed(0)
    heads = 2 if case == "grouped" else 4

    def tensors() -> list[Tensor]:
        torch.manual_seed(0)
        shapes = (2, 4, 6, 8), (2, heads, 7, 8), (2, heads, 7, 8)
        return [torch.randn(shape, requires_grad=True) for shape in shapes]

    ours, theirs = tensors(), tensors()
    found = attention(*ours, dropout_p=UNDROPPED, **options)
    wanted = F.scaled_dot_product_attention(*theirs, **options)
    torch.testing.assert_close(found, wanted)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_attention_drops_its_weights() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 64, 4)
    each = torch.eye(64).expand(2, 3, 64, 64)  # the output is then the weights
    weights = F.scaled_dot_product_attention(query, key, each)
    found = attention(query, key, each, dropout_p=0.25)
    assert within(float((found == 0).sum()), found.numel(), 0.25)
    torch.testing.assert_close(found[found != 0], weights[found != 0] / 0.75)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_has_the_gradients_of_its_plain_products(dtype: torch.dtype) -> None:
    """Bit for bit, though the weights after dropout are not kept for them."""

    def passed(plain: bool) -> list[Tensor | None]:
        torch.manual_seed(0)
        laid = [torch.randn(2, 9, 3, 8).to(dtype).requires_grad_() for _ in range(3)]
        query, key, value = (one.transpose(1, 2) for one in laid)
        if plain:
            scores = (query * 8**-0.5) @ key.transpose(-2, -1)
            found = dropout(scores.float().softmax(-1).to(dtype), 0.3) @ value
        else:
            found = attention(query, key, value, dropout_p=0.3)
        found.float().square().sum().backward()
        return [found, *(one.grad for one in laid)]

    for one, other in zip(passed(True), passed(False), strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_attention_is_trained_in_bf16_with_a_softmax_in_float32() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 2, 9, 16) for _ in range(3)]
    low = [t.bfloat16().requires_grad_() for t in tensors]
    found = attention(*low)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), F.scaled_dot_product_attention(*tensors), rtol=0.03, atol=0.03)


def test_pytorchs_functions_are_put_back() -> None:
    before = F.dropout, F.scaled_dot_product_attention
    with pytest.raises(ZeroDivisionError), cheap_dropout():
        assert 1 / (F.dropout is not dropout)
    assert before == (F.dropout, F.scaled_dot_product_attention)


class Drawn(TorchDispatchMode):
    """Notes when PyTorch draws a mask by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "bernoulli" in str(func) or "native_dropout" in str(func):
            self.masks.append(str(func))
        return func(*args, **(kwargs or {}))


def _bert(name: str, auto: str, **more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        sizes = {
            "vocab_size": 40,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        }
        config = getattr(transformers, f"{name}Config")(**(sizes | more))
        model: nn.Module = getattr(transformers, auto).from_config(config)
        return model

    return build


_CLASSES, _PAIRS = "AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM"
_DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
_BART = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, **_DECODER}
_DROPS = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}


def _lora() -> nn.Module:
    from peft import LoraConfig, inject_adapter_in_model

    options = LoraConfig(r=2, lora_dropout=0.1, target_modules=["query", "value"])
    return inject_adapter_in_model(options, _bert("Bert", _CLASSES)())


def _lstm() -> nn.Module:
    from fednlp.models.lstm import LstmConfig, LstmForSequenceClassification

    return LstmForSequenceClassification(
        LstmConfig(vocab_size=40, embedding_size=8, hidden_size=8, num_hidden_layers=1)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": _bert("Bert", _CLASSES),
    "bert, eager": _bert("Bert", _CLASSES, attn_implementation="eager"),
    "distilbert": _bert("DistilBert", _CLASSES, dim=16, hidden_dim=16, n_layers=2, n_heads=2),
    "roberta": _bert("Roberta", _CLASSES),
    "albert": _bert(
        "Albert", _CLASSES, embedding_size=8, **{f"{k}_probs_dropout_prob": 0.1 for k in ["attention"]}
    ),
    "mpnet": _bert("MPNet", _CLASSES),
    "electra": _bert("Electra", _CLASSES, embedding_size=8),
    "deberta": _bert("DebertaV2", _CLASSES),
    "gpt2": _bert("GPT2", "AutoModelForCausalLM", n_embd=16, n_layer=2, n_head=2),
    "bart": _bert("Bart", _PAIRS, **_BART, **_DROPS, **_TOKENS),
    "t5": _bert("T5", _PAIRS, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, **_TOKENS),
    "lstm": _lstm,
    "lora": _lora,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_its_masks_from_here(name: str) -> None:
    """PyTorch draws none by itself, two steps differ, and a step is a function of the stream."""
    with torch_stream(0, "model"):
        model = MODELS[name]().train()
    ids = torch.arange(3, 27).view(2, 12)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["attention_mask"][1, 8:] = 0
    if "T5" in type(model).__name__ or "Bart" in type(model).__name__:
        batch["labels"] = ids[:, :5].contiguous()

    def logits(step: int) -> Tensor:
        with torch_stream(step, "dropout"), cheap_dropout(), Drawn() as drawn:
            found = model(**batch).logits
            found.square().sum().backward()
        assert not drawn.masks
        return found.detach()

    assert not torch.equal(logits(1), logits(2))
    assert torch.equal(logits(1), logits(1))
    with Drawn() as drawn:  # the count above can fail
        model(**batch)
    assert drawn.masks
