"""Question answering: no answer is lost between windows, and predictions are the best spans there are."""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.tasks import task_class, task_from
from fednlp.tasks.qa_windows import _without_space, qa_layout, tokenised, window_begins
from fednlp.tasks.question_answering import QuestionAnswering, best_spans

CPU = torch.device("cpu")
TASK = QuestionAnswering()


def row(context: str, question: str, *golds: tuple[str, int]) -> dict[str, str | None]:
    answers = [{"text": text, "start": start} for text, start in golds]
    return {"context": context, "question": question, "answers": json.dumps(answers)}


def cut(features: Features, number: int = 0) -> list[dict[str, Any]]:
    """Return an example's windows as they lie in its features."""
    ends = np.cumsum(features.ragged("windows", number))
    columns = ("input_ids", "char_starts", "char_ends")
    whole = {name: np.split(features.ragged(name, number), ends)[:-1] for name in columns}
    targets = {name: features.ragged(name, number) for name in ("firsts", "lasts", "holds")}
    return [{name: column[i] for name, column in (whole | targets).items()} for i in range(len(ends))]


def decoded(window: dict[str, Any], context: str) -> str:
    return context[window["char_starts"][window["firsts"]] : window["char_ends"][window["lasts"]]]


PIECES = [
    "up",
    "xyz",
    "the",
    " ",
    "  ",
    "\n",
    ".",
    "$",
    "é",
    "字",
    "\u200b",
    "\u00ad",
    "a-b",
    "\x00",
    "😀",
    "ﬁ",
]
CONTEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@given(
    CONTEXTS,
    st.lists(st.sampled_from(["what", " ", "is", "xyz?"]), max_size=30).map("".join),
    st.tuples(st.integers(0, 120), st.integers(1, 40)),
    st.integers(5, 40),
    st.integers(0, 200),
    st.booleans(),
)
@example("up " * 40, " what is", (30, 60), 20, 3, False)
@example("the up", "xyz" * 60, (4, 2), 5, 128, False)
def test_no_answer_is_lost(
    tokenizer: Any,
    byte_tokenizer: Any,
    context: str,
    question: str,
    place: tuple[int, int],
    limit: int,
    stride: int,
    bytewise: bool,
) -> None:
    start = min(place[0], max(len(context) - 1, 0))
    gold = context[start : start + place[1]]
    used, special = (byte_tokenizer, 0) if bytewise else (tokenizer, 3)
    task = QuestionAnswering.build([], used, doc_stride=stride)
    features = Features.in_memory(task.encode([row(context, question, (gold, start))], used, limit))
    windows = cut(features)
    extra = int(features.values("extra")[0])

    assert all(1 <= len(window["input_ids"]) <= limit for window in windows)
    plain = used(context, add_special_tokens=False, return_offsets_mapping=True)
    offsets = np.asarray(plain["offset_mapping"]).reshape(-1, 2).tolist()
    room = (
        limit
        - special
        - min(len(used(question.strip(), add_special_tokens=False)["input_ids"]), (limit - special) // 2)
    )
    inside = {
        (int(s), int(e))
        for w in windows[: len(windows) - extra]
        for s, e in zip(w["char_starts"], w["char_ends"], strict=True)
    }
    touched = [n for n, (s, e) in enumerate(offsets) if context[s:e].strip() and s < e]
    for number in touched:
        s, e = offsets[number]
        text = context[s:e]
        assert (s + len(text) - len(text.lstrip()), s + len(text.rstrip())) in inside

    strip = (start + len(gold) - len(gold.lstrip()), start + len(gold.rstrip()))
    found = [n for n in touched if offsets[n][0] < strip[1] and offsets[n][1] > strip[0]]
    held = [window for window in windows if window["holds"]]
    if not found or found[-1] - found[0] >= room:
        assert not held
        assert not extra
        assert {(int(w["firsts"]), int(w["lasts"])) for w in windows} == {(0, 0)}
        return
    assert held
    assert extra == (not any(window["holds"] for window in windows[: len(windows) - extra]))
    for window in held:
        said = decoded(window, context)
        begin, end = window["char_starts"][window["firsts"]], window["char_ends"][window["lasts"]]
        assert begin < strip[1]
        assert end > strip[0]
        for character in range(*strip):  # every one of the answer's that any token has
            assert begin <= character < end or not any(s <= character < e for s, e in offsets)
        edges = {edge for n in found for edge in offsets[n]}
        if set(strip) <= edges:
            assert said == gold.strip()
        assert (
            window["input_ids"][window["firsts"] : window["lasts"] + 1]
            == plain["input_ids"][found[0] : found[-1] + 1]
        ).all()


@given(CONTEXTS, st.integers(0, 100), st.integers(6, 40))
def test_what_is_predicted_from_says_nothing_of_the_answer(
    tokenizer: Any, context: str, start: int, limit: int
) -> None:
    golds = [(context[start : start + 9], start)] if start < len(context) else []
    rows = [row(context, "what", *golds), row(context, "what")]
    features = Features.in_memory(QuestionAnswering(doc_stride=2).encode(rows, tokenizer, limit))
    one, other = (QuestionAnswering().collate(features, np.asarray([number]), CPU) for number in (0, 1))
    assert torch.equal(one["input_ids"], other["input_ids"])
    assert torch.equal(one["attention_mask"], other["attention_mask"])


@given(st.integers(0, 300), st.integers(1, 50), st.integers(0, 49))
def test_windows_cover_and_overlap(tokens: int, room: int, overlap: int) -> None:
    overlap = min(overlap, room // 2)
    begins = window_begins(tokens, room, overlap)
    assert {t for begin in begins for t in range(begin, begin + room)} >= set(range(tokens))
    assert all(later - begin == room - overlap for begin, later in itertools.pairwise(begins))
    assert len(begins) == 1 or begins[-2] + room < tokens  # none too many


def test_windows_have_the_layout_of_the_tokenizer(tokenizer: Any) -> None:
    limit, context = 12, "up down alpha beta gamma delta north south east west"
    (made,) = QuestionAnswering(doc_stride=2).encode(
        [row(context, " what is", ("delta", 26))], tokenizer, limit
    )
    expected = tokenizer(
        ["what is"],
        [context],
        truncation="only_second",
        max_length=limit,
        stride=2,
        return_overflowing_tokens=True,
    )
    assert made["input_ids"] == [*itertools.chain(*expected["input_ids"])]
    assert made["token_type_ids"] == [*itertools.chain(*expected["token_type_ids"])]
    assert made["windows"] == [len(ids) for ids in expected["input_ids"]]
    assert (made["firsts"], made["lasts"], made["holds"]) == ([9, 4], [9, 4], [1, 1])


@pytest.mark.parametrize(
    ("template", "kinds", "null"),
    [
        ("<s> $A </s> </s> $B </s>", {0}, 0),
        ("$A </s> $B:1 </s>:1 <s>:2", {0, 1, 2}, -1),
        ("<s> $A $B", {0}, 0),
    ],
)
def test_other_layouts(tokenizer: Any, template: str, kinds: set[int], null: int) -> None:
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    inner.post_processor = TemplateProcessing(
        single="$A", pair=template, special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    other = PreTrainedTokenizerFast(tokenizer_object=inner, cls_token="[CLS]", sep_token="[SEP]")
    (made,) = TASK.encode(
        [
            row("up down north", "what is", ("north", 8)),
        ],
        other,
        32,
    )
    expected = other("what is", "up down north")
    assert made["input_ids"] == expected["input_ids"]
    assert made["input_ids"][made["firsts"][0]] == other.convert_tokens_to_ids("north")
    assert {kind for _, kind in [*qa_layout(other, 0).before, *qa_layout(other, 0).after]} <= kinds
    (missed,) = TASK.encode([row("up down north", "what is")], other, 32)
    assert missed["firsts"] == missed["lasts"] == [null % len(missed["input_ids"])]
    assert "token_type_ids" not in made


def test_a_tokenizer_that_cannot_join_texts(tokenizer: Any) -> None:
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    inner.post_processor = TemplateProcessing(single="$A", pair="$B $A", special_tokens=[])
    with pytest.raises(ModelError, match="question and a context"):
        TASK.encode([row("up", "what")], PreTrainedTokenizerFast(tokenizer_object=inner), 32)


def test_no_room(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="type at least 4"):
        TASK.encode([row("up", "what")], tokenizer, 3)
    (made,) = TASK.encode([row("up down", "what is", ("down", 3))], tokenizer, 4)
    assert (made["windows"], made["holds"]) == ([4, 4], [0, 1])


def test_the_first_gold_answer_that_fits_is_trained_on(tokenizer: Any) -> None:
    context = "up down alpha beta gamma delta north"
    (made,) = TASK.encode([row(context, "what", (context, 0), ("north", 31), ("up", 0))], tokenizer, 9)
    (window,) = [window for window in cut(Features.in_memory([made])) if window["holds"]]
    assert decoded(window, context) == "north"
    assert json.loads(made["golds"]) == [context, "north", "up"]


class Told(nn.Module):
    """Logits that are a function of a token and its place in the window, and of nothing else."""

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        place = torch.arange(input_ids.shape[1])
        scores = [torch.sin(input_ids * factor + place * 1.7) for factor in (12.9898, 78.233)]
        return type("Output", (), {"start_logits": scores[0], "end_logits": scores[1]})


def best_by_hand(features: Features, number: int, context: str, longest: int) -> str:
    best = (-np.inf, "")
    windows = cut(features, number)
    for window in windows[: len(windows) - int(features.values("extra")[number])]:
        output = Told()(torch.from_numpy(window["input_ids"].astype(np.int64))[None], None)
        first, last = output.start_logits[0].tolist(), output.end_logits[0].tolist()
        inside = np.flatnonzero(window["char_starts"] >= 0).tolist()
        for i in inside:
            for j in inside:
                if i <= j < i + longest and np.float32(first[i]) + np.float32(last[j]) > best[0]:
                    best = (
                        np.float32(first[i]) + np.float32(last[j]),
                        context[window["char_starts"][i] : window["char_ends"][j]],
                    )
    return best[1]


@given(st.lists(CONTEXTS, min_size=1, max_size=4), st.integers(1, 8), st.integers(6, 20))
def test_the_best_span_of_all_windows_is_predicted(
    tokenizer: Any, contexts: list[str], longest: int, limit: int
) -> None:
    task = QuestionAnswering.build([], tokenizer, doc_stride=2, max_answer_length=longest)
    rows = [row(context, "what is", (context[3:12], 3)) for context in contexts]
    features, numbers = Features.in_memory(task.encode(rows, tokenizer, limit)), np.arange(len(rows))[::-1]
    outcome = task.predict(Told(), features, numbers, CPU)
    assert outcome.indices == numbers.tolist()
    assert outcome.predictions == [
        best_by_hand(features, number, contexts[number], longest) for number in numbers.tolist()
    ]
    losses = []
    for number in numbers.tolist():
        batch = task.collate(features, np.asarray([number]), CPU)
        losses.append(task.loss(Told(), batch).item() * len(batch["input_ids"]))
    assert outcome.loss == pytest.approx(sum(losses), rel=1e-4)


def test_best_spans() -> None:
    first, last = torch.tensor([[0.0, 5, 1, 0], [9, 0, 0, 0]]), torch.tensor([[9.0, 0, 1, 4], [9, 0, 0, 0]])
    allowed = torch.tensor([[False, True, True, True], [False] * 4])
    assert best_spans(first, last, allowed, 10) == ([9, -np.inf], [1, 0], [3, 0])
    assert best_spans(first, last, allowed, 2)[0][0] == 6
    assert best_spans(first, last, allowed, 1) == ([5, -np.inf], [1, 0], [1, 0])
    assert best_spans(first * np.nan, last, allowed, 2)[0] == [-np.inf] * 2


def test_nothing_to_read_and_nothing_to_find(tokenizer: Any, byte_tokenizer: Any) -> None:
    rows = [row("", "what"), row(" \n", ""), row("", ""), row("up down", "", ("sideways", 40))]
    for used in (tokenizer, byte_tokenizer):
        task = QuestionAnswering.build([], used)
        features = Features.in_memory(task.encode(rows, used, 16))
        outcome = task.predict(Told(), features, np.arange(4), CPU)
        assert outcome.predictions[:3] == [""] * 3
        assert outcome.predictions[3] in "up down"
        assert np.isfinite(outcome.loss)
        assert features.ragged("holds", 3).tolist() == [0]
        assert task.encode([], used, 16) == []
    said = ["up", "", "", "sideways"]
    assert TASK.metrics(said, features, np.arange(4)) == {"exact_match": 0.25, "f1": 0.25}
    assert TASK.metrics([], features, np.arange(0)) == {"exact_match": 0, "f1": 0}


def test_an_example_brings_four_windows_at_most_to_training(tokenizer: Any) -> None:
    context = " ".join("abcdefghijklmnopqrstuvwxyz0123456789" * 3) + " north"
    rows = [row(context, "what", ("north", len(context) - 5)), row("up", "is")]
    task = QuestionAnswering(doc_stride=4)
    features = Features.in_memory(task.encode(rows, tokenizer, 16))
    count = len(features.ragged("windows", 0))
    assert count > 10
    assert len(task.collate(features, np.arange(2), CPU)["input_ids"]) == count + 1
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        batch = task.collate(features, np.arange(2), CPU, training=True)
        assert len(batch["input_ids"]) == 5
        assert (batch["firsts"] > 0).sum() == 1
        torch.manual_seed(seed)
        again = task.collate(features, np.arange(2), CPU, training=True)
        assert all(torch.equal(batch[name], again[name]) for name in batch)
        seen.add(tuple(batch["input_ids"][:, 3].tolist()))
    assert len(seen) > 1


def test_an_answer_that_falls_between_windows_has_one_of_its_own_in_training(tokenizer: Any) -> None:
    context = "up down alpha beta gamma delta north south east west"
    task = QuestionAnswering(doc_stride=0)
    row_ = row(context, "what", ("gamma delta north", 19))  # tokens 4 to 6, windows of five
    features = Features.in_memory(task.encode([row_], tokenizer, 9))
    assert features.values("extra").tolist() == [1]
    assert len(task.collate(features, np.arange(1), CPU)["input_ids"]) == 2
    batch = task.collate(features, np.arange(1), CPU, training=True)
    assert batch["firsts"].tolist() == [0, 0, 4]
    assert tokenizer.decode(batch["input_ids"][2, 4:7]) == "gamma delta north"


def test_the_loss_is_that_of_transformers_and_padding_does_not_matter(
    tokenizer: Any, model_for: Callable[..., Any], predicted: Callable[..., Any]
) -> None:
    rows = [row("up down " * n + "north", "what", ("north", 8 * n)) for n in (1, 4, 9)]
    features, model = Features.in_memory(TASK.encode(rows, tokenizer, 64)), model_for(TASK)
    losses = []
    for number in range(3):
        batch = TASK.collate(features, np.asarray([number]), CPU)
        firsts, lasts = batch.pop("firsts"), batch.pop("lasts")
        losses.append(model(**batch, start_positions=firsts, end_positions=lasts).loss.item())
    batch = TASK.collate(features, np.arange(3), CPU)
    assert batch["attention_mask"].min() == 0
    assert TASK.loss(model, batch).item() == pytest.approx(np.mean(losses), rel=1e-5)
    outcome = predicted(TASK, model, features)
    assert outcome.loss / outcome.weight == pytest.approx(np.mean(losses), rel=1e-5)
    TASK.loss(model, batch).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.zero_grad()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "the up", "up down", "north up down"]),
            st.lists(st.sampled_from(["up", "Up, down!", "north", "the"]), max_size=3),
        ),
        min_size=1,
        max_size=10,
    )
)
@pytest.mark.whole
def test_law(tokenizer: Any, drawn: list[tuple[str, list[str]]]) -> None:
    rows = [row("up", "what", *((gold, 0) for gold in golds)) for _, golds in drawn]
    features, said = Features.in_memory(TASK.encode(rows, tokenizer, 16)), [said for said, _ in drawn]
    numbers = np.arange(len(drawn))
    metrics, sums = TASK.metrics(said, features, numbers), TASK.statistics(said, features, numbers)
    assert float(TASK.score(sums.sum(0))) == pytest.approx(metrics["f1"], abs=1e-9)
    assert 0 <= metrics["f1"] <= 1
    assert 0 <= metrics["exact_match"] <= 1
    assert TASK.score(np.zeros((2, 2))).tolist() == [0, 0]


def test_options(tokenizer: Any) -> None:
    task = QuestionAnswering.build([], tokenizer, doc_stride=64, max_answer_length=5)
    assert task_from(task.name, json.loads(json.dumps(asdict(task)))) == task
    assert task_class("question-answering") is QuestionAnswering
    assert task.format_prediction("north") == "north"
    for options in ({"doc_stride": -1}, {"max_answer_length": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            QuestionAnswering.build([], tokenizer, **options)


def keys(count: int) -> list[dict[str, str | None]]:
    """Return contexts of two names, each with a direction behind it, and a question for one of the names."""
    rng, rows = random.Random(0), []
    for _ in range(count):
        names, directions = (
            rng.sample(["alpha", "beta"], 2),
            rng.sample(["north", "south", "east", "west"], 2),
        )
        context = " ".join(
            f"{'the ' * rng.randint(0, 3)}{n} {d}" for n, d in zip(names, directions, strict=True)
        )
        rows.append(row(context, f"what is {names[0]}", (directions[0], context.index(directions[0]))))
    return rows


@pytest.mark.whole
def test_learns(tokenizer: Any, fitted: Callable[..., dict[str, float]]) -> None:
    features = Features.in_memory(TASK.encode(keys(32), tokenizer, 32))
    metrics = fitted(TASK, features, steps=250)
    assert metrics["exact_match"] > 0.9
    assert metrics["f1"] >= metrics["exact_match"]


@pytest.mark.parametrize("name", ["xquad.en.json", "xquad.de.json"])
def test_real_contexts(tokenizer: Any, byte_tokenizer: Any, data_folder: Path, name: str) -> None:
    read = json.loads((data_folder / "xquad" / name).read_text(encoding="utf-8"))
    rows = [
        row(paragraph["context"], qa["question"], *((a["text"], a["answer_start"]) for a in qa["answers"]))
        for article in read["data"][:10]
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    assert len(rows) > 100
    for used in (tokenizer, byte_tokenizer):
        features = Features.in_memory(QuestionAnswering(doc_stride=32).encode(rows, used, 192))
        exact = 0
        for number, made in enumerate(rows):
            held = [window for window in cut(features, number) if window["holds"]]
            (gold,) = json.loads(features.text("golds", number))
            assert held, made
            assert all(gold.strip() in decoded(window, made["context"] or "") for window in held)
            exact += all(gold.strip() == decoded(window, made["context"] or "") for window in held)
        assert exact > 0.98 * len(rows)


def test_only_tokens_of_the_context_have_characters(tokenizer: Any) -> None:
    layout = qa_layout(tokenizer, 0)
    context = tokenised(tokenizer, ["the cat"])[0]
    window = layout.window([9, 9], context, 0, 10)
    first = layout.first([9, 9])
    inside = window.characters[first : first + len(context.ids)]
    assert inside == context.characters
    outside = window.characters[:first] + window.characters[first + len(context.ids) :]
    assert outside
    assert set(outside) == {(-1, -1)}


@pytest.mark.parametrize(
    ("start", "stop", "found"), [(0, 7, (2, 5)), (2, 5, (2, 5)), (4, 7, (4, 5)), (5, 7, (-1, -1))]
)
def test_a_token_s_characters_are_without_the_blanks_around_them(
    start: int, stop: int, found: tuple[int, int]
) -> None:
    assert _without_space("  abc  ", start, stop) == found
