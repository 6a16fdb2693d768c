"""Users' own files for every task: what is said comes out, and what cannot be an example is refused or counted."""

import csv
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data import TextData, load_data
from fednlp.data.columns import infer_task
from fednlp.data.label_names import label_name
from fednlp.errors import DataError
from fednlp.formulations import TASKS

words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)
texts = st.lists(words, min_size=1, max_size=6).map(" ".join)


@st.composite
def answered(draw: st.DrawFn) -> dict[str, Any]:
    context = draw(texts)
    start = draw(st.integers(0, len(context) - 1).filter(lambda place: context[place] != " "))
    answer = {"text": context[start : start + draw(st.integers(1, 9))], "start": start}
    return {"context": context, "question": draw(texts), "answers": [answer]}


@st.composite
def tagged(draw: st.DrawFn) -> dict[str, Any]:
    sentence = draw(st.lists(words, min_size=1, max_size=6))
    tags = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC"])
    return {
        "words": sentence,
        "tags": draw(st.lists(tags, min_size=len(sentence), max_size=len(sentence))),
    }


scored = st.fixed_dictionaries({"text": texts, "score": st.floats(allow_nan=False, allow_infinity=False)})
paired = st.fixed_dictionaries({"source": texts, "target": texts})
EXAMPLES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "text-classification": st.fixed_dictionaries({"text": texts, "label": words}),
    "text-regression": scored,
    "token-classification": tagged(),
    "question-answering": answered(),
    "sequence-to-sequence": paired,
    "causal-lm": st.fixed_dictionaries({"text": texts}),
}


def written(folder: Path, name: str, items: list[dict[str, Any]]) -> Path:
    """Write items as JSON lines or CSV, by the ending of the name; lists become JSON in a cell."""
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(item)}\n" for item in items))
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(items[0])
        for item in items:
            writer.writerow(
                json.dumps(one) if isinstance(one, list) else one for one in map(item.get, items[0])
            )
    return path


@pytest.mark.parametrize("task", EXAMPLES)
@settings(max_examples=20)
@given(data=st.data(), name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl"]))
def test_every_task_is_told_by_its_columns_and_nothing_changes_on_the_way(
    task: str, data: st.DataObject, name: str
) -> None:
    items = data.draw(st.lists(EXAMPLES[task], min_size=2, max_size=6))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDNLP_CACHE", f"{folder}/cache")
        loaded = load_data(path=written(Path(folder), name, items))
        assert loaded.task == task
        assert loaded.columns == {column: column for column in TASKS[task].schema.needed}
        found = [
            {
                column: json.loads(one) if isinstance(items[0][column], list) else one
                for column, one in row.items()
            }
            for row in loaded.train.to_pylist()
        ]
        if task == "text-regression":
            assert loaded.scores("train").tolist() == [item["score"] for item in items]
            items = [{**item, "score": str(item["score"])} for item in items]
        if task == "text-classification":
            items = [{**item, "label": label_name(item["label"])} for item in items]
        assert found == items
        assert sorted([*loaded.train_numbers, *loaded.test_numbers]) == list(range(len(items)))
        assert (loaded.dropped, loaded.dropped_why) == (0, "")


def test_columns_are_called_what_the_user_says(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.jsonl", [{"dialogue": f"d{n}", "summary": f"s{n}", "by": "x"} for n in range(4)]
    )
    columns = {"source": "dialogue", "target": "summary"}
    data = load_data(path=path, columns=columns)
    assert (data.task, data.columns, data.text) == ("sequence-to-sequence", columns, "dialogue")
    assert data.input_texts("train", [2, 0]) == ["d2", "d0"]
    assert load_data(path=path, columns={"text": "summary"}).task == "causal-lm"
    assert load_data(path=path, text="dialogue", label="by").columns == {"text": "dialogue", "label": "by"}


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (
            ["text", "label", "score"],
            {},
            "fit text-classification and text-regression alike: say which, such as task.name = ",
        ),
        (
            ["a", "b"],
            {},
            r"no task fits, the columns are 'a', 'b': text-classification needs text and label; ",
        ),
        (["text", "lable"], {}, "no column 'label': did you mean 'lable'"),
        (["text", "b"], {"label": "c"}, "no column 'c': "),
        (["context", "question"], {}, "question-answering needs context, question and answers; "),
    ],
)
def test_a_task_that_cannot_be_told_is_one_line(
    names: list[str], wanted: dict[str, str], expected: str
) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        infer_task("a.csv", names, wanted)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("a.csv: ")


def test_a_column_that_is_named_narrows_the_choice() -> None:
    names = ["text", "label", "score"]
    assert infer_task("a.csv", names, {"label": "label"}) == "text-classification"
    assert infer_task("a.csv", names, {"score": "score"}) == "text-regression"
    assert infer_task("a.csv", ["text", "author"], {}) == "causal-lm"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"columns": {"sorce": "a"}},
            r"^data.columns: unknown name 'sorce': did you mean 'source'\? it is one of text, ",
        ),
        (
            {"columns": {"text": "a"}, "text": "b"},
            r"^data.text is 'b', and data.columns says 'a': say it once$",
        ),
        (
            {"task": "question-answring"},
            r"^unknown task 'question-answring': did you mean 'question-answering'\?",
        ),
        ({"task": "causal-lm", "label": "b"}, "^causal-lm has no column 'label': it reads text$"),
        ({"on_invalid_row": "keep"}, "^on_invalid_row is 'keep': say 'refuse' or 'drop'$"),
        ({"text": "label"}, "^text and label are both the column 'label': name two columns$"),
        ({"task": "token-classification"}, "no column 'words': the columns are 'text', 'label'$"),
    ],
)
def test_options_that_cannot_be_are_one_line(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    path = written(tmp_path, "a.csv", [{"text": "x", "label": "y"}, {"text": "z", "label": "y"}])
    with pytest.raises(DataError, match=expected):
        load_data(path=path, **options)


GOOD: dict[str, dict[str, Any]] = {
    "text-classification": {"text": "a", "label": "x"},
    "text-regression": {"text": "a", "score": 1.5},
    "token-classification": {"words": ["a", "b"], "tags": ["O", "B-X"]},
    "question-answering": {
        "context": "in 1912",
        "question": "when?",
        "answers": [{"text": "1912", "start": 3}],
    },
    "sequence-to-sequence": {"source": "a", "target": "b"},
    "causal-lm": {"text": "a"},
}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("text-classification", {"label": " "}, "the label is missing: fill in 'label'"),
    ("text-classification", {"text": None}, "'text' is missing: fill it in"),
    ("text-classification", {"text": ["a"]}, "the text is missing: 'text' must be a string"),
    ("text-regression", {"score": "high"}, "'high' in 'score' is no number: write one such as 3.5"),
    ("text-regression", {"score": "inf"}, "'inf' in 'score' is no number: write one such as 3.5"),
    ("text-regression", {"score": None}, "'score' is missing: fill it in"),
    (
        "token-classification",
        {"tags": ["O"]},
        "2 words and 1 tag: there must be one tag a word, in 'words' and 'tags'",
    ),
    (
        "token-classification",
        {"words": "a b"},
        "the words are not a JSON list of strings, in 'words' and 'tags'",
    ),
    ("token-classification", {"words": [], "tags": []}, "there is no word, in 'words' and 'tags'"),
    ("token-classification", {"words": ["", "b"]}, "a word is empty: write every word and its tag"),
    ("token-classification", {"tags": ["O", ""]}, "a tag is empty: write every word and its tag"),
    (
        "question-answering",
        {"answers": [{"text": "1913", "start": 3}]},
        "the answer '1913' does not stand at character 3 of its context",
    ),
    (
        "question-answering",
        {"answers": []},
        "there is no answer, and questions without one (SQuAD 2.0) are not learnt",
    ),
    (
        "question-answering",
        {"answers": "in 1912"},
        'the answers are not a JSON list: write [{"text": "...", "start": number}], where start is the position of the '
        "answer's first character in its context, counted from 0",
    ),
    (
        "question-answering",
        {"answers": [{"text": "1912"}]},
        'an answer is not {"text": "...", "start": number}',
    ),
    ("question-answering", {"question": ""}, "the question is empty: fill it in"),
    ("sequence-to-sequence", {"target": " "}, "the text in 'target' is empty: fill it in"),
    ("sequence-to-sequence", {"source": ""}, "the text in 'source' is empty: fill it in"),
    (
        "sequence-to-sequence",
        {"references": "b"},
        '\'references\' is not a JSON list of texts such as ["one summary", "another"]',
    ),
    (
        "token-classification",
        {"words": '["a", "\\ud83d"]'},
        "half a surrogate pair (\\ud800 to \\udfff) in 'words' is no character: remove it",
    ),
    ("causal-lm", {"text": None}, "'text' is missing: fill it in"),
]


@pytest.mark.parametrize(("task", "change", "said"), BAD)
def test_a_row_that_cannot_be_an_example_is_refused_or_counted(
    tmp_path: Path, task: str, change: dict[str, Any], said: str
) -> None:
    good = GOOD[task]
    path = written(tmp_path, "a.jsonl", [good, good, {**good, **change}, good])
    (tmp_path / "test.jsonl").write_text(path.read_text())
    with pytest.raises(DataError) as caught:
        load_data(path=path, task=task)
    assert str(caught.value) == f'{path}:3: {said}, or leave such rows out with data.on_invalid_row = "drop"'
    data = load_data(path=path, test_path=tmp_path / "test.jsonl", task=task, on_invalid_row="drop")
    assert (data.train.num_rows, data.test.num_rows, data.dropped) == (3, 3, 2)
    assert data.dropped_why == f"{path}:3: {said}; {tmp_path / 'test.jsonl'}:3: {said}"
    again = load_data(path=path, test_path=tmp_path / "test.jsonl", task=task, on_invalid_row="drop")
    assert (again.dropped, again.dropped_why) == (data.dropped, data.dropped_why)


def test_only_the_first_reasons_are_kept_and_the_rest_is_a_number(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.jsonl", [{"source": "a", "target": "b"}] * 2 + [{"source": "a", "target": ""}] * 9
    )
    data = load_data(path=path, on_invalid_row="drop")
    assert data.dropped == 9
    assert data.dropped_why.endswith(f"{path}:5: the text in 'target' is empty: fill it in; and 6 more")


def test_empty_texts_may_be_classified_and_modelled(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", [{"text": "", "label": "x"}, {"text": "b", "label": "y"}])
    assert load_data(path=path).input_texts("train", [0, 1]) == ["", "b"]
    assert load_data(path=path, task="causal-lm").train.num_rows == 2


def test_answers_may_be_written_as_squad_and_as_datasets_have_them(tmp_path: Path) -> None:
    good = GOOD["question-answering"]
    ways = [[{"text": "1912", "answer_start": 3}], {"text": ["1912"], "answer_start": [3]}]
    path = written(tmp_path, "a.jsonl", [{**good, "answers": way} for way in ways])
    found = load_data(path=path).column("train", "answers").to_pylist()
    assert [json.loads(one) for one in found] == [good["answers"]] * 2
    bad = written(tmp_path, "b.jsonl", [{**good, "answers": {"text": ["1912", "x"], "answer_start": [3]}}])
    with pytest.raises(DataError, match=r"b.jsonl:1: the answers are not a JSON list"):
        load_data(path=bad)


def test_the_fingerprint_follows_task_columns_and_what_is_done_with_bad_rows(tmp_path: Path) -> None:
    items = [{"text": f"a{n}", "label": "x", "source": "s", "target": "t"} for n in range(4)]
    path = written(tmp_path, "a.jsonl", items)
    ways: list[dict[str, Any]] = [
        {"task": "text-classification"},
        {"task": "prompt-classification"},
        {"task": "causal-lm"},
        {"task": "causal-lm", "columns": {"text": "source"}},
        {"task": "causal-lm", "on_invalid_row": "drop"},
        {"task": "sequence-to-sequence"},
        {"task": "sequence-to-sequence", "columns": {"references": "text"}, "on_invalid_row": "drop"},
    ]
    prints = []
    for way in ways[:-1]:
        assert load_data(path=path, **way).fingerprint == load_data(path=path, **way).fingerprint
        prints.append(load_data(path=path, **way).fingerprint)
    assert len(set(prints)) == len(prints)


def test_conll_files_and_text_files_with_tags(tmp_path: Path) -> None:
    content = "EU\tB-ORG\nsaid\tO\n\nBonn\tB-LOC\n"
    for name in ("a.conll", "a.bio", "a.txt", "a.conll.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        data = load_data(path=path)
        assert data.task == "token-classification"
        assert data.label_names == ("O", "B-LOC", "B-ORG")
        assert data.input_texts("train", [0, 1]) == ["EU said", "Bonn"]
    (tmp_path / "lines.txt").write_text("To be,\n\nor not. O\nto be\n")
    data = load_data(path=tmp_path / "lines.txt")
    assert (data.task, data.input_texts("train", [0, 1, 2])) == (
        "causal-lm",
        ["To be,", "or not. O", "to be"],
    )
    (tmp_path / "bad.conll").write_text("EU\tB-ORG\nsaid\n")
    with pytest.raises(DataError, match=r"bad.conll:2: "):
        load_data(path=tmp_path / "bad.conll")


def test_squad_is_told_from_json_lines(tmp_path: Path) -> None:
    answer = {"text": "1912", "answer_start": 3}
    asked = {"question": "when?", "id": "1", "answers": [answer]}
    whole = {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": "in 1912", "qas": [asked] * 2}]}],
    }
    for name, indent in (("a.json", None), ("b.json", 1), ("c.json.gz", 1)):
        content = json.dumps(whole, indent=indent).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        data = load_data(path=tmp_path / name)
        assert (data.task, data.train.num_rows) == ("question-answering", 2)
        assert data.columns["id"] == "id"
        assert data.input_texts("train", [1]) == ["in 1912"]
    (tmp_path / "d.json").write_text('{"text": "paragraphs", "label": "data"}\n' * 2)
    assert load_data(path=tmp_path / "d.json").task == "text-classification"


def test_texts_in_two_languages_by_what_comes_before_the_language(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("eins\nzwei\n")
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    columns = {"source": "de", "target": "en"}
    data = load_data(path=tmp_path, columns=columns)
    assert (data.task, data.held_out, data.columns) == ("sequence-to-sequence", True, columns)
    for split, german, english in (("test", "drei\n", "three\n"), ("val", "vier\n", "four\n")):
        (tmp_path / f"{split}.de").write_text(german)
        (tmp_path / f"{split}.en").write_text(english)
    assert load_data(path=tmp_path, columns=columns).input_texts("test", [0]) == ["drei"]
    data = load_data(path=tmp_path / "train", test_path=tmp_path / "val", columns=columns)
    assert (data.input_texts("test", [0]), data.held_out) == (["vier"], False)
    assert load_data(path=tmp_path, columns={"source": "en", "target": "de"}).input_texts("train", [1]) == [
        "two"
    ]
    with pytest.raises(DataError, match=r"^there is no .*/train: did you mean "):
        load_data(path=tmp_path / "train", columns={"source": "de", "target": "fr"})


def test_unequal_numbers_of_lines_are_refused_with_both_counts(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "train.en").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"train.de has 3 lines and .*train.en 2: "):
        load_data(path=tmp_path, columns={"source": "de", "target": "en"}, on_invalid_row="drop")


def test_a_blank_line_does_not_shift_what_follows(tmp_path: Path) -> None:
    (tmp_path / "train.de").write_text("eins\n\ndrei\n")
    (tmp_path / "train.en").write_text("one\ntwo\nthree\n")
    columns = {"source": "de", "target": "en"}
    with pytest.raises(DataError, match=r"row 2: the text in 'de' is empty"):
        load_data(path=tmp_path, columns=columns)
    data = load_data(path=tmp_path, columns=columns, on_invalid_row="drop")
    assert (data.train.column("en").to_pylist(), data.dropped) == (["one", "three"], 1)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_line_in_another_encoding_is_named_whatever_is_done_with_bad_rows(
    tmp_path: Path, name: str
) -> None:
    lines = ["text,label", "a,x", "né,y"] if name == "a.csv" else ["", '{"text": "a"}', '{"text": "né"}']
    (tmp_path / name).write_bytes("\n".join(lines[:2]).encode() + b"\n" + lines[2].encode("latin-1") + b"\n")
    with pytest.raises(
        DataError, match=rf"{name}:3: byte 0xe9 at position \d+ is not UTF-8: convert the file"
    ):
        load_data(path=tmp_path / name, on_invalid_row="drop")


def test_a_row_with_too_few_cells_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,x\nb\nc,y\n")
    data = load_data(path=tmp_path / "a.csv", on_invalid_row="drop")
    assert (data.train.num_rows, data.dropped) == (2, 1)
    assert data.dropped_why.endswith(
        "a.csv:3: 1 cell where the header has 2: put a cell that holds a comma in quotes"
    )


SUMMARISED = {"source": "dialogue", "target": "summary"}
THREE = {"target": "summary1", "references": ["summary1", "summary2", "summary3"]}


def test_a_test_file_has_columns_of_its_own(tmp_path: Path) -> None:
    train = written(tmp_path, "a.jsonl", [{"dialogue": "a", "summary": "b"}])
    test = written(
        tmp_path, "b.jsonl", [{"dialogue": "a", "summary1": "b", "summary2": "c", "summary3": "d"}]
    )
    data = load_data(path=train, test_path=test, columns=SUMMARISED, test_columns=THREE)
    found = {name: data.test.column(own).to_pylist() for name, own in data.columns_in("test").items()}
    assert found == {"source": ["a"], "target": ["b"], "references": ['["b", "c", "d"]']}
    assert "references" not in data.columns_in("train")
    again = load_data(path=train, test_path=test, columns=SUMMARISED, test_columns={"target": "summary2"})
    assert again.test.column(again.columns["target"]).to_pylist() == ["c"]
    assert again.fingerprint != data.fingerprint


@pytest.mark.parametrize(
    ("test_columns", "message"),
    [
        ({"target": "sumary1"}, "b.jsonl.*no column 'sumary1': did you mean 'summary1'"),
        ({"references": ["summary1", "summary9"], "target": "summary1"}, "no column 'summary9'"),
        ({"goal": "summary1"}, "unknown name 'goal'"),
        ({"target": ["summary1", "summary2"]}, "test_columns.target: one column, not a list"),
        ({"target": "dialogue", "source": "dialogue"}, "one column for two names"),
        ({"target": "summary1", "source": "summary2"}, "another column than 'dialogue': remove that one"),
    ],
)
def test_columns_of_a_test_file_that_do_not_fit(
    test_columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    train = written(tmp_path, "a.jsonl", [{"dialogue": "a", "summary": "b"}])
    test = written(tmp_path, "b.jsonl", [{"dialogue": "a", "summary1": "b", "summary2": "c"}])
    with pytest.raises(DataError, match=message):
        load_data(path=train, test_path=test, columns=SUMMARISED, test_columns=test_columns)
    with pytest.raises(DataError, match="test_columns is for a test set in a file of its own"):
        load_data(path=train, columns=SUMMARISED, test_columns=THREE, test_fraction=None)


def test_references_may_be_in_the_test_file_alone(tmp_path: Path) -> None:
    train = written(tmp_path, "a.jsonl", [{"source": "a", "target": "b"}])
    test = written(tmp_path, "b.jsonl", [{"source": "a", "target": "b", "references": ["b", "c"]}])
    data = load_data(path=train, test_path=test)
    assert "references" in data.columns
    assert "references" not in data.columns_in("train")
    assert data.columns_in("test")["references"] == "references"
    named = written(tmp_path, "c.jsonl", [{"source": "a", "target": "b", "refs": ["b", "c"]}])
    data = load_data(path=train, test_path=named, columns={"references": "refs"})
    assert data.columns_in("test")["references"] == "refs"
    with pytest.raises(DataError, match="no column 'rafs': did you mean 'refs'"):
        load_data(path=train, test_path=named, columns={"references": "rafs"})
    bad = written(tmp_path, "d.jsonl", [{"source": "a", "target": "b", "refs": "b"}])
    with pytest.raises(DataError, match=r"d.jsonl:1: 'refs' is not a JSON list of texts"):
        load_data(path=train, test_path=bad, columns={"references": "refs"})


def test_labels_that_training_never_saw_have_an_id_after_all(tmp_path: Path) -> None:
    train = written(tmp_path, "a.jsonl", [{"words": ["a"], "tags": ["B-X"]}])
    test = written(tmp_path, "b.jsonl", [{"words": ["a", "b"], "tags": ["B-A", "O"]}])
    assert load_data(path=train, test_path=test).label_names == ("O", "B-A", "B-X")


def test_groups_are_positions_among_names(tmp_path: Path) -> None:
    items = [{"text": "a", "by": by} for by in ("10", "9", None, " ", "10", "x")]
    train = written(tmp_path, "a.jsonl", items)
    test = written(tmp_path, "b.jsonl", [{"text": "a", "by": by} for by in ("x", "new", "9")])
    data = load_data(path=train, test_path=test)
    ids, names = data.groups("train", "by")
    assert (ids.tolist(), names) == ([0, 1, -1, -1, 0, 2], ("10", "9", "x"))
    assert ids.dtype == np.int64
    assert data.groups("test", "by", names)[0].tolist() == [2, -1, 1]
    with pytest.raises(DataError, match="no column 'buy': did you mean 'by'"):
        data.groups("train", "buy")


def test_scores_are_for_a_task_that_has_them(tmp_path: Path) -> None:
    data: TextData = load_data(path=written(tmp_path, "a.jsonl", [{"text": "a"}, {"text": "b"}]))
    assert data.labels("train").tolist() == [0, 0]
    with pytest.raises(DataError, match=r"^a: causal-lm has no scores, text-regression has$"):
        data.scores("train")


def test_files_of_the_original_say_their_task_and_their_split(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from fednlp.data.fednlp_h5 import write_data

    path = tmp_path / "mine_data.h5"
    rows = [("a", "x"), ("b", "y"), ("c", "x")]
    write_data(path, "text-classification", ("text", "label"), rows, [0, 2], [1])
    data = load_data(path=path)
    assert (data.task, data.held_out, data.label_names) == ("text-classification", False, ("x", "y"))
    assert data.input_texts("train", [0, 1]) == ["a", "c"]
    assert data.input_texts("test", [0]) == ["b"]
    write_data(path, "sequence-to-sequence", ("source", "target"), rows, [0, 2], [1])
    assert load_data(path=path).columns == {"source": "source", "target": "target"}


@pytest.mark.parametrize("number", ["1_000", " 2.5 ", "+.5", "1e3", "-0", "٣", "5."])
def test_a_score_is_whatever_python_takes_for_a_number(tmp_path: Path, number: str) -> None:
    path = written(tmp_path, "a.csv", [{"text": "a", "score": number}, {"text": "b", "score": "1"}])
    assert load_data(path=path).scores("train").tolist() == [float(number), 1.0]


def test_a_pair_must_be_a_pair_in_both_sets(tmp_path: Path) -> None:
    one = {"text": "a", "label": "x"}
    train = written(tmp_path, "a.jsonl", [{**one, "text_pair": "b"}])
    test = written(tmp_path, "b.jsonl", [one])
    with pytest.raises(DataError, match="only one of the training and test sets has the column 'text_pair'"):
        load_data(path=train, test_path=test)
