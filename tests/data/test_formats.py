"""What separates the cells of a table, and tables in other formats than CSV: JSON arrays, Parquet, Excel."""

import csv
import datetime
import io
import json
import sys
import tempfile
import zipfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.files import file_rows
from fednlp.data.readers.csv_files import find_delimiter
from fednlp.data.readers.parquet import rows_at_once
from fednlp.errors import DataError, MissingDependency

USUAL = {",": ".csv", "\t": ".tsv"}
cells = st.text('ab,;|\t"\n 1é', max_size=6)
word = st.text("abcé", min_size=1, max_size=4)


def rows_of(path: Path, delimiter: str | None = None) -> list[list[str | None]]:
    names, placed = file_rows(path, delimiter).read({})
    return [list(names), *(list(row) for _, row in placed)]


@given(
    header=st.lists(word, min_size=2, max_size=4, unique=True),
    delimiter=st.sampled_from(",;\t|"),
    suffix=st.sampled_from([".csv", ".tsv"]),
    data=st.data(),
)
def test_a_table_is_read_whatever_separates_its_cells(
    header: list[str], delimiter: str, suffix: str, data: st.DataObject
) -> None:
    """What Python's own writer writes, with every delimiter in the cells."""
    rows = data.draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), min_size=1))
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [header, *rows]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{suffix}"
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        assert rows_of(path) == [header, *rows]
        assert rows_of(path, delimiter) == [header, *rows]


FOUND = {
    "comma": ("text,label\na;b,x\n", ","),
    "semicolon": ("text;label\na,b;x\n", ";"),
    "tab": ("text\tlabel\na;b\tx\n", "\t"),
    "bar": ("text|label\na;b|x\n", "|"),
    "one column": ("text\na;b\nc;d\n", ","),
    "one column that speaks of two": ("this; that\na\nb\n", ","),
    "header alone": ("text;label\n", ";"),
    "the usual one goes first": ("a,b;c\n1,2;3\n", ","),
    "most rows decide": ("a;b|c\n1;2\n1;2\n1|2|3\n", ";"),
    "a ragged row": ("a;b\n1;2\n1;2;3\n", ";"),
    "quoted names": ('"text";"label"\n"a;b";"x"\n', ";"),
    "a quote left open": ('text;label\na;x\n"b;y\n', ";"),
    "nothing": ("", ","),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_delimiter_is_found(case: str, tmp_path: Path) -> None:
    text, delimiter = FOUND[case]
    (tmp_path / "a.csv").write_text(text)
    assert find_delimiter(tmp_path / "a.csv", ",") == delimiter


def test_two_delimiters_that_fit_alike_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a;b|c\n1;2|3\n")
    with pytest.raises(
        DataError, match=r"a.csv:1: cells may be separated by ';' or '\|': say which with data.delim"
    ):
        file_rows(path)
    assert rows_of(path, "|") == [["a;b", "c"], ["1;2", "3"]]


def test_the_delimiter_that_was_found_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text;label\na;x\nb;y\n")
    assert load_data(path=path).notes == (f"{path}: a semicolon separates the cells",)
    assert load_data(path=path, delimiter=";").notes == ()
    with pytest.raises(DataError, match="no task fits, the columns are 'text;label'"):
        load_data(path=path, delimiter=",")
    assert load_data(path=path, delimiter=";").fingerprint == load_data(path=path).fingerprint


def test_a_row_too_long_names_the_delimiter_and_latin_1_keeps_its_hint(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;label\na;x\na;b;x\n")
    with pytest.raises(
        DataError, match=r"a.csv:3: 3 cells where the header has 2: put a cell that holds a semicolon"
    ):
        load_data(path=tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes("text;label\nSüd;x\n".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"b.csv:2: byte 0xfc .* iconv -f cp1252 -t UTF-8 .*b.csv > .*converted"
    ):
        load_data(path=tmp_path / "b.csv")


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", " "])
def test_what_cannot_separate_cells(delimiter: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match='give one character, such as ";", or "tab"'):
        load_data(path=tmp_path, delimiter=delimiter)


def test_a_delimiter_is_for_tables(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "x"}\n')
    with pytest.raises(
        DataError, match=r"a.jsonl: data.delimiter is for .csv, .tsv, .tab files: leave it out"
    ):
        load_data(path=tmp_path / "a.jsonl", delimiter="tab")
    with pytest.raises(DataError, match=r"data.delimiter is for your own CSV files, not for agnews"):
        load_data("agnews", tmp_path, delimiter=";")


HEADER = ["text", "label", "day"]
ROWS = [
    ("ein Text", "3", "2026-01-31"),
    ("noch; einer\nin zwei Zeilen", "4", None),
    ("letzter", "3", "2026-02-01"),
]


def excel(path: Path, sheets: dict[str, list[list[object]]]) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def written(folder: Path, suffix: str) -> Path:
    """Write the same rows in a format; labels are numbers where it has numbers."""
    path = folder / f"table{suffix}"
    items = [dict(zip(HEADER, (text, float(label), day), strict=True)) for text, label, day in ROWS]
    if suffix == ".json":
        path.write_text(json.dumps(items, indent=1), encoding="utf-8-sig")
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(items), path, row_group_size=2)
    else:
        days = [day and datetime.date.fromisoformat(day) for _, _, day in ROWS]
        table = [[text, int(label), day] for (text, label, _), day in zip(ROWS, days, strict=True)]
        excel(path, {"Tabelle1": [[None], HEADER, table[0], [None], *table[1:]], "Tabelle2": []})
    return path


@pytest.mark.parametrize("suffix", [".json", ".parquet", ".xlsx"])
def test_every_format_gives_the_same_rows(suffix: str, tmp_path: Path) -> None:
    data = load_data(path=written(tmp_path, suffix))
    found = [tuple(row.values()) for row in data.train.to_pylist()]
    expected = [tuple(row) for row in ROWS]
    assert (data.train.column_names, found, data.label_names) == (HEADER, expected, ("3", "4"))


def test_lists_and_answers_in_a_json_array_and_in_parquet(tmp_path: Path) -> None:
    items = [{"words": ["Anna", "runs"], "tags": ["B-PER", "O"]}] * 3
    (tmp_path / "a.json").write_text(json.dumps(items))
    pq.write_table(pa.Table.from_pylist(items), tmp_path / "a.parquet")
    for name in ("a.json", "a.parquet"):
        data = load_data(path=tmp_path / name)
        assert (data.task, data.label_names) == ("token-classification", ("O", "B-PER"))


def test_faults_of_workbooks(tmp_path: Path) -> None:
    table = [["text", "label"], ["a", "x"]]
    faults = {
        r"2 sheets hold something \(one, two\): keep one sheet": {"one": table, "two": table},
        "it holds nothing: keep one sheet": {"one": []},
        r".xlsx:1: column 1 has no name": {"one": [[None, "text", "label"], [0, "a", "x"]]},
        r"no example below the column names": {"one": [["text", "label"]]},
        r".xlsx:2: more cells than the 2 column names": {"one": [["text", "label"], ["a", "x", "more"]]},
    }
    for said, sheets in faults.items():
        with pytest.raises(DataError, match=said):
            load_data(path=excel(tmp_path / "a.xlsx", sheets))


def test_a_workbook_that_unpacks_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednlp.data.readers.excel.LARGEST_DOCUMENT", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"0" * (2 << 20))
    with pytest.raises(DataError, match=r"a.xlsx: unpacks to more than 1 MiB: save it as CSV"):
        load_data(path=tmp_path / "a.xlsx")


def test_excel_needs_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = excel(tmp_path / "a.xlsx", {"one": [["text", "label"], ["a", "x"]]})
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependency, match=r"pip install .*\[xlsx\]'?, or save it as CSV"):
        load_data(path=path)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = written(tmp_path, ".parquet")
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a whole Parquet file"):
        load_data(path=path)


def test_a_title_above_a_workbooks_table_is_said(tmp_path: Path) -> None:
    table = [["Report"], ["text", "label"], *([f"t {number}", "x"] for number in range(3))]
    path = excel(tmp_path / "a.xlsx", {"one": table})
    with pytest.raises(DataError, match=r"a.xlsx:1: 'Report' stands alone above rows of 2 cells"):
        load_data(path=path)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('<row r="99999999999"><c r="A99999999999"><v>1</v></c></row>', "a row after number 1,048,576"),
        ('<row r="2"><c r="XFD2"><v>1</v></c></row>', "a table of more than 0 million cells"),
    ],
)
def test_a_small_workbook_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, said: str
) -> None:
    """What a workbook claims of places far down or far to the right costs neither time nor memory."""
    monkeypatch.setattr("fednlp.data.readers.excel._MOST_CELLS", 10_000)
    honest = excel(tmp_path / "honest.xlsx", {"one": [["text", "label"]]})
    with (
        zipfile.ZipFile(honest) as old,
        zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("sheet1.xml"):
                content = content.replace(b"</sheetData>", row.encode() + b"</sheetData>")
            new.writestr(name, content)
    with pytest.raises(DataError, match=said):
        load_data(path=tmp_path / "a.xlsx")


@pytest.mark.parametrize("plain", [True, False])
def test_a_parquet_file_that_unpacks_to_more_than_any_text_is_refused(
    plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that is repeated in a thousand rows is stored once."""
    monkeypatch.setattr("fednlp.data.readers.text_io._UNPACKED_FLOOR", 1 << 20)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), pa.array(["x" * 20_000]))
    made = pa.table({"text": texts.dictionary_decode() if plain else texts, "label": ["a", "b"] * 500})
    pq.write_table(made, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(DataError, match="unpacks to more than 1 MiB, over 100 times its size") as caught:
        load_data(path=tmp_path / "a.parquet")
    assert "\n" not in str(caught.value)


def test_rows_of_long_values_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 60_000_000], "label": ["a"]}), tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert rows_at_once(file) == 8


def test_parquet_values_that_python_cannot_hold_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    far = pa.array([2**62, 1], pa.timestamp("us"))
    pq.write_table(pa.table({"text": ["a", "b"], "label": ["x", "y"], "when": far}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="not a whole Parquet file"):
        load_data(path=tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (datetime.date(2024, 2, 1), "2024-02-01"),
        (datetime.datetime(2024, 2, 1), "2024-02-01"),
        (datetime.datetime(2024, 2, 1, 8, 30), "2024-02-01T08:30:00"),
        (datetime.datetime(2024, 2, 1, tzinfo=datetime.UTC), "2024-02-01T00:00:00+00:00"),
        (datetime.time(8, 30), "08:30:00"),
        (Decimal("1.50"), "1.50"),
        ("Süd".encode(), "Süd"),
        (True, "true"),
        (2, "2"),
    ],
)
def test_a_parquet_value_of_any_type_names_a_client_as_plain_text(
    cell: object, text: str, tmp_path: Path
) -> None:
    rows = [{"text": f"note {number}", "label": "ab"[number % 2], "ward": cell} for number in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    data = load_data(path=tmp_path / "a.parquet")
    assert set(data.train["ward"].to_pylist()) == {text}


def test_parquet_texts_may_be_bytes_in_utf_8_and_no_others(tmp_path: Path) -> None:
    rows = [{"text": f"Grüße {number}".encode(), "label": b"ab"[number % 2 :][:1]} for number in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    data = load_data(path=tmp_path / "a.parquet", test_fraction=0.5)
    assert all(text.startswith("Grüße ") for text in data.train["text"].to_pylist())
    assert data.label_names == ("a", "b")
    rows[1]["text"] = b"Gr\xfc\xdfe"
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="row 2: the text is missing: 'text' must be a string"):
        load_data(path=tmp_path / "b.parquet")
