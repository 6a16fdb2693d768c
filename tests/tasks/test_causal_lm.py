"""Causal language modelling: every token once, padding never, and transformers' own loss."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.tasks import blocks
from fednlp.tasks.causal_lm import CausalLM
from fednlp.tasks.language_modeling import LanguageModeling

from .models import CPU, WORDS, built, fit, gpt2, wordpiece

LENGTHS = (5, 40, 1, 17, 8, 23, 12, 3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer with an end but no beginning, whose padding is its end."""
    return wordpiece(tmp_path_factory.mktemp("tokenizer"), eos_token="</s>", pad_token="</s>")


def text_of(length: int, seed: int = 0) -> str:
    return " ".join(np.random.default_rng([seed, length]).choice(WORDS, length))


def features_of(task: Any, tokenizer: Any, lengths: Any = LENGTHS, max_length: int = 9) -> Features:
    rows = [{"text": text_of(length)} for length in lengths]
    return Features.in_memory(task.encode(rows, tokenizer, max_length))


@pytest.fixture(scope="module")
def task(tokenizer: Any) -> CausalLM:
    return CausalLM.build([], tokenizer)


def predictions(task: Any, model: Any, features: Features, batch: int) -> list[Any]:
    numbers, found = np.arange(len(features)), []
    with torch.inference_mode():
        for start in range(0, len(numbers), batch):
            found += task.predict(model, features, numbers[start : start + batch], CPU).predictions
    return found


def by_hand(model: Any, ids: list[int], block: int) -> tuple[float, int, int]:
    """Loss, right tokens and tokens, one at a time: each from what stands before it in its block."""
    loss, right = 0.0, 0
    for place in range(1, len(ids)):
        start = (place - 1) // (block - 1) * (block - 1)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids[start:place]])).logits[0, -1].double()
        loss -= float(torch.log_softmax(logits, 0)[ids[place]])
        right += int(logits.argmax()) == ids[place]
    return loss, right, len(ids) - 1


def test_a_text_is_its_tokens_between_beginning_and_end(
    tokenizer: Any, task: CausalLM, tmp_path: Path
) -> None:
    words = tokenizer("w3 w4", add_special_tokens=False)["input_ids"]
    assert task.encode([{"text": "w3 w4"}], tokenizer, 9) == [
        {"input_ids": [*words, tokenizer.eos_token_id], "block": 9}
    ]
    both = wordpiece(tmp_path, bos_token="<s>", eos_token="</s>")
    ids = CausalLM.build([], both).encode([{"text": "w3"}, {"text": None}], both, 9)
    begin, end = both.bos_token_id, both.eos_token_id
    assert [row["input_ids"] for row in ids] == [[begin, both.vocab["w3"], end], [begin, end]]
    assert CausalLM(padding=7).encode([{"text": ""}], wordpiece(tmp_path / "none"), 9)[0]["input_ids"] == [7]


@settings(max_examples=80)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), block=st.integers(2, 8), data=st.data())
def test_every_token_but_the_first_is_predicted_once(lengths: list[int], block: int, data: Any) -> None:
    made = [[number * 100 + place for place in range(length)] for number, length in enumerate(lengths)]
    features = Features.in_memory([{"input_ids": ids, "block": block} for ids in made])
    numbers = np.array(data.draw(st.permutations(range(len(lengths)))))
    batch = CausalLM(padding=5).collate(features, numbers, CPU)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert ids.shape[1] <= block
    assert sorted(batch["labels"].tolist()) == sorted(token for tokens in made for token in tokens[1:])
    np.testing.assert_array_equal(batch["labels"] // 100, numbers[batch["owners"]])
    before = ids.flatten()[batch["places"]]
    np.testing.assert_array_equal(before + 1, batch["labels"])
    assert bool(mask.flatten()[batch["places"]].all())
    assert bool(mask.flatten()[batch["places"] + 1].all())
    assert bool((ids[mask == 0] == 5).all())


def test_the_loss_is_that_of_transformers(tokenizer: Any, task: CausalLM) -> None:
    model, features = built(task, gpt2(len(tokenizer))), features_of(task, tokenizer, (7,), 64)
    row = torch.from_numpy(features.ragged("input_ids", 0).astype(np.int64))[None]
    expected = model(input_ids=row, labels=row).loss.detach()
    found = task.loss(model, task.collate(features, np.arange(1), CPU)).detach()
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_predictions_are_those_of_a_loop_whatever_the_batch_and_the_side_of_padding(
    tokenizer: Any, task: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = built(task, gpt2(len(tokenizer))), features_of(task, tokenizer)
    expected = [by_hand(model, features.ragged("input_ids", n).tolist(), 9) for n in range(len(features))]
    for batch in (1, 8):
        for found, (loss, right, count) in zip(
            predictions(task, model, features, batch), expected, strict=True
        ):
            assert found[:2] == [right, count]
            assert found[2] == pytest.approx(loss, rel=1e-5)
    total, count = sum(row[0] for row in expected), sum(row[2] for row in expected)
    metrics = task.metrics(predictions(task, model, features, 8), features, np.arange(len(features)))
    assert metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert metrics["accuracy"] == sum(row[1] for row in expected) / count
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    again = features_of(CausalLM.build([], tokenizer), tokenizer)
    assert predictions(task, model, again, 8) == predictions(task, model, features, 8)


def test_padding_is_no_token_even_where_its_id_is_one(tokenizer: Any, task: CausalLM) -> None:
    """The padding's id is the end's: the end is predicted, padding is not."""
    assert task.padding == tokenizer.eos_token_id
    model, features = built(task, gpt2(len(tokenizer))), features_of(task, tokenizer, (2, 8), 64)
    batch = task.collate(features, np.arange(2), CPU)
    assert batch["labels"].tolist().count(task.padding) == 2
    other = dict(batch, input_ids=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 9))
    assert not torch.equal(other["input_ids"], batch["input_ids"])
    torch.testing.assert_close(task.loss(model, other), task.loss(model, batch))


def test_the_statistics_give_the_metric(tokenizer: Any, task: CausalLM) -> None:
    model, features = built(task, gpt2(len(tokenizer))), features_of(task, tokenizer)
    numbers = np.arange(len(features))
    with torch.inference_mode():
        outcome = task.predict(model, features, numbers, CPU)
    metrics = task.metrics(outcome.predictions, features, numbers)
    statistics = task.statistics(outcome.predictions, features, numbers)
    assert statistics.dtype == np.float64
    assert abs(task.score(statistics.sum(0)) - metrics[task.metric]) < 1e-9
    assert task.score(np.zeros((2, 2))).tolist() == [0, 0]
    assert metrics["perplexity"] == pytest.approx(math.exp(outcome.loss / outcome.weight))
    assert outcome.weight == features.lengths(numbers).sum() - len(numbers)
    assert task.format_prediction(outcome.predictions[0]) == pytest.approx(
        math.exp(outcome.predictions[0][2] / outcome.predictions[0][1])
    )


def test_many_rows_are_read_in_pieces_to_the_same_end(
    tokenizer: Any, task: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = built(task, gpt2(len(tokenizer))), features_of(task, tokenizer)
    batch = task.collate(features, np.arange(len(features)), CPU)

    def all_of() -> tuple[list[Any], float, list[torch.Tensor]]:
        loss = task.loss(model, batch)
        model.zero_grad()
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        return predictions(task, model, features, 8), float(loss.detach()), gradients

    whole = all_of()
    rows: list[int] = []
    inner = model.forward
    monkeypatch.setattr(
        model, "forward", lambda **given: rows.append(len(given["input_ids"])) or inner(**given)
    )
    monkeypatch.setattr(blocks, "MAX_ROWS", 3)
    pieces = all_of()
    assert max(rows) == 3
    monkeypatch.setattr(blocks, "MAX_LOGITS", 2 * 9 * len(tokenizer))
    rows.clear()
    all_of()
    assert max(rows) == 2
    assert [row[:2] for row in pieces[0]] == [row[:2] for row in whole[0]]
    assert pieces[1] == pytest.approx(whole[1], rel=1e-6)
    for one, other in zip(pieces[2], whole[2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_it_learns_by_heart(tokenizer: Any, task: CausalLM) -> None:
    model, features = (
        built(task, gpt2(len(tokenizer), n_positions=16)),
        features_of(task, tokenizer, (6, 20, 9)),
    )
    numbers = np.arange(3)
    fit(task, model, features, numbers, steps=60, rate=0.01)
    metrics = task.metrics(predictions(task, model, features, 3), features, numbers)
    assert metrics["accuracy"] > 0.8  # a block begins with one word of context, so some are left to chance
    assert metrics["perplexity"] < 2.5


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e9])
def test_no_score_is_infinite(tokenizer: Any, task: CausalLM, loss: float) -> None:
    """A model that has burst still has a perplexity that JSON can hold."""

    class Burst(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            logits = F.one_hot(torch.zeros_like(input_ids), len(tokenizer)) * loss
            return type("Output", (), {"logits": logits})()

    features = features_of(task, tokenizer, (4, 2))
    with torch.inference_mode():
        outcome = task.predict(Burst(), features, np.arange(2), CPU)
    metrics = task.metrics(outcome.predictions, features, np.arange(2))
    json.dumps([outcome.predictions, metrics], allow_nan=False)
    assert metrics["perplexity"] > 1e300
    assert task.metrics([[0, 0, 0.0]], features, np.arange(1)) == {"accuracy": 0.0, "perplexity": 0.0}


def test_it_is_built_again_from_json(task: CausalLM) -> None:
    assert CausalLM(**json.loads(json.dumps(asdict(task)))) == task
    assert isinstance(task, LanguageModeling)


def test_the_baseline_is_the_frequency_of_tokens(task: CausalLM) -> None:
    """By hand: of five tokens in training three are 7 and two 8; each is counted once more, as all others are."""
    train = Features.in_memory(
        [
            {"input_ids": [5, 7, 7, 8], "block": 9},
            {"input_ids": [5, 7, 8], "block": 9},
            {"input_ids": [9] * 9, "block": 9},
        ]
    )
    test = Features.in_memory([{"input_ids": [5, 8], "block": 9}, {"input_ids": [5, 7, 6, 7], "block": 3}])
    name, found = task.baseline(train, np.array([0, 1]), test, np.array([1, 0]))
    total = task.vocabulary + 5
    assert name == "each token as often as in training"
    assert [row[:2] for row in found] == [[2, 3], [0, 1]]
    assert found[0][2] == pytest.approx(-2 * math.log(4 / total) - math.log(1 / total))
    assert found[1][2] == pytest.approx(-math.log(3 / total))
    assert task.metrics(found, test, np.array([1, 0]))["accuracy"] == 0.5
