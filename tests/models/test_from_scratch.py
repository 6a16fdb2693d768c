"""Built models: a vocabulary that is a function of its texts, and folders that everything else can read."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import ModelError
from fednlp.models.from_scratch import from_scratch_folder, from_scratch_source
from fednlp.models.loading import has_weights
from fednlp.models.pretrained import (
    load_tokenizer,
    longest_text,
    new_model,
    pretrained_model,
    save_model,
    target_tokenizer,
)
from fednlp.models.vocabulary import SMALLEST, SPECIAL, train_vocabulary
from fednlp.training.model_layout import layout_of

pytestmark = pytest.mark.whole


def corpus(seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdeéüß漢", k=rng.randint(1, 6))) for _ in range(300)]
    return [" ".join(rng.choices(words, k=12)) for _ in range(300)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_vocabulary(corpus, 500, tmp_path_factory.mktemp("vocabulary") / "v")


SMALL: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def test_the_same_texts_give_the_same_bytes_whatever_the_threads(vocabulary: Path, tmp_path: Path) -> None:
    expected = (vocabulary / "tokenizer.json").read_bytes()
    shuffled = corpus()
    random.Random(1).shuffle(shuffled)
    other = train_vocabulary(lambda: shuffled, 500, tmp_path / "shuffled")
    assert (other / "tokenizer.json").read_bytes() == expected
    (tmp_path / "texts").write_text("\n".join(corpus()), encoding="utf-8")
    code = (
        "import sys, pathlib, hashlib; from fednlp.models.vocabulary import train_vocabulary as train;"
        "texts = pathlib.Path(sys.argv[1]).read_text(encoding='utf-8').split('\\n');"
        "made = train(lambda: texts, 500, pathlib.Path(sys.argv[2]));"
        "print(hashlib.sha256((made / 'tokenizer.json').read_bytes()).hexdigest())"
    )
    for threads in ("1", "3"):
        parallel = {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": str(threads != "1").lower()}
        command = [sys.executable, "-c", code, str(tmp_path / "texts"), str(tmp_path / f"threads{threads}")]
        done = subprocess.run(command, env=os.environ | parallel, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == hashlib.sha256(expected).hexdigest()


def test_a_vocabulary_is_trained_once(vocabulary: Path) -> None:
    def never() -> list[str]:
        raise AssertionError("the texts are read again")

    assert train_vocabulary(never, 500, vocabulary) == vocabulary


def test_what_is_in_a_vocabulary(vocabulary: Path) -> None:
    tokenizer = load_tokenizer(str(vocabulary))
    assert len(tokenizer) == 500
    assert [getattr(tokenizer, f"{name}_id") for name in SPECIAL] == list(range(len(SPECIAL)))
    with pytest.raises(ModelError, match=f"too small.*{SMALLEST}"):
        train_vocabulary(corpus, SMALLEST - 1, vocabulary.parent / "small")
    assert not (vocabulary.parent / "small").exists()


@settings(max_examples=80)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_any_text_comes_back(vocabulary: Path, text: str) -> None:
    import unicodedata

    tokenizer = load_tokenizer(str(vocabulary)) if not _loaded else _loaded[0]
    _loaded[:] = [tokenizer]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    expected = unicodedata.normalize("NFC", text)
    if any(token in text for token in SPECIAL.values()):
        return
    assert tokenizer.decode(ids) == expected.removeprefix(" ")
    assert tokenizer.unk_token_id not in ids


_loaded: list[Any] = []


def test_words_given_one_by_one_read_as_in_a_text(vocabulary: Path) -> None:
    tokenizer = load_tokenizer(str(from_scratch_source("bilstm", {}, vocabulary)))
    text = corpus()[0]
    alone = tokenizer(text.split(), is_split_into_words=True)
    assert alone.input_ids == tokenizer(text).input_ids
    assert set(alone.word_ids()) == set(range(len(text.split())))


@pytest.mark.parametrize("kind", ["lstm", "bilstm", "transformer"])
def test_built_folders_are_models_without_weights(kind: str, vocabulary: Path) -> None:
    sizes = SMALL if kind == "transformer" else {"hidden_size": 8, "embedding_size": 4}
    source = str(from_scratch_source(kind, sizes, vocabulary))
    assert str(from_scratch_source(kind, sizes, vocabulary)) == source
    assert str(from_scratch_source(kind, {}, vocabulary)) != source
    assert not has_weights(source)
    head = "AutoModelForSeq2SeqLM" if kind == "transformer" else "AutoModelForSequenceClassification"
    labels = {} if kind == "transformer" else {"num_labels": 3}
    first, again, other = (pretrained_model(source, head, labels, sizes, seed) for seed in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(first.parameters(), other.parameters(), strict=True))
    assert layout_of(new_model(source, head, labels, sizes)) == layout_of(first)
    tokenizer = load_tokenizer(source)
    assert first.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert longest_text(source, tokenizer) == (
        1024 if kind == "transformer" else int(tokenizer.model_max_length)
    )


def test_one_direction_or_two(vocabulary: Path) -> None:
    for kind, ways in {"lstm": 1, "bilstm": 2}.items():
        source = str(from_scratch_source(kind, {"hidden_size": 8}, vocabulary))
        model = pretrained_model(source, "AutoModelForTokenClassification", {"num_labels": 3}, {}, 0)
        assert model.classifier.in_features == 8 * ways


def test_special_tokens_around_texts(vocabulary: Path) -> None:
    ends = load_tokenizer(str(from_scratch_source("transformer", SMALL, vocabulary)))
    plain = load_tokenizer(str(from_scratch_source("bilstm", {}, vocabulary)))
    body = plain("abc ed").input_ids
    assert ends("abc ed").input_ids == [*body, ends.eos_token_id]
    assert ends(text_target="abc ed").input_ids == [*body, ends.eos_token_id]
    assert plain("abc ed", "abc ed").input_ids == [*body, plain.sep_token_id, *body]


def test_the_transformer_is_that_of_the_paper_and_has_its_tokens(vocabulary: Path) -> None:
    source = str(from_scratch_source("transformer", {}, vocabulary))
    model, tokenizer = new_model(source, "AutoModelForSeq2SeqLM", {}, {}), load_tokenizer(source)
    words = len(tokenizer) * 512
    # Vaswani et al. 2017: attention 4 (512^2 + 512), feed-forward 2 * 512 * 2048 + 2048 + 512, norms 2 * 512.
    attention, forward, norm = 4 * (512**2 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = attention + forward + 2 * norm, 2 * attention + forward + 3 * norm
    assert layout_of(model).numel == words + 6 * encoder + 6 * decoder
    ids = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    config = model.config
    assert (config.decoder_start_token_id, config.eos_token_id, config.pad_token_id) == ids
    assert config.forced_eos_token_id == tokenizer.eos_token_id


def test_the_transformer_learns_to_copy_and_survives_saving(vocabulary: Path, tmp_path: Path) -> None:
    import transformers

    source = str(from_scratch_source("transformer", SMALL, vocabulary))
    model, tokenizer = pretrained_model(source, "AutoModelForSeq2SeqLM", {}, {}, 0), load_tokenizer(source)
    batch = tokenizer(corpus()[0][:12], return_tensors="pt")
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    for trained in (model, loaded):
        told = trained.generate(**batch, max_new_tokens=30, do_sample=False)[0]
        assert tokenizer.decode(told, skip_special_tokens=True) == corpus()[0][:12]
    assert loaded.lm_head.weight is loaded.model.shared.weight is loaded.model.decoder.embed_tokens.weight


def test_built_models_are_kept_by_their_texts_and_sizes() -> None:
    said: list[str] = []
    first = from_scratch_folder("lstm", {"hidden_size": 8}, corpus, "texts", 300, said.append)
    assert from_scratch_folder("lstm", {"hidden_size": 8}, corpus, "texts", 300, said.append) == first
    assert len(said) == 1
    for other in (("texts", 301), ("other texts", 300)):
        assert from_scratch_folder("lstm", {"hidden_size": 8}, lambda: corpus(1), *other) != first


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("gru", {}, "no model is built under the name gru: choose lstm, bilstm, transformer"),
        ("lstm", {"d_model": 8}, "d_model: fednlp-lstm models have no such setting"),
        ("lstm", {"vocab_size": 8}, "vocab_size: leave it out: the tokenizer sets it"),
        ("lstm", {"pooling": "min"}, 'pooling must be "max" or "mean"'),
        ("bilstm", {"hidden_size": 0}, "hidden_size must be at least 1"),
    ],
)
def test_what_cannot_be_built(kind: str, config: dict[str, Any], message: str, vocabulary: Path) -> None:
    with pytest.raises(ModelError) as caught:
        from_scratch_source(kind, config, vocabulary)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def other_corpus() -> list[str]:
    return [text.replace("a", "xyz").upper() for text in corpus(3)]


@pytest.fixture(scope="module")
def two_sided(vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Transformer whose targets have a vocabulary of their own, of another size."""
    targets = train_vocabulary(other_corpus, 340, tmp_path_factory.mktemp("vocabulary") / "targets")
    return str(from_scratch_source("transformer", SMALL, vocabulary, targets))


def test_each_side_has_its_vocabulary_and_its_embedding(two_sided: str, vocabulary: Path) -> None:
    sources, targets = load_tokenizer(two_sided), target_tokenizer(two_sided)
    assert targets is not None
    assert (len(sources), len(targets)) == (500, 340)
    assert [targets.convert_tokens_to_ids(token) for token in SPECIAL.values()] == list(range(len(SPECIAL)))
    assert targets("abc").input_ids[-1] == targets.eos_token_id == sources.eos_token_id
    model = new_model(two_sided, "AutoModelForSeq2SeqLM", {}, SMALL)
    assert (
        model.get_input_embeddings().weight.shape
        == model.model.encoder.embed_tokens.weight.shape
        == (500, 16)
    )
    assert model.model.decoder.embed_tokens.weight is model.lm_head.weight
    assert model.lm_head.weight.shape == (340, 16)
    shared = str(from_scratch_source("transformer", SMALL, vocabulary))
    assert target_tokenizer(shared) is None
    one = layout_of(new_model(shared, "AutoModelForSeq2SeqLM", {}, SMALL)).numel
    assert layout_of(model).numel == one + 340 * 16


def test_a_model_of_two_vocabularies_translates_after_saving(two_sided: str, tmp_path: Path) -> None:
    import transformers

    sources, targets = load_tokenizer(two_sided), target_tokenizer(two_sided)
    assert targets is not None
    model = pretrained_model(two_sided, "AutoModelForSeq2SeqLM", {}, SMALL, 0)
    batch = sources(corpus()[0][:12], return_tensors="pt")
    labels = targets(other_corpus()[0][:9], return_tensors="pt").input_ids
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    torch.manual_seed(0)  # of the dropout
    for _ in range(150):
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
    save_model(model.eval(), sources, tmp_path, "")
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    again = load_tokenizer(str(tmp_path)), target_tokenizer(str(tmp_path))
    assert again[1] is not None
    assert again[0](corpus()[1]).input_ids == sources(corpus()[1]).input_ids
    told = loaded.generate(**batch, max_new_tokens=30, do_sample=False)[0]
    assert again[1].decode(told, skip_special_tokens=True) == other_corpus()[0][:9]


def test_a_vocabulary_a_side_is_trained_on_that_side_alone() -> None:
    said: list[str] = []
    asked: dict[str, Any] = {"texts": corpus, "identity": "two", "vocabulary_size": 300, "log": said.append}
    separate = from_scratch_folder("transformer", SMALL, **asked, targets=other_corpus)
    assert from_scratch_folder("transformer", SMALL, **asked, targets=other_corpus) == separate
    assert [" of the sources " in said[0], " of the targets " in said[1], len(said)] == [True, True, 2]
    targets = target_tokenizer(separate)
    assert targets is not None

    def merged(tokenizer: Any) -> str:
        return "".join(token for token in tokenizer.get_vocab() if len(token) > 1 and token[0] != "<")

    assert set("abcde") <= set(merged(load_tokenizer(separate)))
    assert not set("abcde") & set(merged(targets))
    assert from_scratch_folder("transformer", SMALL, **asked) != separate


def test_two_vocabularies_are_for_two_texts(vocabulary: Path) -> None:
    with pytest.raises(ModelError, match=r"^lstm reads one text and has one vocabulary: .* for transformer$"):
        from_scratch_folder("lstm", {}, corpus, "x", 300, targets=corpus)
    with pytest.raises(
        ModelError, match="share_encoder_decoder_embeddings: two vocabularies have no embedding"
    ):
        from_scratch_source(
            "transformer", SMALL | {"share_encoder_decoder_embeddings": True}, vocabulary, vocabulary
        )
