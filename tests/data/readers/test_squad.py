"""Questions, answers and where they stand: SQuAD's JSON and MRQA's lines."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.data.checks import answers_fault
from fednlp.data.readers.squad import COLUMNS, MRQA_COLUMNS, mrqa, squad
from fednlp.data.store import Row
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]


def stand(row: Row) -> list[bool]:
    """Return for each answer of a row whether it stands in the context where the row says."""
    context, answers = str(row[0]), json.loads(str(row[2]))
    return [answers_fault(context, json.dumps([answer])) is None for answer in answers]


def document(**changes: Any) -> dict[str, Any]:
    question = {
        "id": "q1",
        "question": "When?",
        "answers": [{"text": "1912", "answer_start": 6}, {"text": "in 1912", "answer_start": 3}],
        **changes,
    }
    return {
        "version": "1.1",
        "data": [{"title": "Ships", "paragraphs": [{"context": "It is 1912", "qas": [question]}]}],
    }


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_a_question_with_several_answers(write: Write, name: str) -> None:
    (row,) = squad(write(name, json.dumps(document())))
    found = dict(zip(COLUMNS, row, strict=True))
    answers = json.loads(found.pop("answers") or "")
    assert found == {"context": "It is 1912", "question": "When?", "id": "q1", "title": "Ships"}
    assert answers == [{"text": "1912", "start": 6}, {"text": "in 1912", "start": 3}]
    assert "'in 1912' does not stand at character 3" in (
        answers_fault("It is 1912", json.dumps(answers)) or ""
    )


def test_a_question_without_an_answer_has_an_empty_list(write: Write) -> None:
    (row,) = squad(write("a.json", json.dumps(document(answers=[], is_impossible=True))))
    assert row[2] == "[]"


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"examples": []}, ": no list 'data'"),
        ([], ": no list 'data'"),
        ({"data": [{}]}, ": data[0]: no list 'paragraphs'"),
        (document(question=None), ": data[0].paragraphs[0].qas[0]: no string 'question'"),
        (
            document(answers=[{"text": "a"}]),
            ": data[0].paragraphs[0].qas[0]: an answer without a whole number",
        ),
        (document(answers=["a"]), ": data[0].paragraphs[0].qas[0]: no string 'text'"),
    ],
)
def test_what_is_no_squad_json(write: Write, item: Any, said: str) -> None:
    path = write("a.json", json.dumps(item))
    with pytest.raises(DataError) as caught:
        list(squad(path))
    assert str(caught.value).startswith(f"{path}{said}")


def mrqa_lines(*spans: list[int], header: Any = None) -> str:
    item = {
        "id": "",
        "context": "[PAR] Naïve cafés — in Paris",
        "qas": [
            {
                "qid": "q1",
                "question": "where",
                "answers": ["paris"],
                "detected_answers": [{"text": "Paris", "char_spans": list(spans), "token_spans": [[5, 5]]}],
            }
        ],
        "context_tokens": [["[PAR]", 0]],
    }
    header = {"header": {"dataset": "NewsQA", "split": "train"}} if header is None else header
    return f"{json.dumps(header)}\n{json.dumps(item)}\n"


def test_the_end_of_an_mrqa_span_is_inclusive(write: Write) -> None:
    (row,) = mrqa(write("NewsQA.jsonl.gz", mrqa_lines([23, 27])))
    found = dict(zip(MRQA_COLUMNS, row, strict=True))
    assert json.loads(found["answers"] or "") == [{"text": "Paris", "start": 23}]
    assert answers_fault(str(found["context"]), str(found["answers"])) is None
    assert (found["dataset"], found["id"]) == ("NewsQA", "q1")


def test_every_span_is_an_answer_and_one_beyond_the_context_is_seen(write: Write) -> None:
    (row,) = mrqa(write("a.jsonl", mrqa_lines([23, 27], [6, 10], [25, 99])))
    assert json.loads(str(row[2]))[:2] == [{"text": "Paris", "start": 23}, {"text": "Naïve", "start": 6}]
    assert stand(row) == [True, True, False]


def test_mrqa_faults(write: Write) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl:1: the header: no string 'dataset'"):
        list(mrqa(write("a.jsonl", mrqa_lines([1, 2], header={"context": "a"}))))
    with pytest.raises(DataError, match=r"b\.jsonl:2: qas\[0\]: a char_span is not \[first, last\]"):
        list(mrqa(write("b.jsonl", mrqa_lines([1]))))


# Questions, answers that do not stand where the file says, and questions that then have none.
SHIFTS = {
    "squaddev_v1.1": (10_565, 15, 0),
    "new_wiki_v1.0": (7_936, 8, 0),
    "nyt_v1.0": (10_056, 10, 1),
    "reddit_v1.0": (9_767, 22, 4),
    "amazon_reviews_v1.0": (9_877, 947, 311),
}


@pytest.mark.parametrize("name", SHIFTS)
def test_squadshifts(real: Path, name: str) -> None:
    path = real / "squadshifts" / f"{name}.json.gz"
    rows = list(squad(path))
    checked = [stand(row) for row in rows]
    dropped = sum(found.count(False) for found in checked)
    assert (len(rows), dropped, sum(not any(found) for found in checked)) == SHIFTS[name]
    plain = json.loads(gzip.decompress(path.read_bytes()))["data"]
    asked = [q for article in plain for part in article["paragraphs"] for q in part["qas"]]
    assert [(row[1], row[3]) for row in rows] == [(q["question"], q["id"]) for q in asked]
    assert [len(json.loads(str(row[2]))) for row in rows] == [len(q["answers"]) for q in asked]


@pytest.mark.parametrize("language", ["en", "de"])
def test_xquad(real: Path, language: str) -> None:
    rows = list(squad(real / "xquad" / f"xquad.{language}.json"))
    assert len(rows) == 1190
    assert not any(answers_fault(str(row[0]), str(row[2])) for row in rows)
