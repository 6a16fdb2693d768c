"""Masked language modelling: what is hidden, how, and transformers' own loss."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.tasks import blocks
from fednlp.tasks.masked_lm import MaskedLM

from .models import CPU, WORDS, bert, built, fit, wordpiece

SPECIAL = (0, 1, 2, 3, 4)
MASK = 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wordpiece(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def task(tokenizer: Any) -> MaskedLM:
    return MaskedLM.build([], tokenizer)


def features_of(task: Any, tokenizer: Any, lengths: Any, max_length: int = 12) -> Features:
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(rng.choice(WORDS, length))} for length in lengths]
    return Features.in_memory(task.encode(rows, tokenizer, max_length))


def test_a_tokenizer_without_a_mask_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"masked-lm needs a mask token.*BERT"):
        MaskedLM.build([], wordpiece(tmp_path, mask_token=None))


@pytest.mark.parametrize("probability", [0, -0.1, 1.5, float("nan")])
def test_a_probability_is_one(tokenizer: Any, probability: float) -> None:
    with pytest.raises(ConfigError, match="mlm_probability"):
        MaskedLM.build([], tokenizer, mlm_probability=probability)


def test_the_task_knows_its_tokenizer(task: MaskedLM) -> None:
    assert (task.mask, task.special, task.padding, task.vocabulary) == (MASK, SPECIAL, 0, 25)
    assert task.uses_only_input_ids is False
    again = {
        k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(json.dumps(asdict(task))).items()
    }
    assert MaskedLM(**again) == task


@settings(max_examples=50)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(3, 12))
def test_blocks_hold_all_words_each_with_its_special_tokens(
    tokenizer: Any, task: MaskedLM, lengths: list[int], max_length: int
) -> None:
    features = features_of(task, tokenizer, lengths, max_length)
    batch = task.collate(features, np.arange(len(lengths)), CPU)
    rows = blocks.split_into_rows(features.all_lengths, features.values("block"), 0)
    plain = blocks.pad_rows(features.words(np.arange(len(lengths))), *rows[:2], 0)
    assert batch["input_ids"].shape == plain.shape
    assert plain.shape[1] <= max_length
    kept = [[] for _ in lengths]
    for row, width, owner in zip(plain.tolist(), *(part.tolist() for part in rows[1:]), strict=True):
        assert (row[0], row[width - 1]) == (2, 3)
        kept[owner] += row[1 : width - 1]
    for number, length in enumerate(lengths):
        rng = np.random.default_rng(0)
        drawn = [rng.choice(WORDS, size) for size in lengths][number]
        assert kept[number] == tokenizer.convert_tokens_to_ids(list(drawn))
        assert len(kept[number]) == length


@pytest.mark.parametrize("training", [False, True])
def test_special_tokens_are_never_hidden_and_something_always_is(
    tokenizer: Any, task: MaskedLM, training: bool
) -> None:
    rows = [{"text": text} for text in ("w1", "w1 [SEP] [MASK] unknown", "unknown [CLS]", "", "w1 w2 " * 20)]
    features = Features.in_memory(task.encode(rows, tokenizer, 12))
    for _ in range(20):
        batch = task.collate(features, np.arange(5), CPU, training=training)
        assert set(batch["owners"].tolist()) == {0, 1, 4}
        assert not set(batch["labels"].tolist()) & set(SPECIAL)


@settings(max_examples=40)
@given(st.permutations(range(6)), st.integers(1, 6))
def test_in_evaluation_an_examples_gaps_are_its_own(
    tokenizer: Any, task: MaskedLM, order: list[int], count: int
) -> None:
    features = features_of(task, tokenizer, (3, 30, 8, 1, 19, 11))
    alone = {}
    for number in range(6):
        batch = task.collate(features, np.array([number]), CPU)
        row, column = (
            batch["places"] // batch["input_ids"].shape[1],
            batch["places"] % batch["input_ids"].shape[1],
        )
        alone[number] = list(zip(row.tolist(), column.tolist(), batch["labels"].tolist(), strict=True))
    numbers = np.array(order[:count])
    batch = task.collate(features, numbers, CPU)
    width = batch["input_ids"].shape[1]
    assert set(batch["input_ids"].flatten()[batch["places"]].tolist()) == {MASK}
    assert int((batch["input_ids"] == MASK).sum()) == len(batch["places"])
    first = 0
    for position, number in enumerate(numbers.tolist()):
        mine = batch["owners"] == position
        rows = batch["places"][mine] // width - first
        found = zip(
            rows.tolist(),
            (batch["places"][mine] % width).tolist(),
            batch["labels"][mine].tolist(),
            strict=True,
        )
        assert list(found) == alone[number]
        first += -(-int(features.all_lengths[number]) // 12)


def test_in_evaluation_a_texts_gaps_are_the_same_in_any_file(tokenizer: Any, task: MaskedLM) -> None:
    """They do not depend on where the text stands in its table, nor on the other texts."""
    rows = [{"text": " ".join(np.random.default_rng(n).choice(WORDS, 30))} for n in range(5)]
    whole, part = (Features.in_memory(task.encode(some, tokenizer, 12)) for some in (rows, rows[2:]))
    one, other = task.collate(whole, np.arange(2, 5), CPU), task.collate(part, np.arange(3), CPU)
    assert all(torch.equal(one[name], other[name]) for name in one)
    gaps = [task.collate(whole, np.array([number]), CPU)["places"].tolist() for number in range(5)]
    assert len(set(map(tuple, gaps))) == 5


def test_the_shares_are_those_of_the_paper(tokenizer: Any, task: MaskedLM) -> None:
    """15 % of the words; of these 80 % hidden, 10 % left, 10 % random (1 in 25 of which is the word itself)."""
    features = features_of(task, tokenizer, [200] * 100, 64)
    numbers = np.arange(100)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        batch = task.collate(features, numbers, CPU, training=True)
    read, labels = batch["input_ids"].flatten()[batch["places"]], batch["labels"]
    assert len(labels) / 20_000 == pytest.approx(0.15, abs=0.01)
    hidden, same = read == MASK, read == labels
    random = ~hidden & ~same
    assert float(hidden.float().mean()) == pytest.approx(0.8 + 0.1 / 25, abs=0.03)
    assert float(same.float().mean()) == pytest.approx(0.1 + 0.1 / 25, abs=0.03)
    assert float(random.float().mean()) == pytest.approx(0.1 * 23 / 25, abs=0.03)
    assert len(set(read[random].tolist())) > 15
    fixed = task.collate(features, numbers, CPU)
    assert len(fixed["labels"]) / 20_000 == pytest.approx(0.15, abs=0.01)
    plain = blocks.pad_rows(
        features.words(numbers),
        *blocks.split_into_rows(features.all_lengths, features.values("block"), 0)[:2],
        0,
    )
    untouched = torch.ones(plain.size, dtype=torch.bool)
    untouched[batch["places"]] = False
    np.testing.assert_array_equal(batch["input_ids"].flatten()[untouched], plain.flatten()[untouched])


def test_training_draws_from_torchs_generator_and_evaluation_does_not(tokenizer: Any, task: MaskedLM) -> None:
    features, numbers = features_of(task, tokenizer, (30, 30)), np.arange(2)
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(task.collate(features, numbers, CPU, training=True))
        assert torch.equal(drawn[0]["input_ids"], drawn[1]["input_ids"])
        assert not torch.equal(drawn[0]["input_ids"], drawn[2]["input_ids"])
        before = torch.get_rng_state()
        task.collate(features, numbers, CPU)
        assert torch.equal(torch.get_rng_state(), before)


def test_the_loss_is_that_of_transformers(tokenizer: Any, task: MaskedLM) -> None:
    model, features = built(task, bert(len(tokenizer))), features_of(task, tokenizer, (9, 4, 6))
    total, count = 0.0, 0
    for number in range(3):
        batch = task.collate(features, np.array([number]), CPU)
        labels = torch.full_like(batch["input_ids"], -100).flatten()
        labels[batch["places"]] = batch["labels"]
        loss = model(input_ids=batch["input_ids"], labels=labels.view_as(batch["input_ids"])).loss
        total, count = total + float(loss.detach()) * len(batch["labels"]), count + len(batch["labels"])
    everything = task.collate(features, np.arange(3), CPU)
    assert float(task.loss(model, everything).detach()) == pytest.approx(total / count, rel=1e-5)
    with torch.inference_mode():
        outcome = task.predict(model, features, np.arange(3), CPU)
    assert (outcome.loss, outcome.weight) == (pytest.approx(total, rel=1e-5), count)
    metrics = task.metrics(outcome.predictions, features, np.arange(3))
    assert metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    statistics = task.statistics(outcome.predictions, features, np.arange(3))
    assert abs(task.score(statistics.sum(0)) - metrics["accuracy"]) < 1e-9


def test_texts_without_any_word_have_no_loss_but_a_gradient(tokenizer: Any, task: MaskedLM) -> None:
    model, features = built(task, bert(len(tokenizer))), features_of(task, tokenizer, (0, 0))
    loss = task.loss(model, task.collate(features, np.arange(2), CPU, training=True))
    loss.backward()
    assert float(loss.detach()) == 0
    with torch.inference_mode():
        outcome = task.predict(model, features, np.arange(2), CPU)
    assert outcome.predictions == [[0, 0, 0.0], [0, 0, 0.0]]
    assert outcome.weight == 0


def test_predictions_do_not_depend_on_the_batch_or_its_pieces(
    tokenizer: Any, task: MaskedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = built(task, bert(len(tokenizer))), features_of(task, tokenizer, (3, 30, 8, 1, 19, 11))

    def found(size: int) -> np.ndarray:
        parts = np.split(np.arange(6), range(size, 6, size))
        with torch.inference_mode():
            return np.array(
                [row for part in parts for row in task.predict(model, features, part, CPU).predictions]
            )

    whole = found(6)
    np.testing.assert_allclose(found(1), whole, rtol=1e-5)
    monkeypatch.setattr(blocks, "MAX_ROWS", 2)
    np.testing.assert_allclose(found(6), whole, rtol=1e-5)


@pytest.mark.whole
def test_it_learns_words_from_their_neighbours(tokenizer: Any) -> None:
    """Two sentences: at each place there are two words, and the others say which it is."""
    task = MaskedLM.build([], tokenizer)
    rows = [{"text": " ".join(WORDS[start : start + 8])} for start in (0, 8)] * 8
    features = Features.in_memory(task.encode(rows, tokenizer, 12))
    model = built(task, bert(len(tokenizer)))
    fit(task, model, features, np.arange(16), steps=120, rate=0.005)
    with torch.inference_mode():
        outcome = task.predict(model, features, np.arange(16), CPU)
    assert task.metrics(outcome.predictions, features, np.arange(16))["accuracy"] > 0.9


def test_the_baseline_predicts_what_is_hidden(tokenizer: Any, task: MaskedLM) -> None:
    features, numbers = features_of(task, tokenizer, [30] * 300, 64), np.arange(300)[::-1]
    _, found = task.baseline(features, numbers, features, numbers)
    with torch.inference_mode():
        outcome = task.predict(built(task, bert(len(tokenizer))), features, numbers, CPU)
    assert [row[1] for row in found] == [row[1] for row in outcome.predictions]
    metrics = task.metrics(found, features, numbers)
    assert metrics["perplexity"] == pytest.approx(20, abs=0.5)  # twenty words, all as likely
    assert 1 / 20 < metrics["accuracy"] < 1 / 12


def test_the_shares_of_what_is_done_to_hidden_tokens(task: MaskedLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 0.8 the mask, from there below 0.9 a random token, from there on none; others stay."""
    draws = torch.tensor([0.0, 0.79, 0.8, 0.89, 0.9, 0.0, 0.8])
    monkeypatch.setattr(torch, "rand", lambda count: draws)
    monkeypatch.setattr(torch, "randint", lambda most, size: torch.full(size, 9))
    hidden = np.array([True] * 5 + [False] * 2)
    assert task._replaced(np.full(7, 7), hidden).tolist() == [MASK, MASK, 9, 9, 7, 7, 7]
