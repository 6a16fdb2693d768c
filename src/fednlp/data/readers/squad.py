"""Questions whose answers stand in a text: SQuAD's JSON (XQuAD, SQuADShifts) and MRQA's JSON lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fednlp.data.readers.json_files import json_document, json_lines, list_at, string_at
from fednlp.data.store import Row
from fednlp.errors import DataError

COLUMNS = ("context", "question", "answers", "id", "title")
MRQA_COLUMNS = ("context", "question", "answers", "id", "dataset")


def squad(path: Path) -> Iterator[Row]:
    """Read SQuAD 1.1 JSON (Rajpurkar et al., 2016), plain or gzipped, read as a whole.

    The answers are as the file states them: :func:`fednlp.data.checks.answers_fault` checks that they
    occur in the context. A question without an answer (SQuAD 2.0) has an empty list.

    Raises:
        DataError: It is no such file, or larger than
            :data:`fednlp.data.readers.json_files.LARGEST_DOCUMENT`.
    """
    for a, article in enumerate(list_at(json_document(path), "data", str(path))):
        for p, paragraph in enumerate(list_at(article, "paragraphs", f"{path}: data[{a}]")):
            inside = f"{path}: data[{a}].paragraphs[{p}]"
            context = string_at(paragraph, "context", inside)
            title = article.get("title")
            for q, item in enumerate(list_at(paragraph, "qas", inside)):
                where = f"{inside}.qas[{q}]"
                question, answers = string_at(item, "question", where), _answers(item, where)
                yield context, question, answers, _optional(item.get("id")), _optional(title)


def _answers(item: Any, where: str) -> str:
    answers = []
    for answer in list_at(item, "answers", where):
        text = string_at(answer, "text", where)
        start = answer.get("answer_start")
        if type(start) is not int:
            raise DataError(f"{where}: an answer without a whole number 'answer_start': is this SQuAD JSON?")
        answers.append({"text": text, "start": start})
    return json.dumps(answers, ensure_ascii=False)


def _optional(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def mrqa(path: Path) -> Iterator[Row]:
    """Read a file of the MRQA 2019 shared task: JSON lines, the first of them a header, mostly gzipped.

    The answers are the detected spans, cut out of the context so that they stand in it; ``dataset`` is the
    sub-data-set that the header names, and the natural client of every question.
    Source: github.com/mrqa/MRQA-Shared-Task-2019; the end of a span is inclusive.

    Raises:
        DataError: The header or a line is not as it should be.
    """
    dataset: str | None = None
    for number, item in json_lines(path):
        where = f"{path}:{number}"
        if dataset is None:
            dataset = string_at(item.get("header"), "dataset", f"{where}: the header")
            continue
        context = string_at(item, "context", where)
        for q, question in enumerate(list_at(item, "qas", where)):
            inside = f"{where}: qas[{q}]"
            asked = string_at(question, "question", inside)
            answers = json.dumps(_spans(question, context, inside), ensure_ascii=False)
            yield context, asked, answers, _optional(question.get("qid", question.get("id"))), dataset


def _spans(question: Any, context: str, where: str) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for answer in list_at(question, "detected_answers", where):
        text = string_at(answer, "text", where)
        for span in list_at(answer, "char_spans", where):
            if not isinstance(span, list) or len(span) != 2 or not all(type(end) is int for end in span):
                raise DataError(f"{where}: a char_span is not [first, last] of a detected answer")
            first, last = span
            inside = 0 <= first <= last < len(context)
            # A span beyond the context keeps the text it was meant for, so that the check of the answers sees it.
            spans.append({"text": context[first : last + 1] if inside else text, "start": first})
    return spans
