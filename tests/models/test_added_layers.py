"""Layers put into a trained model: its own weights stay, and what is added begins as asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.config import parse
from fednlp.errors import ConfigError, ModelError
from fednlp.models.added_layers import added_layers_folder, with_added_layers
from fednlp.models.from_scratch import from_scratch_source
from fednlp.models.pretrained import load_tokenizer, new_model, pretrained_model, save_model
from fednlp.models.resolve import resolve_model
from fednlp.models.selection import apply_selection
from fednlp.models.selection_spec import layer_places, parse_selection
from fednlp.models.vocabulary import train_vocabulary
from fednlp.training.model_layout import layout_of

pytestmark = pytest.mark.whole

Make = Callable[..., Path]
SEQ2SEQ = "AutoModelForSeq2SeqLM"
CONTROLLERS = ["encoder.layer.0,6", "decoder.layer.0,6"]
SIZES = {
    "d_model": 16,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a Transformer of 6 + 6 layers in it, as the run of an engine leaves it."""
    folder = tmp_path_factory.mktemp("engine")
    words = train_vocabulary(lambda: ["one two three four"] * 9, 300, folder / "vocabulary")
    source = str(from_scratch_source("transformer", SIZES, words))
    save_model(pretrained_model(source, SEQ2SEQ, {}, SIZES, 3), load_tokenizer(source), folder / "model", "")
    return folder


def loaded(source: str) -> Any:
    return pretrained_model(source, SEQ2SEQ, {}, {}, 0).eval()


def test_an_8e8d_engine_has_the_weights_of_the_6e6d_one_around_its_controllers(engine: Path) -> None:
    source = resolve_model(str(engine))
    assert source == str(engine / "model")
    folder = added_layers_folder(source, CONTROLLERS, "copy", 0)
    assert added_layers_folder(source, CONTROLLERS, "copy", 1) == folder
    assert load_tokenizer(folder)("one two").input_ids == load_tokenizer(source)("one two").input_ids
    before, after = loaded(source), loaded(folder)
    assert (after.config.encoder_layers, after.config.decoder_layers) == (8, 8)
    for side in ("encoder", "decoder"):
        old, new = (getattr(model.model, side).layers for model in (before, after))
        for place, origin in enumerate([0, 0, 1, 2, 3, 4, 5, 5]):
            for first, second in zip(old[origin].parameters(), new[place].parameters(), strict=True):
                assert torch.equal(first, second)
    assert torch.equal(before.lm_head.weight, after.lm_head.weight)


def test_counts_and_selection_are_those_of_controllers_at_the_papers_size() -> None:
    """Four layers of the base Transformer, 2 + 2 of 16: Vaswani et al. 2017 have 3.15 and 4.20 million a layer."""
    from transformers import MarianConfig, MarianMTModel

    sizes = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "encoder_attention_heads": 8}
    config = MarianConfig(
        vocab_size=40, pad_token_id=39, encoder_layers=6, decoder_layers=6, decoder_attention_heads=8, **sizes
    )
    engine = MarianMTModel(config)
    deeper = with_added_layers(engine, layer_places(CONTROLLERS), "random")
    encoder, decoder = 3_152_384, 4_204_032
    chosen = apply_selection(deeper, parse_selection({"shared": CONTROLLERS, "rest": "personal"}))
    shared = sum(p.numel() for name, p in deeper.named_parameters() if name in chosen.shared)
    assert shared == 2 * encoder + 2 * decoder
    assert layout_of(deeper).numel == layout_of(engine).numel + shared
    assert {name.split(".layers.")[1].split(".")[0] for name in chosen.shared} == {"0", "6"}


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_layers_without_effect_leave_every_output_as_it_was(kind: str, random_model: Make) -> None:
    auto = SEQ2SEQ if kind == "t5" else "AutoModelForCausalLM"
    source = str(random_model(kind, auto, **({"num_layers": 2} if kind == "t5" else {})))
    at = ["encoder.layer.1", "decoder.layer.2-3"] if kind == "t5" else ["layer.0,2"]
    folder = added_layers_folder(source, at, "zero", 0)
    before, after = (pretrained_model(one, auto, {}, {}, 0).eval() for one in (source, folder))
    ids = torch.tensor([[5, 9, 7, 30], [8, 8, 40, 2]])
    more = {"decoder_input_ids": ids} if kind == "t5" else {}
    assert torch.equal(before(input_ids=ids, **more).logits, after(input_ids=ids, **more).logits)
    new = {id(p) for p in after.parameters()}
    assert len(new) > len(list(before.parameters()))
    after(input_ids=ids, **more).logits.pow(2).mean().backward()
    for name, parameter in after.named_parameters():
        if ".0.mlp.down_proj" in name or ".0.mlp.c_proj.weight" in name:
            assert parameter.grad is not None
            assert parameter.grad.abs().sum() > 0, "a layer without effect is to learn one"


def test_layers_that_normalise_after_adding_are_refused_without_effect(
    engine: Path, random_model: Make
) -> None:
    for source, at in (
        (str(engine / "model"), ["encoder.layer.3"]),
        (str(random_model("bert")), ["layer.1"]),
    ):
        with pytest.raises(ModelError, match=r'normalise after they add, .* say "copy" or "random"$'):
            added_layers_folder(source, at, "zero", 0)


def test_random_layers_are_drawn_by_the_seed(engine: Path) -> None:
    source = str(engine / "model")
    folders = [added_layers_folder(source, ["encoder.layer.6"], "random", seed) for seed in (1, 1, 2)]
    assert folders[0] == folders[1] != folders[2]
    weights = [loaded(folder).model.encoder.layers[6].fc1.weight for folder in (folders[0], folders[2])]
    assert not torch.equal(*weights)
    assert weights[0].std().item() == pytest.approx(0.02, rel=0.2)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 4), added=st.sets(st.integers(0, 6), min_size=1, max_size=3))
def test_every_trained_layer_stays_once_and_in_order(length: int, added: set[int]) -> None:
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4, "vocab_size": 9}
    model = BertModel(BertConfig(num_hidden_layers=length, max_position_embeddings=4, **small))
    for number, layer in enumerate(model.encoder.layer):
        layer.output.dense.bias.data.fill_(number)
    places = {"": sorted(added)}
    if max(added) >= length + len(added):
        with pytest.raises(ModelError, match=rf"there are layers 0 to {length + len(added) - 1}$"):
            with_added_layers(model, places, "copy")
        return
    layers = with_added_layers(model, places, "copy").encoder.layer
    assert len(layers) == length + len(added)
    kept = [layer.output.dense.bias[0].item() for n, layer in enumerate(layers) if n not in added]
    assert kept == list(range(length))


def test_halves_of_two_checkpoints_get_layers_once_they_are_trained(
    random_model: Make, tmp_path: Path
) -> None:
    first, second = str(random_model("bert")), str(random_model("bert", "AutoModelForMaskedLM"))
    halves = resolve_model(f"{first}+{second}")
    with pytest.raises(ModelError, match="trained whole"):
        added_layers_folder(halves, ["decoder.layer.1"], "copy", 0)
    save_model(loaded(halves), load_tokenizer(halves), tmp_path, "")
    folder = added_layers_folder(str(tmp_path), ["decoder.layer.1"], "copy", 0)
    model = loaded(folder)
    assert (model.config.encoder.num_hidden_layers, model.config.decoder.num_hidden_layers) == (2, 3)
    assert layout_of(new_model(folder, SEQ2SEQ, {}, {})) == layout_of(model)


@pytest.mark.parametrize(
    ("kind", "at", "message"),
    [
        ("bert", ["encoder.layer.0"], "has no list of encoder.layer"),
        ("bert", ["layer.9"], "names layer.9: with the added ones there are layers 0 to 2"),
        ("xlm", ["layer.0"], "the layers of this model are not alike"),
    ],
)
def test_what_cannot_be_put_in(kind: str, at: list[str], message: str, random_model: Make) -> None:
    with pytest.raises(ModelError) as caught:
        added_layers_folder(str(random_model(kind)), at, "copy", 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"at": []}, "at least 1 item"),
        ({"at": ["head"]}, '"head" is no layer'),
        ({"at": ["layer.0-99"]}, "more than 64 layers"),
        ({"at": ["layer.0"], "initial": "zeros"}, "did you mean zero?"),
    ],
)
def test_mistakes_in_the_section(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"data": {"name": "20news"}, "model": {"added_layers": table}})
    assert message in str(caught.value)


def test_a_place_as_long_as_a_book_is_refused_before_it_is_read() -> None:
    with pytest.raises(ConfigError, match="a line of at most 200 characters"):
        layer_places(["layer." + ",".join(["0-9999"] * 100_000)])
