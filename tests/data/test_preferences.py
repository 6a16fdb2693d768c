"""Pairs of answers: the layouts in which files have them, and what is wrong with one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.preferences import pair_maker
from fednlp.data.store import Fault
from fednlp.errors import DataError

PROMPT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "How are you?"},
]
ONE = [{"role": "user", "content": "Hi"}]


def spoken(messages: list[dict[str, str]]) -> str:
    names = {"user": "Human", "assistant": "Assistant"}
    return "".join(f"\n\n{names[message['role']]}: {message['content']}" for message in messages)


def answered(prompt: list[dict[str, str]], answer: str) -> list[dict[str, str]]:
    return [*prompt, {"role": "assistant", "content": answer}]


LAYOUTS: dict[str, tuple[list[dict[str, str]], dict[str, Any]]] = {
    "hh": (
        PROMPT,
        {"chosen": spoken(answered(PROMPT, "Fine")), "rejected": spoken(answered(PROMPT, "Bad"))},
    ),
    "messages": (PROMPT, {"chosen": answered(PROMPT, "Fine"), "rejected": answered(PROMPT, "Bad")}),
    "text": (ONE, {"prompt": "Hi", "chosen": "Fine", "rejected": "Bad"}),
    "prompt of messages": (PROMPT, {"prompt": PROMPT, "chosen": "Fine", "rejected": "Bad"}),
    "answers as messages": (
        PROMPT,
        {"prompt": PROMPT, "chosen": answered([], "Fine"), "rejected": answered([], "Bad")},
    ),
    "prompt and dialogues": (
        ONE,
        {"prompt": "Hi", "chosen": answered(ONE, "Fine"), "rejected": answered(ONE, "Bad")},
    ),
    "hh prompt": (
        PROMPT,
        {"prompt": f"{spoken(PROMPT)}\n\nAssistant:", "chosen": " Fine", "rejected": " Bad"},
    ),
    "alpaca": (
        [{"role": "user", "content": "Say\n\nHi"}],
        {"instruction": "Say", "input": "Hi", "chosen": "Fine", "rejected": "Bad"},
    ),
    "sharegpt": (
        ONE,
        {
            "conversations": [{"from": "human", "value": "Hi"}],
            "chosen": {"from": "gpt", "value": "Fine"},
            "rejected": {"from": "gpt", "value": "Bad"},
        },
    ),
    "orca": (
        [{"role": "system", "content": "Be brief"}, *ONE],
        {"system": "Be brief", "question": "Hi", "chosen": "Fine", "rejected": "Bad"},
    ),
}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(("prompt", "row"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_each_layout_is_found_by_itself_and_said(
    prompt: list[dict[str, str]], row: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    path, rows = tmp_path / f"pairs.{suffix}", [row | {"topic": str(n)} for n in range(5)]
    if suffix == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    data = load_data(path=path)
    assert (data.task, data.train.column_names) == (
        "preference",
        ["messages", "chosen", "rejected", "topic"],
    )
    assert json.loads(data.train["messages"][0].as_py()) == prompt
    assert [data.train[name][0].as_py() for name in ("chosen", "rejected")] == ["Fine", "Bad"]
    assert any("pairs are made of 'chosen' and 'rejected'" in note for note in data.notes)


def test_columns_of_other_names_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([json.dumps({"q": "Hi", "good": "Fine", "poor": "Bad"})] * 3))
    own = {"messages": "q", "chosen": "good", "rejected": "poor"}
    data = load_data(path=path, columns=own)
    assert (data.task, data.train["chosen"][0].as_py()) == ("preference", "Fine")
    with pytest.raises(DataError, match="no column 'better'"):
        load_data(path=path, task="preference", columns=own | {"chosen": "better"})
    with pytest.raises(DataError, match="no column 'chosen'"):
        load_data(path=path, task="preference")


ALL = ("prompt", "chosen", "rejected")
WRONG: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "'chosen' and 'rejected' are equal": (ALL, ["Hi", "Fine", "Fine "]),
    "'rejected' is empty": (ALL, ["Hi", "Fine", " "]),
    "'prompt' is empty": (ALL, ["", "Fine", "Bad"]),
    "'prompt' does not end with a message of the user": (
        ALL,
        [json.dumps(answered(ONE, "Yes")), "Fine", "Bad"],
    ),
    "'chosen' is no dialogue, and no column holds its prompt": (ALL[1:], ["Fine", "Bad"]),
    "'rejected' has no message of the assistant": (ALL, ["Hi", "Fine", "[]"]),
    "'chosen': the last of 3 messages is of the user": (ALL[1:], [spoken(PROMPT), spoken(PROMPT)]),
    "'chosen': the conversation has no message of the assistant": (ALL[1:], [spoken(ONE), spoken(ONE)]),
    "'rejected': message 2, of the assistant, is empty": (
        ALL[1:],
        [spoken(answered(ONE, "Fine")), spoken(answered(ONE, ""))],
    ),
    "message 2 is of the user, where the assistant has its turn": (
        ALL[1:],
        [spoken(answered([*ONE, *ONE], "Fine"))] * 2,
    ),
    "message 1 is 'Hi' in 'chosen' and 'Ho' in 'rejected'": (
        ALL[1:],
        ["\n\nHuman: Hi\n\nAssistant: Fine", "\n\nHuman: Ho\n\nAssistant: Bad"],
    ),
    "message 2 is the answer in 'chosen' and 'Hello' in 'rejected'": (
        ALL[1:],
        [spoken(answered(ONE, "Fine")), spoken(answered(PROMPT, "Bad"))],
    ),
    "'chosen' is a dialogue that does not begin with the prompt": (
        ALL,
        ["Ho", json.dumps(answered(ONE, "Fine")), "Bad"],
    ),
}


@pytest.mark.parametrize(("why", "given"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_no_pair_is_named_and_left_out_on_request(
    why: str, given: tuple[tuple[str, ...], list[str]], tmp_path: Path
) -> None:
    columns, row = given
    found = pair_maker(columns)(columns)(row)
    assert isinstance(found, Fault)
    assert why in found.message
    assert "\n" not in found.message
    good = {"prompt": "Hi", "chosen": answered(ONE, "Fine"), "rejected": answered(ONE, "Bad")}
    path = tmp_path / "pairs.jsonl"
    rows = [good, dict(zip(columns, row, strict=True)), good]
    path.write_text("".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"pairs\.jsonl:2"):
        load_data(path=path, test_fraction=None)
    data = load_data(path=path, test_fraction=None, on_invalid_row="drop")
    assert (len(data.train_numbers), data.dropped) == (2, 1)


texts = st.text("ab :{\n", min_size=1, max_size=8).filter(str.strip)


@given(prompt=texts, chosen=texts, rejected=texts)
def test_answers_apart_stay_as_they_are(prompt: str, chosen: str, rejected: str) -> None:
    found = pair_maker(ALL)(ALL)([prompt, chosen, rejected])
    if isinstance(found, Fault):
        assert chosen.strip() == rejected.strip()
    else:
        assert [json.loads(found[0])[0]["content"], *found[1:]] == [prompt, chosen, rejected]
