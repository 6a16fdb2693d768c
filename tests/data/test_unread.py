"""What looks like labels, spans, chats or a table is read as that or asked about, never as texts alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.cli.data import _profile
from fednlp.data import load_data
from fednlp.data.columns import TaskUnknown
from fednlp.errors import DataError

LABELS = ["good", "bad"] * 6
TEXTS = [f"a film of number {number}" for number in range(12)]
SPANS = [[7, 12, "GENRE"], [0, 6, "KIND"]]


def lines(make: Callable[[str, str], Any]) -> str:
    rows = [make(text, label) for text, label in zip(TEXTS, LABELS, strict=True)]
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


ASKED = {
    "another name": (
        "a.csv",
        "text,sentiment\n" + lines(lambda t, x: f"{t},{x}"),
        'data.label = "sentiment"',
    ),
    "Label Studio's small JSON": (
        "a.jsonl",
        lines(lambda t, x: {"text": t, "tone": x}),
        "'tone' may be one: 2 short",
    ),
    "one-hot": (
        "a.csv",
        "text,good,bad\n" + lines(lambda t, x: f"{t},{int(x == 'good')},{int(x == 'bad')}"),
        "'good' and 'bad' are 0 or 1 and sum to 1: one-hot labels",
    ),
    "a table as text": (
        "a.txt",
        "text;label_name\n" + lines(lambda t, x: f"{t};{x}"),
        "every line has a semicolon",
    ),
    "a label first": ("a.txt", lines(lambda t, x: f"{x}\t{t}"), "every line has a tab"),
    "a label first, after it a blank": (
        "a.txt",
        lines(lambda t, x: f"{x}:1 {t} {t[:9]}"),
        "such as 'bad:1' beside",
    ),
    "words and tags that are no spans": (
        "a.txt",
        "Anna NOUN\nsleeps VERB\n\n" * 9,
        "if these are words and their tags, call it .conll",
    ),
    "words as numbers": (
        "a.jsonl",
        lines(lambda t, x: {"tokens": t.split(), "ner_tags": [0] * 5}),
        'columns = {words = "tokens", tags = "ner_tags"}',
    ),
    "blanks around names": (
        "a.csv",
        " text , Label \na film,good\n",
        'columns = {text = " text ", label = " Label "}',
    ),
    "no names": (
        "a.csv",
        lines(lambda t, x: f"it was {t},{x}"),
        "begin the file with a line of column names",
    ),
    "no names, a number first": (
        "a.csv",
        lines(lambda t, x: f"1,{x}"),
        "'1' stands where the name of a column",
    ),
    "no names, six of them": (
        "a.csv",
        lines(lambda t, x: f'"0","{len(t)}","Mon Apr 06 22:19:45 PDT","NO_QUERY","{x}","{t}"'),
        'a line of 6 column names (of Sentiment140: label,id,date,query,user,text; or say data.name = "sentiment140")',
    ),
    "texts to labels": (
        "a.json",
        json.dumps({f"it was {t}": x for t, x in zip(TEXTS, LABELS, strict=True)}),
        "of JSON, write objects with these names",
    ),
    "a pair": (
        "a.csv",
        "id,premise,hypothesis,gold_label\n" + lines(lambda t, x: f"1,{t},{t},{x}"),
        'columns = {text = "premise", text_pair = "hypothesis", label = "gold_label"}',
    ),
    "a pair with a score": (
        "a.tsv",
        "sentence1\tsentence2\tscore\n" + lines(lambda t, x: f"{t}\t{t}\t3.8"),
        'columns = {text = "sentence1", text_pair = "sentence2", score = "score"}',
    ),
    "an answer without its place": (
        "a.csv",
        "context,question,answer\n" + lines(lambda t, x: f"{t},which?,film"),
        "write the answer into a column answers, as a JSON list with its position",
    ),
    "a word in each row": (
        "a.csv",
        "sentence_id,words,labels\n" + lines(lambda t, x: f"1,{x},O"),
        "a table with a word in each row: write words and tags as columns of a .conll file",
    ),
    "tags beside a text": (
        "a.jsonl",
        lines(lambda t, x: {"text": t, "tags": ["O"] * 5}),
        "'tags' holds lists: if they are the tags of words, write the words as lists too",
    ),
    **{
        f"marked words, {example}": ("a.txt", f"We met {example} there\n" * 9, f"such as {example!r}: if")
        for example in ("<PER>Anna Berg</PER>", "[Anna](person)", "[Anna Berg PER]")
    },
}


@pytest.mark.parametrize("case", ASKED)
def test_the_question_names_what_to_type(case: str, tmp_path: Path) -> None:
    name, content, message = ASKED[case]
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskUnknown) as caught:
        load_data(path=tmp_path / name)
    assert message in str(caught.value)
    page = _profile({"data": {"path": str(tmp_path / name)}, "task": {}}, ()).page()
    assert ("no task yet" in page, "what to do: " in page) == (True, True)


def test_a_column_that_says_what_a_text_is_of_is_named(tmp_path: Path) -> None:
    """It may tell clients apart, and it may be the label."""
    rows = "".join(
        f"{text},{label},{number}\n" for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    )
    (tmp_path / "a.csv").write_text(f"text,team,id\n{rows}")
    data = load_data(path=tmp_path / "a.csv")
    assert data.task == "causal-lm"
    assert [note for note in data.notes if 'say data.label = "team"' in note]
    assert not [note for note in data.notes if '"id"' in note]
    assert not load_data(path=tmp_path / "a.csv", task="causal-lm").notes


def test_what_a_table_shows_is_advised_from_its_values(tmp_path: Path) -> None:
    """A name that stands among the values too is a value; the longest texts and few values are text and label."""
    (tmp_path / "a.csv").write_text(lines(lambda t, x: f"{x},{t[-8:]}"))
    page = _profile({"data": {"path": str(tmp_path / "a.csv")}, "task": {}}, ()).page()
    assert "'good' stands where the name of a column should" in page
    assert "perhaps" not in page
    (tmp_path / "a.csv").write_text("id,body,class\n" + lines(lambda t, x: f"{t[-1]}x,{t},{x}"))
    page = _profile({"data": {"path": str(tmp_path / "a.csv")}, "task": {}}, ()).page()
    assert "perhaps: --text body --label class" in page


def test_the_other_text_of_a_pair_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("premise,hypothesis,label\n" + lines(lambda t, x: f"{t},{t},{x}"))
    notes = load_data(path=tmp_path / "a.csv", text="premise").notes
    assert notes == (
        "'hypothesis' is not read: if it is a pair with 'premise', say columns = {text_pair = \"hypothesis\"}",
    )


def test_the_user_decides(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,sentiment\n" + lines(lambda t, x: f"{t},{x}"))
    assert load_data(path=tmp_path / "a.csv", task="causal-lm").task == "causal-lm"
    assert load_data(path=tmp_path / "a.csv", label="sentiment").label_names == ("bad", "good")
    (tmp_path / "b.csv").write_text("text,speaker,year\n" + lines(lambda t, x: f"{t},{x},2000"))
    assert load_data(path=tmp_path / "b.csv").task == "causal-lm"


def studio(text: str, results: list[Any]) -> Any:
    return {"id": 1, "data": {"body": text}, "annotations": [{"result": results}], "predictions": []}


LABELLED = {
    "doccano": lines(lambda t, x: {"id": 1, "text": t, "label": [x]}),
    "Prodigy": lines(lambda t, x: {"text": t, "label": x, "answer": "accept", "_task_hash": 1}),
    "Prodigy, choices": lines(
        lambda t, x: {"text": t, "options": [{"id": x}], "accept": [x], "answer": "accept", "_task_hash": 1}
    ),
    "Label Studio": json.dumps(
        [studio(t, [{"value": {"choices": [x]}}]) for t, x in zip(TEXTS, LABELS, strict=True)]
    ),
    "a list in an object": json.dumps(
        {"version": 1, "data": [{"text": t, "label": x} for t, x in zip(TEXTS, LABELS, strict=True)]},
        indent=1,
    ),
    "pandas": json.dumps({"text": dict(enumerate(TEXTS)), "label": dict(enumerate(LABELS))}),
    "pandas, index": json.dumps(
        {f"row {n}": {"text": t, "label": x} for n, (t, x) in enumerate(zip(TEXTS, LABELS, strict=True))}
    ),
    "a list a column": json.dumps({"text": TEXTS, "label": LABELS}, indent=1),
    "a page of results": json.dumps(
        {
            "count": 12,
            "next": None,
            "results": [{"text": t, "label": x} for t, x in zip(TEXTS, LABELS, strict=True)],
        }
    ),
    "a viewer of datasets": json.dumps(
        {
            "features": [
                {"feature_idx": 0, "name": "label", "type": {"names": ["good", "bad"], "_type": "ClassLabel"}}
            ],
            "rows": [
                {"row_idx": n, "row": {"text": t, "label": int(x == "bad")}, "truncated_cells": []}
                for n, (t, x) in enumerate(zip(TEXTS, LABELS, strict=True))
            ],
        }
    ),
    "pandas, split": json.dumps(
        {"columns": ["text", "label"], "data": list(zip(TEXTS, LABELS, strict=True))}
    ),
    "fastText": lines(lambda t, x: f"__label__{x} {t}"),
}


@pytest.mark.parametrize("case", LABELLED)
def test_labels_of_other_tools(case: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.txt" if case == "fastText" else "a.json")
    path.write_text(LABELLED[case])
    data = load_data(path=path)
    assert data.task == "text-classification"
    assert data.column("train", "text").to_pylist() == TEXTS
    assert data.column("train", "label").to_pylist() == LABELS


TAGGED = {
    "doccano 1": lambda text: {"text": text, "label": SPANS},
    "doccano 2": lambda text: {
        "text": text,
        "entities": [{"id": 1, "start_offset": a, "end_offset": b, "label": kind} for a, b, kind in SPANS],
    },
    "Prodigy": lambda text: {
        "text": text,
        "spans": [{"start": a, "end": b, "label": kind} for a, b, kind in SPANS],
        "answer": "accept",
    },
    "Label Studio": lambda text: studio(
        text,
        [{"value": {"start": a, "end": b, "text": text[a:b], "labels": [kind]}} for a, b, kind in SPANS],
    ),
}


@pytest.mark.parametrize("case", TAGGED)
def test_spans_become_words_and_tags(case: str, tmp_path: Path) -> None:
    text = "A film! noirish, 2.5"
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(TAGGED[case](text))}\n" * 5)
    data = load_data(path=tmp_path / "a.jsonl")
    assert json.loads(data.column("train", "words")[0].as_py()) == [
        "A",
        "film",
        "!",
        "noir",
        "ish",
        ",",
        "2",
        ".",
        "5",
    ]
    tags = ["B-KIND", "I-KIND", "O", "B-GENRE", "O", "O", "O", "O", "O"]
    assert json.loads(data.column("train", "tags")[0].as_py()) == tags


NO_SPANS = {
    "overlaps": ([[0, 6, "A"], [2, 8, "B"]], "the span 2 to 8 overlaps another"),
    "beyond": ([[0, 60, "A"]], "is not within the 6 characters"),
    "another text": (
        [{"start": 0, "end": 1, "label": "A", "text": "B"}],
        "stands 'A', not the span's text 'B'",
    ),
}


@pytest.mark.parametrize("case", NO_SPANS)
def test_spans_that_do_not_fit(case: str, tmp_path: Path) -> None:
    spans, message = NO_SPANS[case]
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": "A film" if case != "overlaps" else "A film noir", "spans": spans})
    )
    with pytest.raises(DataError) as caught:
        load_data(path=tmp_path / "a.jsonl")
    assert message in str(caught.value)


def test_what_an_annotator_rejected_is_no_example(tmp_path: Path) -> None:
    row = {"text": "a", "label": "x", "_task_hash": 1}
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(row | {"answer": a}) + "\n" for a in ("accept", "reject"))
    )
    with pytest.raises(DataError, match=r"a.jsonl:2: the annotator's answer is 'reject'"):
        load_data(path=tmp_path / "a.jsonl")
