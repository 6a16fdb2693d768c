"""Shared, personal, frozen: the words that say so, what they do to a model, and published counts."""

import subprocess
import sys
import warnings
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fednlp.errors import ConfigError
from fednlp.models.adapters import with_adapter
from fednlp.models.groups import float_buffers, groups_of
from fednlp.models.parameter_table import ParameterRow, parameter_table, total
from fednlp.models.selection import (
    PARAMETER_STATES,
    ParameterState,
    Selection,
    SelectionSpec,
    apply_selection,
    parse_selection,
)
from fednlp.training.model_layout import layout_of, personal_layout

CLASSIFIER = "AutoModelForSequenceClassification"
LAYERS = 3


class Small(nn.Module):
    """A stack of layers with biases, statistics inside a layer, and statistics of the whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(LAYERS))
        self.classifier = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(1))


def bert(kind: str = "bert", auto: str = CLASSIFIER, **sizes: Any) -> nn.Module:
    """Return a model on no device: names and shapes alone."""
    config = transformers.AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, auto).from_config(config)
    return model


def select(value: object, model: nn.Module | None = None) -> tuple[nn.Module, Selection]:
    model = model or Small()
    return model, apply_selection(model, parse_selection(value))


def state_of(value: object, model: nn.Module | None = None) -> dict[str, set[ParameterState]]:
    """Return the states of the parameters of each group."""
    model, selection = select(value, model)
    found: dict[str, set[ParameterState]] = {}
    for name, _ in model.named_parameters():
        found.setdefault(groups_of(model)[name], set()).add(selection.states[name])
    return found


# ------------------------------------------------------------------------------------------- the words


def test_all() -> None:
    model, selection = select("all")
    assert selection.shared == {*dict(model.named_parameters()), *float_buffers(model)}
    assert not selection.personal | selection.frozen
    assert parse_selection("all") == parse_selection(["all"]) == SelectionSpec()


def test_a_list_freezes_the_rest() -> None:
    assert state_of(["head", "layer.1-2"]) == {
        "embeddings": {"frozen"},
        "layer.0": {"frozen"},
        "layer.1": {"shared"},
        "layer.2": {"shared"},
        "head": {"shared"},
    }
    assert state_of("layer.0,2") == state_of(["layer.0", "layer.2"]) == state_of({"shared": "layer.0,2"})


def test_bias_and_head() -> None:
    """BitFit (Ben Zaken et al. 2022): biases and the head."""
    model, selection = select(["bias", "head"])
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {
        "classifier.weight",
        "classifier.bias",
        *(f"layers.{layer}.{part}.bias" for layer in range(LAYERS) for part in (0, 1)),
    }
    assert trained == selection.shared


def test_biases_of_a_recurrent_layer() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "rnn": nn.LSTM(2, 2, bidirectional=True)})
    _, selection = select("bias", model)
    assert selection.shared == {f"rnn.bias_{k}_l0{way}" for k in ("ih", "hh") for way in ("", "_reverse")}


def test_a_table() -> None:
    assert state_of({"personal": "head", "frozen": ["embeddings", "layer.0"]}) == {
        "embeddings": {"frozen"},
        "layer.0": {"frozen"},
        "layer.1": {"shared"},
        "layer.2": {"shared"},
        "head": {"personal"},
    }
    shared = {"shared": "layer.0"}
    assert state_of(shared)["head"] == {"frozen"}
    assert state_of(shared | {"rest": "personal"})["head"] == {"personal"}
    assert state_of({"rest": "personal"})["layer.1"] == {"personal"}


def test_terms_that_are_narrowed() -> None:
    _, selection = select({"personal": ["layer.0-1:bias", r"layer.2:re:\.1\."], "frozen": "re:^embed"})
    assert selection.personal == {
        *(f"layers.{layer}.{part}.bias" for layer in (0, 1) for part in (0, 1)),
        *(f"layers.2.1.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")),
    }
    assert selection.frozen == {"embeddings.weight", "scale"}


BART = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def test_controllers() -> None:
    """Chosen layers of encoder and decoder are exchanged, the rest stays with the client."""
    model = bert("bart", "AutoModelForSeq2SeqLM", **BART)
    chosen = {"encoder.layer.0", "encoder.layer.3", "decoder.layer.0", "decoder.layer.3"}
    value = {"shared": ["encoder.layer.0,3", "decoder.layer.0,3"], "rest": "personal"}
    assert {group for group, states in state_of(value, model).items() if states == {"shared"}} == chosen


def test_stages() -> None:
    model = bert("bart", "AutoModelForSeq2SeqLM", **BART)
    found = state_of({"frozen": "encoder", "personal": "decoder.embeddings"}, model)
    assert {group for group, states in found.items() if states == {"frozen"}} == {
        "encoder.embeddings",
        *(f"encoder.layer.{number}" for number in range(4)),
    }
    assert found["decoder.embeddings"] == {"personal"}
    assert found["embeddings"] == found["decoder.layer.3"] == {"shared"}
    everywhere = state_of({"frozen": "embeddings"}, bert("bart", "AutoModelForSeq2SeqLM", **BART))
    assert {group for group, states in everywhere.items() if states == {"frozen"}} == {
        "embeddings",
        "encoder.embeddings",
        "decoder.embeddings",
    }


# ------------------------------------------------------------------------------------------- the split


@pytest.mark.parametrize("critical", range(LAYERS + 1))
@pytest.mark.parametrize("embeddings", PARAMETER_STATES)
def test_critical_layer(critical: int, embeddings: ParameterState) -> None:
    """Layers below it are shared, all above is personal; at the top the head is shared too: FedAvg."""
    found = state_of({"critical_layer": critical, "embeddings": embeddings})
    expected: dict[str, set[ParameterState]] = {"embeddings": {embeddings}}
    expected |= {f"layer.{n}": {"shared" if n < critical else "personal"} for n in range(LAYERS)}
    assert found == expected | {"head": {"shared" if critical == LAYERS else "personal"}}


def test_the_ends_of_the_split() -> None:
    """At the top, with the embeddings shared, it is the same selection as none; the embeddings rest by default."""
    top = {"critical_layer": LAYERS, "embeddings": "shared"}
    assert select(top)[1].states == select("all")[1].states
    assert state_of({"critical_layer": 1})["embeddings"] == {"frozen"}
    assert select({"critical_layer": 0})[1].shared == frozenset()


# ---------------------------------------------------------------------------------------------- laws

TERMS = ["embeddings", "head", "bias", "layer.0", "layer.0-1", "layer.1,2:bias", "re:weight", "layer.2:re:1"]
VALUES = st.one_of(
    st.just("all"),
    st.lists(st.sampled_from(TERMS), min_size=1),
    st.fixed_dictionaries(
        {"rest": st.sampled_from(PARAMETER_STATES)},
        optional={
            state: st.lists(st.sampled_from(TERMS), min_size=1, max_size=2) for state in PARAMETER_STATES
        },
    ),
    st.fixed_dictionaries(
        {"critical_layer": st.integers(0, LAYERS), "embeddings": st.sampled_from(PARAMETER_STATES)},
        optional={},
    ),
)


@given(VALUES, st.sets(st.sampled_from([name for name, _ in Small().named_parameters()])))
def test_laws(value: object, still: set[str]) -> None:
    """Every tensor has one state; frozen is what has no gradient; the layouts hold what is shared and personal."""
    model = Small()
    for name in still:
        model.get_parameter(name).requires_grad_(False)
    try:
        _, selection = select(value, model)
    except ConfigError:
        return
    parameters = dict(model.named_parameters())
    assert selection.states.keys() == {*parameters, *float_buffers(model)}
    assert selection.shared | selection.personal | selection.frozen == selection.states.keys()
    assert still <= selection.frozen
    for name, parameter in parameters.items():
        assert parameter.requires_grad is (name not in selection.frozen)
    assert {entry.name for entry in layout_of(model, selection.personal).entries} == selection.shared
    assert {entry.name for entry in personal_layout(model, selection.personal).entries} == selection.personal
    rows = parameter_table(model, selection)
    whole = total(rows)
    assert whole.parameters == sum(parameter.numel() for parameter in parameters.values())
    assert whole.tunable == sum(p.numel() for p in parameters.values() if p.requires_grad)
    assert whole.bytes == 4 * layout_of(model, selection.personal).numel
    assert [row.group for row in rows] == ["embeddings", "layer.0", "layer.1", "layer.2", "head"]
    again = apply_selection(model, parse_selection(value))
    assert again.states == selection.states


def test_buffers_go_with_their_parameters() -> None:
    """The statistics of a norm with its weight and bias; a buffer of the whole model with all of it."""
    for value, norm, whole in (
        ({"personal": "layer.1"}, "personal", "shared"),
        ({"frozen": "layer.1"}, "frozen", "frozen"),
        ({"frozen": "layer.1:re:1.bias"}, "frozen", "frozen"),
        ({"personal": "layer.1:re:1.bias"}, "shared", "shared"),
        ({"rest": "personal"}, "personal", "personal"),
    ):
        states = select(value)[1].states
        assert states["layers.1.1.running_mean"] == states["layers.1.1.running_var"] == norm, value
        assert states["scale"] == whole, value


def test_adapters() -> None:
    """Of an adapted model the adapters and the head are trained, whatever is said of the rest."""

    def adapted() -> nn.Module:
        config = transformers.BertConfig(
            vocab_size=40, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8
        )
        model = transformers.BertForSequenceClassification(config)
        fresh = ["classifier.weight", "classifier.bias"]
        with warnings.catch_warnings(action="ignore"):
            return with_adapter(model, {"r": 2, "target_modules": ["query"]}, CLASSIFIER, fresh)

    query = "base_model.model.bert.encoder.layer.{}.attention.self.query.lora_{}.default.weight"
    head = {f"base_model.model.classifier.modules_to_save.default.{kind}" for kind in ("weight", "bias")}
    lora = [{query.format(layer, kind) for kind in "AB"} for layer in range(2)]
    assert select("all", adapted())[1].shared == lora[0] | lora[1] | head
    split = select({"critical_layer": 1}, adapted())[1]
    assert (split.shared, split.personal) == (lora[0], lora[1] | head)
    assert select({"personal": "head"}, adapted())[1].personal == head
    with pytest.raises(ConfigError, match=r'"embeddings" names nothing that is trained.*\[model\.peft\]'):
        select({"personal": "embeddings"}, adapted())


def test_parsing_needs_no_torch() -> None:
    """The words are read where a configuration is checked."""
    code = (
        "import importlib.util, sys; s = importlib.util.find_spec('fednlp.errors'); from pathlib import Path;"
        "path = Path(s.origin).parent / 'models' / 'selection_spec.py';"
        "spec = importlib.util.spec_from_file_location('selection', path);"
        "module = importlib.util.module_from_spec(spec); sys.modules['selection'] = module;"
        "spec.loader.exec_module(module);"
        "module.parse_selection('head'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("layrs", r'"layrs" is no part of a model: there are embeddings, head, layer\.3'),
        ("haed", r"did you mean head\?"),
        ("bias,head", r'write a list, \["bias", "head"\]'),
        ("layer.3-1", r'"layer\.3-1" runs backwards: say layer\.1-3'),
        ("layer.1-", r'"layer\.1-" is no part'),
        ("layer.99999", r'"layer\.99999" is no part'),
        ("head:weight", r"what stands after the colon is bias, or re:"),
        ("head:", r"what stands after the colon is bias, or re:"),
        ("re:", r"what stands after the colon is bias, or re:"),
        ("re:(", r'"re:\(" is no regular expression: missing \)'),
        ("re:a{99999999999}", r"is no regular expression"),
        ("re:a(?=b)", r'"re:a\(\?=b\)": patterns are those of RE2, without \(\?='),
        (r"re:(a)\1", r"patterns are those of RE2"),
        (["re:a"] * 101, r"more than 100 regular expressions"),
        ("re:" + "a" * 200, r"at most 200 characters"),
        ("all:bias", r'"all:bias" is no part'),
        ([], r'names no part of a model: say "all"'),
        (["head"] * 1001, r'names no part of a model: say "all"'),
        ([3], r"^3: a part of a model is a line"),
        ("head\n", r"^'head\\n': a part of a model is a line"),
        ({"a\nb": 1}, r"unknown key 'a\\nb'; known here"),
        (3, r'names no part of a model: say "all"'),
        (None, r'names no part of a model: say "all"'),
        ({}, r"the table is empty"),
        ({"share": "head"}, r"unknown key share; did you mean shared\?"),
        ({"shared": {"head": 1}}, r"names no part of a model"),
        ({"shared": "all"}, r'"all" is no part of a model'),
        ({"rest": "local"}, r"rest = 'local': say \"shared\", \"personal\" or \"frozen\""),
        ({"embeddings": "frozen"}, r'goes with critical_layer; else say \{frozen = "embeddings"\}'),
        (
            {"critical_layer": 1, "shared": "head"},
            r"unknown key shared; known here: critical_layer, embeddings",
        ),
        ({"critical_layer": True}, r"critical_layer = True: give the number of layers"),
        ({"critical_layer": -1}, r"critical_layer = -1: give the number of layers"),
        ({"critical_layer": "4"}, r"critical_layer = '4': give the number of layers"),
        ({"critical_layer": 1, "embeddings": "own"}, r"embeddings = 'own': say"),
        ({"shared": "head", "layers": "3"}, r"layers = '3': give the number of the model's layers, from 1"),
        ({"shared": "head", "layers": 0}, r"layers = 0: give the number of the model's layers, from 1"),
    ],
)
def test_mistakes_in_the_words(value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_selection(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_layers_change_nothing_in_a_model_that_has_as_many() -> None:
    assert select({"shared": "layer.2", "layers": 3})[1] == select("layer.2")[1]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("layer.0-5", r'"layer\.0-5": the model has no layer\.3; there are embeddings, layer\.0-2, head$'),
        ("encoder.layer.0", r"the model has no encoder\.layer\.0; there are embeddings, layer\.0-2, head"),
        ("decoder", r"the model has no decoder; there are"),
        ("re:(a{1,999}){1,999}", r"is no regular expression of RE2: invalid repetition size"),
        ("re:([a-z.0-9]+)*!", r"fits no parameter"),  # a search that went back would never end
        ("re:query", r'"re:query" fits no parameter; there are .*, with names such as embeddings\.weight'),
        ("embeddings:bias", r'"embeddings:bias" fits no parameter'),
        ({"critical_layer": 4}, r"critical_layer = 4: the model has 3 layers, so 0 to 3$"),
        (
            {"personal": "re:classifier", "frozen": ["layer.0", "head"]},
            r'classifier\.weight is personal by "re:classifier" and frozen by "head": take it out',
        ),
        ({"frozen": "re:."}, r"nothing is left to train: share a part, of embeddings, layer\.0-2, head"),
        ({"rest": "frozen"}, r"nothing is left to train"),
        (
            {"shared": "layer.2", "layers": 2},
            r"it is for a model of 2 layers, and this one has 3: make a plan",
        ),
        (
            {"shared": "layer.2", "layers": 12},
            r"it is for a model of 12 layers, and this one has 3: make a plan",
        ),
    ],
)
def test_mistakes_about_the_model(value: object, says: str) -> None:
    model = Small()
    with pytest.raises(ConfigError, match=says) as caught:
        select(value, model)
    assert str(caught.value).startswith("model.train: ")
    assert "\n" not in str(caught.value)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_two_stacks_have_no_critical_layer() -> None:
    with pytest.raises(ConfigError, match=r'one stack of layers.*encoder\.layer\.0-3.*rest = "personal"'):
        select({"critical_layer": 1}, bert("bart", "AutoModelForSeq2SeqLM", **BART))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_is_read_or_refused(value: object) -> None:
    said = ""
    try:
        parse_selection(value)
    except ConfigError as error:
        said = str(error)
    assert len(said) < 1000
    assert "\n" not in said


# -------------------------------------------------------------------------------------------- figures


@cache
def published(kind: str, labels: int) -> nn.Module:
    """The published shapes: distilbert-base-uncased and bert-base-uncased are the configurations' defaults."""
    return bert(kind, num_labels=labels)


@pytest.mark.parametrize(
    ("frozen", "millions"),
    [
        ([], "67.0"),
        (["embeddings"], "43.1"),
        (["embeddings", "layer.0"], "36.0"),
        (["embeddings", "layer.0-1"], "29.0"),
        (["embeddings", "layer.0-2"], "21.9"),
        (["embeddings", "layer.0-3"], "14.8"),
        (["embeddings", "layer.0-4"], "7.7"),
        (["embeddings", "layer.0-5"], "0.6"),
    ],
)
def test_tunable_parameters_of_distilbert(frozen: list[str], millions: str) -> None:
    """FedNLP benchmark, Table 3: DistilBERT for 20 classes."""
    model = published("distilbert", 20)
    model.requires_grad_(True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_968_852
    _, selection = select({"frozen": frozen} if frozen else "all", model)
    tunable = total(parameter_table(model, selection)).tunable
    assert f"{tunable / 1e6:.1f}" == millions
    assert tunable == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_what_bert_sends() -> None:
    """FedSplitBERT, Table VI: GB a round of 3 clients, for FedAvg (all layers and the head) and at layer 6.

    The figures are those without the embeddings.
    """
    model = published("bert", 2)
    for critical, published_size, layers_alone in ((12, "1.03", "1.02"), (6, "0.51", "0.51")):
        model.requires_grad_(True)
        _, selection = select({"critical_layer": critical}, model)
        rows = {row.group: row for row in parameter_table(model, selection)}
        layers = [rows[f"layer.{number}"] for number in range(12)]
        assert {row.parameters for row in layers} == {7_087_872}
        assert sum(row.bytes for row in layers) == critical * 7_087_872 * 4
        assert rows["embeddings"] == ParameterRow("embeddings", 0, 0, 23_837_184, 0)
        assert f"{3 * sum(row.bytes for row in layers) / 1e9:.2f}" == layers_alone
        assert f"{3 * total(rows.values()).bytes / 1e9:.2f}" == published_size
