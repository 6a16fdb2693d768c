"""Adapters: the base is frozen, what is new is trained, and what is saved is an ordinary model."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.errors import MissingDependency, ModelError
from fednlp.federated.adapters.base import AdaptingServer
from fednlp.federated.aggregators.base import AggregatedUpdate, Mean
from fednlp.federated.params import Layout
from fednlp.federated.server import ServerOptimizer
from fednlp.federated.state import State
from fednlp.models.adapters import with_adapter
from fednlp.models.parameter_table import parameter_table
from fednlp.models.pretrained import load_tokenizer, new_model, pretrained_model, save_model
from fednlp.models.prompt_tuning import with_saved_prompt
from fednlp.models.resolve import resolve_model
from fednlp.training.model_layout import flat_weights, layout_of
from fednlp.training.replica import Replica
from fednlp.training.worker_spec import adapters_of, personal_names, selected

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
EXACT = LORA | {"averaging": "exact"}
VALUES = LORA | {"target_modules": ["value"]}
IA3 = {"method": "ia3"}
DORA = LORA | {"use_dora": True}
LOHA = {"method": "loha", "r": 2, "alpha": 4}
PROMPT = {"method": "prompt-tuning", "num_virtual_tokens": 3}
IDS = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
DECODED = {"decoder_input_ids": torch.tensor([[2, 9, 8]])}
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


@pytest.mark.parametrize(
    ("kind", "model_class", "head"),
    FITTING,
    ids=lambda value: str(value if isinstance(value, str) else sorted(value)),
)
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
    source = resolve_model(f"{folder}+{folder}")
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
        ({"method": "prefix"}, 'method = "prefix": there is lora, loha, ia3, prompt-tuning'),
        ({"rank": 8}, 'rank: method = "lora" has r, lora_alpha, lora_dropout, use_dora, target_modules,'),
        (LOHA | {"ranks": [2]}, 'ranks: method = "loha" has r, alpha, target_modules'),
        (LOHA | {"averaging": "exact"}, 'averaging: method = "loha" has r, alpha, target_modules'),
        (IA3 | {"r": 8}, 'r: method = "ia3" has target_modules, feedforward_modules'),
        (IA3 | {"feedforward_modules": "wo"}, "feedforward_modules = 'wo': give names of layers"),
        (IA3 | {"feedforward_modules": ["query"]}, "query must be in target_modules too, which holds key,"),
        (IA3 | {"target_modules": ["key", "nope"]}, "target_modules: the model has no layer nope"),
        (PROMPT | {"num_virtual_tokens": 0}, "num_virtual_tokens = 0: give a whole number from 1"),
        (PROMPT | {"num_virtual_tokens": 512}, "512 leaves no room for a text: the model has 512 positions"),
        (PROMPT | {"prompt_tuning_init": "TEXT"}, "prompt_tuning_init = 'TEXT': give \"RANDOM\""),
        (PROMPT | {"target_modules": ["key"]}, 'method = "prompt-tuning" has num_virtual_tokens,'),
        ({"r": 0}, "r = 0: give a whole number from 1"),
        ({"r": True}, "r = True: give a whole number from 1"),
        ({"lora_alpha": -1}, "lora_alpha = -1: give a number above 0"),
        ({"use_dora": 1}, "use_dora = 1: give true or false"),
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
    with pytest.raises(MissingDependency, match=r"pip install .*\[lora\]"):
        pretrained_model(str(random_model("bert")), "AutoModelForMaskedLM", {}, {}, 0, LORA)


def with_head(kind: str, model_class: str, options: dict[str, Any] | None, make: Make, seed: int = 3) -> Any:
    """Return a random model with a fresh head and adapters."""
    source = str(make(kind))
    return pretrained_model(source, model_class, SETTINGS[model_class], {}, seed, options)


def said(model: Any, model_class: str) -> torch.Tensor:
    """Return a model's logits for one text."""
    output = model(**IDS, **(DECODED if "Seq2Seq" in model_class else {}))
    return (output.start_logits if "Question" in model_class else output.logits).detach()


def shaken(model: Any) -> Replica:
    """Move everything that is trained."""
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load_for_evaluation(x + 0.3 * torch.randn(len(x), generator=torch.Generator().manual_seed(0)))
    return replica


@pytest.mark.parametrize(
    ("kind", "model_class", "vectors", "forward"),
    [
        ("bert", "AutoModelForSequenceClassification", {"key", "value", "dense"}, {"dense"}),
        ("roberta", "AutoModelForTokenClassification", {"key", "value", "dense"}, {"dense"}),
        ("gpt2", "AutoModelForCausalLM", {"c_attn", "c_proj"}, {"c_proj"}),
        ("t5", "AutoModelForSeq2SeqLM", {"k", "v", "wo"}, {"wo"}),
        ("bart", "AutoModelForSeq2SeqLM", {"q_proj", "v_proj", "fc2"}, {"fc2"}),
    ],
)
def test_ia3_scales_what_peft_chooses(
    kind: str, model_class: str, vectors: set[str], forward: set[str], random_model: Make
) -> None:
    model = with_head(kind, model_class, IA3, random_model)
    scaled = {n: p for n, p in model.named_parameters() if "ia3_l" in n}
    assert {name.split(".ia3_l")[0].rpartition(".")[2] for name in scaled} == vectors
    assert all(parameter.requires_grad and (parameter == 1).all() for parameter in scaled.values())
    inputs = {n.split(".ia3_l")[0].rpartition(".")[2] for n, p in scaled.items() if p.shape[0] == 1}
    assert inputs == forward
    others = {n for n, p in model.named_parameters() if p.requires_grad and n not in scaled}
    assert all("modules_to_save" in name for name in others)
    assert bool(others) == (model_class in BASE)
    base = with_head(kind, model_class, None, random_model)
    torch.testing.assert_close(said(model, model_class), said(base, model_class))


def test_ia3_wants_to_know_the_layers_of_what_peft_does_not_know(random_model: Make) -> None:
    model_class = "AutoModelForQuestionAnswering"
    with pytest.raises(
        ModelError, match="no choice of layers for distilbert: give target_modules, the layers"
    ):
        with_head("distilbert", model_class, IA3, random_model)
    chosen = {"target_modules": ["k_lin", "v_lin", "lin2"]}
    with pytest.raises(ModelError, match="no choice of layers for distilbert: give feedforward_modules"):
        with_head("distilbert", model_class, IA3 | chosen, random_model)
    model = with_head("distilbert", model_class, IA3 | chosen | {"feedforward_modules": []}, random_model)
    assert {p.shape[1] for n, p in model.named_parameters() if "ia3_l" in n} == {1}


def test_ia3_of_fewer_layers_can_be_loaded_again(random_model: Make, tmp_path: Path) -> None:
    source = str(random_model("bert"))
    options = IA3 | {"target_modules": ["value", "key"]}
    model = pretrained_model(source, "AutoModelForTokenClassification", LABELS, {}, 0, options)
    save_model(model, load_tokenizer(source), tmp_path, "")
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (written["target_modules"], written["feedforward_modules"]) == (["key", "value"], [])
    base = pretrained_model(source, "AutoModelForTokenClassification", LABELS, {}, 1)
    with _quiet():
        peft.PeftModel.from_pretrained(base, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("kind", "model_class"),
    [
        ("bert", "AutoModelForSequenceClassification"),
        ("distilbert", "AutoModelForTokenClassification"),
        ("gpt2", "AutoModelForTokenClassification"),
        ("bert", "AutoModelForQuestionAnswering"),
        ("gpt2", "AutoModelForCausalLM"),
        ("llama", "AutoModelForCausalLM"),
        ("t5", "AutoModelForSeq2SeqLM"),
        ("bart", "AutoModelForSeq2SeqLM"),
    ],
)
def test_a_prompt_stands_before_the_words_and_takes_no_place_in_the_output(
    kind: str, model_class: str, random_model: Make
) -> None:
    model = with_head(kind, model_class, PROMPT, random_model)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert "prompt_encoder.default.embedding.weight" in trained
    assert all("modules_to_save" in name or "prompt_encoder" in name for name in trained)
    assert any("modules_to_save" in name for name in trained) == (model_class in BASE)
    again = new_model(str(random_model(kind)), model_class, SETTINGS[model_class], {}, 3, PROMPT)
    assert torch.equal(flat_weights(again), flat_weights(model))
    base = model.base_model
    words = torch.cat(
        [model.prompt_encoder.default.embedding.weight[None], base.get_input_embeddings()(IDS["input_ids"])],
        1,
    )
    decoded = DECODED if "Seq2Seq" in model_class else {}
    output = base(inputs_embeds=words, attention_mask=torch.ones(1, 7), **decoded)
    wanted = output.start_logits if "Question" in model_class else output.logits
    by_position = model_class not in ("AutoModelForSequenceClassification", "AutoModelForSeq2SeqLM")
    torch.testing.assert_close(said(model, model_class), wanted[:, 3:] if by_position else wanted)
    assert words.shape == (1, 7, words.shape[2])


@pytest.mark.parametrize(
    ("kind", "model_class", "reason"),
    [
        ("gpt2", "AutoModelForSequenceClassification", "would depend on the padding behind it"),
        ("bart", "AutoModelForSequenceClassification", "Passing input embeddings is currently not supported"),
        ("bert", "AutoModelForMaskedLM", "PEFT prompts no masked language model"),
    ],
)
def test_what_cannot_be_prompted(kind: str, model_class: str, reason: str, random_model: Make) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        with_head(kind, model_class, PROMPT, random_model)
    assert 'use "lora"' in str(caught.value)


ROUND_TRIPS = [
    ("bert", "AutoModelForSequenceClassification"),
    ("roberta", "AutoModelForSequenceClassification"),
    ("distilbert", "AutoModelForQuestionAnswering"),
    ("gpt2", "AutoModelForCausalLM"),
    ("bart", "AutoModelForSeq2SeqLM"),
    ("t5", "AutoModelForSeq2SeqLM"),
]


@pytest.mark.parametrize("options", [IA3, DORA, LOHA], ids=["ia3", "dora", "loha"])
@pytest.mark.parametrize(("kind", "model_class"), ROUND_TRIPS)
def test_adapters_are_merged_and_lie_beside(
    kind: str, model_class: str, options: dict[str, Any], random_model: Make, tmp_path: Path
) -> None:
    import transformers

    if kind == "gpt2" and options is LOHA:
        with pytest.raises(ModelError, match=r"Conv1D.* not supported"):
            with_head(kind, model_class, options, random_model)
        return
    if kind == "distilbert" and options is IA3:
        options = IA3 | {"target_modules": ["k_lin", "lin2"], "feedforward_modules": ["lin2"]}
    model = with_head(kind, model_class, options, random_model)
    before = said(model, model_class)
    shaken(model)
    expected = said(model, model_class)
    assert not torch.allclose(before, expected, atol=1e-4)
    save_model(model, load_tokenizer(str(random_model(kind))), tmp_path, "a card")
    assert torch.equal(said(model, model_class), expected)
    merged = getattr(transformers, model_class).from_pretrained(tmp_path)
    torch.testing.assert_close(said(merged, model_class), expected, rtol=1e-4, atol=1e-5)
    base = with_head(kind, model_class, None, random_model, seed=5)
    with _quiet():
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(said(adapted, model_class), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "model_class"), ROUND_TRIPS)
def test_a_prompt_lies_beside_a_model_without_it(
    kind: str, model_class: str, random_model: Make, tmp_path: Path
) -> None:
    import transformers

    model = with_head(kind, model_class, PROMPT, random_model)
    shaken(model)
    expected, generated = said(model, model_class), None
    if "Seq2Seq" in model_class:
        generated = model.generate(**IDS, max_new_tokens=5)
    save_model(model, load_tokenizer(str(random_model(kind))), tmp_path, "a card")
    assert torch.equal(said(model, model_class), expected)
    bare, told = getattr(transformers, model_class).from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not torch.allclose(said(bare, model_class), expected, atol=1e-4)
    loaded = with_saved_prompt(bare, tmp_path)
    torch.testing.assert_close(said(loaded, model_class), expected, rtol=1e-5, atol=1e-6)
    if generated is not None:
        assert torch.equal(loaded.generate(**IDS, max_new_tokens=5), generated)
    written = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert written["num_virtual_tokens"] == 3
    again = getattr(transformers, model_class).from_pretrained(tmp_path)
    with _quiet():
        adapted = peft.PeftModel.from_pretrained(again, tmp_path / "adapter")
    assert torch.equal(
        adapted.prompt_encoder.default.embedding.weight, model.prompt_encoder.default.embedding.weight
    )


def test_a_folder_without_a_prompt_is_left_as_it_is(random_model: Make, tmp_path: Path) -> None:
    source = str(random_model("bert"))
    model = pretrained_model(source, "AutoModelForTokenClassification", LABELS, {}, 0, LORA)
    assert with_saved_prompt(model, tmp_path) is model
    save_model(model, load_tokenizer(source), tmp_path, "")
    assert with_saved_prompt(model, tmp_path) is model


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"peft_type": "PROMPT_TUNING", "task_type": 1}']
)
def test_a_prompt_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"adapter_config\.json is no configuration of PEFT"):
        with_saved_prompt(torch.nn.Linear(1, 1), tmp_path)


def test_a_prompt_without_its_vectors(random_model: Make, tmp_path: Path) -> None:
    model = with_head("gpt2", "AutoModelForCausalLM", PROMPT, random_model)
    save_model(model, load_tokenizer(str(random_model("gpt2"))), tmp_path, "")
    vectors = tmp_path / "adapter" / "adapter_model.safetensors"
    vectors.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be loaded"):
        with_saved_prompt(with_head("gpt2", "AutoModelForCausalLM", None, random_model), tmp_path)
    vectors.unlink()
    with pytest.raises(ModelError, match=r"has no adapter_model\.safetensors"):
        with_saved_prompt(with_head("gpt2", "AutoModelForCausalLM", None, random_model), tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        VALUES,
        VALUES | {"averaging": "ffa"},
        VALUES | {"use_dora": True},
        LOHA | {"target_modules": ["value"]},
        IA3,
        PROMPT,
    ],
    ids=str,
)
@pytest.mark.parametrize("model_class", ["AutoModelForTokenClassification", "AutoModelForQuestionAnswering"])
def test_a_step_of_the_replica_moves_what_is_trained_and_nothing_else(
    options: dict[str, Any], model_class: str, random_model: Make
) -> None:
    model = with_head("bert", model_class, options, random_model)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    low_rank = options.get("method") == "lora" and options.get("averaging") != "ffa"
    assert any("lora_A" in name for name in trained) == low_rank
    assert any("magnitude" in name for name in trained) == bool(options.get("use_dora"))
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(x, words=[5, 6])
    replica.train(True)
    before, loss = _step(replica, model_class), 0.0
    for _ in range(20):
        loss = _step(replica, model_class)
    assert loss < before
    named = dict(model.named_parameters(remove_duplicate=False))
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, start[name])}
    assert {name for name in moved if named[name].requires_grad} == moved
    assert trained == {name for name in trained if name in moved}
    update = torch.zeros_like(x)
    replica.store(update)
    assert not torch.equal(update, x)
    assert sum(entry.stop - entry.start for entry in replica.layout.entries) == len(x)


def _step(replica: Replica, model_class: str) -> float:
    optimizer = torch.optim.SGD([group.parameter for group in replica.groups], lr=0.5)
    torch.manual_seed(0)
    output = replica.model(**IDS)
    named = ("start_logits", "end_logits") if "Question" in model_class else ("logits",)
    target = torch.tensor([1]) if "Question" in model_class else torch.tensor([0, 1, 2, 0])
    logits = [output[name] if len(named) == 2 else output[name][0] for name in named]
    loss = sum(torch.nn.functional.cross_entropy(one, target) for one in logits)
    replica.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_tasks_read_a_prompted_model_at_the_right_positions(random_model: Make) -> None:
    from fednlp.data.features import Features
    from fednlp.tasks.causal_lm import CausalLM

    model = with_head("gpt2", "AutoModelForCausalLM", PROMPT, random_model)
    task = CausalLM(padding=1, vocabulary=44)
    ids = [[5, 6, 7, 8, 9], [10, 11, 12]]
    features = Features.in_memory([{"input_ids": one, "block": 16} for one in ids])
    batch = task.collate(features, np.array([0, 1]), torch.device("cpu"))
    words, prompt = model.base_model.get_input_embeddings(), model.prompt_encoder.default.embedding.weight
    losses = []
    for one in ids:
        embedded = torch.cat([prompt, words(torch.tensor(one))])[None]
        logits = model.base_model(inputs_embeds=embedded).logits[0, 3:-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(one[1:]), reduction="none"))
    torch.testing.assert_close(task.loss(model, batch), torch.cat(losses).mean())


@pytest.mark.parametrize("options", [LORA, IA3, PROMPT], ids=lambda options: options["method"])
def test_an_lstm_has_nothing_to_adapt(options: dict[str, Any]) -> None:
    from fednlp.models.lstm import LstmConfig, LstmForSequenceClassification

    config = LstmConfig(vocab_size=20, embedding_size=4, hidden_size=4, num_labels=2)
    with pytest.raises(ModelError, match="this is an LSTM: leave it out"):
        with_adapter(LstmForSequenceClassification(config), options, "AutoModelForSequenceClassification")


@pytest.mark.parametrize(
    ("kind", "model_class", "transposed"),
    [
        ("bert", "AutoModelForTokenClassification", False),
        ("gpt2", "AutoModelForCausalLM", True),
        ("t5", "AutoModelForSeq2SeqLM", False),
    ],
)
def test_pairs_name_what_peft_adds_to_what(
    kind: str, model_class: str, transposed: bool, random_model: Make
) -> None:
    model = with_head(kind, model_class, LORA, random_model)
    shaken(model)
    pairs, named = adapters_of(model, EXACT, federated=True).pairs, dict(model.named_parameters())
    layers = dict(model.named_modules())
    assert len(pairs) == sum("lora_A" in name for name in named)
    for pair in pairs:
        assert pair.transposed is transposed
        product = pair.product(named[pair.a].detach(), named[pair.b].detach())
        layer = layers[pair.base.removesuffix(".base_layer.weight")]
        assert product.shape == named[pair.base].shape
        torch.testing.assert_close(product.float(), layer.get_delta_weight("default").detach())


def test_pairs_of_layers_whose_weight_is_shared_or_looked_up(random_model: Make) -> None:
    source = str(random_model("llama", "AutoModelForCausalLM"))
    for target in ("embed_tokens", "lm_head"):
        with _quiet():
            model = pretrained_model(
                source, "AutoModelForCausalLM", {}, {}, 0, LORA | {"target_modules": [target]}
            )
        with pytest.raises(ModelError, match=rf"{target} is none: leave it out of target_modules"):
            adapters_of(model, EXACT, federated=True)


def test_a_rank_is_not_above_the_layer(random_model: Make) -> None:
    options = {"method": "lora", "ranks": [2, 4096], "averaging": "flora"}
    model = with_head("bert", "AutoModelForTokenClassification", options, random_model)
    with pytest.raises(ModelError, match=r"ranks: 4096 is above \d+, the smaller side of bert"):
        adapters_of(model, options, federated=True)


@pytest.mark.parametrize("train", ["all", {"personal": "head"}])
def test_the_second_factor_of_fedsa_stays_with_each_client(train: Any, random_model: Make) -> None:
    options = LORA | {"averaging": "fedsa"}
    model = with_head("bert", "AutoModelForTokenClassification", options, random_model)
    own = personal_names(model, train, True, options)
    seconds = {name for name, its in model.named_parameters() if ".lora_B." in name and its.requires_grad}
    assert seconds <= own
    assert (own == seconds) is (train == "all")
    shared = {entry.name for entry in layout_of(model, own).entries}
    assert any(".lora_A." in name for name in shared)
    assert not any(".lora_B." in name for name in shared)
    assert not personal_names(model, train, False, options)
    rows = parameter_table(model, selected(model, train, options))  # what a site is shown before it joins
    assert sum(row.personal for row in rows) == sum(dict(model.named_parameters())[n].numel() for n in own)


def test_a_base_that_moves_is_saved_merged_only(random_model: Make, tmp_path: Path) -> None:
    import transformers

    source = str(random_model("gpt2", "AutoModelForCausalLM"))
    options = EXACT
    model = pretrained_model(source, "AutoModelForCausalLM", {}, {}, 0, options)
    expected = said(model, "AutoModelForCausalLM")
    save_model(model, load_tokenizer(source), tmp_path, "")
    assert not (tmp_path / "adapter").exists()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(said(merged, "AutoModelForCausalLM"), expected)


@pytest.mark.parametrize(
    ("kind", "model_class"), [("bert", "AutoModelForTokenClassification"), ("gpt2", "AutoModelForCausalLM")]
)
def test_exact_averaging_of_real_models_is_the_mean_of_the_merged_ones(
    kind: str, model_class: str, random_model: Make
) -> None:
    model = with_head(kind, model_class, EXACT, random_model)
    adapters, named = adapters_of(model, EXACT, federated=True), dict(model.named_parameters())
    pairs = adapters.pairs
    shapes = {name: (tuple(named[name].shape), "parameter") for pair in pairs for name in (pair.a, pair.b)}
    layout = Layout.of(shapes | {pair.base: (tuple(named[pair.base].shape), "derived") for pair in pairs})
    x = layout.flatten(named)

    def merged(flat: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            for name, view in layout.views(flat).items():
                named[name].copy_(view)
        made = copy.deepcopy(model).merge_and_unload()
        paths = [pair.base.removeprefix("base_model.model.") for pair in pairs]
        return {path: made.get_parameter(path.replace(".base_layer", "")).detach() for path in paths}

    updates, wanted = [], []
    for seed in range(3):
        update = torch.randn(len(x), generator=torch.Generator().manual_seed(seed))
        for pair in pairs:
            layout.views(update)[pair.base].zero_()
        wanted.append(merged(x + update))
        adapters.arrived(layout, x, update, seed)
        updates.append(update)
    derived = [layout.entries[number] for number in sorted(layout.derived)]
    unsent = [slice(entry.start, entry.stop) for entry in derived]
    mean = Mean(torch.stack(updates).mean(0), torch.zeros(0, dtype=torch.int64), unsent)
    state = State(0, layout, x.clone())
    update = AggregatedUpdate({"model": mean}, 1.0, 3, {}, plan=None)  # type: ignore[arg-type]
    AdaptingServer(ServerOptimizer(), adapters).step(state, update)
    for name, weight in merged(state.params).items():
        torch.testing.assert_close(
            weight, torch.stack([one[name] for one in wanted]).mean(0), rtol=0, atol=1e-5
        )
