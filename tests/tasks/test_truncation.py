"""What is cut off: the tokens of a text beyond those that the task's features hold."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednlp.data import TextData, load_data
from fednlp.data.features import Features, write_features
from fednlp.tasks import task_class
from fednlp.tasks.truncation import truncation

LONG, SHORT = 600, 40


@dataclass(frozen=True)
class Case:
    """A task, the header of its file, and a row of so many words."""

    task: str
    header: list[str]

    def row(self, words: int) -> list[str]:
        text = " ".join(["up"] * words)
        if self.task == "token-classification":
            return [json.dumps(text.split()), json.dumps(["O"] * words)]
        return [text, {"label": "ab"[words % 2], "score": "1", "target": "down"}.get(self.header[-1], "")]


CASES = [
    Case("text-classification", ["text", "label"]),
    Case("text-regression", ["text", "score"]),
    Case("token-classification", ["words", "tags"]),
    Case("sequence-to-sequence", ["source", "target"]),
    Case("text-generation", ["source", "target"]),
]


def made(case: Case, lengths: list[int], tmp_path: Path) -> TextData:
    path = tmp_path / "a.jsonl"
    rows = [dict(zip(case.header, case.row(length), strict=False)) for length in lengths]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_data(path=path, task=case.task)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task)
def test_the_tokens_beyond_the_limit_are_counted(case: Case, tokenizer: Any, tmp_path: Path) -> None:
    lengths = [10] * 20 + [100] * 5 + [71, 70]
    data = made(case, lengths, tmp_path)
    numbers = np.arange(len(lengths))
    options = {"max_target_length": 8} if data.columns.get("target") else {}
    task = task_class(case.task).build(data.label_names, tokenizer, **options)
    rows = [{name: row[own] for name, own in data.columns.items()} for row in data.train.to_pylist()]
    features, whole = (Features.in_memory(task.encode(rows, tokenizer, limit)) for limit in (64, 1000))
    found = truncation(data, "train", numbers, features, task, tokenizer)
    written = case.task == "text-generation"
    read = [part.values("prompt") if written else part.all_lengths for part in (features, whole)]
    assert found.of_texts == len(lengths)
    assert found.texts == 7
    assert found.tokens == (read[1] - read[0]).sum()
    assert found.of_tokens == read[1].sum()


def test_nothing_is_cut_off_where_all_fits(tokenizer: Any, tmp_path: Path) -> None:
    data = made(CASES[0], [3, 4, 9, 9], tmp_path)
    task = task_class(CASES[0].task).build(data.label_names, tokenizer)
    features = Features.in_memory(task.encode(data.train.to_pylist(), tokenizer, 64))
    found = truncation(data, "train", np.arange(4), features, task, tokenizer)
    assert (found.texts, found.tokens, found.of_tokens) == (0, 0, features.all_lengths.sum())


@pytest.mark.whole
def test_many_long_texts_are_estimated_from_a_sample(tokenizer: Any, tmp_path: Path) -> None:
    data = made(CASES[0], [LONG, LONG + 1] * 300 + [SHORT] * 400, tmp_path)
    task = task_class(CASES[0].task).build(data.label_names, tokenizer)
    features = Features.in_memory(task.encode(data.train.to_pylist(), tokenizer, 64))
    found = truncation(data, "train", np.arange(1000), features, task, tokenizer)
    assert found.texts == pytest.approx(600)
    assert found.tokens == pytest.approx(600 * (LONG + 2.5 - 64), rel=0.01)


def test_a_sample_is_tokenised_again_once(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lengths are kept beside the features; one that was cut short is counted again."""
    data = made(CASES[0], [SHORT, LONG] * 20, tmp_path)
    task = task_class(CASES[0].task).build(data.label_names, tokenizer)
    features = write_features(tmp_path / "features", [task.encode(data.train.to_pylist(), tokenizer, 64)])
    encode, asked = type(task).encode, []

    def noted(self: Any, rows: Any, *further: Any) -> Any:
        asked.append(len(rows))
        return encode(self, rows, *further)

    def found(numbers: np.ndarray) -> Any:
        return truncation(data, "train", numbers, features, task, tokenizer)

    monkeypatch.setattr(type(task), "encode", noted)
    first = found(np.arange(40))
    assert (found(np.arange(40)), asked) == (first, [20])
    assert (found(np.arange(20)).texts, asked) == (10, [20, 10])
    for damaged in (b"", b"nonsense"):
        for kept in (tmp_path / "features").glob("whole-*.bin"):
            kept.write_bytes(damaged)
        asked.clear()
        assert (found(np.arange(40)), asked) == (first, [20])
    shutil.rmtree(tmp_path / "features")
    assert found(np.arange(40)) == first
