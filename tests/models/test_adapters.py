"""LoRA: the base is frozen, what is new is trained, and what is saved is an ordinary model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fednlp.errors import MissingDependency, ModelError
from fednlp.models import find_model, load_tokenizer, new_model, pretrained_model, save_model
from fednlp.training.replica import Replica, flat_weights, layout_of

peft = pytest.importorskip("peft")
Make = Callable[..., Path]
LABELS = {"num_labels": 3, "pad_token_id": 1}
SETTINGS = {
    "AutoModelForSequenceClassification": LABELS,
    "AutoModelForTokenClassification": LABELS,
    "AutoModelForQuestionAnswering": {},
    "AutoModelForSeq2SeqLM": {},
    "AutoModelForCausalLM": {},
    "AutoModelForMaskedLM": {},
}
LORA = {"method": "lora", "r": 2, "lora_alpha": 4}
FITTING = [
    ("bert", "AutoModelForSequenceClassification", {"bert.pooler", "classifier"}),
    ("bert", "AutoModelForTokenClassification", {"classifier"}),
    ("roberta", "AutoModelForSequenceClassification", {"classifier"}),
    ("distilbert", "AutoModelForSequenceClassification", {"classifier", "pre_classifier"}),
    ("distilbert", "AutoModelForQuestionAnswering", {"qa_outputs"}),
    ("gpt2", "AutoModelForSequenceClassification", {"score"}),
    ("gpt2", "AutoModelForCausalLM", set()),
    ("llama", "AutoModelForCausalLM", set()),
    ("t5", "AutoModelForSeq2SeqLM", set()),
    ("bart", "AutoModelForSeq2SeqLM", set()),
]
BASE = {
    "AutoModelForSequenceClassification": "AutoModelForMaskedLM",
    "AutoModelForTokenClassification": "AutoModelForMaskedLM",
    "AutoModelForQuestionAnswering": "AutoModelForMaskedLM",
}


@pytest.mark.parametrize(("kind", "model_class", "head"), FITTING, ids=lambda value: str(value)[:40])
def test_adapters_and_what_is_new_are_trained_and_nothing_else(
    kind: str, model_class: str, head: set[str], random_model: Make
) -> None:
    saved_as = "AutoModelForCausalLM" if kind == "gpt2" else BASE.get(model_class, model_class)
    source = str(random_model(kind, saved_as))
    model = pretrained_model(source, model_class, SETTINGS[model_class], {}, 3, LORA)
    trained = {n.removeprefix("base_model.model.") for n, p in model.named_parameters() if p.requires_grad}
    new = {name for name in trained if "lora_" not in name}
    assert {name.partition(".modules_to_save.default")[0] for name in new} == head
    assert len(trained) > len(new)
    again = new_model(source, model_class, SETTINGS[model_class], {}, 3, LORA)
    assert layout_of(again) == layout_of(model)
    assert {e.name for e in layout_of(model).entries} == {f"base_model.model.{name}" for name in trained}
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "model_class"),
    [
        ("bert", "AutoModelForSequenceClassification"),
        ("gpt2", "AutoModelForCausalLM"),
        ("bart", "AutoModelForSeq2SeqLM"),
    ],
)
def test_the_saved_model_is_ordinary_and_the_adapter_lies_beside_it(
    kind: str, model_class: str, random_model: Make, tmp_path: Path
) -> None:
    import transformers

    source, settings = str(random_model(kind)), SETTINGS[model_class]
    model = pretrained_model(source, model_class, settings, {}, 0, LORA)
    replica = Replica(model, torch.device("cpu"), True)
    x = flat_weights(model)
    x += 0.1 * torch.randn(len(x), generator=torch.Generator().manual_seed(0))
    replica.load_for_evaluation(x)
    ids = {"input_ids": torch.tensor([[5, 6, 7, 2]])}
    expected = model(**ids).logits.detach()
    save_model(model, load_tokenizer(source), tmp_path, "a card")
    assert torch.equal(model(**ids).logits, expected)
    assert torch.equal(flat_weights(model), x)
    merged = getattr(transformers, model_class).from_pretrained(tmp_path)
    torch.testing.assert_close(merged(**ids).logits, expected, rtol=1e-4, atol=1e-5)
    assert not any("lora" in name for name in merged.state_dict())
    base = pretrained_model(source, model_class, settings, {}, 5)
    with _quiet():
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(adapted(**ids).logits, expected, rtol=1e-4, atol=1e-5)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (written["r"], written["lora_alpha"]) == (2, 4)
    assert written["target_modules"] == sorted(written["target_modules"])
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def _quiet() -> Any:
    import warnings

    return warnings.catch_warnings(action="ignore")


def test_the_tied_words_stay_tied(random_model: Make, tmp_path: Path) -> None:
    import transformers

    source = str(random_model("llama", "AutoModelForCausalLM"))
    model = pretrained_model(source, "AutoModelForCausalLM", {}, {}, 0, LORA)
    save_model(model, load_tokenizer(source), tmp_path, "")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    assert torch.equal(merged.lm_head.weight, model.base_model.model.lm_head.weight)


def test_target_modules(random_model: Make) -> None:
    source = str(random_model("bert"))

    def adapted(target: Any) -> set[str]:
        options = LORA | {"target_modules": target}
        model = pretrained_model(source, "AutoModelForTokenClassification", LABELS, {}, 0, options)
        return {
            n.partition(".lora_A")[0].rpartition(".")[2] for n, _ in model.named_parameters() if "lora_A" in n
        }

    assert adapted(None) == {"query", "value"}
    assert adapted(["key"]) == {"key"}
    assert adapted("all-linear") == {"query", "key", "value", "dense"}


def test_a_pair_trains_its_new_attention(random_model: Make) -> None:
    folder = str(random_model("bert", "AutoModelForMaskedLM"))
    source = find_model(f"{folder}+{folder}")
    options = LORA | {"target_modules": ["query", "value"]}
    model = pretrained_model(source, "AutoModelForSeq2SeqLM", {}, {}, 0, options)
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    crossing = [name for name in trained if "crossattention" in name]
    assert crossing
    assert all("modules_to_save" in name for name in crossing)
    assert all("modules_to_save" in name or "lora_" in name for name in trained)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "prefix"}, 'method = "prefix": there is method = "lora"'),
        ({"rank": 8}, "rank: there is"),
        ({"r": 0}, "r = 0: give a whole number from 1"),
        ({"r": True}, "r = True: give a whole number from 1"),
        ({"lora_alpha": -1}, "lora_alpha = -1: give a number above 0"),
        ({"lora_dropout": 1.0}, "lora_dropout = 1.0: give a number in [0, 1)"),
        ({"target_modules": []}, "target_modules = []: give names of layers"),
        ({"target_modules": ["key", "nope"]}, "no layer nope; its linear ones are classifier, dense, key"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str, random_model: Make) -> None:
    source = str(random_model("bert"))
    with pytest.raises(ModelError) as caught:
        pretrained_model(source, "AutoModelForTokenClassification", LABELS, {}, 0, options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_must_be_something_to_adapt(random_model: Make) -> None:
    with pytest.raises(ModelError, match="has no weights"):
        pretrained_model(str(random_model("bert", None)), "AutoModelForMaskedLM", {}, {}, 0, LORA)


def test_a_missing_peft_names_what_installs_it(random_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingDependency, match=r"pip install 'fednlp\[lora\]'"):
        pretrained_model(str(random_model("bert")), "AutoModelForMaskedLM", {}, {}, 0, LORA)
