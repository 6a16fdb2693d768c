"""Two checkpoints as one encoder-decoder: their weights in both halves, the rest from the seed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fednlp.errors import ModelError
from fednlp.models.pretrained import load_tokenizer, longest_text, new_model, pretrained_model
from fednlp.models.resolve import resolve_model
from fednlp.training.model_layout import layout_of

Make = Callable[..., Path]
SEQ2SEQ = "AutoModelForSeq2SeqLM"


@pytest.fixture(scope="module")
def halves(random_model: Make) -> tuple[str, str]:
    second = random_model("bert", "AutoModelForMaskedLM", num_hidden_layers=1)
    return str(random_model("bert")), str(second)


def test_both_halves_are_their_checkpoints_and_the_rest_is_from_the_seed(halves: tuple[str, str]) -> None:
    import transformers

    source = resolve_model("+".join(halves))
    assert resolve_model("+".join(halves)) == source
    encoder = transformers.AutoModel.from_pretrained(halves[0]).state_dict()
    decoder = transformers.AutoModelForMaskedLM.from_pretrained(halves[1]).state_dict()
    known = {f"encoder.{n}": t for n, t in encoder.items()} | {f"decoder.{n}": t for n, t in decoder.items()}
    first, again, other = (pretrained_model(source, SEQ2SEQ, {}, {}, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[n], t) for n, t in known.items())
    assert all(torch.equal(first[n], t) for n, t in again.items())
    drawn = {n for n, t in first.items() if not torch.equal(t, other[n])}
    assert drawn
    assert all("crossattention" in name for name in drawn)


def test_it_generates_ties_its_words_and_loads_again(halves: tuple[str, str], tmp_path: Path) -> None:
    import transformers

    source = resolve_model("+".join(halves))
    tokenizer = load_tokenizer(source)
    assert longest_text(source, tokenizer) == 512
    model = pretrained_model(source, SEQ2SEQ, {}, {}, 0).eval()
    ids = tokenizer("w1 w2 w3", return_tensors="pt", return_token_type_ids=False)
    told = model.generate(**ids, max_new_tokens=4, do_sample=False)
    assert told[0, 0] == tokenizer.bos_token_id
    words = model.decoder.bert.embeddings.word_embeddings.weight
    assert model.decoder.cls.predictions.decoder.weight is words
    model.save_pretrained(tmp_path)
    for load in (transformers.AutoModelForSeq2SeqLM, transformers.EncoderDecoderModel):
        loaded = load.from_pretrained(tmp_path).eval()
        assert torch.equal(loaded.generate(**ids, max_new_tokens=4, do_sample=False), told)


def test_new_models_and_parts_of_the_configuration(halves: tuple[str, str]) -> None:
    source = resolve_model("+".join(halves))
    model = pretrained_model(source, SEQ2SEQ, {}, {}, 0)
    assert layout_of(new_model(source, SEQ2SEQ, {}, {})) == layout_of(model)
    overrides = {"decoder": {"hidden_dropout_prob": 0.25}}
    assert new_model(source, SEQ2SEQ, {}, overrides).decoder.bert.embeddings.dropout.p == 0.25
    with pytest.raises(ModelError, match="decoder is a part of the model"):
        new_model(source, SEQ2SEQ, {}, {"decoder": 3})
    with pytest.raises(ModelError, match=r"decoder: hiden: bert models have no such setting"):
        new_model(source, SEQ2SEQ, {}, {"decoder": {"hiden": 3}})


def test_halves_that_do_not_fit(halves: tuple[str, str], random_model: Make, tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="different vocabularies"):
        resolve_model(f"{halves[0]}+{tiny_model}")
    with pytest.raises(ModelError, match="distilbert models have no head for language modelling"):
        resolve_model(f"{halves[0]}+{random_model('distilbert')}")
