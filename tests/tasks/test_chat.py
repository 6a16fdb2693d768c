"""Chats: the template token for token, what is learnt of it, what is left out of what is too long, and answers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.chats import conversation_fault
from fednlp.data.features import Features
from fednlp.errors import DataError, ModelError
from fednlp.tasks.chat import Chat, shortened
from fednlp.training.batches import passes
from fednlp.training.local import _shares

from .models import CPU, built, byte_level, gpt2

CHATML = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
TRIMMED = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] | trim + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
ANSWER_ALONE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] + '</s>' }}{% else %}"
    "{{ '[' + m['content'] + ']' }}{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "trimmed": TRIMMED, "answer alone": ANSWER_ALONE}

words = st.text("abc d\né", min_size=1, max_size=12).filter(lambda text: text == text.strip())
exchanges = st.lists(st.tuples(words, words), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    byte_level(folder, ["a b c user assistant system"])
    return folder


def fresh(folder: Path, template: str | None) -> Any:
    from fednlp.models.pretrained import load_tokenizer

    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = template
    return tokenizer


def conversation(said: list[tuple[str, str]], system: str = "") -> list[dict[str, str]]:
    opening = [{"role": "system", "content": system}] if system else []
    turns = [
        {"role": role, "content": text}
        for pair in said
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return [*opening, *turns]


def features_of(task: Chat, tokenizer: Any, found: list[list[dict[str, str]]], length: int = 512) -> Features:
    rows = [{"messages": json.dumps(messages)} for messages in found]
    return Features.in_memory(task.encode(rows, tokenizer, length))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
@settings(max_examples=40, deadline=None)
@given(said=exchanges, system=st.sampled_from(["", "be brief"]))
def test_tokens_are_those_of_the_template_and_answers_alone_are_learnt(
    folder: Path, template: str, said: list[tuple[str, str]], system: str
) -> None:
    tokenizer = fresh(folder, template)
    task, messages = Chat.build([], tokenizer), conversation(said, system)
    ids, learnt = task.tokens(messages, tokenizer)
    assert ids == tokenizer.apply_chat_template(messages, tokenize=True)["input_ids"]
    answers = [tokenizer(answer, add_special_tokens=False)["input_ids"] for _, answer in said]
    assert np.array(ids)[learnt].tolist() == [one for answer in answers for one in (*answer, task.end)]


def test_a_token_of_prompt_and_answer_is_learnt(tmp_path: Path) -> None:
    """A blank at the end of a prompt belongs to the word behind it."""
    byte_level(tmp_path, ["of a bat a bat a bat"])
    tokenizer = fresh(
        tmp_path, CHATML.replace("'<s>assistant\n'", "'<s>assistant: '").replace("'\n'", "': '")
    )
    task, messages = Chat.build([], tokenizer), conversation([("of", "bat")])
    ids, learnt = task.tokens(messages, tokenizer)
    assert tokenizer.convert_ids_to_tokens(np.array(ids)[learnt]) == ["Ġbat", "</s>"]
    ids, answer = task.with_answer(messages[:-1], "bat", tokenizer)
    assert tokenizer.convert_ids_to_tokens(ids[-answer:]) == ["Ġbat"]


def test_the_loss_is_that_of_transformers_where_all_but_answers_are_masked(folder: Path) -> None:
    tokenizer = fresh(folder, CHATML)
    task = Chat.build([], tokenizer)
    found = [conversation([("a b", "c c a")]), conversation([("b", "a"), ("c", "b b")], "be brief")]
    features = features_of(task, tokenizer, found)
    model = built(task, gpt2(len(tokenizer), n_positions=256))
    batch = task.collate(features, np.arange(2), CPU)
    learnt = features.padded("learnt", np.arange(2), 0)[0]
    labels = torch.where(torch.from_numpy(learnt).bool(), batch["input_ids"], -100)
    wanted = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    loss = task.loss(model, batch).detach()
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-6, atol=1e-6)
    assert (batch["labels"] == task.end).sum() == 3  # it learns to stop
    with torch.inference_mode():
        outcome = task.predict(model, features, np.arange(2), CPU)
    assert outcome.loss / outcome.weight == pytest.approx(float(loss), rel=1e-6)
    metrics = task.metrics(outcome.predictions, features, np.arange(2))
    assert metrics["log_likelihood"] == pytest.approx(-float(loss), rel=1e-6)
    sums = task.statistics(outcome.predictions, features, np.arange(2)).sum(0)
    assert task.score(sums) == pytest.approx(metrics["log_likelihood"])
    assert task.metrics_of_sums(task.sums(outcome.predictions, features, np.arange(2))) == pytest.approx(
        metrics
    )


@settings(max_examples=40, deadline=None)
@given(said=exchanges, length=st.integers(8, 80))
def test_what_is_too_long_loses_its_beginning_and_keeps_an_answer(
    folder: Path, said: list[tuple[str, str]], length: int
) -> None:
    tokenizer = fresh(folder, CHATML)
    task = Chat.build([], tokenizer)
    messages = conversation(said)
    [row] = task.encode([{"messages": json.dumps(messages)}], tokenizer, length)
    whole, learnt = task.tokens(messages, tokenizer)
    assert len(row["input_ids"]) == len(row["learnt"]) <= length
    last = int(np.flatnonzero(learnt)[-1]) + 1
    answer = len(tokenizer(said[-1][1], add_special_tokens=False)["input_ids"]) + 1
    if answer < length - 1:  # the last answer is there to its end
        kept = np.array(row["input_ids"])[np.array(row["learnt"], dtype=bool)].tolist()
        assert kept[-answer:] == whole[last - answer : last]
    assert any(row["learnt"])


def test_a_mean_over_conversations_counts_each_once(folder: Path) -> None:
    tokenizer = fresh(folder, CHATML)
    found = [
        conversation([("a b", "c c a b c a b")]),
        conversation([("b", "a")]),
        conversation([("c", "b b")]),
    ]
    tasks = [Chat.build([], tokenizer, loss_mean=mean) for mean in ("tokens", "examples")]
    features = features_of(tasks[0], tokenizer, found)
    model = built(tasks[0], gpt2(len(tokenizer), n_positions=256))
    each = [tasks[0].loss(model, tasks[0].collate(features, np.array([n]), CPU)) for n in range(3)]
    counts = tasks[0].trained_tokens(features, np.arange(3))
    assert counts.tolist() == [features.ragged("learnt", n).sum() for n in range(3)]
    losses = [task.loss(model, task.collate(features, np.arange(3), CPU)) for task in tasks]
    weights = torch.from_numpy(counts / counts.sum()).float()
    torch.testing.assert_close(losses[0], (torch.stack(each) * weights).sum())
    torch.testing.assert_close(losses[1], torch.stack(each).mean())


@pytest.mark.parametrize("mean", ["tokens", "examples"])
@pytest.mark.parametrize("max_tokens", [0, 60])
def test_a_step_in_passes_or_batches_by_tokens_has_the_same_loss_and_gradient(
    folder: Path, mean: str, max_tokens: int
) -> None:
    tokenizer = fresh(folder, CHATML)
    task = Chat.build([], tokenizer, loss_mean=mean)
    found = [conversation([("a" * n, "c" * (12 - n))]) for n in range(1, 7)]
    features = features_of(task, tokenizer, found)
    model = built(task, gpt2(len(tokenizer), n_positions=256))
    everything = task.loss(model, task.collate(features, np.arange(6), CPU, training=True))
    cut = passes(np.arange(6), features.lengths, 2, max_tokens)
    assert len(cut) > 1
    batches = [task.collate(features, some, CPU, training=True) for some in cut]
    parts = [task.loss(model, one) * share for one, share in zip(batches, _shares(batches), strict=True)]
    whole, summed = (
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        for loss in (everything, torch.stack(parts).sum())
    )
    torch.testing.assert_close(torch.stack(parts).sum(), everything)
    torch.testing.assert_close(summed, whole, rtol=1e-4, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(said=exchanges, length=st.integers(8, 80))
def test_what_is_cut_off_is_counted_by_what_it_is(
    folder: Path, said: list[tuple[str, str]], length: int
) -> None:
    tokenizer = fresh(folder, CHATML)
    task = Chat.build([], tokenizer)
    messages = conversation(said)
    features = features_of(task, tokenizer, [messages], length)
    whole = task.tokens(messages, tokenizer)[0]
    lost, read = task.cuts(features, np.array([0])), len(features.ragged("input_ids", 0))
    assert task.whole_lengths(features).tolist() == [len(whole)]
    assert (
        read < len(whole) if lost else len(whole) - read <= 1
    )  # what stands behind the last end is not learnt
    answer = len(tokenizer(said[-1][1], add_special_tokens=False)["input_ids"]) + 1
    assert ("the end of an answer" in lost) is (answer > length - 1)
    kept, dropped = int(features.ragged("learnt", 0).sum()), features.values("cut_exchanges")[0]
    rest = task.tokens(messages[2 * dropped :], tokenizer)[1].sum()
    assert kept + features.values("cut_answer")[0] <= rest


def test_answers_end_where_the_end_token_is_written(folder: Path) -> None:
    tokenizer = fresh(folder, CHATML)
    task = Chat.build([], tokenizer, max_new_tokens=5)
    model = built(task, gpt2(len(tokenizer), n_positions=256))
    [answer] = task.replies(
        model, [{"messages": json.dumps(conversation([("a", "b")])[:1])}], tokenizer, 64, CPU
    )
    assert isinstance(answer, str)
    written = task.generation(model)
    assert (written.eos_token_id, written.max_new_tokens, written.do_sample) == (task.end, 5, False)
    with torch.no_grad():
        model.get_output_embeddings().weight[task.end] = 1e3 * model.transformer.ln_f.bias.new_ones(1)
        model.transformer.ln_f.bias += 1.0
    assert task.replies(model, [{"messages": '[{"role": "user", "content": "a"}]'}], tokenizer, 64, CPU) == [
        ""
    ]


def test_an_answer_has_room_where_a_model_has_a_last_position(folder: Path) -> None:
    tokenizer = fresh(folder, CHATML)
    task = Chat.build([], tokenizer, max_new_tokens=30)
    model = built(task, gpt2(len(tokenizer), n_positions=40))
    rows = [{"messages": json.dumps(conversation([("a b c " * 20, "b")])[:1])}]
    assert isinstance(task.replies(model, rows, tokenizer, 40, CPU)[0], str)


def test_a_template_is_needed_that_ends_answers_and_stays_as_it_begins(folder: Path) -> None:
    with pytest.raises(ModelError, match="no chat template"):
        Chat.build([], fresh(folder, None))
    with pytest.raises(ModelError, match="does not learn to stop"):
        Chat.build([], fresh(folder, CHATML.replace("</s>", "")))
    forgets = "{% for m in messages[-2:] %}" + CHATML.partition("%}")[2]
    tokenizer = fresh(folder, forgets)
    task = Chat.build([], tokenizer)
    with pytest.raises(ModelError, match="in another way once there is a later one"):
        task.tokens(conversation([("a", "b"), ("c", "d")]), tokenizer)
    given = Chat.build([], tokenizer := fresh(folder, None), chat_template=CHATML)
    assert asdict(given)["chat_template"] == tokenizer.chat_template == CHATML


LAYOUTS: dict[str, dict[str, Any]] = {
    "openai": {"messages": conversation([("hello", "hi")])},
    "sharegpt": {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]},
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "weight": 1},
        ]
    },
    "alpaca": {"instruction": "hello", "input": "", "output": "hi"},
    "dolly": {"instruction": "hello", "context": "", "response": "hi"},
    "completion": {"prompt": "hello", "completion": "hi"},
    "gsm8k": {"question": "hello", "answer": "hi"},
}


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_each_layout_is_found_by_itself(layout: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    path, rows = tmp_path / f"chats.{suffix}", [layout | {"topic": str(n)} for n in range(10)]
    if suffix == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows)))
    data = load_data(path=path)
    assert (data.task, list(data.columns)) == ("chat", ["messages"])
    assert json.loads(data.train["messages"][0].as_py()) == conversation([("hello", "hi")])
    assert "topic" in data.train.column_names
    assert data.input_texts("train", [0]) == ["hello\nhi"]
    said = any("messages are made of" in note for note in data.notes)
    assert said is ("messages" not in layout)


WRONG = {
    "[]": "no message of the assistant",
    '[{"role": "tool", "content": "x"}]': "message 1 is of 'tool'",
    '[{"role": "user", "content": "x"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]': (
        "message 2 is of the user, where the assistant has its turn"
    ),
    '[{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]': (
        "message 2, of the assistant, is empty"
    ),
    '[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]': (
        "the last of 3 messages is of the user"
    ),
    '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]': (
        "message 1 has a part of type 'image_url', and only text is read"
    ),
    '[{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}]': (
        "message 2 calls a tool, and only text is read"
    ),
    '[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}]': (
        "message 2 has a weight of 0, and every answer is learnt"
    ),
    '[{"role": "user"}]': "message 1 has no role and content that are texts",
    "hello": "is no list of messages",
}


@pytest.mark.parametrize(("value", "why"), WRONG.items())
def test_a_conversation_that_cannot_be_learnt_is_named_and_left_out_on_request(
    value: str, why: str, tmp_path: Path
) -> None:
    fault = conversation_fault(value)
    assert fault is not None
    assert why in fault
    good = json.dumps(conversation([("a", "b")]))
    path = tmp_path / "chats.csv"
    path.write_text(
        "messages\n" + "".join(f'"{one.replace(chr(34), chr(34) * 2)}"\n' for one in [good, value, good])
    )
    with pytest.raises(DataError, match=r"chats\.csv:3"):
        load_data(path=path, test_fraction=None)
    data = load_data(path=path, test_fraction=None, on_invalid_row="drop")
    assert (len(data.train_numbers), data.dropped) == (2, 1)


@pytest.mark.parametrize(
    "wrong",
    ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{% for n in range(10 ** 9) %}{% endfor %}", "{{ 'a' * 9999999 }}"],
)
def test_a_template_that_fails_or_writes_very_much_is_refused(wrong: str, folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"its chat template (refuses messages|writes (9|10),\d+,\d+ characters)"
    ):
        Chat.build([], fresh(folder, CHATML + wrong))


def test_a_template_that_is_silent_about_an_answer_is_refused(folder: Path) -> None:
    silent = ANSWER_ALONE.replace("== 'assistant'", "== 'assistant' and m['content'] != 'c'").replace(
        "{% else %}", "{% elif m['role'] == 'user' %}"
    )
    tokenizer = fresh(folder, silent)
    task = Chat.build([], tokenizer)
    features_of(task, tokenizer, [conversation([("a", "b")])])
    with pytest.raises(ModelError, match="writes nothing of the answer"):
        features_of(task, tokenizer, [conversation([("a", "c")])])


@settings(max_examples=40, deadline=None)
@given(said=exchanges, system=st.sampled_from(["", "be brief"]), length=st.integers(1, 200))
def test_as_few_exchanges_as_can_be_are_left_out(
    said: list[tuple[str, str]], system: str, length: int
) -> None:
    def characters(messages: list[dict[str, str]]) -> int:
        return sum(len(message["content"]) for message in messages)

    whole = conversation(said, system)
    found = shortened(whole, length, characters)
    opening = whole[: len(whole) - 2 * len(said)]
    every = [[*opening, *conversation(said[first:])] for first in range(len(said))]
    assert found == next((one for one in every if characters(one) <= length), every[-1])


def test_a_conversation_of_thousands_of_exchanges_is_written_few_times(folder: Path) -> None:
    tokenizer = fresh(folder, CHATML)
    task, times = Chat.build([], tokenizer), 0
    write = tokenizer.apply_chat_template

    def counted(*given: Any, **options: Any) -> Any:
        nonlocal times
        times += 1
        return write(*given, **options)

    tokenizer.apply_chat_template = counted
    features = features_of(task, tokenizer, [conversation([("a", "b")] * 1000)], 200)
    assert times < 50
    assert len(features.ragged("input_ids", 0)) <= 200
    assert int(features.values("cut_exchanges")[0]) > 900


def test_an_option_without_a_token_is_refused(folder: Path) -> None:
    """It would be the likeliest of all: the sum over no tokens is 0."""
    tokenizer = fresh(folder, CHATML.replace("m['content']", "m['content'].replace('x', '')"))
    task = Chat.build([], tokenizer)
    row = {"messages": json.dumps(conversation([("a", "b")])), "choices": json.dumps(["x", "b"])}
    with pytest.raises(ModelError, match="the answer 'x' has no token, so that it has no likelihood"):
        task.encode([row], tokenizer, 64)
