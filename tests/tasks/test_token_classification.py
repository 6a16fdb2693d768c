"""Sequence tagging: words and tokens, words without a token, tags that training never saw, seqeval's figures."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.tasks import task_class, task_from
from fednlp.tasks.token_classification import TokenClassification

CPU = torch.device("cpu")
LABELS = ("B-DIR", "B-LET", "I-LET", "O")
TASK = TokenClassification(LABELS)
INVISIBLE = "\u200b"


def row(words: list[str], tags: list[str]) -> dict[str, str | None]:
    return {"words": json.dumps(words), "tags": json.dumps(tags)}


def encoded(tokenizer: Any, *rows: dict[str, str | None], limit: int = 64, task: Any = TASK) -> Features:
    return Features.in_memory(task.encode(rows, tokenizer, limit))


def sentences(count: int) -> list[dict[str, str | None]]:
    """Return sentences of one to nine words whose tags are those of their words."""
    rng = random.Random(0)
    rows = []
    for _ in range(count):
        words: list[str] = []
        tags: list[str] = []
        for _ in range(rng.randint(1, 4)):
            kind = rng.choice(["DIR", "LET", "O"])
            piece = {
                "DIR": [rng.choice(["north", "south"])],
                "LET": [rng.choice(["alpha", "beta"]), rng.choice(["gamma", "delta"])],
                "O": ["the", "why"],
            }[kind]
            words += piece
            tags += ["O"] * len(piece) if kind == "O" else [f"B-{kind}", *[f"I-{kind}"] * (len(piece) - 1)]
        rows.append(row(words, tags))
    return rows


def test_only_the_first_token_of_a_word_has_its_tag(tokenizer: Any) -> None:
    features = encoded(tokenizer, row(["the", "xyz", "north"], ["O", "B-LET", "B-DIR"]))
    assert tokenizer.convert_ids_to_tokens(features.ragged("input_ids", 0).tolist()) == [
        *("[CLS]", "the", "x", "##y", "##z", "north", "[SEP]")
    ]
    assert features.ragged("places", 0).tolist() == [1, 2, 5]
    labels = TASK.collate(features, np.arange(1), CPU)["labels"]
    assert labels.tolist() == [[-100, 3, 1, -100, -100, 0, -100]]


@given(
    st.lists(st.sampled_from(["the", "xyz", "a-b", "", " ", INVISIBLE, f"e{INVISIBLE}f", "été", "New York"])),
    st.integers(4, 24),
)
def test_every_word_has_its_own_first_token_or_none(tokenizer: Any, words: list[str], limit: int) -> None:
    features = encoded(tokenizer, row(words, ["O"] * len(words)), limit=limit)
    places = features.ragged("places", 0)
    assert len(places) == len(words)
    assert 1 <= len(features.ragged("input_ids", 0)) <= limit
    tokens = [len(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in words]
    begins = 1 + np.cumsum([0, *tokens])[:-1]
    expected = [
        begin if count and begin < limit - 1 else -1
        for begin, count in zip(begins.tolist(), tokens, strict=True)
    ]
    assert places.tolist() == expected


def test_words_that_are_not_read_are_outside_and_counted(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    words = ["north", INVISIBLE, "alpha", "beta", "south"]
    features = encoded(tokenizer, row(words, ["B-DIR", "B-DIR", "B-LET", "I-LET", "B-DIR"]), limit=5)
    (tags,) = predicted(TASK, model_for(TASK), features).predictions
    assert [len(tags), tags[1], tags[4]] == [5, "O", "O"]
    metrics = TASK.metrics([["B-DIR", "O", "B-LET", "I-LET", "O"]], features, np.arange(1))
    assert metrics == pytest.approx(
        {"precision": 1, "recall": 2 / 4, "f1": 4 / 6, "accuracy": 3 / 5, "unread_words": 2 / 5}
    )


def test_tags_that_training_never_saw_are_spans_that_were_missed(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    features = encoded(tokenizer, row(["north", "up", "down"], ["B-DIR", "B-new-kind", "I-new-kind"]))
    assert TASK.collate(features, np.arange(1), CPU)["labels"].tolist() == [[-100, 0, -100, -100, -100]]
    assert TASK.statistics([["B-DIR", "O", "O"]], features, np.arange(1)).tolist() == [[1, 1, 2]]
    outcome = predicted(TASK, model_for(TASK), features)
    assert outcome.weight == 1
    assert np.isfinite(outcome.loss)


def test_sentences_without_words(
    tokenizer: Any, byte_tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    features = encoded(tokenizer, row([], []), row([], []))
    model = model_for(TASK)
    outcome = predicted(TASK, model, features)
    assert (outcome.predictions, outcome.loss, outcome.weight) == ([[], []], 0, 0)
    assert set(TASK.metrics([[], []], features, np.arange(2)).values()) == {0.0}
    loss = TASK.loss(model, TASK.collate(features, np.arange(2), CPU, training=True))
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    empty = TokenClassification.build(LABELS, byte_tokenizer).encode([row([], [])], byte_tokenizer, 8)
    assert empty[0]["input_ids"] == [byte_tokenizer.eos_token_id]
    assert TASK.encode([], tokenizer, 8) == []


def test_loss_is_the_mean_over_labelled_words(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    features, model = encoded(tokenizer, *sentences(6)), model_for(TASK)
    losses = []
    for number in range(6):
        ids = torch.from_numpy(features.ragged("input_ids", number).astype(np.int64))[None]
        scores = model(input_ids=ids).logits[0].log_softmax(-1)
        places, tags = features.ragged("places", number).tolist(), features.ragged("tags", number).tolist()
        losses += [-scores[place, tag].item() for place, tag in zip(places, tags, strict=True)]
        assert predicted(TASK, model, features).predictions[number] == [
            LABELS[scores[p].argmax()] for p in places
        ]
    batch = TASK.collate(features, np.arange(6), CPU)
    assert batch["attention_mask"].min() == 0
    assert TASK.loss(model, batch).item() == pytest.approx(np.mean(losses), rel=1e-5)
    outcome = predicted(TASK, model, features)
    assert outcome.loss / outcome.weight == pytest.approx(np.mean(losses), rel=1e-5)


TAGGED = st.lists(
    st.lists(st.tuples(*[st.sampled_from(["O", "B-A", "I-A", "B-b-c", "I-b-c", "I-B"])] * 2), max_size=8),
    min_size=1,
    max_size=6,
)


@given(TAGGED, st.sampled_from(["default", "strict"]))
def test_metrics_are_those_of_seqeval(
    tokenizer: Any, tagged: list[list[tuple[str, str]]], scheme: str
) -> None:
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
    from seqeval.scheme import IOB2

    task = TokenClassification.build(["B-A", "I-A", "O"], tokenizer, scheme=scheme)
    gold, guess = ([[pair[side] for pair in words] for words in tagged] for side in (0, 1))
    features = encoded(tokenizer, *(row(["up"] * len(tags), tags) for tags in gold), task=task, limit=6)
    numbers = np.arange(len(tagged))
    metrics = task.metrics(guess, features, numbers)
    mode = {"mode": "strict", "scheme": IOB2} if scheme == "strict" else {}
    for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        assert metrics[name] == pytest.approx(score(gold, guess, zero_division=0, **mode), abs=1e-9)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(gold, guess) if any(gold) else 0.0, abs=1e-9)
    sums = task.statistics(guess, features, numbers)
    assert float(task.score(sums.sum(0))) == pytest.approx(metrics["f1"], abs=1e-9)
    for number in range(len(tagged)):
        own = f1_score(gold[number : number + 1], guess[number : number + 1], zero_division=0, **mode)
        assert float(task.score(sums[number])) == pytest.approx(own, abs=1e-9)


@pytest.mark.parametrize("prefix", [False, True])
def test_byte_level_tokens_are_those_of_running_text(byte_tokenizer: Any, prefix: bool) -> None:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=prefix)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")
    words = ["the", "alpha", "up", "xyz"]
    features = encoded(tokenizer, row(words, ["O"] * 4))
    ids = features.ragged("input_ids", 0).tolist()
    assert ids == tokenizer(" ".join(words))["input_ids"]
    firsts = [ids[place] for place in features.ragged("places", 0).tolist()]
    assert tokenizer.convert_ids_to_tokens(firsts)[1:3] == ["Ġalpha", "Ġ"]


def test_a_tokenizer_that_refuses_split_text() -> None:
    def refuse(text: Any, **options: Any) -> Any:
        if options.get("is_split_into_words"):
            raise AssertionError("instantiate with add_prefix_space=True")
        return {"input_ids": [1, 1]}

    with pytest.raises(ModelError, match="add_prefix_space"):
        TASK.encode([row(["up"], ["O"])], refuse, 8)


@pytest.mark.parametrize(
    ("tags", "options", "metric"),
    [
        (["DET", "NOUN", "VERB"], {}, "accuracy"),
        (["DET", "NOUN"], {"metric": "f1"}, "f1"),
        (["B-A", "I-A"], {}, "f1"),
        (["COMMA", "O"], {}, "f1"),
        (["B-A", "O"], {"metric": "accuracy"}, "accuracy"),
    ],
)
def test_the_metric_of_tags_without_spans_is_accuracy(
    tokenizer: Any, tags: list[str], options: dict[str, Any], metric: str
) -> None:
    task = TokenClassification.build(tags, tokenizer, **options)
    gold, guess = [tags, tags[:1]], [tags[::-1], tags[:1]]
    features = encoded(tokenizer, *(row(["up"] * len(own), own) for own in gold), task=task)
    sums = task.statistics(guess, features, np.arange(2)).sum(0)
    assert task.metric == metric
    assert float(task.score(sums)) == pytest.approx(task.metrics(guess, features, np.arange(2))[metric])
    assert task_from(task.name, json.loads(json.dumps(asdict(task)))) == task


def test_options(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r'scheme = "iob".*"strict"'):
        TokenClassification.build(LABELS, tokenizer, scheme="iob")
    with pytest.raises(ConfigError, match=r'task.metric = "mcc" is not for tags'):
        TokenClassification.build(LABELS, tokenizer, metric="mcc")
    task = TokenClassification.build(LABELS, tokenizer, scheme="strict")
    assert task_from(task.name, json.loads(json.dumps(asdict(task)))) == task
    assert task_class("token-classification") is TokenClassification
    assert task.settings()["id2label"] == {0: "B-DIR", 1: "B-LET", 2: "I-LET", 3: "O"}
    assert task.format_prediction(["O", "B-DIR"]) == "O B-DIR"


@pytest.mark.whole
def test_learns(tokenizer: Any, fitted: Callable[..., dict[str, float]]) -> None:
    metrics = fitted(TASK, encoded(tokenizer, *sentences(32)), steps=120)
    assert metrics["f1"] > 0.9
    assert metrics["unread_words"] == 0


def test_real_sentences(tokenizer: Any, data_folder: Path) -> None:
    from seqeval.metrics import f1_score

    lines = (data_folder / "wnut17" / "emerging.test.annotated").read_text(encoding="utf-8").split("\n")
    rows, tags = [], []
    for block in "\n".join(lines).split("\n\n"):
        columns = [line.split("\t") for line in block.split("\n") if line.strip()]
        tags.append([column[1] for column in columns])
        rows.append(row([column[0] for column in columns], tags[-1]))
    task = TokenClassification(tuple(sorted({tag for sentence in tags for tag in sentence})))
    features = encoded(tokenizer, *rows, task=task, limit=48)
    assert len(rows) > 1000
    rng = random.Random(0)
    guess = [
        [tag if rng.random() < 0.8 else rng.choice(task.labels) for tag in sentence] for sentence in tags
    ]
    metrics = task.metrics(guess, features, np.arange(len(rows)))
    assert metrics["f1"] == pytest.approx(f1_score(tags, guess), abs=1e-9)
    assert 0.2 < metrics["f1"] < 0.8
    assert 0 < metrics["unread_words"] < 1
