"""Text, JSON and CSV files, plain or gzipped: complete, bounded, and every fault reported with its line."""

import csv
import gzip
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.readers import json_files, text_io
from fednlp.data.readers.csv_files import csv_records
from fednlp.data.readers.json_files import json_document, json_lines
from fednlp.data.readers.text_io import numbered_lines
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

line = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])).filter(
    lambda text: not text.endswith("\r")
)


@given(st.lists(line, min_size=1), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_lines_are_those_of_the_file_packed_or_not(texts: list[str], packed: bool, ending: str) -> None:
    content = "".join(text + ending for text in texts).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.name"
        path.write_bytes(gzip.compress(content) if packed else content)
        found = list(numbered_lines(path))
    if texts[0].startswith("\ufeff"):
        texts = [texts[0][1:], *texts[1:]]
    assert found == list(enumerate(texts, 1))


def test_several_gzipped_pieces_end_to_end_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert list(numbered_lines(path)) == [(1, "one"), (2, "two")]


@pytest.mark.parametrize("cut", [5, 40, -12, -1])
def test_a_damaged_gzipped_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.gz"
    content = gzip.compress("".join(f"line {number * number}\n" for number in range(500)).encode())
    path.write_bytes(content[:cut])
    with pytest.raises(DataError, match=r"a\.gz: the gzipped file is damaged or cut short .*: get it again"):
        list(numbered_lines(path))
    with pytest.raises(DataError, match="damaged or cut short"):
        json_document(path)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    content = bytearray(gzip.compress(b"the quick brown fox\n" * 50))
    content[-6] ^= 1  # of the checksum
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        list(numbered_lines(path))


def test_a_file_that_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_io, "_UNPACKED_FLOOR", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a line\n" * 500_000))
    with pytest.raises(DataError, match=r"bomb\.gz: unpacks to more than 1 MiB"):
        list(numbered_lines(path))
    with pytest.raises(DataError, match="unpacks to more"):
        json_document(path)


def test_one_endless_line_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fednlp.data.readers.text_io.LONGEST_LINE", 1000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"a" * 2000))
    with pytest.raises(DataError, match=r"a\.gz:1: the line is longer"):
        list(numbered_lines(path))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_bytes_that_are_not_utf8(write: Write, name: str) -> None:
    path = write(name, b"good\nb\xe4d\n")
    with pytest.raises(DataError, match=r"a\.txt(\.gz)?:2: byte 0xe4 at position 2 is not UTF-8"):
        list(numbered_lines(path))
    assert list(numbered_lines(path, latin1=True)) == [(1, "good"), (2, "bäd")]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for read in (lambda path: list(numbered_lines(path)), json_document):
        with pytest.raises(DataError, match=r"cannot read .*nowhere: No such file"):
            read(tmp_path / "nowhere")
        with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
            read(tmp_path)


JSON_FAULTS = {
    '{\n"a": 1\n"b": 2}': ":3: not JSON (",
    '["\\ud83d"]': ":1: half a surrogate pair",
    "[" * 100_000: ":1: nested too deeply",
    "9" * 5000: ":1: nested too deeply, or a number too long",
    "": ":1: not JSON (",
}


@pytest.mark.parametrize("content", JSON_FAULTS, ids=["comma", "surrogate", "deep", "number", "empty"])
def test_what_is_no_json_is_named(write: Write, content: str) -> None:
    path = write("a.json", content)
    with pytest.raises(DataError) as caught:
        json_document(path)
    assert str(caught.value).startswith(f"{path}{JSON_FAULTS[content]}")


def test_json_documents_are_bounded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "LARGEST_DOCUMENT", 100)
    assert json_document(write("a.json", b'\xef\xbb\xbf["a"]')) == ["a"]
    with pytest.raises(DataError, match="too much to read as one JSON document"):
        json_document(write("b.json", '"' + "a" * 100 + '"'))
    with pytest.raises(DataError, match=r"c\.json:2: byte 0xff is not UTF-8"):
        json_document(write("c.json", b'["a",\n"\xff"]'))


def test_json_lines_name_the_line(write: Write) -> None:
    path = write("a.jsonl.gz", '{"a": 1}\n\n{"a": "\\ud83d\\ude00"}\n')
    assert list(json_lines(path)) == [(1, {"a": 1}), (3, {"a": "😀"})]
    with pytest.raises(DataError, match=r":2: not a JSON object"):
        list(json_lines(write("b.jsonl", '{"a": 1}\n[1]\n')))
    with pytest.raises(DataError, match=r":2: not JSON"):
        list(json_lines(write("c.jsonl", '{"a": 1}\n{"a"\n')))


cell = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(cell, cell), min_size=1), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_records_are_what_was_written(rows: list[tuple[str, str]], quoting: Any) -> None:
    made = io.StringIO(newline="")
    csv.writer(made, quoting=quoting, lineterminator="\n").writerows(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_bytes(made.getvalue().encode())
        found = [tuple(cells) for _, cells in csv_records(path, 2)]
    if made.getvalue().startswith("\ufeff"):
        found, rows = found[1:], rows[1:]
    assert found == rows


def test_records_of_another_width_are_refused(write: Write) -> None:
    with pytest.raises(DataError, match=r"a\.csv:3: 3 comma-separated cells, where this data set has 2"):
        list(csv_records(write("a.csv", 'a,"b\nc"\nd,e,f\n'), 2))
    with pytest.raises(DataError, match=r"b\.csv:2: not readable as CSV"):
        list(csv_records(write("b.csv", 'a,b\nc,"d\n'), 2))
