"""LSTM: padding changes nothing, a language model looks back only, and plain Hugging Face loads it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednlp.models.lstm import (
    LstmConfig,
    LstmForCausalLM,
    LstmForSequenceClassification,
    LstmForTokenClassification,
)
from fednlp.models.pretrained import new_model, pretrained_model
from fednlp.training.model_layout import flat_weights, layout_of
from fednlp.training.replica import Replica

SIZES = {"vocab_size": 30, "embedding_size": 5, "hidden_size": 6, "dropout": 0.2}
CLASSES = {
    "AutoModelForSequenceClassification": LstmForSequenceClassification,
    "AutoModelForTokenClassification": LstmForTokenClassification,
    "AutoModelForCausalLM": LstmForCausalLM,
}


def model_of(model_class: str, seed: int = 0, **more: object) -> nn.Module:
    torch.manual_seed(seed)
    return CLASSES[model_class](LstmConfig(**SIZES, num_labels=3, **more)).eval()


@pytest.mark.parametrize("model_class", CLASSES)
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    layers=st.integers(1, 2),
    both=st.booleans(),
    pooling=st.sampled_from(["max", "mean"]),
)
def test_a_batch_gives_what_its_texts_give_alone(
    model_class: str, lengths: list[int], layers: int, both: bool, pooling: str
) -> None:
    model = model_of(model_class, num_hidden_layers=layers, bidirectional=both, pooling=pooling)
    texts = [torch.randint(1, 30, (n,)) for n in lengths]
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(t) for t in texts], batch_first=True)
    for padding in (0, 17):  # what stands in the padding does not matter
        together = model(input_ids=ids.masked_fill(mask == 0, padding), attention_mask=mask).logits
        for row, text in enumerate(texts):
            alone = model(input_ids=text[None]).logits[0]
            part = together[row] if alone.dim() == 1 else together[row, : len(text)]
            torch.testing.assert_close(part, alone)


def test_pooling_is_over_tokens_alone() -> None:
    ids, mask = torch.tensor([[4, 5, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    for pooling in ("max", "mean"):
        model = model_of("AutoModelForSequenceClassification", pooling=pooling)
        states = model.lstm(ids[:, :2]).last_hidden_state
        pooled = states.amax(1) if pooling == "max" else states.mean(1)
        torch.testing.assert_close(model(ids, mask).logits, model.classifier(pooled))


def test_directions() -> None:
    ids, other = torch.tensor([[4, 5, 6]]), torch.tensor([[4, 5, 9]])
    tagger = model_of("AutoModelForTokenClassification")
    assert not torch.allclose(tagger(ids).logits[:, 0], tagger(other).logits[:, 0])
    for model in (
        model_of("AutoModelForTokenClassification", bidirectional=False),
        model_of("AutoModelForCausalLM", bidirectional=True),
    ):
        assert torch.equal(model(ids).logits[:, :2], model(other).logits[:, :2])


@pytest.mark.parametrize("model_class", CLASSES)
def test_saved_models_load_with_the_auto_classes(model_class: str, tmp_path: Path) -> None:
    import transformers

    model = model_of(model_class, bidirectional=True)
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, model_class).from_pretrained(tmp_path)
    assert all(torch.equal(t, loaded.state_dict()[n]) for n, t in model.state_dict().items())
    ids = torch.tensor([[3, 4]])
    assert torch.equal(model(ids).logits, loaded(ids).logits)
    settings_ = {"num_labels": 3} if "Classification" in model_class else {}
    again = pretrained_model(str(tmp_path), model_class, settings_, {}, 7)
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())
    assert layout_of(new_model(str(tmp_path), model_class, settings_, {})) == layout_of(model)


@pytest.mark.slow
def test_a_fresh_process_loads_it_through_fednlp(tmp_path: Path) -> None:
    model_of("AutoModelForCausalLM").save_pretrained(tmp_path)
    code = (
        "import sys; from fednlp.models.pretrained import pretrained_model; assert 'transformers' not in sys.modules;"
        f"print(type(pretrained_model({str(tmp_path)!r}, 'AutoModelForCausalLM', {{}}, {{}}, 0)).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "LstmForCausalLM"


def test_the_padding_row_and_the_body_survive_another_head(tmp_path: Path) -> None:
    model = model_of("AutoModelForSequenceClassification")
    assert not model.get_input_embeddings().weight[0].any()
    model.save_pretrained(tmp_path)
    other = pretrained_model(str(tmp_path), "AutoModelForSequenceClassification", {"num_labels": 5}, {}, 0)
    assert torch.equal(other.lstm.embeddings.weight, model.lstm.embeddings.weight)
    assert other.classifier.weight.shape == (5, 12)


def test_words_by_rows_train_as_the_whole_table_does() -> None:
    ids, mask = torch.tensor([[4, 9, 4], [7, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    results = []
    for rows in (False, True):
        model = model_of("AutoModelForSequenceClassification")
        x = flat_weights(model)
        replica = Replica(model, torch.device("cpu"), rows)
        assert replica.by_rows is rows
        replica.load(x, ids.flatten() if rows else None)
        model(ids, mask).logits.square().sum().backward()
        results.append(replica.model.get_input_embeddings().weight.grad)
    torch.testing.assert_close(results[1], results[0][[0, 4, 7, 9]])
    assert results[0].abs().sum(1).nonzero().flatten().tolist() == [4, 7, 9]


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": 0},
        {"num_hidden_layers": 0},
        {"dropout": 1.0},
        {"pooling": "min"},
        {"tie_word_embeddings": True},
    ],
)
def test_sizes_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(StrictDataclassError, match=r"must be|leave"):
        LstmConfig(**{**SIZES, **wrong})


def test_the_configuration_is_written_out(tmp_path: Path) -> None:
    LstmConfig(**SIZES, pooling="mean").save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "fednlp-lstm"
    assert {key: written[key] for key in SIZES} == SIZES
    assert written["pooling"] == "mean"
