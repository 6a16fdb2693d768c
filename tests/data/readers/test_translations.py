"""Translations out of TMX, .po and .mo: as the standard library's gettext and polib read them."""

import contextlib
import gettext
import io
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.readers import translations as module
from fednlp.data.readers.translations import mo, po, tmx
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" datatype="plaintext"/><body>
<tu tuid="1"><tuv xml:lang="en-GB">
  <seg>A &lt;cat&gt; <bpt i="1">&lt;b></bpt>sat<ept i="1">&lt;/b></ept> &#228;</seg></tuv>
  <tuv xml:lang="DE"><prop type="x">no</prop><seg>Eine <hi>Katze</hi> saß</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>chat</seg></tuv><tuv xml:lang="de"><seg>Katze</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg> </seg></tuv><tuv xml:lang="de"><seg>leer</seg></tuv></tu>
<tu><tuv lang="en"><seg>dog</seg></tuv><tuv lang="de"><seg>Hund</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("name", ["a.tmx", "a.tmx.gz"])
def test_tmx(write: Write, name: str) -> None:
    path = write(name, TMX)
    assert list(tmx(path, "en", "de")) == [("A <cat> sat ä", "Eine Katze saß"), ("dog", "Hund")]
    assert list(tmx(path, "DE", "fr")) == [("Katze", "chat")]
    with pytest.raises(DataError, match="no unit in 'en' and 'it': the languages are de, en, en-gb, fr"):
        list(tmx(path, "en", "it"))


def test_tmx_may_be_utf16(write: Write) -> None:
    path = write("a.tmx", TMX.replace("UTF-8", "UTF-16").encode("utf-16"))
    assert list(tmx(path, "en", "de")) == [("A <cat> sat ä", "Eine Katze saß"), ("dog", "Hund")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TMX.replace('SYSTEM "tmx14.dtd"', '[<!ENTITY a "b">]'), ":2: entities are declared or used"),
        (TMX.replace("dog", "&dog;"), ":9: entities are declared or used"),
        (TMX.replace("<body>", ""), ":10: not well-formed XML (mismatched tag)"),
        (TMX[:500], ": not well-formed XML"),
        ("", ":1: not well-formed XML (no element found)"),
    ],
)
def test_tmx_that_is_not_read(write: Write, content: str, said: str) -> None:
    path = write("a.tmx", content)
    with pytest.raises(DataError) as caught:
        list(tmx(path, "en", "de"))
    assert said.lstrip(":0123456789") in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")
    if said[1].isdigit():
        assert str(caught.value).startswith(f"{path}{said}")


PO = r"""# the header is no text
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

#: a.c:1
msgctxt "menu"
msgid "Open \"it\"\n"
"now"
msgstr "\303\226ffne es"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
#, fuzzy, c-format
#| msgid "Old"
msgid "Close"
msgstr "Öffnen"

msgid "untranslated"
msgstr ""

msgid "Tab\there"
msgstr "Tabulator\there"
#~ msgid "gone"
#~ msgstr "weg"
""".replace(r"\303\226", "Ö")


def test_po(write: Write) -> None:
    assert list(po(write("de.po", PO))) == [
        ('Open "it"\nnow', "Öffne es", "menu"),
        ("%d file", "%d Datei", None),
        ("%d files", "%d Dateien", None),
        ("Tab\there", "Tabulator\there", None),
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('msgid "a"\nmsgstr "b\n', 2),
        ('"a"\n', 1),
        ('msgid "a"\nmsgstr "b"c"\n', 2),
        ("hello\n", 1),
        ('msgid "a"\nmsgstr "b"\n\n# note\n"more"\n', 5),
    ],
)
def test_po_faults(write: Write, content: str, line: int) -> None:
    path = write("a.po", content)
    with pytest.raises(DataError, match=r"as a \.po file has it") as caught:
        list(po(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_an_endless_text_is_stopped(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    with pytest.raises(DataError, match="a text of more than"):
        list(po(write("a.po", 'msgid "a"\nmsgstr ""\n' + f'"{"b" * 100}"\n' * 11)))


word = st.text(
    st.characters(exclude_characters="\0\x04\r", exclude_categories=["Cs", "Zl", "Zp"]), min_size=1
)
word = word.filter(lambda text: bool(text.strip()) and "\x85" not in text)
entries = st.dictionaries(
    st.tuples(st.none() | st.just("menu"), word), st.tuples(word, st.none() | word), max_size=6
)


@given(entries, st.booleans())
def test_po_and_mo_hold_what_polib_wrote(
    found: dict[tuple[str | None, str], tuple[str, str | None]], fuzzy: bool
) -> None:
    polib = pytest.importorskip("polib")
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    expected = []
    for (context, source), (target, plural) in found.items():
        if plural is None:
            catalogue.append(polib.POEntry(msgctxt=context, msgid=source, msgstr=target))
            expected.append((source, target, context))
        else:
            forms = {0: target, 1: plural}
            catalogue.append(
                polib.POEntry(msgctxt=context, msgid=source, msgid_plural=source + "s", msgstr_plural=forms)
            )
            expected += [(source, target, context), (source + "s", plural, context)]
    if fuzzy:
        catalogue.append(polib.POEntry(msgid="fuzzy one", msgstr="x", flags=["fuzzy"]))
    with tempfile.TemporaryDirectory() as folder:
        catalogue.save(f"{folder}/a.po")
        catalogue.save_as_mofile(f"{folder}/a.mo")
        assert list(po(Path(folder) / "a.po")) == expected
        assert sorted(mo(Path(folder) / "a.mo"), key=repr) == sorted(expected, key=repr)


def compiled(pairs: dict[str, str], order: str = "<", magic: int = 0x950412DE) -> bytes:
    """A .mo file, written from the description of the format."""
    keys = sorted(pairs, key=str.encode)
    tables, texts = [], b""
    start = 28 + 16 * len(keys)
    for text in (*keys, *(pairs[key] for key in keys)):
        content = text.encode()
        tables.append(struct.pack(f"{order}2I", len(content), start + len(texts)))
        texts += content + b"\0"
    header = struct.pack(f"{order}7I", magic, 0, len(keys), 28, 28 + 8 * len(keys), 0, 0)
    return header + b"".join(tables) + texts


MO = {
    "": "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n",
    "open": "öffnen",
    "menu\x04close": "schließen",
    "file\0files": "Datei\0Dateien",
    "empty": "",
}


@pytest.mark.parametrize("order", "<>")
def test_mo_is_read_as_the_standard_library_does(write: Write, order: str) -> None:
    content = compiled(MO, order)
    rows = list(mo(write("a.mo", content)))
    assert set(rows) == {
        ("open", "öffnen", None),
        ("close", "schließen", "menu"),
        ("file", "Datei", None),
        ("files", "Dateien", None),
    }
    catalogue = gettext.GNUTranslations(io.BytesIO(content))
    for source, target, context in rows:
        if source == "files":
            assert catalogue.ngettext("file", "files", 2) == target
        else:
            assert (catalogue.pgettext(context, source) if context else catalogue.gettext(source)) == target


@given(st.data())
def test_a_damaged_mo_is_refused_or_read_within_bounds(data: st.DataObject) -> None:
    content = bytearray(compiled(MO))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.mo"
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        rows = []
        with contextlib.suppress(DataError):
            rows = list(mo(path))
        assert sum(len(text or "") for row in rows for text in row) <= 2 * len(content)


def test_entries_that_share_their_bytes_are_stopped(write: Write) -> None:
    text = b"a" * 100_000
    count = 1000
    tables = struct.pack("<2I", len(text), 28) * count
    header = struct.pack("<7I", 0x950412DE, 0, count, 28 + len(text), 28 + len(text), 0, 0)
    with pytest.raises(DataError, match="lies beyond the end, or overlaps others"):
        list(mo(write("a.mo", header + text + tables)))
