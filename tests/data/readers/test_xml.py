"""XML from strangers: the elements asked for, nothing expanded, nothing fetched, nothing unbounded."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.readers import xml as module
from fednlp.data.readers.xml import elements
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><a>&c;</a>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>'
PARAMETER = '<!DOCTYPE a [<!ENTITY % b SYSTEM "http://example.org/x.dtd">%b;]><a/>'


@pytest.mark.parametrize("content", [LAUGHS, OUTSIDE, PARAMETER])
def test_entities_are_refused(write: Write, content: str) -> None:
    path = write("a.xml", content)
    with pytest.raises(DataError, match=r"a\.xml:1: entities are declared or used") as caught:
        list(elements(path, {"a"}))
    assert str(caught.value).count("\n") == 0


text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"))


@given(st.lists(st.tuples(text, text, text)))
def test_elements_are_those_of_the_standard_library(parts: list[tuple[str, str, str]]) -> None:
    root = ElementTree.Element("root")
    for first, second, third in parts:
        item = ElementTree.SubElement(ElementTree.SubElement(root, "part"), "item", {"key": first})
        item.text = second
        ElementTree.SubElement(item, "item").tail = third
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.xml"
        ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
        found = [ElementTree.tostring(element) for _, element in elements(path, {"item"})]
    assert found == [ElementTree.tostring(part[0]) for part in root]


def test_lines_are_told(write: Write) -> None:
    path = write("a.xml", "<a>\n<b/>\n<b>\n</b></a>")
    assert [line for line, _ in elements(path, {"b"})] == [2, 4]


@pytest.mark.whole
def test_what_has_no_end_is_stopped(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 100_000)
    with pytest.raises(DataError, match="a tag or comment without end"):
        list(elements(write("a.xml", f'<a b="{"c" * 500_000}"/>'), {"z"}))
    with pytest.raises(DataError, match="an element of more than"):
        list(elements(write("b.xml", f"<a>{'<b>text</b>' * 50_000}</a>"), {"a"}))
    with pytest.raises(DataError, match="nested more than 100 deep"):
        list(elements(write("c.xml", "<a>" * 200), {"z"}))
    many = write("d.xml", f"<a>{'<b>text</b>' * 50_000}</a>")
    assert sum(1 for _ in elements(many, {"b"})) == 50_000


def test_another_encoding(write: Write) -> None:
    path = write("a.xml", '<?xml version="1.0" encoding="iso-8859-1"?><a>ä</a>'.encode("latin-1"))
    assert [element.text for _, element in elements(path, {"a"})] == ["ä"]
    with pytest.raises(DataError, match=r"b\.xml.*(unknown encoding|convert the file)"):
        list(elements(write("b.xml", '<?xml version="1.0" encoding="klingon"?><a/>'), {"a"}))
    with pytest.raises(DataError, match=r"c\.xml.*(invalid token|encoding|convert)"):
        list(elements(write("c.xml", b'<?xml version="1.0" encoding="utf-8"?><a>\xe4</a>'), {"a"}))
