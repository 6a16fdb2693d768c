"""Text classification: pairs, padding, smoothing, and the metrics of scikit-learn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.tasks import task_class
from fednlp.tasks.text_classification import TextClassification

CPU = torch.device("cpu")
TASK = TextClassification(("different", "same"))


def pairs(count: int) -> list[dict[str, str | None]]:
    """Return pairs whose label says whether they begin alike; their lengths differ."""
    directions = ["north", "south", "east", "west"]
    rows: list[dict[str, str | None]] = []
    for number in range(count):
        first, other = directions[number % 4], directions[(number + number // 4 % 2) % 4]
        rows.append(
            {
                "text": first + " up" * (number % 5),
                "text_pair": other + " down" * (number % 3),
                "label": "same" if first == other else "different",
            }
        )
    return rows


@pytest.fixture(scope="module")
def features(tokenizer: Any) -> Features:
    return Features.in_memory(TASK.encode(pairs(24), tokenizer, 32))


def test_pairs_have_token_types(features: Features) -> None:
    ids, kinds = features.ragged("input_ids", 1), features.ragged("token_type_ids", 1)
    assert len(ids) == len(kinds)
    assert kinds.tolist() == [0, 0, 0, 0, 1, 1, 1]  # [CLS] south up [SEP] south down [SEP]
    batch = TASK.collate(features, np.arange(5), CPU)
    assert batch["token_type_ids"].shape == batch["input_ids"].shape == batch["attention_mask"].shape
    assert batch["attention_mask"].sum(1).tolist() == features.lengths(np.arange(5)).tolist()


def test_one_text_has_no_token_types(tokenizer: Any) -> None:
    rows = [{"text": text, "label": "same"} for text in ("up down", "")]
    made = TASK.encode(rows, tokenizer, 8)
    assert [set(row) for row in made] == [{"input_ids", "label"}] * 2
    assert made[1]["input_ids"] == [2, 3]


def test_a_missing_second_text_is_an_empty_one(tokenizer: Any) -> None:
    rows = [
        {"text": "up", "text_pair": None, "label": "same"},
        {"text": "", "text_pair": "up", "label": None},
    ]
    made = TASK.encode(rows, tokenizer, 8)
    assert made[0]["token_type_ids"] == [0, 0, 0, 1]
    assert made[1]["label"] == -1


@given(st.lists(st.sampled_from(["up", "down"]), max_size=30), st.integers(4, 20))
def test_the_longer_text_is_cut(tokenizer: Any, words: list[str], limit: int) -> None:
    row: dict[str, str | None] = {"text": " ".join(words), "text_pair": "north", "label": "same"}
    (made,) = TASK.encode([row], tokenizer, limit)
    assert len(made["input_ids"]) == min(limit, len(words) + 4)
    assert len(made["input_ids"]) == len(made["token_type_ids"])
    assert not words or made["input_ids"][-2] == tokenizer.convert_tokens_to_ids("north") or limit == 4


def test_a_tokenizer_without_tokens_gives_padding(byte_tokenizer: Any) -> None:
    task = TextClassification.build(["a", "b"], byte_tokenizer)
    assert task.padding == byte_tokenizer.eos_token_id
    assert task.encode([{"text": "", "label": "a"}], byte_tokenizer, 8)[0]["input_ids"] == [task.padding]


def test_a_batch_gives_the_logits_of_each_alone(features: Features, model_for: Callable[..., Any]) -> None:
    model = model_for(TASK)
    with torch.inference_mode():
        together = TASK.collate(features, np.arange(24), CPU)
        assert together["attention_mask"].min() == 0
        labels = together.pop("labels")
        logits = model(**together).logits
        for number in range(24):
            alone = TASK.collate(features, np.asarray([number]), CPU)
            assert alone.pop("labels").item() == labels[number]
            assert torch.allclose(model(**alone).logits[0], logits[number], atol=1e-5)
        assert not torch.allclose(
            model(**(together | {"token_type_ids": together["token_type_ids"] * 0})).logits, logits, atol=1e-3
        )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_label_smoothing_is_that_of_pytorch(
    features: Features, model_for: Callable[..., Any], smoothing: float
) -> None:
    task, model = replace(TASK, label_smoothing_factor=smoothing), model_for(TASK)
    batch = task.collate(features, np.arange(8), CPU, training=True)
    logits = model(**{name: batch[name] for name in batch if name != "labels"}).logits
    shares = F.one_hot(batch["labels"], 2) * (1 - smoothing) + smoothing / 2
    expected = -(shares * logits.log_softmax(1)).sum(1).mean()
    assert task.loss(model, batch).item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_outcome_is_that_of_the_logits(
    features: Features, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    model, numbers = model_for(TASK), np.asarray([5, 3, 20])
    outcome = predicted(TASK, model, features, numbers)
    batch = TASK.collate(features, numbers, CPU)
    logits = model(**{name: batch[name] for name in batch if name != "labels"}).logits
    assert outcome.indices == [5, 3, 20]
    assert outcome.predictions == logits.argmax(1).tolist()
    assert outcome.loss / outcome.weight == pytest.approx(
        F.cross_entropy(logits, batch["labels"]).item(), abs=1e-5
    )
    assert [TASK.format_prediction(p) for p in (0, 1)] == ["different", "same"]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), min_size=1, max_size=40))
@pytest.mark.whole
def test_metrics_are_those_of_scikit_learn(drawn: list[tuple[int, int]]) -> None:
    from sklearn.metrics import classification_report, confusion_matrix

    task = TextClassification(("a", "b", "c", "d"))
    truth, guess = ([pair[side] for pair in drawn] for side in (0, 1))
    features = Features.in_memory([{"input_ids": [1], "label": label} for label in truth])
    numbers = np.arange(len(drawn))
    metrics = task.metrics(guess, features, numbers)
    assert metrics["accuracy"] == pytest.approx(np.mean(np.equal(truth, guess)), abs=1e-9)
    sums = task.statistics(guess, features, numbers)
    assert sums.shape == (len(drawn), 2)
    assert float(task.score(sums.sum(0))) == pytest.approx(metrics["accuracy"], abs=1e-9)
    drawn = [pair for pair in drawn if pair[0] >= 0]  # an unknown label is no class
    if not drawn:
        assert np.isnan([metrics["macro_f1"], metrics["mcc"]]).all()
        return
    truth, guess = ([pair[side] for pair in drawn] for side in (0, 1))
    report = classification_report(truth, guess, output_dict=True, zero_division=0)
    assert metrics["macro_f1"] == pytest.approx(report["macro avg"]["f1-score"], abs=1e-9)
    matrix = confusion_matrix(truth, guess, labels=[0, 1, 2, 3]).astype(float)
    rows, columns, n = matrix.sum(1), matrix.sum(0), matrix.sum()
    below = np.sqrt((n**2 - rows @ rows) * (n**2 - columns @ columns))  # Gorodkin 2004
    above = matrix.trace() * n - rows @ columns
    assert metrics["mcc"] == pytest.approx(above / below if below else 0.0, abs=1e-9)


def test_texts_with_an_unknown_label_are_wrong_and_change_neither_loss_nor_macro_f1(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    known, strange = pairs(12), [row | {"label": "unheard"} for row in pairs(12)]
    model, found = model_for(TASK), []
    for rows in (known, known + strange):
        features = Features.in_memory(TASK.encode(rows, tokenizer, 32))
        outcome = predicted(TASK, model, features)
        metrics = TASK.metrics(outcome.predictions, features, np.arange(len(rows)))
        found.append(metrics | {"loss": outcome.loss / outcome.weight})
    one, both = found
    assert both["accuracy"] == pytest.approx(one["accuracy"] / 2)
    assert {name: both[name] for name in ("macro_f1", "mcc", "loss")} == pytest.approx(
        {name: one[name] for name in ("macro_f1", "mcc", "loss")}, rel=1e-5
    )


def test_nothing_scores_nothing(features: Features) -> None:
    found = TASK.metrics([], features, np.arange(0))
    np.testing.assert_equal(found, {"accuracy": 0.0, "macro_f1": np.nan, "mcc": np.nan})
    assert TASK.score(np.zeros((3, 2))).tolist() == [0.0] * 3


@pytest.mark.whole
def test_learns(features: Features, fitted: Callable[..., dict[str, float]]) -> None:
    assert task_class("text-classification") is TextClassification
    assert fitted(TASK, features, steps=150)["accuracy"] > 0.9


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40))
def test_a_client_s_own_score_is_scikit_learn_s_in_the_configured_metric(
    rows: list[tuple[int, int, int]],
) -> None:
    """Of each client by sums over its examples, and of all by the sums of these: as ``metrics`` has it."""
    truth, guess, owner = (np.array(column) for column in zip(*rows, strict=True))
    features = Features.in_memory([{"input_ids": [1], "label": int(label)} for label in truth])
    labels = ("a", "b", "c")
    for metric in ("accuracy", "macro_f1", "mcc", "f1"):
        positive = {"positive_label": "a"} if metric == "f1" else {}
        task = TextClassification(labels, metric=metric, **positive)
        statistics = task.statistics(guess.tolist(), features, np.arange(len(truth)))
        sums = np.stack([statistics[owner == client].sum(0) for client in range(4)])
        for client, score in enumerate(task.score(sums)):
            own = np.flatnonzero(owner == client)
            if len(own):
                wanted = task.metrics(guess[own].tolist(), features, own)[metric]
                np.testing.assert_allclose(score, wanted, atol=1e-12, equal_nan=True)
            else:
                assert np.isnan(score) or metric == "accuracy"
        everyone = np.arange(len(truth))
        of_sums = task.metrics_of_sums(task.sums(guess.tolist(), features, everyone))[metric]
        np.testing.assert_allclose(task.score(sums.sum(0)), of_sums, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(
    "options", [{"metric": "f1"}, {"metric": "mcc", "positive_label": "same"}, {"positive_label": "x"}]
)
def test_the_f1_of_a_label_needs_a_label(options: dict[str, Any], tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="positive_label go together: say whose F1 it is"):
        TextClassification.build(("different", "same"), tokenizer, **options)


def test_the_f1_of_an_unknown_label_is_refused_with_the_labels(tokenizer: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"'sam': the data have no such label; choose .* 'different' or 'same'"
    ):
        TextClassification.build(("different", "same"), tokenizer, metric="f1", positive_label="sam")
