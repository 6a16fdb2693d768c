"""Which part of a model every tensor belongs to, over many architectures."""

import warnings
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import nn

from fednlp.models.adapters import with_adapter
from fednlp.models.groups import float_buffers, groups_of
from fednlp.models.lstm import LstmConfig, LstmForCausalLM, LstmForSequenceClassification

IDS = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
BERT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
BART = {
    "d_model": 16,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
SIZES: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32},
    "albert": BERT | {"embedding_size": 8},
    "electra": BERT | {"embedding_size": 8},
    "gpt2": {"n_embd": 16, "n_layer": 3, "n_head": 2},
    "llama": BERT,
    "modernbert": BERT | {"cls_token_id": 1, "sep_token_id": 2},
    "deberta-v2": BERT
    | {
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": 3,
        "pos_att_type": ["c2p", "p2c"],
    },
    "opt": {
        "hidden_size": 16,
        "word_embed_proj_dim": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "ffn_dim": 32,
    },
    "xlm": {"emb_dim": 16, "n_layers": 3, "n_heads": 2},
    "t5": {"d_model": 16, "d_kv": 8, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 2, "d_ff": 32},
    "bart": BART,
    "marian": BART,
}
CLASSIFIER, CAUSAL, SEQ2SEQ = (
    f"AutoModelFor{kind}" for kind in ("SequenceClassification", "CausalLM", "Seq2SeqLM")
)


def build(kind: str, auto: str, **more: Any) -> nn.Module:
    """Return a small model on no device: names and shapes alone."""
    config = transformers.AutoConfig.for_model(kind, **(IDS | SIZES[kind] | more))
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, auto).from_config(config)
    return model


def parts(model: nn.Module) -> dict[str, set[str]]:
    """Return the names by group; every tensor has one."""
    groups = groups_of(model)
    assert list(groups) == [*(name for name, _ in model.named_parameters()), *float_buffers(model)]
    return {group: {name for name in groups if groups[name] == group} for group in groups.values()}


# What is neither in a layer nor in a head, and what is in a head; the layers are checked by their paths.
ONE_STACK = [
    ("bert", CLASSIFIER, "bert.encoder.layer", {"bert.embeddings"}, {"bert.pooler", "classifier"}),
    ("roberta", CLASSIFIER, "roberta.encoder.layer", {"roberta.embeddings"}, {"classifier"}),
    (
        "distilbert",
        CLASSIFIER,
        "distilbert.transformer.layer",
        {"distilbert.embeddings"},
        {"pre_classifier", "classifier"},
    ),
    (
        "electra",
        CLASSIFIER,
        "electra.encoder.layer",
        {"electra.embeddings", "electra.embeddings_project"},
        {"classifier"},
    ),
    ("gpt2", CAUSAL, "transformer.h", {"transformer.wte", "transformer.wpe"}, {"transformer.ln_f"}),
    ("llama", CLASSIFIER, "model.layers", {"model.embed_tokens"}, {"model.norm", "score"}),
    (
        "modernbert",
        CLASSIFIER,
        "model.layers",
        {"model.embeddings"},
        {"model.final_norm", "head", "classifier"},
    ),
    (
        "opt",
        CAUSAL,
        "model.decoder.layers",
        {"model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.project_in"},
        {"model.decoder.project_out", "model.decoder.final_layer_norm"},
    ),
]


@pytest.mark.parametrize(("kind", "auto", "stack", "embeddings", "head"), ONE_STACK, ids=lambda value: value)
def test_one_stack(kind: str, auto: str, stack: str, embeddings: set[str], head: set[str]) -> None:
    found = parts(build(kind, auto))
    assert set(found) == {"embeddings", "layer.0", "layer.1", "layer.2", "head"}
    for number in range(3):
        assert {name.startswith(f"{stack}.{number}.") for name in found[f"layer.{number}"]} == {True}
    for group, paths in (("embeddings", embeddings), ("head", head)):
        assert all(any(name.startswith(f"{path}.") for path in paths) for name in found[group]), found[group]
        assert all(any(name.startswith(f"{path}.") for name in found[group]) for path in paths), found[group]


def test_layers_that_are_shared_are_one() -> None:
    """ALBERT runs one layer three times; the projection of its narrow embedding is of the embeddings."""
    found = parts(build("albert", CLASSIFIER))
    assert set(found) == {"embeddings", "layer.0", "head"}
    assert "albert.encoder.embedding_hidden_mapping_in.weight" in found["embeddings"]
    assert all(name.startswith("albert.encoder.albert_layer_groups.0.") for name in found["layer.0"])


def test_layers_in_pieces() -> None:
    """XLM has a list for the attention of all layers, another for their norms, and so on."""
    found = parts(build("xlm", CLASSIFIER))
    assert {"transformer.attentions.1.q_lin.weight", "transformer.ffns.1.lin1.bias"} < found["layer.1"]
    assert "transformer.layer_norm_emb.weight" in found["embeddings"]
    assert set(found) == {"embeddings", "layer.0", "layer.1", "layer.2", "head"}


def test_deberta() -> None:
    """Relative positions and their norm are embeddings though they stand after the layers."""
    found = parts(build("deberta-v2", CLASSIFIER))
    assert {"deberta.encoder.rel_embeddings.weight", "deberta.encoder.LayerNorm.bias"} < found["embeddings"]
    assert "deberta.encoder.conv.conv.weight" in found["layer.0"]
    assert {name.partition(".")[0] for name in found["head"]} == {"pooler", "classifier"}


STAGES = {f"encoder.layer.{n}" for n in range(3)} | {f"decoder.layer.{n}" for n in range(2)}


def test_t5() -> None:
    model: Any = build("t5", SEQ2SEQ)
    found = parts(model)
    assert set(found) == STAGES | {"embeddings", "head"}
    assert found["embeddings"] == {"shared.weight"}
    assert found["head"] == {"encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"}
    assert "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" in found["decoder.layer.0"]
    model.lm_head = nn.Linear(16, 40, bias=False)
    assert parts(model)["head"] == found["head"] | {"lm_head.weight"}


@pytest.mark.parametrize("kind", ["bart", "marian"])
def test_encoder_and_decoder(kind: str) -> None:
    found = parts(build(kind, SEQ2SEQ))
    assert set(found) == STAGES | {"embeddings", "encoder.embeddings", "decoder.embeddings", "head"}
    assert found["embeddings"] == {"model.shared.weight"}
    assert found["head"] == {"final_logits_bias"}
    for stage in ("encoder", "decoder"):
        assert f"model.{stage}.embed_positions.weight" in found[f"{stage}.embeddings"]
        assert all(name.startswith(f"model.{stage}.layers.1.") for name in found[f"{stage}.layer.1"])


def test_embeddings_of_their_own() -> None:
    """A Marian model whose stages have a vocabulary each has no common embedding."""
    model = build(
        "marian",
        SEQ2SEQ,
        share_encoder_decoder_embeddings=False,
        decoder_vocab_size=40,
        tie_word_embeddings=False,
    )
    found = parts(model)
    assert "embeddings" not in found
    assert "model.encoder.embed_tokens.weight" in found["encoder.embeddings"]
    assert "model.decoder.embed_tokens.weight" in found["decoder.embeddings"]
    assert "lm_head.weight" in found["head"]


def test_two_encoders_as_encoder_and_decoder() -> None:
    """An encoder-decoder of two BERTs, of 3 and 2 layers; the decoder's own head is the head."""
    encoder = transformers.BertConfig(**(IDS | BERT))
    decoder = transformers.BertConfig(
        **(IDS | BERT | {"num_hidden_layers": 2}), is_decoder=True, add_cross_attention=True
    )
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    found = parts(transformers.EncoderDecoderModel(config))
    assert set(found) == STAGES | {"encoder.embeddings", "decoder.embeddings", "head"}
    assert "decoder.bert.embeddings.word_embeddings.weight" in found["decoder.embeddings"]
    assert "decoder.bert.encoder.layer.1.crossattention.self.query.bias" in found["decoder.layer.1"]
    heads = ("encoder.pooler.", "decoder.cls.")
    assert {name.startswith(heads) for name in found["head"]} == {True}
    assert "decoder.cls.predictions.bias" in found["head"]


@pytest.mark.parametrize("model_class", [LstmForSequenceClassification, LstmForCausalLM])
def test_lstm(model_class: Any) -> None:
    config = LstmConfig(
        vocab_size=12, embedding_size=4, hidden_size=3, num_hidden_layers=2, bidirectional=True
    )
    found = parts(model_class(config))
    assert set(found) == {"embeddings", "layer.0", "layer.1", "head"}
    assert found["embeddings"] == {"lstm.embeddings.weight"}
    both_ways = model_class is LstmForSequenceClassification
    assert ("lstm.layers.weight_ih_l1_reverse" in found["layer.1"]) is both_ways
    assert len(found["layer.1"]) == (8 if both_ways else 4)
    assert all(name.startswith(("classifier.", "lm_head.")) for name in found["head"])


def test_the_words_of_a_language_model_are_no_head() -> None:
    """Tied to the output they are one parameter, of the embeddings; untied the output is the head's."""
    tied, untied = (build("bert", "AutoModelForMaskedLM", tie_word_embeddings=tie) for tie in (True, False))
    assert groups_of(tied)["bert.embeddings.word_embeddings.weight"] == "embeddings"
    assert "cls.predictions.decoder.weight" not in groups_of(tied)
    assert groups_of(untied)["cls.predictions.decoder.weight"] == "head"
    assert groups_of(tied)["cls.predictions.bias"] == "head"


def test_adapters_belong_to_what_they_adapt() -> None:
    config = transformers.BertConfig(**(IDS | BERT))
    plain = transformers.BertForSequenceClassification(config)
    before = groups_of(plain)
    fresh = {name for name in before if name.startswith("classifier.")}
    with warnings.catch_warnings(action="ignore"):
        model = with_adapter(plain, {"r": 2, "target_modules": ["query"]}, CLASSIFIER, fresh)
    after = groups_of(model)
    layer = "base_model.model.bert.encoder.layer.1.attention.self.query"
    assert {name: after[f"{layer}.{name}"] for name in ("base_layer.weight", "lora_A.default.weight")} == {
        "base_layer.weight": "layer.1",
        "lora_A.default.weight": "layer.1",
    }
    assert after["base_model.model.classifier.modules_to_save.default.weight"] == "head"
    assert after["base_model.model.classifier.original_module.weight"] == "head"
    for name, group in before.items():
        inside, _, last = name.rpartition(".")
        names = (f"{inside}.{last}", f"{inside}.base_layer.{last}", f"{inside}.original_module.{last}")
        assert {after[f"base_model.model.{n}"] for n in names if f"base_model.model.{n}" in after} == {group}


def test_adapters_on_the_words() -> None:
    config = transformers.GPT2Config(**(IDS | SIZES["gpt2"]))
    lora = peft.LoraConfig(target_modules=["wte", "c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    with warnings.catch_warnings(action="ignore"):
        model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    groups = groups_of(model)
    added = {name: group for name, group in groups.items() if "lora" in name}
    assert {added[name] for name in added if ".wte." in name} == {"embeddings"}
    assert {added[name] for name in added if ".h.2." in name} == {"layer.2"}


def test_a_module_of_ones_own() -> None:
    """No configuration and no base model: the largest list of modules is the stack."""
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(5, 4),
            "blocks": nn.ModuleList(nn.Linear(4, 4) for _ in range(2)),
            "heads": nn.ModuleList([nn.Linear(4, 2)]),
            "norm": nn.BatchNorm1d(4),
        }
    )
    found = parts(model)
    assert set(found) == {"embeddings", "layer.0", "layer.1", "head"}
    assert found["embeddings"] == {"words.weight"}
    assert {"norm.running_mean", "norm.weight", "heads.0.bias"} < found["head"]
    assert set(parts(nn.Linear(2, 2))) == {"head"}


def test_buffers_that_are_saved() -> None:
    model = nn.BatchNorm1d(3)
    model.register_buffer("passing", torch.zeros(2), persistent=False)
    assert float_buffers(model) == ["running_mean", "running_var"]
