"""German and English by domain, cleaned, with a test part that is fixed: silos for federated translation.

The source is German and the target English; ``columns = {source = "target", target = "source"}`` turns it round.
"""

import hashlib
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fednlp.data.catalogue.entries import Entry, Pair, found
from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers.parallel import COLUMNS, documentation, parallel
from fednlp.data.readers.translations import mo, po
from fednlp.data.store import Fault, Located, Row, Rows
from fednlp.hubs.archives import PinnedArchive
from fednlp.hubs.checksums import GRAMPS, INTERFACES, PRETIX
from fednlp.hubs.package_index import fetch

Part = tuple[str, Rows]
"""A domain's name and some of its rows."""

_TASK = "sequence-to-sequence"
_ONE_IN = 20
# Files of two languages, German first: those of Multi30k, and OpenNMT's sample, which is English to German.
_LINES = (("train.de", "train.en"), ("tgt-train.txt", "src-train.txt"))
# What a program fills in: %s, %(name)s, %1$d of printf and Python, {name} of str.format, ${name} of Zope.
_FILLED_IN = re.compile(r"%(?:\(\w+\)|\d+\$)?[-+#0]?\d*(?:\.\d+)?[a-zA-Z]|\$?\{[^{}]*\}")
_TAG = re.compile(r"<[^<>]*>")


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
        key = hash_of(domain, source, target)
        if key not in seen:
            seen.add(key)
            yield place, (source, target, domain)


def hash_of(*texts: str) -> int:
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


def _packaged(archives: Sequence[PinnedArchive]) -> list[Part]:
    return [
        (pinned.package, reader_rows(folder / name, _compiled, COLUMNS, known=digest))
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
    return _split([*written, *(_programs(path) or _packaged((PRETIX, GRAMPS)))]) if written else None


DOMAINS = (
    Entry(
        "interface-de-en",
        "Interfaces of five programs, cleaned and split for good, German and English",
        _TASK,
        None,
        16_500,
        863,
        "the translators of Django, Wagtail, Plone, pretix and Gramps",
        "per package: BSD-3-Clause, GPL-2.0, AGPL-3.0",
        "a folder for each program with its catalogues of German (*.mo, *.po)",
        "domain",
        _from_folder=_interfaces,
        _from_index=lambda: _split(_packaged(INTERFACES)),
        _archives=INTERFACES,
    ),
    Entry(
        "domains-de-en",
        "Captions, news, documentation and interfaces, a domain each, German and English",
        _TASK,
        None,
        None,
        None,
        "Elliott et al. (2016), OpenNMT's sample, Hashimoto et al. (2019), and the translators of pretix and Gramps",
        "per domain: research, unstated, see there, AGPL-3.0, GPL-2.0",
        "a folder for each domain: train.de and train.en, src-train.txt and tgt-train.txt, *_de_*.json and "
        "*_en_*.json, or catalogues of German (without any: those of pretix and Gramps from the package index)",
        "domain",
        _from_folder=_domains,
    ),
)
"""The data sets of domains, for silos."""
