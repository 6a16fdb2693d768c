"""Two files whose lines belong together stay together."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.readers.parallel import documentation, parallel
from fednlp.errors import DataError
from fednlp.formatting.units import plural

Write = Callable[[str, str | bytes], Path]


@given(
    st.lists(
        st.tuples(st.sampled_from(["", " ", "a b", "c\u2028d", "ä"]), st.sampled_from(["", "x", "y\x0cz"]))
    )
)
def test_blank_lines_keep_the_rest_aligned(pairs: list[tuple[str, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "a.de", Path(folder) / "a.en.gz"
        source.write_bytes("".join(left + "\r\n" for left, _ in pairs).encode())
        target.write_bytes(gzip.compress("".join(right + "\n" for _, right in pairs).encode()))
        stripped = [(left.strip(), right.strip()) for left, right in pairs]
        assert list(parallel(source, target)) == [pair for pair in stripped if all(pair)]
        assert list(parallel(source, target, keep_blank=True)) == stripped


@pytest.mark.parametrize(("source", "target"), [("a\nb\nc\n", "x\ny\n"), ("a\n", "x\ny\n")])
def test_unequal_files_are_refused_with_both_counts(write: Write, source: str, target: str) -> None:
    one, other = write("a.de", source), write("a.en", target)
    there = plural(source.count("\n"), "line")
    with pytest.raises(DataError) as caught:
        list(parallel(one, other))
    assert str(caught.value).startswith(f"{one} has {there} and {other} {target.count(chr(10))}: ")


def test_a_last_line_needs_no_line_break(write: Write) -> None:
    assert list(parallel(write("a", "a\nb"), write("b", "x\ny\n"))) == [("a", "x"), ("b", "y")]


def test_documentation_goes_by_id(write: Write) -> None:
    source = write(
        "en.json",
        json.dumps({"lang": "en", "type": "source", "text": {"2": "<b>two</b>", "1": "one", "3": " "}}),
    )
    target = write(
        "de.json",
        json.dumps({"lang": "de", "type": "target", "text": {"1": "eins", "2": "<b>zwei</b>", "3": ""}}),
    )
    assert list(documentation(source, target)) == [("<b>two</b>", "<b>zwei</b>", "2"), ("one", "eins", "1")]
    with pytest.raises(DataError, match=r"fr\.json: no text '2', which the other language has"):
        list(documentation(source, write("fr.json", '{"text": {"1": "un", "3": ""}}')))
    with pytest.raises(DataError, match=r"x\.json: not \{\"text\": \{id: text\}\}"):
        list(documentation(source, write("x.json", '{"text": {"1": 2}}')))


@pytest.mark.parametrize(("name", "count"), [("train", 29_000), ("val", 1_014), ("test_2016_flickr", 1_000)])
def test_multi30k(real: Path, name: str, count: int) -> None:
    folder = real / "multi30k"
    rows = list(parallel(folder / f"{name}.de.gz", folder / f"{name}.en.gz"))
    assert len(rows) == count
    german = gzip.decompress((folder / f"{name}.de.gz").read_bytes()).decode().split("\n")
    assert [row[0] for row in rows] == [line.strip() for line in german if line]


def test_opennmt_has_one_blank_source(real: Path) -> None:
    folder = real / "opennmt_en_de"
    paths = folder / "train.en.gz", folder / "train.de.gz"
    rows, every = list(parallel(*paths)), list(parallel(*paths, keep_blank=True))
    assert (len(rows), len(every)) == (9_999, 10_000)
    (blank,) = [number for number, (source, _) in enumerate(every) if not source]
    assert rows == every[:blank] + every[blank + 1 :]


def test_documentation_of_salesforce(real: Path) -> None:
    folder = real / "docs_en_de"
    rows = list(documentation(folder / "ende_en_dev.json", folder / "ende_de_dev.json"))
    assert len(rows) == 2_000
    assert rows[0][0] == "Create mail merge documents using fields supported objects."
    assert rows[0][1] == "Erstellen Sie Seriendruckdokumente mithilfe von Objekten, die Felder unterstützen."
    assert len({key for _, _, key in rows}) == 2_000
