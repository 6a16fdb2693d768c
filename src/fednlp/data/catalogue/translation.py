"""German and English: OPUS's domains, Multi30k, and the interfaces of programs.

The source is German and the target English; ``columns = {source = "target", target = "source"}`` turns it round.
"""

from collections.abc import Iterator
from pathlib import Path

from fednlp.data.catalogue.entries import Entry, FromFolder, Hub, Pair, first_of, lines_of, two_files
from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers.parallel import COLUMNS
from fednlp.data.readers.translations import mo
from fednlp.data.store import Row, Rows
from fednlp.hubs.checksums import INTERFACES
from fednlp.hubs.package_index import fetch

_TASK = "sequence-to-sequence"
_PLAIN = two_files([("train.de", "train.en")], [("test.de", "test.en")])


def _moses(path: Path, corpus: str = "") -> list[tuple[str, Rows]]:
    """Return the pairs ``X.de-en.de`` and ``X.de-en.en`` of a folder, those whose name begins with a corpus."""
    found = []
    for ending in ("", ".gz"):
        for german in sorted(path.glob(f"{corpus}*.de-en.de{ending}")) if path.is_dir() else ():
            stem = german.name.removesuffix(f".de{ending}")
            english = path / f"{stem}.en{ending}"
            if english.is_file():
                name = stem.removesuffix(".de-en")
                found.append((name, lines_of(german, english)))
    return found


def _corpus(corpus: str) -> FromFolder:
    def opened(path: Path) -> Pair | None:
        found = _moses(path, corpus)
        return (found[0][1], None) if found else None

    return first_of(opened, _PLAIN)


def _domains_folder(path: Path) -> Pair | None:
    """Open every pair of a folder; pairs in its folder ``test``, with the same names, are the test set."""
    train, test = _moses(path), _moses(path / "test")
    return (joined_rows(train, "domain"), joined_rows(test, "domain") if test else None) if train else None


def _interfaces_folder(path: Path) -> Pair | None:
    """Open every compiled catalogue of a folder; its name, or that of the folder it is in, is the domain."""
    paths = sorted(path.rglob("*.mo")) if path.is_dir() else []
    parts = [("/".join(one.relative_to(path).with_suffix("").parts), _interface(one)) for one in paths]
    return (joined_rows(parts, "domain"), None) if parts else None


def _interfaces_index() -> Pair:
    parts = [
        (pinned.package, _interface(folder / name, digest))
        for pinned in INTERFACES
        for folder in [fetch(pinned)]
        for name, digest in pinned.files.items()
    ]
    return joined_rows(parts, "domain"), None


def _interface(path: Path, digest: str | None = None) -> Rows:
    return reader_rows(path, _german_first, COLUMNS, known=digest)


def _german_first(path: Path) -> Iterator[Row]:
    """Read a compiled catalogue of German, whose keys are English."""
    for english, german, *_ in mo(path):
        yield german, english


def _opus(name: str, title: str, corpus: str, source: str, licence: str) -> Entry:
    return Entry(
        name,
        f"{title}, German and English",
        _TASK,
        None,
        None,
        None,
        f"{source}; OPUS (Tiedemann, 2012)",
        licence,
        f"{corpus}*.de-en.de and .en (Moses), or train.de and train.en, plain or as .gz",
        _from_folder=_corpus(corpus),
    )


TRANSLATION = (
    _opus("wmt", "WMT news", "WMT", "Conference on Machine Translation", "per corpus; research"),
    _opus(
        "opensubtitles",
        "Film subtitles",
        "OpenSubtitles",
        "Lison and Tiedemann (2016)",
        "per opensubtitles.org",
    ),
    _opus("ted", "TED talks", "TED", "Cettolo, Girardi and Federico (2012)", "CC BY-NC-ND 4.0"),
    _opus("php", "PHP manual", "PHP", "PHP documentation group", "CC BY 3.0 or later"),
    _opus("ubuntu", "Ubuntu interface", "Ubuntu", "Ubuntu translators", "BSD"),
    Entry(
        "domains",
        "Several of OPUS's corpora at once, a domain each, German and English",
        _TASK,
        None,
        None,
        None,
        "OPUS (Tiedemann, 2012)",
        "per corpus",
        "pairs of files *.de-en.de and *.de-en.en (Moses), plain or as .gz; test pairs, if any, in the folder test",
        "domain",
        _from_folder=_domains_folder,
    ),
    Entry(
        "interfaces",
        "Interfaces of Django, Wagtail, Plone, pretix and Gramps, German and English",
        _TASK,
        None,
        19_514,
        None,
        "their translators",
        "per package: BSD-3-Clause, GPL-2.0, AGPL-3.0",
        "compiled catalogues of German (*.mo), in folders or not",
        "domain",
        _from_folder=_interfaces_folder,
        _from_index=_interfaces_index,
        _archives=INTERFACES,
    ),
    Entry(
        "multi30k",
        "Multi30k: captions of pictures, German and English",
        _TASK,
        None,
        29_000,
        1_000,
        "Elliott, Frank, Sima'an and Specia (2016); tested on Flickr 2016",
        "non-commercial research",
        "train.de, train.en, test_2016_flickr.de and test_2016_flickr.en, plain or as .gz",
        _from_folder=two_files(
            [("train.de", "train.en")],
            [("test_2016_flickr.de", "test_2016_flickr.en"), ("test.de", "test.en")],
        ),
        _hub=Hub("bentrevett/multi30k", {"de": "source", "en": "target"}),
    ),
)
"""The data sets for translation."""
