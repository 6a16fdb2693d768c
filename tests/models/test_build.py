"""Any architecture for every task that it has a head for, and one clear line where it has none."""

import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CanineConfig

from fednlp.errors import ModelError
from fednlp.models.loading import has_weights, without_memory
from fednlp.models.pretrained import load_tokenizer, longest_text, new_model, pretrained_model
from fednlp.models.resolve import resolve_model
from fednlp.training.model_layout import flat_weights, layout_of
from fednlp.training.replica import Replica

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
HEADS = {
    "bert": (0, 1, 2, 4, 5),
    "roberta": (0, 1, 2, 4, 5),
    "distilbert": (0, 1, 2, 5),
    "gpt2": (0, 1, 2, 4),
    "llama": (0, 1, 2, 4),
    "bart": (0, 2, 3, 4, 5),
    "t5": (0, 1, 2, 3),
}
BATCH = {"input_ids": torch.tensor([[0, 7, 9, 2], [0, 8, 2, 1]]), "attention_mask": torch.ones(2, 4).long()}


@pytest.mark.parametrize("kind", HEADS)
def test_every_head_that_there_is_and_one_line_where_there_is_none(kind: str, random_model: Make) -> None:
    source = str(random_model(kind))
    for number, (model_class, settings) in enumerate(SETTINGS.items()):
        if number in HEADS[kind]:
            model = pretrained_model(source, model_class, settings, {}, 0)
            assert all(p.dtype is torch.float32 for p in model.parameters())
            continue
        for build in (
            lambda c, s: pretrained_model(source, c, s, {}, 0),
            lambda c, s: new_model(source, c, s, {}),
        ):
            with pytest.raises(
                ModelError, match=f"{kind} models have no head for .*use .*has heads for"
            ) as caught:
                build(model_class, settings)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama", "xlnet", "xlm", "bart"])
def test_a_language_model_does_not_see_what_it_is_to_predict(kind: str, random_model: Make) -> None:
    model = pretrained_model(str(random_model(kind)), "AutoModelForCausalLM", {}, {}, 0).eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    other = torch.tensor([[5, 6, 7, 8, 20]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits[:, :4], model(other).logits[:, :4])


def test_the_body_is_the_checkpoint_and_the_head_a_function_of_the_seed(random_model: Make) -> None:
    source, head = str(random_model("bert")), "AutoModelForTokenClassification"
    first, again, other = (pretrained_model(source, head, LABELS, {}, seed) for seed in (1, 1, 2))
    tensors = first.state_dict()
    differing = {n for n, t in other.state_dict().items() if not torch.equal(t, tensors[n])}
    assert differing == {"classifier.weight"}
    assert all(torch.equal(t, tensors[n]) for n, t in again.state_dict().items())


def test_new_models_have_the_same_tensors(random_model: Make) -> None:
    for kind in ("bert", "gpt2", "t5"):
        source, head = str(random_model(kind)), "AutoModelForSequenceClassification"
        one, two = pretrained_model(source, head, LABELS, {}, 0), new_model(source, head, LABELS, {})
        shapes = [{n: p.shape for n, p in model.named_parameters()} for model in (one, two)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5"])
def test_a_model_whose_weights_are_not_drawn_has_all_else(kind: str, random_model: Make) -> None:
    """Its tensors, its buffers and PyTorch's generator are those of a model that is drawn."""
    source, head = str(random_model(kind)), "AutoModelForSequenceClassification"
    before = torch.get_rng_state()
    drawn, other = (new_model(source, head, LABELS, {}, drawn=one) for one in (True, False))
    assert torch.equal(torch.get_rng_state(), before)
    assert layout_of(other) == layout_of(drawn)
    buffers = dict(drawn.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in other.named_buffers())
    assert all(parameter.requires_grad for parameter in other.parameters())
    with without_memory():
        shapes = new_model(source, head, LABELS, {})
    assert all(tensor.is_meta for tensor in (*shapes.parameters(), *shapes.buffers()))
    assert layout_of(shapes) == layout_of(drawn)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart"])
def test_nothing_is_written_to_weights_that_are_not_drawn(
    kind: str, random_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices hold what lay in memory, and a worker computes what it computes with weights that were drawn."""
    source, head, empty = str(random_model(kind)), "AutoModelForSequenceClassification", torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *sizes, **options: (
            found.fill_(torch.nan)
            if (found := empty(*sizes, **options)).is_floating_point() and not found.is_meta
            else found
        ),
    )
    drawn, other = (new_model(source, head, LABELS, {}, drawn=one) for one in (True, False))
    matrices = [tensor for tensor in other.parameters() if tensor.dim() > 1]
    assert matrices
    assert all(bool(tensor.isnan().any()) for tensor in matrices)
    x, computed = flat_weights(drawn), []
    for model in (drawn, other):
        replica = Replica(model, torch.device("cpu"), by_rows=True)
        replica.load(x)
        computed.append(replica.model(**BATCH).logits)
    assert torch.equal(*computed)
    assert bool(computed[0].isfinite().all())


def test_a_checkpoint_in_half_precision_is_trained_in_float32(tmp_path: Path, random_model: Make) -> None:
    source = str(random_model("bert"))
    half = pretrained_model(source, "AutoModelForMaskedLM", {}, {}, 0).half()
    half.save_pretrained(tmp_path)
    for model in (
        pretrained_model(str(tmp_path), "AutoModelForMaskedLM", {}, {}, 0),
        new_model(str(tmp_path), "AutoModelForMaskedLM", {}, {}),
    ):
        assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_folder_without_weights_begins_from_the_seed(random_model: Make) -> None:
    source = str(random_model("bert", None))
    assert not has_weights(source)
    assert has_weights(str(random_model("bert")))
    first, again, other = (pretrained_model(source, "AutoModelForMaskedLM", {}, {}, s) for s in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.get_input_embeddings().weight, other.get_input_embeddings().weight)


@pytest.mark.parametrize(
    "name", ["tf_model.h5", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
)
def test_weights_that_cannot_be_read_are_not_taken_for_none(
    name: str, random_model: Make, tmp_path: Path
) -> None:
    for path in random_model("bert", None).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match=r"cannot be loaded|has no weights to train"):
        pretrained_model(str(tmp_path), "AutoModelForMaskedLM", {}, {}, 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_labels": 4}, "num_labels: leave it out: the task sets it"),
        ({"id2label": {"0": "a"}}, "id2label: leave it out: the task sets it"),
        ({"pad_token_id": 3}, "pad_token_id: leave it out: the task sets it"),
        ({"vocab_size": 10}, "vocab_size: leave it out: the tokenizer sets it"),
        ({"hiden_size": 10}, "hiden_size: bert models have no such setting; it has hidden_size"),
        ({"hidden_dropout_prob": "much"}, "hidden_dropout_prob = 'much'"),
        ({"hidden_size": 8}, "asks for another size of bert.embeddings"),
        ({"max_position_embeddings": 8}, "asks for another size of bert.embeddings"),
    ],
)
def test_overrides_that_cannot_be(overrides: dict[str, object], message: str, random_model: Make) -> None:
    source = str(random_model("bert"))
    with pytest.raises(ModelError) as caught:
        pretrained_model(source, "AutoModelForSequenceClassification", LABELS, overrides, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_reach_the_model_lists_and_tables_too(random_model: Make) -> None:
    source, head = str(random_model("bert")), "AutoModelForSequenceClassification"
    overrides = {"hidden_dropout_prob": 0.0, "num_hidden_layers": 1, "eos_token_id": [2, 5]}
    model = pretrained_model(source, head, LABELS, overrides, 0)
    assert len(model.bert.encoder.layer) == 1
    assert model.config.eos_token_id == [2, 5]
    llama = str(random_model("llama"))
    table = {"rope_parameters": {"rope_type": "default", "rope_theta": 99.0}}
    assert new_model(llama, head, LABELS, table).config.rope_parameters["rope_theta"] == 99.0


@pytest.mark.parametrize(
    ("kind", "settings", "limit"),
    [
        ("bert", {"max_position_embeddings": 64}, 64),
        ("roberta", {"max_position_embeddings": 66}, 64),
        ("gpt2", {"n_positions": 48}, 48),
        ("bart", {"max_position_embeddings": 40}, 40),
        ("t5", {}, None),
    ],
)
def test_the_longest_text_fits_and_one_more_token_does_not(
    kind: str, settings: dict[str, int], limit: int | None, random_model: Make
) -> None:
    source = str(random_model(kind, **settings))
    tokenizer = load_tokenizer(source)
    longest = longest_text(source, tokenizer)
    if limit is None:
        assert longest == int(tokenizer.model_max_length) > 10**6
        return
    assert longest == limit
    tokenizer.model_max_length = 32
    assert longest_text(source, tokenizer) == 32
    model = pretrained_model(source, "AutoModelForSequenceClassification", LABELS, {}, 0)

    def text(length: int) -> torch.Tensor:
        ids = torch.full((1, length), 7)
        ids[0, -1] = 2
        return ids

    model(text(limit))
    with pytest.raises((IndexError, RuntimeError)):
        model(text(limit + 1))


def test_overrides_count_for_the_longest_text(random_model: Make) -> None:
    source = str(random_model("bert", None))
    assert longest_text(source, load_tokenizer(source), {"max_position_embeddings": 99}) == 99


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    for name, message in {
        "bilstm": "is built for the training texts",
        "./nowhere": "there is no model folder",
        "hf://owner/name": "give the model's name at the hub",
        "runs/nowhere/model": "make the run whose model it is to be",
        str(tmp_path): "no config.json",
    }.items():
        with pytest.raises(ModelError, match=message):
            resolve_model(name)
    assert resolve_model("owner/name") == "owner/name"
    with pytest.raises(ModelError, match=r'no model "owner/name".*bert-tiny.*smollm2.*bilstm'):
        load_tokenizer("owner/name")


def test_positions_that_the_architecture_fixes_stay_fixed_in_a_loaded_model(tmp_path: Path) -> None:
    """Marian's sinusoids: trained, they would be lost, since they are not saved."""
    import transformers

    config = transformers.MarianConfig(
        vocab_size=30,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=16,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    made = transformers.MarianMTModel(config)
    fixed = {name for name, parameter in made.named_parameters() if not parameter.requires_grad}
    assert fixed
    made.save_pretrained(tmp_path)
    loaded = pretrained_model(str(tmp_path), "AutoModelForSeq2SeqLM", {}, {}, 0)
    assert {name for name, parameter in loaded.named_parameters() if not parameter.requires_grad} == fixed


def _with_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def _quantised(folder: Path, **options: Any) -> None:
    _with_config(folder, lambda config: config.update(quantization_config=options))


def _with_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def _broken(folder: Path, value: float) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    _with_weights(folder, lambda weights: weights[name][0].fill_(value))


def _as_bytes(weights: dict[str, torch.Tensor]) -> None:
    weights |= {name: one.to(torch.int8) for name, one in weights.items() if one.dim() > 1}


def _renamed(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)


def _placeholder(folder: Path, name: str) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (partial(_quantised, quant_method="bitsandbytes", load_in_4bit=True), "quantised .bitsandbytes"),
        (partial(_quantised, load_in_8bit=True), "quantised .bitsandbytes"),
        (partial(_quantised, quant_method="gptq", bits=4), "quantised .gptq.* give the checkpoint that was quantised"),
        (partial(_quantised, quant_method="awq", bits=4), "quantised .awq"),
        (partial(_quantised, quant_method="fp8"), "quantised .fp8"),
        (partial(_broken, value=math.nan), "damaged: 32 of the 512 weights of bert.encoder.layer.0.output.dense"),
        (partial(_broken, value=-math.inf), "damaged: 32 of the 512"),
        (partial(_with_weights, change=lambda w: [one.zero_() for one in w.values()]), "all its weights are zero"),
        (partial(_with_weights, change=_as_bytes), "quantised .bert.*weight is I8"),
        (partial(_with_weights, change=lambda w: [w.pop(n) for n in [*w] if ".layer." in n and n.endswith("weight")]),
         "lacks 12 of the 15 matrices that its config.json asks for, such as bert.encoder.layer.0.attention"),
        (partial(_with_config, change=lambda c: c.update(model_type="roberta")),
         'has others such as bert.*: it is of another architecture or size than model_type = "roberta", or not whole'),
        (partial(_with_config, change=lambda c: c.update(hidden_size=64)), "config.json asks for another size of bert"),
        (partial(_renamed, name="weights.safetensors"), "weights.safetensors is not called model.safetensors: rename"),
        (partial(_renamed, name="model.onnx"), "model.onnx is of other software: give PyTorch's weights"),
        (partial(_renamed, name="model-q4.gguf"), "is a GGUF file: give the file itself in place of its folder"),
        (partial(_renamed, name="optimizer.pt"), "optimizer.pt is no weights"),
        (partial(_placeholder, name="model.safetensors"), "model.safetensors is a placeholder of git-lfs"),
        (partial(_placeholder, name="config.json"), "config.json is a placeholder of git-lfs"),
    ],
)  # fmt: skip
def test_checkpoints_that_are_not_what_they_seem(
    damage: Callable[[Path], None], said: str, random_model: Make, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(random_model("bert", "AutoModelForMaskedLM"), tmp_path / "model"))
    damage(folder)
    with pytest.raises(ModelError, match=said) as caught:
        pretrained_model(str(folder), "AutoModelForMaskedLM", {}, {}, 0)
    assert "install" not in str(caught.value)


def test_what_a_checkpoint_lacks_or_has_beyond_the_model_is_said(random_model: Make, tmp_path: Path) -> None:
    """And of what type its numbers are, where they are trained as others."""
    folder = Path(shutil.copytree(random_model("bert", "AutoModelForMaskedLM"), tmp_path / "model"))
    _with_weights(folder, lambda w: w.update({name: one.bfloat16() for name, one in w.items()}))
    _with_weights(folder, lambda w: w.__delitem__("bert.encoder.layer.0.output.dense.weight"))
    told: list[str] = []
    pretrained_model(str(folder), "AutoModelForMaskedLM", {}, {"num_hidden_layers": 1}, 0, log=told.append)
    assert told[0] == "the weights of the checkpoint are bfloat16: they are trained and saved as float32"
    assert told[1].startswith(
        "the checkpoint lacks 1 of 9 matrices, such as bert.encoder.layer.0.output.dense.weight"
    )
    _with_config(folder, lambda config: config.update(num_hidden_layers=1))
    pretrained_model(str(folder), "AutoModelForMaskedLM", {}, {}, 0, log=told.append)
    assert "weights that its config.json does not ask for, such as bert.encoder.layer.1." in told[-1]


def test_a_tokenizer_beyond_the_table_of_embeddings(random_model: Make) -> None:
    source = str(random_model("bert", None))
    tokenizer = load_tokenizer(source)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<{number}>" for number in range(99)]})
    longest_text(source, tokenizer)
    before = tokenizer.pad_token
    tokenizer.pad_token = "<7>"  # every batch has it
    with pytest.raises(ModelError, match=r"such as '<7>', and its model a table of"):
        longest_text(source, tokenizer)
    tokenizer.pad_token = before
    tokenizer.add_tokens(["a new word"])
    with pytest.raises(
        ModelError, match=r"tokens, such as 'a new word', and its model a table of .* resize_token_emb"
    ):
        longest_text(source, tokenizer)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("adapter_config.json", "{}", "it holds adapters alone: merge them into their base model"),
        ("checkpoint-9/config.json", "{}", "give .*checkpoint-9$"),
        ("0_Transformer/config.json", "{}", "give .*0_Transformer$"),
        ("model-q8.gguf", "", "give .*model-q8.gguf$"),
    ],
)
def test_a_folder_without_a_model_says_what_to_give(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=said):
        resolve_model(str(tmp_path))


def test_a_model_of_characters_is_refused_in_words(tmp_path: Path) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    CanineConfig(**small).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="canine models have no table of token embeddings"):
        pretrained_model(str(tmp_path), "AutoModelForSequenceClassification", LABELS, {}, 0)
