"""Users' own files: whatever they hold comes out as it is, and every fault is one line that names its place."""

import csv
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.checks import row_check
from fednlp.data.columns import check_columns, columns_of
from fednlp.data.files import file_rows, folder_rows
from fednlp.data.label_names import label_name
from fednlp.data.readers import text_io
from fednlp.data.readers.text_io import lines
from fednlp.data.records import read_records
from fednlp.data.silos.paths import silo_paths
from fednlp.data.store import Fault, Rows
from fednlp.disk import POINTED
from fednlp.errors import DataError

nasty = st.text() | st.text(alphabet="\"'\n\r\t,;\\ \u2028\u0085\x0b\x1cä😀")
visible = nasty.filter(str.strip)
worded = visible.filter(
    lambda text: text.lower() not in ("true", "false")
)  # which have one spelling as labels


def read(rows: Rows, text: str = "text", label: str = "label") -> list[dict[str, str | None]]:
    """Read rows as texts with labels; the first fault is an error that names its place."""
    wanted = {"text": text, "label": label}
    where = rows.names_at or rows.shown
    check_columns(where, rows.names())
    found = columns_of(where, rows.names(), "text-classification", wanted)
    columns, iterator = rows.read({own: name for name, own in found.items()})
    check = row_check("text-classification", found, columns)
    read = []
    for place, row in iterator:
        passed = row if isinstance(row, Fault) else check(row)
        if isinstance(passed, Fault):
            raise DataError(f"{place}: {passed.message}")
        read.append(dict(zip(columns, passed, strict=True)))
    return read


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@settings(deadline=None)
@given(
    examples=st.lists(st.tuples(nasty, visible, nasty), min_size=1, max_size=20),
    suffix=st.sampled_from([".csv", ".tsv"]),
    line_break=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_csv_comes_out_as_it_was_written(
    examples: list[tuple[str, str, str]], suffix: str, line_break: str, quoting: Any
) -> None:
    # Python's writer leaves a lone carriage return bare where lines end otherwise; a NUL is refused.
    bare = "\0\r" if line_break == "\n" and quoting == csv.QUOTE_MINIMAL else "\0"
    kept = str.maketrans("", "", bare)
    examples = [
        (text.translate(kept), label.translate(kept), other.translate(kept))
        for text, label, other in examples
    ]
    examples = [one for one in examples if one[1].strip()] or [("a", "b", "c")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"examples{suffix}"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(
                file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator=line_break, quoting=quoting
            )
            writer.writerows([("text", "label", "other"), *examples])
        spelt = [(text, label_name(label), other) for text, label, other in examples]
        assert [tuple(row.values()) for row in read(file_rows(path))] == spelt


@settings(deadline=None)
@given(
    examples=st.lists(
        st.fixed_dictionaries({"text": nasty, "label": worded}, optional={"other": nasty}),
        min_size=1,
        max_size=20,
    ),
    escaped=st.booleans(),
)
def test_jsonl_comes_out_as_it_was_written(examples: list[dict[str, str]], escaped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = "".join(f"{json.dumps(one, ensure_ascii=escaped)}\n" for one in examples)
        found = read(file_rows(written(Path(folder), "examples.jsonl", text)))
    assert [{name: value for name, value in row.items() if value is not None} for row in found] == examples


def test_columns_may_have_other_names_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "id,body,topic\n1,hello,x\n\n2,,y\n")
    assert read(file_rows(path), "body", "topic") == [
        {"id": "1", "body": "hello", "topic": "x"},
        {"id": "2", "body": "", "topic": "y"},
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"\xef\xbb\xbftext,label\nhello,x\n")
    assert read(file_rows(path)) == [{"text": "hello", "label": "x"}]


@pytest.mark.parametrize(
    "content",
    [
        "text,label,,,\nhello,x,,,\nb,y,,,\n",
        "text,label\nhello,x,\nb,y,\n",
        "text,label\nhello,x,,\nb,y,,\n",
        "sep=,\ntext,label\nhello,x\nb,y\n",
        "\ufeff\ufefftext,label\nhello,x\nb,y\n",
    ],
)
def test_what_spreadsheets_add_is_left_out(content: str, tmp_path: Path) -> None:
    rows = file_rows(written(tmp_path, "a.csv", content))
    assert read(rows) == [{"text": "hello", "label": "x"}, {"text": "b", "label": "y"}]
    assert rows.note == ("3 columns without a name left out" if ",,,\n" in content[:20] else "")
    assert [where for where, _ in rows.read({})[1]][-1].endswith(":4" if "sep" in content else ":3")


def test_quotes_may_be_characters_like_any_other(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'label\ttext\nx\t"so" he said\ny\t"never closed\nx\ta 5" pipe\n')
    data = load_data(path=path, quoting="none", test_fraction=None)
    assert data.column("train", "text").to_pylist() == ['"so" he said', '"never closed', 'a 5" pipe']
    with pytest.raises(DataError, match=r'a.tsv:2: .*data.quoting = "none"'):
        load_data(path=path)


def test_a_cell_may_be_longer_than_the_csv_module_allows(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", f"text,label\n{'a' * 300_000},x\n")
    assert len(read(file_rows(path))[0]["text"] or "") == 300_000


def test_json_values_become_strings(tmp_path: Path) -> None:
    items = [
        {"text": "a", "label": 3, "score": 0.5, "tags": ["x", "ü"]},
        {"text": 7, "label": 3.0, "score": None},
        {"text": "c", "label": "3", "score": 2, "tags": {"k": True}},
        {"text": "d", "label": False},
    ]
    path = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, items)))
    found = read(file_rows(path))
    assert [row["label"] for row in found] == ["3", "3", "3", "false"]
    assert [row["text"] for row in found] == ["a", "7", "c", "d"]
    assert [row["score"] for row in found] == ["0.5", None, "2", None]
    assert [row["tags"] for row in found] == ['["x", "ü"]', None, '{"k": true}', None]


# What is in the file, under which name; and what is said after the path.
FAULTS: dict[str, tuple[str, str | bytes, str]] = {
    "empty csv": ("a.csv", "", ": the file is empty: it needs a line of column names and a line an example"),
    "blank csv": (
        "a.csv",
        "\n\n",
        ": the file is empty: it needs a line of column names and a line an example",
    ),
    "header only": ("a.csv", "text,label\n", ": no example below the column names: add a line an example"),
    "missing column": (
        "a.csv",
        "text,labels,x\na,b,c\n",
        ":1 (taken for the column names): no column 'label': did you mean 'labels'? "
        "the columns are 'text', 'labels', 'x'",
    ),
    "no header": (
        "a.csv",
        f"{'word ' * 20},x\n",
        f":1 (taken for the column names): no column 'text': the columns are '{'word ' * 8}…', 'x'",
    ),
    "column twice": (
        "a.csv",
        "text,label,text\na,b,c\n",
        ":1 (taken for the column names): the column 'text' stands there twice: rename one",
    ),
    "too many cells": (
        "a.csv",
        "text,label\na,b\na,b,c\n",
        ":3: 3 cells where the header has 2: put a cell that holds a comma in quotes",
    ),
    "too few cells": (
        "a.tsv",
        'text\tlabel\n"a\nb"\tx\n\na\n',
        ":5: 1 cell where the header has 2: put a cell that holds a tab in quotes",
    ),
    "missing label": (
        "a.csv",
        'text,label\n"a\nb",x\nc, \n',
        ":4: the label is missing: fill in 'label'",
    ),
    "open quote": (
        "a.csv",
        'text,label\na,x\n"b,y\nc,z\n',
        ':3: a quote (") is opened and never closed: close it, or write a quote within quotes as "", or say '
        'data.quoting = "none" where quotes are characters like any other',
    ),
    "quote within": (
        "a.tsv",
        'text\tlabel\n"so" he said\tx\n',
        ':2: a closing quote (") is not followed by a tab: write a quote within quotes as "", or say '
        'data.quoting = "none" where quotes are characters like any other',
    ),
    "carriage return": (
        "a.csv",
        "text,label\na\rb,x\n",
        ":2: a carriage return within a line: end lines with a line feed, or put the cell in quotes",
    ),
    "latin 1": (
        "a.csv",
        "text,label\na,x\nné,y\n".encode("latin-1"),
        ":3: byte 0xe9 at position 2 is not UTF-8: convert the file, such as with: iconv -f cp1252 -t UTF-8 "
        "FOLDER/a.csv > FOLDER/converted && mv FOLDER/converted FOLDER/a.csv, or, for data of your own, say "
        'data.encoding = { "a.csv" = "cp1252" } (or cp1254 for Turkish, cp1250 for Central European)',
    ),
    **{
        f"{encoding} without a mark": (
            "a.csv",
            "text,label\nä,x\n".encode(encoding),
            f":1: the file looks like {encoding}, not UTF-8: convert the file, such as with: iconv -f {encoding} -t "
            "UTF-8 FOLDER/a.csv > FOLDER/converted && mv FOLDER/converted FOLDER/a.csv, or, for data of your own, say "
            f'data.encoding = {{ "a.csv" = "{encoding}" }}',
        )
        for encoding in ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE")
    },
    "quote that takes in rows": (
        "a.csv",
        'text,label\n"a,x\nb,y\nc,z\nd,x\ne",y\n',
        ':2: a quote (") opened here takes the next 4 lines into one cell, and they look like rows: write it as "" '
        'within quotes, or say data.quoting = "none" where quotes are characters like any other',
    ),
    "a title above": (
        "a.csv",
        "Export of tickets,,\n,,\ntext,label,office\n" + "a,x,o\n" * 5,
        ":1: 'Export of tickets' stands alone above rows of 3 cells: remove what stands above the line of column names",
    ),
    "names of rows": (
        "a.csv",
        "text,label\n1,a,x\n2,b,y\n",
        ":2: 3 cells where the header has 2: if each row begins with a number or a name of its own, give that column a "
        "name too",
    ),
    "joined tables": (
        "a.csv",
        "text,label\na,x\ntext,label\nb,y\n",
        ":3: the line of column names again: remove it",
    ),
    **{
        f"{kind} by its content": (name, content, f": {message}")
        for kind, name, content, message in (
            ("git-lfs", "a.txt", "version https://git-lfs.github.com/spec/v1\n", f"{POINTED}"),
            ("git-lfs, packed", "a.parquet", "version https://git-lfs.github.com/spec/v1\n", f"{POINTED}"),
            (
                "HTML",
                "a.csv",
                "\n<!DOCTYPE html>\n",
                "an HTML page, as a server shows in place of a file: download the file itself",
            ),
            (
                "JSON",
                "a.csv",
                '\ufeff[{"text": "a", "label": "x"}]',
                "JSON by its content: name it .json or .jsonl",
            ),
            ("Parquet", "a.tsv", "PAR1", "a Parquet file by its content: name it .parquet"),
            (
                "a workbook",
                "a.csv",
                "PK\x03\x04",
                "a ZIP archive or a workbook by its content: name it .xlsx, or unpack it",
            ),
        )
    },
    "packed": (
        "a.csv.zip",
        "PK",
        ": a packed file, of which fednlp reads .gz alone: unpack it (unzip), and give what is in it",
    ),
    "pickle": (
        "a.pkl",
        "x",
        ": a pickle, which may run code when it is opened, so fednlp does not: write it as .csv, .jsonl or .parquet",
    ),
    "leaf": (
        "a.json",
        '{"users": ["a"], "num_samples": [1], "user_data": {}}',
        ': in the format of LEAF, which is read by a name: say data.name = "shakespeare" or "reddit", and data.path '
        "for the folder that holds the folders train and test",
    ),
    "rows by client": (
        "a.json",
        '{"anna": [{"text": "a"}], "ben": [{"text": "b"}]}',
        ": lists of rows under 'anna', 'ben': write each to a file of its own, which are clients, or train and test; "
        "or, if these are labels, write an object a row with its label",
    ),
    "commas between lines": (
        "a.jsonl",
        '{"text": "a"},\n{"text": "b"},\n',
        ":1: not JSON (Extra data): remove the comma at the end of each line",
    ),
    "rows by split": (
        "a.json",
        '{"train": [["a b", "x"]], "val": [["c", "x"]], "test": [["d", "x"]]}',
        ": lists of rows under 'train', 'val', 'test': write each to a file of its own, which are clients, or train "
        "and test; or, if these are labels, write an object a row with its label",
    ),
    "nul": (
        "a.jsonl",
        b'{"text": "a", "label": "x"}\n{"text": "\0", "label": "x"}\n',
        ":2: a NUL byte: the file is damaged here, or is not a text file",
    ),
    "empty jsonl": ("a.jsonl", "\n", ": the file is empty: it needs a JSON object a line"),
    "not json": (
        "a.jsonl",
        '{"text": "a", "label": "x"}\n{"text": \n',
        ":2: not JSON (Expecting value): write one JSON object a line",
    ),
    "json array": (
        "a.json",
        '[{"text": "a"}, "b"]\n',
        ": item 2: a JSON string: write an array of JSON objects",
    ),
    "json array cut": (
        "a.json",
        '[{"text": "a"},\n',
        ":2: not JSON (Expecting value, column 1): mend it there",
    ),
    "json null": ("a.json", "null\n", ":1: a JSON null: write one JSON object a line"),
    "deep json": ("a.json", "[" * 100_000, ":1: nested too deeply, or a number too long to read"),
    "json without column": (
        "a.jsonl",
        '{"txt": "a", "label": "x"}\n',
        ": no column 'text': did you mean 'txt'? the columns are 'txt', 'label'",
    ),
    "json without label": (
        "a.jsonl",
        '{"text": "a", "label": "x"}\n\n{"text": "b"}\n',
        ":3: the label is missing: fill in 'label'",
    ),
    "json label nan": (
        "a.jsonl",
        '{"text": "a", "label": NaN}\n',
        ":1: the label is missing: fill in 'label'",
    ),
    "json label list": (
        "a.jsonl",
        '{"text": "a", "label": ["x", "y"]}\n',
        ":1: there are 2 labels in 'label': an example has one",
    ),
    "json without text": (
        "a.jsonl",
        '{"text": null, "label": "x"}\n{"text": "b", "label": "x"}\n',
        ":1: 'text' is missing: fill it in",
    ),
    "half a pair": (
        "a.jsonl",
        '{"text": "\\ud83d", "label": "x"}\n',
        ":1: half a surrogate pair (\\ud800 to \\udfff) is no character: remove it",
    ),
    "unknown suffix": (
        "a.dat",
        "text,label\na,x\n",
        ": cannot tell what kind of file this is: name it .csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet, .xlsx, "
        ".conll, .conllu, .conllup, .bio, .iob, .iob2, .txt",
    ),
    "no workbook": (
        "a.xlsx",
        "text,label\na,x\n",
        ": not an Excel workbook (File is not a zip file): save it as .xlsx",
    ),
    "no parquet": (
        "a.parquet",
        "text,label\na,x\n",
        ": not a whole Parquet file (Parquet magic bytes not found in footer. Either the file is corrupted or this is "
        "not a parquet file.): write it again",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_one_line_with_its_place(tmp_path: Path, fault: str) -> None:
    name, content, expected = FAULTS[fault]
    path = written(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        read(file_rows(path))
    assert str(caught.value) == f"{path}{expected.replace('FOLDER', str(tmp_path))}"


def test_a_file_without_line_breaks_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_io, "LONGEST_LINE", 1 << 20)
    path = written(tmp_path, "a.csv", b"a" * (1 << 20) + b"b")
    with pytest.raises(DataError, match=r"a.csv:1: the line is longer than 1 MiB: is this a text file\?"):
        list(lines(path))


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b"text,label\na,x\n" + b"b,y\n" * 100_000 + b"\xff\n")
    _, rows = file_rows(path).read({})
    assert next(rows) == (f"{path}:2", ["a", "x"])


def test_identity_follows_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "text,label\na,x\n")
    before = file_rows(path)
    assert (before.what, before.identity) == (file_rows(path).what, file_rows(path).identity)
    written(tmp_path, "a.csv", "text,label\na,xy\n")
    assert file_rows(path).what == before.what
    assert file_rows(path).identity != before.identity


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """A folder of text files a class, with what should be left out."""
    for name, text in {"b/2.txt": "two\n", "b/10.txt": "ten", "a/x": "ä\r\n", ".git/z": "no"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        written(tmp_path, name, text)
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "~$a.docx", "2.txt~", "2.txt.bak"):
        written(tmp_path, f"b/{name}", b"\0")
    written(tmp_path, "README", "no")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_folder_a_class_is_read_in_order(classes: Path) -> None:
    assert read(folder_rows(classes)) == [
        {"text": "ä\r\n", "label": "a", "file": "a/x"},
        {"text": "ten", "label": "b", "file": "b/10.txt"},
        {"text": "two\n", "label": "b", "file": "b/2.txt"},
    ]
    assert list(read(folder_rows(classes, "body", "topic"), "body", "topic")[0]) == ["body", "topic", "file"]


def test_what_says_something_of_the_examples_is_none(classes: Path) -> None:
    before = [row["file"] for row in read(folder_rows(classes))]
    for name in ("README", "License.txt", "readme.md"):
        written(classes, f"a/{name}", "about the data")
    rows = folder_rows(classes)
    assert [row["file"] for row in read(rows)] == before
    assert rows.note == "left out as no example: a/License.txt ..."


def test_identity_follows_the_folder(classes: Path) -> None:
    before = folder_rows(classes)
    (classes / "b/2.txt").rename(classes / "b/3.txt")
    assert folder_rows(classes).identity != before.identity


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a/y", b"", "a/y: the file is empty: write its text"),
        ("a/y", b"one\ntw\xff", "a/y:2: byte 0xff at position 3 is not UTF-8"),
        ("a/y", b"one\ntw\0", "a/y:2: a NUL byte"),
    ],
)
def test_faults_of_a_text_file_name_it(classes: Path, name: str, content: bytes, expected: str) -> None:
    written(classes, name, content)
    with pytest.raises(DataError) as caught:
        read(folder_rows(classes))
    assert expected in str(caught.value)


def test_old_files_may_be_latin_1(classes: Path) -> None:
    written(classes, "a/x", "ü".encode() + b"\n" + "ü".encode("latin-1"))
    assert read(folder_rows(classes, latin1=True))[0]["text"] == "ü\nü"


def test_a_folder_without_classes_says_what_it_should_hold(tmp_path: Path) -> None:
    written(tmp_path, "a.txt", "one")
    with pytest.raises(
        DataError, match=r"no examples: give a file .* or a folder that holds a folder of text files"
    ):
        folder_rows(tmp_path)


def test_the_column_of_file_names_is_not_free(classes: Path) -> None:
    with pytest.raises(DataError, match="the column 'file' stands there twice"):
        folder_rows(classes, label="file")


@pytest.mark.parametrize("open_it", [lines, lambda path: folder_rows(path)])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, open_it: Callable[[Path], Any]) -> None:
    with pytest.raises(DataError, match=r"cannot read .*/absent: No such file or directory"):
        list(open_it(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://bucket/x.csv", r"s3://bucket/x\.csv is an address.*aws s3 cp s3://bucket/x\.csv \."),
        ("s3://bucket/*.csv", "is an address"),
        ("gs://bucket/x.csv", "gcloud storage cp"),
        ("https://example.org/x.csv", r"curl -LO https://example\.org/x\.csv"),
        ("hf://datasets/owner/name/train.csv", "hf download --repo-type dataset owner/name"),
    ],
)
def test_addresses_are_no_paths(address: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        silo_paths(Path(address))
    with pytest.raises(DataError, match=said):
        read_records(Path(address))
