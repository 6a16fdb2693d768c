"""Prompts with decoders: what stands before the mask is read, and words are scored as the next token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.models.settings import cloze_class
from fednlp.prompts.prompt_sets import decoder_patterns, load_prompts, prompt_for, with_prompt
from fednlp.prompts.word_search import candidate_words
from fednlp.tasks.cloze import DECODER, frame
from fednlp.tasks.prompt_classification import PromptClassification

from .models import CPU, built, byte_level, gpt2, loaded

LABELS = ("neg", "pos")
TEXTS = ["It was good. It was bad. great films, terrible films ( good ) about bad (good) (bad)"] * 20
SPOKEN = ["It", "was", "great", "terrible", "films,", "good.", "(", "bad"]
PATTERNS = [
    "{text} ( {mask} )",
    "{text} It was {mask}.",
    "It: {text}\n\nfilms ({mask})",
    "{text} {mask} good",
]
OPTIONS: dict[str, Any] = {
    "pattern": PATTERNS[1],
    "verbalizer": {"pos": "good", "neg": "bad"},
    "model_class": DECODER,
}


def metaspace(folder: Path) -> Any:
    """Save and load a tokenizer as that of LLaMA 2: a space is put before all that it is given."""
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing

    words = ["good", "bad", "great", "It", "was", "terrible", "films", "about"]
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    merges += [("▁", word) for word in [*words, "("]]
    letters = sorted({letter for word in words for letter in word} | set("▁().,:\n"))
    tokens = dict.fromkeys(["<unk>", "<s>", "</s>", *letters, *map("".join, merges)])
    inner = Tokenizer(BPE({token: n for n, token in enumerate(tokens)}, merges, unk_token="<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return loaded(folder)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tokenizers import decoders

    folder = tmp_path_factory.mktemp("tokenizers")
    found = byte_level(folder / "bytes", TEXTS)
    found.backend_tokenizer.decoder = decoders.ByteLevel()
    return {"bytes": found, "metaspace": metaspace(folder / "metaspace")}


def llama(words: int) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaConfig(
        vocab_size=words, max_position_embeddings=64, initializer_range=0.1, num_key_value_heads=2, **sizes
    )


def task_for(tokenizer: Any, **changes: Any) -> PromptClassification:
    return PromptClassification.build(LABELS, tokenizer, **(OPTIONS | changes))


def encoded(task: PromptClassification, tokenizer: Any, texts: list[str], longest: int = 60) -> Features:
    rows = [{"text": text, "label": LABELS[n % 2]} for n, text in enumerate(texts)]
    return Features.in_memory(task.encode(rows, tokenizer, longest))


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["bytes", "metaspace"]),
    pattern=st.sampled_from(PATTERNS),
    words=st.lists(st.sampled_from(SPOKEN), min_size=1, max_size=8),
)
def test_what_is_read_is_what_the_tokenizer_makes_of_the_whole(
    tokenizers: dict[str, Any], kind: str, pattern: str, words: list[str]
) -> None:
    """Also the word: the tokens with it are those of the sentence that it completes."""
    tokenizer, text = tokenizers[kind], " ".join(words)
    task = task_for(tokenizer, pattern=pattern)
    (made,) = task.encode([{"text": text, "label": "pos"}], tokenizer, 200)
    before = pattern.partition("{mask}")[0].format(text=text)
    opening = frame(tokenizer)[0]
    assert made["input_ids"] == opening + tokenizer(before.rstrip(" "), add_special_tokens=False)["input_ids"]
    assert made["gap"] == len(made["input_ids"]) - 1
    for word, token in zip(("bad", "good"), task.words, strict=True):
        assert (
            made["input_ids"] + [token]
            == opening + tokenizer(before + word, add_special_tokens=False)["input_ids"]
        )


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["bytes", "metaspace"]),
    pattern=st.sampled_from(PATTERNS),
    count=st.integers(0, 40),
    longest=st.integers(16, 40),
)
def test_the_text_is_cut_and_the_pattern_never(
    tokenizers: dict[str, Any], kind: str, pattern: str, count: int, longest: int
) -> None:
    tokenizer = tokenizers[kind]
    task = task_for(tokenizer, pattern=pattern)
    whole, cut = (
        task.encode([{"text": "great " * count, "label": "pos"}], tokenizer, room)[0]["input_ids"]
        for room in (1000, longest)
    )
    (bare,) = task.encode([{"text": None, "label": "pos"}], tokenizer, 1000)
    assert len(cut) == min(len(whole), longest)
    tail = len(bare["input_ids"]) if pattern.startswith("{text}") else 8
    tail -= len(frame(tokenizer)[0])
    assert cut[len(cut) - tail :] == whole[len(whole) - tail :]
    head = len(cut) - tail
    assert cut[:head] == whole[:head]


@pytest.mark.parametrize("config", [gpt2, llama])
def test_scores_are_those_of_transformers_at_the_last_token(tokenizers: dict[str, Any], config: Any) -> None:
    tokenizer = tokenizers["bytes"]
    task = task_for(tokenizer)
    model = built(task, config(task.vocabulary))
    texts = ["great films", "It", "terrible terrible films, good", ""] * 3
    features, numbers = encoded(task, tokenizer, texts), np.arange(12)
    expected = []
    words = [tokenizer.convert_tokens_to_ids(word) for word in ("Ġbad", "Ġgood")]
    for text in texts:
        ids = tokenizer(f"<s>{text} It was", add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            expected.append(model(input_ids=ids).logits[0, -1, words])
    wanted = torch.stack(expected)
    batch = task.collate(features, numbers, CPU)
    with torch.inference_mode():
        assert torch.allclose(task.logits(model, batch), wanted, atol=1e-5)
        outcome = task.predict(model, features, numbers, CPU)
    assert outcome.predictions == wanted.argmax(1).tolist()
    labels = torch.tensor([n % 2 for n in range(12)])
    assert float(task.loss(model, batch).detach()) == pytest.approx(
        float(F.cross_entropy(wanted, labels)), rel=1e-5
    )


@pytest.mark.parametrize("config", [gpt2, llama])
def test_padding_on_either_side_gives_the_same_scores(
    tokenizers: dict[str, Any], config: Any, tmp_path: Path
) -> None:
    tokenizer = tokenizers["bytes"]
    task = task_for(tokenizer)
    model = built(task, config(task.vocabulary))
    texts = ["great films", "It", "terrible terrible films, good was bad"]
    features = encoded(task, tokenizer, texts)
    rows = [features.ragged("input_ids", n).tolist() for n in range(3)]
    width = max(map(len, rows))
    ids = torch.tensor([[task.padding] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        left = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[
            :, -1, list(task.words)
        ]
        right = task.logits(model, task.collate(features, np.arange(3), CPU))
        alone = [task.logits(model, task.collate(features, np.array([n]), CPU)) for n in range(3)]
    assert torch.allclose(right, left, atol=1e-5)
    assert torch.allclose(right, torch.cat(alone), atol=1e-5)
    tokenizer.save_pretrained(tmp_path)
    other = loaded(tmp_path)
    other.padding_side, other.truncation_side = "left", "left"
    assert (
        encoded(task_for(other), other, texts, 12).ragged("input_ids", 2).tolist()
        == encoded(task, tokenizer, texts, 12).ragged("input_ids", 2).tolist()
    )


def test_logits_are_made_at_one_position_of_each_text(tokenizers: dict[str, Any]) -> None:
    task = task_for(tokenizers["bytes"])
    model = built(task, llama(task.vocabulary))
    batch = task.collate(encoded(task, tokenizers["bytes"], ["great films", "It"]), np.arange(2), CPU)
    seen = []
    model.lm_head.register_forward_hook(lambda module, given, made: seen.append(tuple(made.shape)))
    task.loss(model, batch)
    assert seen == [(2, task.vocabulary)]


def test_special_tokens_written_out_are_none(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["bytes"]
    (made,) = task_for(tokenizer).encode([{"text": "great </s> <mask>", "label": "pos"}], tokenizer, 60)
    assert [token for token in made["input_ids"] if token in tokenizer.all_special_ids] == [
        tokenizer.bos_token_id
    ]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"pattern": "{mask} News: {text}"}, ConfigError, r'"{mask} News: {text}" has a text behind {mask}'),
        (
            {"pattern": "{text} ? {mask}, {text_pair}"},
            ConfigError,
            r"say e.g. task.pattern = .{text} Category",
        ),
        (
            {"verbalizer": {"pos": "good", "neg": "horrible"}},
            ModelError,
            "\"horrible\" for 'neg' is not one token",
        ),
        ({"verbalizer": {"pos": "good", "neg": "good"}}, ModelError, "same token"),
        ({"verbalizer": {"pos": "good"}}, ConfigError, "no word for 'neg'"),
    ],
)
def test_what_cannot_be_is_refused(
    tokenizers: dict[str, Any], change: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        task_for(tokenizers["bytes"], **change)


def test_a_pattern_longer_than_a_text_may_be_is_refused(tokenizers: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"3 tokens and model.max_length is 3"):
        encoded(task_for(tokenizers["bytes"]), tokenizers["bytes"], ["great"], 3)


def test_a_decoder_takes_the_first_pattern_that_it_reads_whole(
    tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    words = [{"neg": "horrible", "pos": "good"}, {"neg": "bad", "pos": "good"}]
    table = {
        "name": "mine",
        "source": "a test",
        "patterns": ["It {mask} {text}", *PATTERNS[:2]],
        "words": words,
    }
    path.write_text(tomli_w.dumps(table))
    for tokenizer in tokenizers.values():
        assert prompt_for(str(path), LABELS, tokenizer, decoder=True) == (PATTERNS[0], words[1])
        given = with_prompt({"prompt": f"{path}:2", "model_class": DECODER}, LABELS, tokenizer)
        assert given["pattern"] == PATTERNS[1]
    with_mask = with_prompt({"prompt": str(path)}, LABELS, tokenizers["bytes"])
    assert with_mask["pattern"] == "It {mask} {text}"
    with pytest.raises(
        ConfigError, match=r"mnli have no pattern for a decoder.*\"{text} {text_pair} Category: {mask}\""
    ):
        prompt_for("mnli", LABELS, tokenizers["bytes"], decoder=True)


@pytest.mark.parametrize("name", ["agnews", "bbc", "20news", "yahoo", "yelp-full", "sst2", "trec"])
def test_shipped_prompts_have_a_pattern_for_decoders(name: str) -> None:
    prompts = load_prompts(name)
    assert [n for n, one in enumerate(prompts.patterns) if one.find("{mask}") > one.rfind("{text")] == (
        decoder_patterns(prompts)
    )


def test_candidates_are_words_as_they_stand_in_the_gap(tokenizers: dict[str, Any]) -> None:
    for name, mark in (("bytes", "Ġ"), ("metaspace", "▁")):
        tokenizer = tokenizers[name]
        found = candidate_words(tokenizer, PATTERNS[1], range(len(tokenizer)), decoder=True)
        assert {"good", "bad", "great"} <= set(found.values())
        assert all(tokenizer.convert_ids_to_tokens(token) == mark + word for token, word in found.items())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (transformers.GPT2Config(), DECODER),
        (transformers.LlamaConfig(), DECODER),
        (transformers.Qwen2Config(), DECODER),
        (transformers.BertConfig(), "AutoModelForMaskedLM"),
        (transformers.RobertaConfig(), "AutoModelForMaskedLM"),
        (transformers.T5Config(), "AutoModelForMaskedLM"),
    ],
)
def test_a_model_that_fills_gaps_is_no_decoder(config: Any, expected: str) -> None:
    assert cloze_class(config) == expected
