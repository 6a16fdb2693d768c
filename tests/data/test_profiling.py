"""The profile of the data: every planted issue is found and nothing else; figures agree with a plain count."""

import csv
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.profiling import Holders, Truncation, profile
from fednlp.data.profiling.statistics import shortened, spread_of
from fednlp.data.profiling.text_issues import (
    ExampleHashes,
    contradicting,
    in_both_splits,
    repeated,
    shared_by_clients,
)
from fednlp.errors import DataError

CLASSES = ("cardiology", "oncology", "surgery")
Table = list[list[str]]
Write = Callable[..., Path]
CELLS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(-1, 3)), max_size=40)


def clean(count: int = 300) -> Table:
    """Return texts that differ, each with one of three labels."""
    return [[f"note {number} of the ward", CLASSES[number % 3]] for number in range(count)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write rows as a CSV file."""

    def written(rows: Sequence[Sequence[str]], name: str = "mine.csv", header: str = "text,label") -> Path:
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header.split(","), *rows])
        return path

    return written


def kinds(path: Path, **options: Any) -> dict[str, int]:
    """Return how many there are of each issue, of a profile that JSON can hold."""
    seen = profile(load_data(path=path, **options))
    json.dumps(seen.values())
    return {issue.kind: issue.count for issue in seen.issues}


def planted(plant: str) -> Table:
    """Return clean rows with one issue."""
    rows = clean()
    if plant == "similar-labels":
        rows[4][1], rows[7][1] = "Oncology ", "ONCOLOGY"
        rows += [[f"more {number}", rows[(4, 7)[number % 2]][1]] for number in range(20)]
    elif plant == "label-per-row":
        rows = [[text, f"id{number}"] for number, (text, _) in enumerate(rows)]
    elif plant == "numeric-labels":
        rows = [[text, str(number / 100)] for number, (text, _) in enumerate(rows)]
    elif plant == "scores":
        rows = [[text, ("3.8", "0", "5")[number % 3]] for number, (text, _) in enumerate(rows)]
    elif plant == "damaged-texts":
        rows[0][0], rows[1][0], rows[2][0] = "FÃ¼r den KÃ¶nig", "F\ufffdr", "itâ€™s"
    elif plant == "no-texts":
        rows = [[f"2024-{number}", label] for number, (_, label) in enumerate(rows)]
    elif plant == "names of files":
        rows = [[f"texts/{number}.txt", label] for number, (_, label) in enumerate(rows)]
    elif plant == "single-example-labels":
        rows[0][1] = "radiology"
    elif plant == "empty-texts":
        rows[0][0], rows[1][0], rows[2][0] = "", " ", "\t"
    return rows


@pytest.mark.parametrize(
    ("plant", "count"),
    [
        ("similar-labels", 3),
        ("label-per-row", 300),
        ("numeric-labels", 300),
        ("scores", 3),
        ("single-example-labels", 1),
        ("empty-texts", 3),
        ("damaged-texts", 3),
        ("no-texts", 240),
        ("names of files", 240),
    ],
)
def test_what_is_planted_in_one_file_is_found_and_nothing_else(write: Write, plant: str, count: int) -> None:
    kind = {"scores": "numeric-labels", "names of files": "no-texts"}.get(plant, plant)
    assert kinds(write(planted(plant))) == {kind: count}


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ([], [["note 4 of the ward", "oncology"]], {"in-train-and-test": 1}),
        ([["note 4 of the ward", "oncology"]] * 2, [], {"repeated-in-train": 2}),
        ([], [["new", "surgery"]] * 3, {"repeated-in-test": 2}),
        ([["note 4 of the ward", "surgery"]], [], {"contradicting-labels": 1}),
        ([], [["new", "radiology"], ["newer", "radiology"]], {"test-only-labels": 1}),
    ],
)
def test_what_is_planted_across_rows_is_found_and_nothing_else(
    write: Write, train: Table, test: Table, expected: dict[str, int]
) -> None:
    fresh = [[f"test {text}", label] for text, label in clean(60)]
    test_path = write(fresh + test, "test.csv")
    assert kinds(write(clean() + train), test_path=test_path) == expected


def test_texts_that_several_clients_hold(write: Write) -> None:
    """Named with two of their clients; a text that one client has twice is not shared."""
    rows = [*clean(40), ["note 0 of the ward", "cardiology"], ["note 1 of the ward", "oncology"]]
    data = load_data(path=write(rows), test_path=write([["x", "surgery"]], "test.csv"))
    owners = np.arange(len(rows)) % 4
    owners[-2:] = 3, owners[1]
    seen = profile(data, Holders(owners, ("Nord", "Ost", "Süd", "West")))
    (shared,) = [issue for issue in seen.issues if issue.kind == "shared-by-clients"]
    assert shared.count == 1
    assert shared.example == '"note 0 of the ward" (Nord and West)'


def test_one_label_for_all_is_odd_and_a_list_is_refused(write: Write) -> None:
    assert kinds(write([[text, "surgery"] for text, _ in clean()])) == {"one-label": 1}
    with pytest.raises(DataError, match="are lists"):
        load_data(path=write([[text, '["O", "B-PER"]'] for text, _ in clean()]))


@pytest.mark.parametrize("header", ["text,label", "text,score", "source,target", "text"])
def test_clean_data_have_nothing_odd(write: Write, header: str) -> None:
    last = {"label": CLASSES, "score": ("1", "2.5", "4"), "target": ("a", "b", "c")}.get(
        header.split(",")[-1], ()
    )
    rows = [[text, *last[number % 3 : number % 3 + 1]] for number, (text, _) in enumerate(clean())]
    assert kinds(write(rows, header=header)) == {}


def test_many_whole_numbers_may_be_names_of_classes(write: Write) -> None:
    """77 classes of an intent data set are no scale."""
    assert kinds(write([[f"text {n}", str(n % 77)] for n in range(1000)])) == {}


def test_pairs_repeat_only_as_pairs(write: Write) -> None:
    rows = [["the same text", f"another {n}", CLASSES[n % 3]] for n in range(60)]
    assert kinds(write(rows, header="text,text_pair,label")) == {}


def test_few_of_many_are_a_note_and_no_warning(write: Write) -> None:
    few, many = (profile(load_data(path=write(clean(400) + clean(count)))) for count in (2, 60))
    assert {issue.minor for issue in few.issues} == {True}
    assert not any(line.startswith("warning") for line in few.lines())
    assert "note: " in few.page()
    assert False in {issue.minor for issue in many.issues}


def test_what_is_cut_off_is_said_where_it_matters(write: Write) -> None:
    data = load_data(path=write(clean()))
    cut = Truncation(texts=30, share=0.1, tokens=0.25, limit=128, remedy="raise model.max_length")
    (found,) = profile(data, truncated=cut).issues
    assert str(found) == (
        "warning: 30 texts (10 %) longer than the 128 tokens that the model reads: 25 % of all tokens are cut off; "
        "raise model.max_length"
    )
    assert profile(data, truncated=Truncation(0, 0.0, 0.0, 128, "")).issues == ()


# ----------------------------------------------------------------------------------- misread tasks


LISTS = [[json.dumps(["a", f"w{n}"]), json.dumps(["O", f"B-{CLASSES[n % 3]}"])] for n in range(30)]


@pytest.mark.parametrize(
    ("rows", "header", "options", "remedy"),
    [
        (
            LISTS,
            "words,tags",
            {"text": "words", "label": "tags"},
            'say task.name = "token-classification", and leave',
        ),
        (LISTS, "text,label", {}, 'columns = {words = "text", tags = "label"}'),
        ([["text", tags] for _, tags in LISTS], "text,label", {}, "one label an example"),
        *(
            (
                [[f"t {n}", ("joy", f"fear{mark}joy", "fear")[n % 3]] for n in range(30)],
                "text,label",
                {},
                "keep one in each",
            )
            for mark in ",;|/"
        ),
        (
            [[f"t {n}", (f"{n % 28},{n % 27}", f"{n % 26}")[n % 2]] for n in range(99)],
            "text,label",
            {},
            "to take each combination for a label of its own",
        ),
        (
            [[f"w{n}", ("O", "B-PER", "I-PER")[n % 3]] for n in range(30)],
            "text,label",
            {},
            "write a word and its tag",
        ),
        (
            [[f"note {n}", f"the patient number {n} was seen and sent home"] for n in range(30)],
            "note,summary",
            {"text": "note", "label": "summary"},
            'say task.name = "sequence-to-sequence" and columns = {source = "note", target = "summary"}, and leave',
        ),
    ],
)
def test_labels_that_are_none_are_refused_unless_the_task_is_given(
    write: Write, rows: Table, header: str, options: dict[str, str], remedy: str
) -> None:
    path = write(rows, header=header)
    with pytest.raises(DataError) as caught:
        load_data(path=path, **options)
    assert remedy in str(caught.value)
    assert str(caught.value).startswith(f"{path}: the labels in ")
    given = load_data(path=path, task="text-classification", **options)
    assert profile(given).issues[0].kind == "misread"


def test_the_remedy_for_words_and_tags_works(tmp_path: Path) -> None:
    path = tmp_path / "ner.conll"
    path.write_text("EU B-ORG\nrejects O\n\nPeter B-PER\nsaid O\n\n" * 5)
    with pytest.raises(DataError, match="token-classification"):
        load_data(path=path, text="words", label="tags")
    assert load_data(path=path, task="token-classification").task == "token-classification"


@pytest.mark.parametrize(
    "names",
    [
        [f"a rather long name of the department of {label}" for label in CLASSES],
        ["Arts, Culture", "Arts, Music", "Sport"],
        ["high/new", "high/old", "low/new", "low/old"],
        ["agree", "strongly agree", "disagree", "strongly disagree"],
    ],
)
def test_names_of_few_classes_are_labels(names: list[str], write: Write) -> None:
    rows = [[text, names[number % len(names)]] for number, (text, _) in enumerate(clean())]
    assert kinds(write(rows)) == {}


# ------------------------------------------------------------------------------------------ figures


def test_lines_are_few_and_the_page_is_whole(write: Write) -> None:
    """At most eight lines, the most serious warnings first; the page has them all."""
    rows = [[text, label.upper() + " " if n % 2 else label] for n, (text, label) in enumerate(clean(60))]
    rows += [*rows[:30], ["", "surgery"], *([text, "radiology"] for text, _ in rows[30:50])]
    test = [*rows[:20], *rows[:20], ["unheard", "neurology"], ["unheard of", "neurology"]]
    data = load_data(path=write(rows), test_path=write(test, "test.csv"))
    seen = profile(data, Holders(np.arange(len(rows)) % 7))
    lines = seen.lines()
    assert len(lines) == 8
    assert lines[0] == (
        "data: mine read as text-classification (text, label): 111 training and 42 test examples"
    )
    assert lines[1].startswith("8 labels: ")
    assert lines[1].endswith("and 3 more")
    assert lines[2].startswith("lengths: text median 5, 95 % 5, longest 5 words; script: Latin 100 %")
    assert lines[-1].endswith("more warnings: fednlp data info lists them")
    assert all(str(issue) in seen.page() for issue in seen.issues)
    assert len(seen.issues) > 5


def test_the_facts_of_a_held_out_set(write: Write) -> None:
    statistics = profile(load_data(path=write(clean(100)))).statistics
    assert (statistics.train, statistics.test, statistics.held_out) == (80, 20, True)
    assert {label.name: label.train + label.test for label in statistics.labels} == dict(
        Counter(label for _, label in clean(100))
    )
    lengths = sorted(len(text) for text, _ in clean(100))
    assert statistics.characters["text"].longest == lengths[-1]
    assert statistics.words["text"].median == 5
    assert statistics.examples[0] == {"text": "note 0 of the ward", "label": "cardiology"}


def test_tags_are_counted_by_words(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("".join(f"Anna{n} B-PER\nwas O\nhere O\n\n" for n in range(20)))
    seen = profile(load_data(path=path))
    assert {label.name: label.train + label.test for label in seen.statistics.labels} == {
        "O": 40,
        "B-PER": 20,
    }
    assert seen.statistics.words["words"].longest == 3
    assert seen.lines()[1] == "2 tags: O (40), B-PER (20)"
    assert seen.issues == ()


def test_scores_scripts_and_json(write: Write) -> None:
    rows = [[f"где находится дом {'abc' * (n % 2)} {n}", str(n / 10)] for n in range(50)]
    seen = profile(load_data(path=write(rows, header="text,score")))
    assert seen.lines()[1].startswith("scores: 0 to 4.")
    assert list(seen.statistics.scripts) == ["Cyrillic", "Latin"]
    assert sum(seen.statistics.scripts.values()) == pytest.approx(1)
    assert json.loads(json.dumps(seen.values()))["task"] == "text-regression"


def test_what_a_run_keeps_holds_no_text(write: Write) -> None:
    seen = profile(load_data(path=write(clean() + clean(30))))
    assert "of the ward" in json.dumps(seen.values())
    assert "of the ward" not in json.dumps(seen.values(texts=False))


@given(st.lists(st.integers(0, 50), min_size=1))
def test_a_spread_is_that_of_sorted_numbers(numbers: list[int]) -> None:
    spread = spread_of(Counter(numbers))
    for share, value in ((50, spread.median), (95, spread.p95), (100, spread.longest)):
        assert value == np.percentile(numbers, share, method="inverted_cdf")


@given(st.text(), st.integers(1, 20))
def test_a_shortened_text_is_a_line_that_fits(text: str, longest: int) -> None:
    line = shortened(text, longest)
    assert len(line) <= longest
    assert len(line.splitlines()) <= 1


@given(CELLS, CELLS)
def test_repeats_are_those_of_a_plain_count(
    train: list[tuple[int, int, int]], test: list[tuple[int, int, int]]
) -> None:
    """Inputs of 0 are empty texts, which repeat nothing; owners of -1 hold nothing."""
    one, other = (
        ExampleHashes(*(np.array([row[i] for row in rows], np.int64) for i in (0, 1)))
        for rows in (train, test)
    )
    filled = [row for row in train if row[0]]
    assert repeated(one).count == len(filled) - len({row[:2] for row in filled})
    assert in_both_splits(one, other).count == sum(row[0] in {x[0] for x in filled} for row in test)
    labels = {text: {row[1] for row in filled if row[0] == text} for text, _, _ in filled}
    assert contradicting(one).count == sum(len(found) > 1 for found in labels.values())
    owners = {text: {row[2] for row in filled if row[0] == text and row[2] >= 0} for text, _, _ in filled}
    found = shared_by_clients(one, np.array([row[2] for row in train], np.int64))
    assert found.count == sum(len(holding) > 1 for holding in owners.values())
    if found.count:
        assert train[found.first][0] == train[found.other][0]
        assert train[found.first][2] != train[found.other][2]


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        (["nan"] * 6 + ["a", "b"] * 20, "missing-value-labels", '{ "nan" = "" }'),
        (
            ["Pädiatri", "Paediatrie"] + ["Pädiatrie", "Chirurgie"] * 10,
            "near-labels",
            '"Paediatrie" = "Pädiatrie"',
        ),
        (["Süd", "Su\u0308d"] * 5 + ["a"] * 9, "similar-labels", "data.labels_map = { "),
        (["01", "1"] * 5 + ["2", "a"] * 9, "similar-labels", "data.labels_map = { "),
        (["True", "1"] * 5 + ["no"] * 9, "similar-labels", "data.labels_map = { "),
        (["1.50", "1.5"] * 5 + ["2", "a"] * 9, "similar-labels", "data.labels_map = { "),
    ],
)
def test_labels_that_are_probably_none_or_another_are_said_with_what_mends_them(
    labels: list[str], kind: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "".join(f"t {n},{one}\n" for n, one in enumerate(labels))
    )
    found = {issue.kind: issue for issue in profile(load_data(path=tmp_path / "a.csv")).issues}
    assert said in found[kind].remedy
    assert "near-labels" not in {
        issue.kind for issue in profile(load_data(path=tmp_path / "a.csv")).issues
    } - {kind}


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"Pädiatri": 26, "Pädiatrie": 30, "Chirurgie": 9}, None),
        ({"Station C": 1, "Station A": 20, "Station B": 30}, None),
        ({"Pädiatri": 1, "Paediatrie": 20, "Pädiatrie": 30}, None),
        (
            {"Pädiatr": 1, "Pädiatri": 6, "Pädiatrie": 30, "HNO": 1},
            '{ "Pädiatr" = "Pädiatrie", "Pädiatri" = "Pädiatrie" }',
        ),
        (
            {f"Abteilung {letter}x": 1 for letter in "abcdefghijkl"} | {"Abteilung": 60},
            " and so on, 12 in all",
        ),
    ],
)
def test_only_a_rare_label_is_proposed_for_the_one_that_it_is_nearest_to(
    counts: dict[str, int], said: str | None, tmp_path: Path
) -> None:
    rows = [name for name, count in counts.items() for _ in range(count)]
    text = "text,label\n" + "".join(f"t {n},{name}\n" for n, name in enumerate(rows))
    (tmp_path / "a.csv").write_text(text)
    issues = {issue.kind: issue for issue in profile(load_data(path=tmp_path / "a.csv")).issues}
    assert ("near-labels" in issues) == (said is not None)
    if said is not None:
        remedy = issues["near-labels"].remedy
        assert said in remedy
        tomllib.loads(remedy[remedy.index("data.labels_map") : remedy.index(" }") + 2])


def test_silos_are_listed_with_their_labels_and_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "silos").mkdir()
    (tmp_path / "silos" / "a.csv").write_text("text,label\n" + "x,y\nz,y\nw,\nv,u\n")
    (tmp_path / "silos" / "b.csv").write_text("text,label\n" + "x 1,y\nz 1,y,3\nw 1,u\n")
    page = profile(load_data(path=tmp_path / "silos", on_invalid_row="drop")).page()
    assert re.search(r"  a +2 training, 1 test, 1 left out: y 2, u 1", page)
    assert re.search(r"  b +1 training, 1 test, 1 left out: y 1, u 1", page)


def test_labels_that_only_training_has_and_texts_that_are_none_are_said(tmp_path: Path) -> None:
    rows = [f"t {n},{'ab'[n % 2]}\n" for n in range(20)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join([*rows, *["NaN,unsup\n"] * 6]))
    (tmp_path / "test.csv").write_text("text,label\nq,a\nr,b\n")
    kinds = {issue.kind: issue.count for issue in profile(load_data(path=tmp_path)).issues}
    assert (kinds["train-only-labels"], kinds["missing-value-texts"]) == (1, 6)
