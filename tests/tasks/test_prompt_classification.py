"""Prompt classification: one mask whatever the texts say, words of one token, the pattern never cut."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError, FednlpError, ModelError
from fednlp.tasks import blocks
from fednlp.tasks.cloze import frame, kept, parts_of, plain_ids
from fednlp.tasks.prompt_classification import PromptClassification

from .models import CPU, WORDS, bert, built, byte_level, fit, wordpiece

OWN = ["News", ":", "?", ",", "bad", "good", "fine"]
LABELS = ("neg", "pos")
OPTIONS: dict[str, Any] = {"pattern": "{mask} News : {text}", "verbalizer": {"pos": "good", "neg": "bad"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wordpiece(tmp_path_factory.mktemp("tokenizer"), [*OWN, *WORDS])


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Any:
    texts = ["It was good. It was bad. great films, terrible films"] * 20
    return byte_level(tmp_path_factory.mktemp("bpe"), texts)


@pytest.fixture(scope="module")
def task(tokenizer: Any) -> PromptClassification:
    return PromptClassification.build(LABELS, tokenizer, **OPTIONS)


def said(tokenizer: Any, task: Any, row: dict[str, Any], max_length: int = 30) -> list[str]:
    made = task.encode([{"label": "pos"} | row], tokenizer, max_length)[0]
    assert [n for n, token in enumerate(made["input_ids"]) if token == task.mask] == [made["gap"]]
    return list(tokenizer.convert_ids_to_tokens(made["input_ids"]))


def test_the_text_is_put_into_the_pattern(tokenizer: Any, task: PromptClassification) -> None:
    assert said(tokenizer, task, {"text": "w1 w2"}) == ["[CLS]", "[MASK]", "News", ":", "w1", "w2", "[SEP]"]
    assert said(tokenizer, task, {"text": None}) == ["[CLS]", "[MASK]", "News", ":", "[SEP]"]
    pair = PromptClassification.build(
        LABELS, tokenizer, pattern="{text} ? {mask} , {text_pair}", verbalizer=OPTIONS["verbalizer"]
    )
    row = {"text": "w1 w2", "text_pair": "w3"}
    assert said(tokenizer, pair, row) == ["[CLS]", "w1", "w2", "?", "[MASK]", ",", "w3", "[SEP]"]
    assert [
        row["label"]
        for row in task.encode([{"text": "w1", "label": n} for n in ("neg", "pos", "x")], tokenizer, 9)
    ] == [0, 1, -1]


def test_words_follow_the_labels(tokenizer: Any, task: PromptClassification) -> None:
    assert tokenizer.convert_ids_to_tokens(list(task.words)) == ["bad", "good"]
    assert [task.format_prediction(number) for number in (0, 1)] == ["neg", "pos"]
    itself = PromptClassification.build(("good", "bad"), tokenizer, pattern="{mask} {text}")
    assert tokenizer.convert_ids_to_tokens(list(itself.words)) == ["good", "bad"]


def test_a_space_belongs_to_what_follows_it_in_byte_level_vocabularies(bpe: Any) -> None:
    """Pieces put together are what the tokenizer makes of the whole sentence; the word has its space."""
    words = {"pos": "good", "neg": "bad"}
    task = PromptClassification.build(LABELS, bpe, pattern="It was {mask}. {text}", verbalizer=words)
    whole = bpe("It was<mask>. terrible films")["input_ids"]
    made = task.encode([{"text": "terrible films", "label": "pos"}], bpe, 30)[0]
    assert made["input_ids"] == whole
    assert bpe.convert_ids_to_tokens(list(task.words)) == ["Ġbad", "Ġgood"]
    with pytest.raises(ModelError, match="not one token"):  # without a space before it, the word is several
        PromptClassification.build(LABELS, bpe, pattern="{mask}: {text}", verbalizer=words)


@settings(max_examples=80)
@given(
    first=st.lists(st.sampled_from([*WORDS, "[MASK]", "[SEP]", "[PAD]", "x"]), max_size=20),
    second=st.lists(st.sampled_from([*WORDS, "[MASK]"]), max_size=20),
    max_length=st.integers(8, 30),
)
def test_texts_are_cut_and_the_pattern_never(
    tokenizer: Any, first: list[str], second: list[str], max_length: int
) -> None:
    task = PromptClassification.build(
        LABELS, tokenizer, pattern="{text} ? {mask} , {text_pair}", verbalizer=OPTIONS["verbalizer"]
    )
    tokens = said(tokenizer, task, {"text": " ".join(first), "text_pair": " ".join(second)}, max_length)
    one, two = (plain_ids(tokenizer, [" " + " ".join(words)])[0] for words in (first, second))
    assert len(tokens) == min(max_length, len(one) + len(two) + 5)
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    gap = tokens.index("[MASK]")
    assert (tokens[gap - 1], tokens[gap + 1]) == ("?", ",")
    ids = tokenizer.convert_tokens_to_ids(tokens)
    left, right = ids[1 : gap - 1], ids[gap + 2 : -1]
    assert (left, right) == (one[: len(left)], two[: len(right)])
    if len(left) < len(one) and len(right) < len(two):
        assert abs(len(left) - len(right)) <= 1
    elif len(left) < len(one):
        assert len(left) >= len(right)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 60))
def test_the_longer_text_is_cut_first(first: int, second: int, room: int) -> None:
    one, two = first, second
    while one + two > room:
        one, two = (one, two - 1) if two >= one else (one - 1, two)
    assert kept(first, second, room) == (one, two)


@pytest.mark.parametrize("text", ["w1 [MASK] w2", "[MASK]", "w1[MASK]", "[SEP] [CLS]"])
def test_special_tokens_written_out_in_a_text_are_none(
    tokenizer: Any, bpe: Any, task: PromptClassification, text: str
) -> None:
    tokens = said(tokenizer, task, {"text": text})
    assert (tokens.count("[CLS]"), tokens.count("[SEP]")) == (1, 1)
    words = {"pos": "good", "neg": "bad"}
    byte_task = PromptClassification.build(LABELS, bpe, pattern="It was {mask}. {text}", verbalizer=words)
    found = said(bpe, byte_task, {"text": text.replace("[MASK]", "<mask>").replace("[SEP]", "</s>")}, 60)
    assert (found.count("<s>"), found.count("</s>")) == (1, 1)
    assert (len(found) > 9) == ("MASK" in text or "SEP" in text)  # as plain text it is there


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"pattern": None}, ConfigError, "pattern is missing"),
        ({"pattern": 3}, ConfigError, "pattern is missing"),
        ({"pattern": "News: {text}"}, ConfigError, r"must hold {mask} once"),
        ({"pattern": "{mask} {mask} {text}"}, ConfigError, r"must hold {mask} once"),
        ({"pattern": "{mask} News"}, ConfigError, r"must hold {text} once"),
        ({"pattern": "{mask} {text} {text_pair} {text_pair}"}, ConfigError, "more than once"),
        ({"pattern": "{mask} {text} {title}"}, ConfigError, "{title}"),
        ({"pattern": "{mask} {text.__class__}"}, ConfigError, "__class__"),
        ({"pattern": "{mask} {text!r}"}, ConfigError, "holds {text!r}: it may hold"),
        ({"pattern": "{mask} {text:>9}"}, ConfigError, "holds {text:>9}: it may hold"),
        ({"pattern": "{mask} {text} {"}, ConfigError, "written twice"),
        ({"verbalizer": {"pos": "good"}}, ConfigError, "no word for 'neg'"),
        ({"verbalizer": {"pos": "good", "neg": " "}}, ConfigError, "no word for 'neg'"),
        ({"verbalizer": {"pos": "good", "neg": "w1 w2"}}, ModelError, "\"w1 w2\" for 'neg'.*'w1', 'w2'"),
        ({"verbalizer": {"pos": "good", "neg": "elsewhere"}}, ModelError, "elsewhere"),
        ({"verbalizer": {"pos": "good", "neg": "[MASK]"}}, ModelError, "not one token"),
        ({"verbalizer": {"pos": "good", "neg": "good"}}, ModelError, "same token"),
    ],
)
def test_what_cannot_be_is_refused(
    tokenizer: Any, change: dict[str, Any], kind: type[FednlpError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        PromptClassification.build(LABELS, tokenizer, **(OPTIONS | change))


def test_rows_and_models_that_do_not_fit_are_refused(
    tokenizer: Any, task: PromptClassification, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="needs a mask token"):
        PromptClassification.build(LABELS, wordpiece(tmp_path, mask_token=None), **OPTIONS)
    with pytest.raises(ModelError, match=r"5 tokens and model.max_length is 5"):
        task.encode([{"text": "w1", "label": "pos"}], tokenizer, 5)
    pair = PromptClassification.build(
        LABELS, tokenizer, pattern="{mask} {text} {text_pair}", verbalizer=OPTIONS["verbalizer"]
    )
    with pytest.raises(ConfigError, match=r"{text_pair} and the data has no column"):
        pair.encode([{"text": "w1", "label": "pos"}], tokenizer, 30)


def test_braces_written_twice_are_braces() -> None:
    assert [part.words for part in parts_of("{{ {mask} {text}") if part.kind == "words"] == ["{"]


def test_the_frame_is_what_the_tokenizer_puts_around_a_text(tokenizer: Any, bpe: Any) -> None:
    assert frame(tokenizer) == ([2], [3])
    assert frame(bpe) == ([0], [2])


def features_of(task: Any, tokenizer: Any, count: int = 20) -> Features:
    """Texts with w1 are good, others bad."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = list(rng.choice(WORDS[2:], rng.integers(1, 9)))
        words.insert(rng.integers(len(words) + 1), "w1" if number % 2 else "w0")
        rows.append({"text": " ".join(words), "label": LABELS[number % 2]})
    return Features.in_memory(task.encode(rows, tokenizer, 30))


def test_logits_are_those_of_the_words_at_the_mask(tokenizer: Any, task: PromptClassification) -> None:
    model, features, numbers = built(task, bert(len(tokenizer))), features_of(task, tokenizer), np.arange(20)
    losses, guesses = [], []
    for number in range(20):
        ids = torch.from_numpy(features.ragged("input_ids", number).astype(np.int64))[None]
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, features.values("gap")[number], list(task.words)]
        guesses.append(int(logits.argmax()))
        losses.append(-float(torch.log_softmax(logits, 0)[number % 2]))
    loss = task.loss(model, task.collate(features, numbers, CPU)).detach()
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-5)
    with torch.inference_mode():
        outcome = task.predict(model, features, numbers, CPU)
    assert outcome.predictions == guesses
    assert (outcome.loss, outcome.weight) == (pytest.approx(sum(losses), rel=1e-5), 20)


def test_predictions_do_not_depend_on_pieces(
    tokenizer: Any, task: PromptClassification, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = built(task, bert(len(tokenizer))), features_of(task, tokenizer)
    with torch.inference_mode():
        whole = task.predict(model, features, np.arange(20)[::-1], CPU)
        monkeypatch.setattr(blocks, "MAX_ROWS", 3)
        pieces = task.predict(model, features, np.arange(20)[::-1], CPU)
    assert pieces.predictions == whole.predictions
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)


def test_it_learns(tokenizer: Any, task: PromptClassification) -> None:
    model, features = built(task, bert(len(tokenizer))), features_of(task, tokenizer)
    fit(task, model, features, np.arange(20), steps=50, rate=0.005)
    with torch.inference_mode():
        outcome = task.predict(model, features, np.arange(20), CPU)
    metrics = task.metrics(outcome.predictions, features, np.arange(20))
    assert metrics["accuracy"] > 0.9
    assert set(metrics) == {"accuracy", "macro_f1", "mcc"}
    statistics = task.statistics(outcome.predictions, features, np.arange(20))
    assert abs(task.score(statistics.sum(0)) - metrics["accuracy"]) < 1e-9


def test_it_is_built_again_from_json(task: PromptClassification) -> None:
    fields = json.loads(json.dumps(asdict(task)))
    again = PromptClassification(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
    assert again == task
    assert task.uses_only_input_ids
