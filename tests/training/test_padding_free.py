"""Computing without padding: outputs and gradients are those with padding, whatever the head."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fednlp
from fednlp.config import Experiment
from fednlp.errors import ModelError
from fednlp.models.checkpointing import checkpoint_layers
from fednlp.training.kernels import gradient_in_place
from fednlp.training.kernels.padding_free import find_padding_free

Make = Callable[..., Experiment]

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers")]
PADDING, WORDS = 1, 40
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": PADDING,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTILBERT = {"dim": 16, "n_layers": 3, "n_heads": 4, "hidden_dim": 24} | dict.fromkeys(
    ("dropout", "attention_dropout", "seq_classif_dropout", "qa_dropout"), 0.0
)
HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")


def built(family: str, head: str, seed: int = 0, **changes: Any) -> Any:
    """Return a model whose every weight is drawn."""
    import transformers

    own = DISTILBERT if family == "DistilBert" else NO_DROPOUT
    labels = {"num_labels": 2 if head == "QuestionAnswering" else 3}
    config = getattr(transformers, f"{family}Config")(**SIZES | labels | own | changes)
    model = getattr(transformers, f"{family}For{head}")(config)
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3, generator=draw)
    return model


def batch_of(lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(2, WORDS, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids.where(mask > 0, PADDING), "attention_mask": mask}


def computed(model: Any, batch: dict[str, Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return outputs where there is no padding, and the gradient of a loss of them."""
    made = model(**batch)
    outputs = [made[name] for name in ("logits", "start_logits", "end_logits") if name in made]
    mask = batch["attention_mask"].bool()
    if not type(model).__name__.endswith("SequenceClassification"):
        outputs = [out[mask] for out in outputs]
    model.zero_grad()
    torch.stack([out.square().mean() for out in outputs]).sum().backward()
    return outputs, [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@settings(max_examples=4, deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5), seed=st.integers(0, 99))
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "DistilBert"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_outputs_and_gradients_are_those_with_padding(
    family: str, head: str, dtype: torch.dtype, near: float, lengths: list[int], seed: int
) -> None:
    batch = batch_of(lengths, seed)
    plain, free = (built(family, head, seed) for _ in range(2))
    find_padding_free(free).install()
    plain.to(dtype), free.to(dtype)
    expected, found = computed(plain, batch), computed(free, batch)
    scale = max(1.0, *(float(g.abs().max()) for g in expected[1] if g is not None))
    for one, other in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(other, one, rtol=0, atol=near * scale)


@pytest.mark.parametrize("head", HEADS)
def test_texts_of_one_token_keep_their_padding(head: str) -> None:
    model = built("Bert", head)
    batch = {name: nn.functional.pad(one, (0, 3)) for name, one in batch_of([1, 1]).items()}
    expected = model(**batch)
    find_padding_free(model).install()
    found = model(**batch)
    for name in ("logits", "start_logits", "end_logits"):
        if name in expected:
            assert found[name].shape == expected[name].shape
            torch.testing.assert_close(found[name][:, :1], expected[name][:, :1])


@pytest.mark.parametrize("lengths", [[3, 0, 4], [3, 4, 0], [0, 3], [0, 1]])
@pytest.mark.parametrize("head", HEADS)
def test_a_text_without_tokens_changes_no_other(head: str, lengths: list[int]) -> None:
    """What a model makes of no tokens depends on the padding, and is a number all the same."""
    plain, free, batch = built("Bert", head), built("Bert", head), batch_of(lengths)
    find_padding_free(free).install()
    expected, found = plain(**batch), free(**batch)
    for name in expected:
        for one, other, length in zip(expected[name], found[name], lengths, strict=True):
            read = None if head == "SequenceClassification" else length
            if length:
                torch.testing.assert_close(other[:read], one[:read], rtol=1e-5, atol=1e-5)
    _, gradients = computed(free, batch)
    assert all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)


def test_a_layer_that_is_called_twice_is_refused_and_keeps_its_weights() -> None:
    model = built("Bert", "SequenceClassification")
    model.bert.encoder.layer[2] = model.bert.encoder.layer[0]
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ModelError, match="bert"):
        find_padding_free(model)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_the_last_layer_computes_what_is_read() -> None:
    for head, read in (("SequenceClassification", 2), ("TokenClassification", 7)):
        model, seen = built("Bert", head), []
        find_padding_free(model).install()
        for layer in model.bert.encoder.layer:
            layer.output.register_forward_hook(lambda module, args, out, seen=seen: seen.append(len(out)))
        model(**batch_of([5, 2]))
        assert seen == [7, 7, read]


def test_dropout_is_drawn_and_checkpointing_draws_it_again() -> None:
    def gradients(again: bool, rate: float = 0.5) -> list[Tensor]:
        model = built(
            "Bert", "SequenceClassification", hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
        )
        find_padding_free(model).install()
        if again:
            checkpoint_layers(model)
        torch.manual_seed(0)
        return [g for g in computed(model.train(), batch_of([5, 9, 1]))[1] if g is not None]

    kept = gradients(False)
    assert all(torch.equal(*pair) for pair in zip(kept, gradients(True), strict=True))
    assert not all(torch.equal(*pair) for pair in zip(kept, gradients(False, 0.0), strict=True))


@pytest.mark.parametrize(
    ("family", "head", "changes"),
    [
        ("Albert", "SequenceClassification", {"embedding_size": 8}),
        ("GPT2", "SequenceClassification", {"n_embd": 16, "n_head": 4, "n_layer": 3}),
        ("MPNet", "SequenceClassification", {}),
    ],
)
def test_other_architectures_are_refused_by_name(family: str, head: str, changes: dict[str, Any]) -> None:
    model = built(family, head, **changes)
    with pytest.raises(ModelError, match=f"a model of type {family.lower()} .*: remove client.padding_free"):
        find_padding_free(model)
    with pytest.raises(ModelError, match="a model of type Linear"):
        find_padding_free(nn.Linear(2, 2))


def test_a_part_that_would_be_left_out_is_noticed() -> None:
    model = built("Bert", "SequenceClassification")
    layer = model.bert.encoder.layer[1]
    layer.extra = nn.Linear(16, 16)
    layer.register_forward_hook(lambda module, args, out: out + module.extra(out))
    with pytest.raises(ModelError, match="bert"):
        find_padding_free(model)


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"model.train": {"shared": ["layer.1", "head"], "rest": "frozen"}},
        {"model.train": {"shared": ["head"], "rest": "frozen"}},
        {"model.peft": {"method": "lora", "r": 2}},
        {"model.peft": {"method": "ia3"}},
        {"client.gradient_checkpointing": True, "client.max_tokens_per_batch": 40},
    ],
    ids=["whole", "prefix", "head", "lora", "ia3", "options"],
)
@pytest.mark.variants(2)
def test_a_run_is_the_one_with_padding(
    experiment: Make, tmp_path: Path, outcome: Callable[..., Any], made: dict[str, Any]
) -> None:
    made = {
        "num_rounds": 2,
        "clients_per_round": 3,
        "client.optimizer": "sgd",
        "client.learning_rate": 0.2,
        "model.config": NO_DROPOUT,
    } | made
    plain, free, two = (
        fednlp.run(experiment(made | more), tmp_path / name)
        for name, more in (
            ("plain", {}),
            ("free", {"client.padding_free": True}),
            ("two", {"client.padding_free": True, "runtime.workers": 2}),
        )
    )
    assert outcome(free) == outcome(two)
    from safetensors.torch import load_file

    for path in sorted(plain.model.glob("*.safetensors")):
        found = load_file(free.model / path.name)
        for name, value in load_file(path).items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=2e-5, msg=name)


def test_gradients_added_in_place_are_those_of_two_workers(
    experiment: Make, tmp_path: Path, tiny_model: Path, outcome: Callable[..., Any]
) -> None:
    wide = tmp_path / "wide"
    shutil.copytree(tiny_model, wide, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((wide / "config.json").read_text())
    width = (1 << 19) // config["hidden_size"]
    (wide / "config.json").write_text(json.dumps(config | {"intermediate_size": width}))
    made = {
        "model.name_or_path": str(wide),
        "num_rounds": 1,
        "clients_per_round": 2,
        "client.padding_free": True,
        "client.max_tokens_per_batch": 40,
        "runtime.onednn": False,
    }
    counted = mock.Mock(side_effect=gradient_in_place._will_run)
    with mock.patch.object(gradient_in_place, "_will_run", counted):
        one = fednlp.run(experiment(made), tmp_path / "one")
    assert counted.call_count
    two = fednlp.run(experiment(made | {"runtime.workers": 2}), tmp_path / "two")
    assert outcome(one) == outcome(two)
