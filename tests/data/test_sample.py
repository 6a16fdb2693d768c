"""A sample of a data set: of the size that is asked for, the same each time, and with nothing else in its tables."""

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fednlp import config
from fednlp.cli import app
from fednlp.data import TextData, load_data
from fednlp.data.store import _BATCH_ROWS
from fednlp.data.textdata import Split
from fednlp.errors import ConfigError, DataError
from fednlp.simulation.components import open_data


def _write(path: Path, rows: int, first: int = 0) -> Path:
    lines = (f"text {n},{'often' if n % 4 else 'seldom'}\n" for n in range(first, first + rows))
    path.write_text("text,label\n" + "".join(lines))
    return path


@settings(max_examples=20)
@given(train=st.integers(1, 80), test=st.integers(1, 20))
def test_a_sample_has_its_size_and_the_shares_of_the_labels(
    train: int, test: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _write(tmp_path_factory.mktemp("data") / "mine.csv", 100)
    whole = load_data(path=path)
    data = load_data(path=path, train_size=train, test_size=test)
    assert (len(data.train_numbers), len(data.test_numbers)) == (train, test)
    assert data.train.num_rows == train + test, "rows that are not drawn are not in the table"
    assert data.drawn_from == {"train": 80, "test": 20}
    for split, numbers, known in (
        ("train", data.train_numbers, whole.train_numbers),
        ("test", data.test_numbers, whole.test_numbers),
    ):
        texts = data.input_texts("train", numbers)
        everything = whole.input_texts("train", known)
        assert len({*texts}) == len(texts)
        assert {*texts} <= {*everything}, split
        seldom = Counter(data.labels("train")[numbers].tolist())[1]
        assert abs(seldom - len(texts) / 4) <= 1


def test_a_sample_of_published_sets_keeps_them_apart(tmp_path: Path) -> None:
    train, test = _write(tmp_path / "a.csv", 60), _write(tmp_path / "b.csv", 30, first=100)
    data, again = (load_data(path=train, test_path=test, train_size=20, test_size=10) for _ in range(2))
    assert (data.train.num_rows, data.test.num_rows, data.held_out) == (20, 10, False)
    assert data.train.equals(again.train)
    assert data.fingerprint == again.fingerprint
    assert data.fingerprint != load_data(path=train, test_path=test).fingerprint
    assert all(int(text.split()[1]) >= 100 for text in data.input_texts("test", data.test_numbers))
    only = load_data(path=train, test_path=test, test_size=10)
    assert (len(only.train_numbers), len(only.test_numbers)) == (60, 10)
    assert any("10 of 30 test examples drawn" in note for note in only.notes)


def test_rows_of_many_batches_are_found(tmp_path: Path) -> None:
    """The texts that are drawn are those of their numbers, wherever the batches of the stored table end."""
    path = _write(tmp_path / "large.csv", 3 * _BATCH_ROWS)
    whole, data = load_data(path=path), load_data(path=path, train_size=500)
    places = {text: place for place, text in enumerate(whole.column("train", "text").to_pylist())}
    drawn = np.array([places[text] for text in data.input_texts("train", data.train_numbers)])
    assert np.isin(drawn, whole.train_numbers).all()
    assert (np.diff(drawn) > 0).all()
    assert set(drawn // _BATCH_ROWS) == {0, 1, 2}


def test_all_is_no_sample_and_more_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "mine.csv", 100)
    assert load_data(path=path, train_size=80).train_numbers.size == 80
    with pytest.raises(
        DataError, match=r"data\.train_size = 81, but mine has 80 training examples: lower it"
    ):
        load_data(path=path, train_size=81)


def test_silos_keep_their_shares(tmp_path: Path) -> None:
    folder = tmp_path / "silos"
    folder.mkdir()
    for name, rows in (("large", 80), ("small", 20)):
        _write(folder / f"{name}.csv", rows)
    data = load_data(path=folder, train_size=40)
    assert data.silo is not None
    codes, names = data.groups("train", data.silo)
    counts = Counter(names[code] for code in codes[data.train_numbers])
    assert counts == {"large": 32, "small": 8}
    with pytest.raises(DataError, match="leaves the silo 'small' without a training example"):
        load_data(path=folder, train_size=2)


def test_a_sample_needs_data_that_are_here() -> None:
    with pytest.raises(ConfigError, match="each site names its own files"):
        config.parse({"data": {"name": "sites", "train_size": 3}, "partition": {"method": "silos"}})


def test_examples_without_a_label_keep_their_share(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "text,label\n" + "".join(f"text {n},{['often', 'seldom', '', ''][n % 4]}\n" for n in range(80))
    )
    data = load_data(path=path, test_path=_write(tmp_path / "b.csv", 20), unlabelled=True, train_size=20)
    assert Counter(data.labels("train")[data.train_numbers].tolist()) == {-1: 10, 0: 5, 1: 5}


PAIRS = {"OS": 60, "TED": 30, "UB": 10}


def _domains(folder: Path, pairs: Mapping[str, int] = PAIRS) -> Path:
    """Write the files of the catalogue's ``domains``, with half as many test pairs of each."""
    for path, share in ((folder, 1), (folder / "test", 2)):
        path.mkdir(parents=True)
        for name, rows in pairs.items():
            for language in ("de", "en"):
                lines = "".join(f"{name} {language} {path.name} {n}\n" for n in range(rows // share))
                (path / f"{name}.de-en.{language}").write_text(lines)
    return folder


def _of(data: TextData, silo: str, field: str = "domain") -> list[str]:
    """Return the training texts of a silo, in order."""
    texts = data.input_texts("train", data.train_numbers)
    values = data.column("train", field).take(data.train_numbers).to_pylist()
    return [text for text, value in zip(texts, values, strict=True) if value == silo]


@settings(max_examples=15)
@given(
    train=st.dictionaries(st.sampled_from(sorted(PAIRS)), st.integers(1, 10)),
    test=st.dictionaries(st.sampled_from(sorted(PAIRS)), st.integers(1, 5)),
)
def test_silos_that_are_named_have_their_size_and_the_others_stay_whole(
    train: dict[str, int], test: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _domains(tmp_path_factory.mktemp("data") / "domains")
    whole = load_data("domains", path)
    data = load_data("domains", path, train_size=train, test_size=test)
    parts: tuple[tuple[Split, dict[str, int], int], ...] = (("train", train, 1), ("test", test, 2))
    for split, sizes, share in parts:
        found: Counter[str] = Counter(data.column(split, "domain").to_pylist())
        assert found == {name: sizes.get(name, rows // share) for name, rows in PAIRS.items()}, split
        texts, everything = (one.column(split, "source").to_pylist() for one in (data, whole))
        places = [everything.index(text) for text in texts]
        assert places == sorted({*places}), "each once, in their order"
    if not train and not test:
        assert data.fingerprint == whole.fingerprint, "an empty table draws nothing"


def test_what_is_drawn_of_a_silo_depends_on_nothing_but_itself_and_the_seed(tmp_path: Path) -> None:
    path = _domains(tmp_path / "domains")
    of_one = load_data("domains", path, train_size={"OS": 20})
    of_two = load_data("domains", path, train_size={"TED": 7, "OS": 20})
    alone = load_data("domains", _domains(tmp_path / "one" / "domains", {"OS": 60}), train_size={"OS": 20})
    assert len(_of(of_one, "OS")) == 20
    assert _of(of_one, "OS") == _of(of_two, "OS") == _of(alone, "OS")
    other_seed = load_data("domains", path, train_size={"OS": 20}, seed=1)
    assert len({*_of(other_seed, "OS")} & {*_of(of_one, "OS")}) < 20
    numbers = [int(text.split()[-1]) for text in _of(of_two, "OS")]
    like = [int(text.split()[-1]) for text in _of(load_data("domains", path, train_size={"TED": 20}), "TED")]
    assert numbers != like


def test_the_sizes_of_silos_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    path = _domains(tmp_path / "domains")
    sizes: list[int | dict[str, int] | None] = [None, 20, {"OS": 20}, {"OS": 21}, {"OS": 20, "TED": 7}]
    found = [load_data("domains", path, train_size=size).fingerprint for size in sizes]
    found.append(load_data("domains", path, test_size={"OS": 20}).fingerprint)
    assert len({*found}) == len(found)
    assert load_data("domains", path, train_size={"TED": 7, "OS": 20}).fingerprint == found[4], "in any order"
    plain = hashlib.sha256(json.dumps([found[0], 20, None, 0]).encode()).hexdigest()
    assert found[1] == plain, "that of a number is what it was before silos could be named"


def test_a_silo_that_is_too_small_or_unknown_is_refused(tmp_path: Path) -> None:
    path = _domains(tmp_path / "domains")
    assert len(_of(load_data("domains", path, train_size={"TED": 30}), "TED")) == 30
    refusals: list[tuple[dict[str, dict[str, int]], str]] = [
        (
            {"train_size": {"OS": 3, "TED": 31}},
            r"data\.train_size\.TED = 31, but the silo 'TED' has 30 training examples: lower it, or leave it out",
        ),
        ({"test_size": {"OS": 31}}, r"data\.test_size\.OS = 31, but the silo 'OS' has 30 test examples"),
        (
            {"train_size": {"os": 3}},
            r"data\.train_size names the silo 'os', and domains has no training examples of it: "
            r"did you mean 'OS'\? it has those of OS, TED, UB$",
        ),
        ({"test_size": {"PHP": 3}}, r"has no test examples of it: it has those of OS, TED, UB$"),
    ]
    for sizes, message in refusals:
        with pytest.raises(DataError, match=message):
            load_data("domains", path, **sizes)  # type: ignore[arg-type]


def test_of_many_silos_the_first_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("text,author\n" + "".join(f"text {n},author {n % 23:02}\n" for n in range(230)))
    with pytest.raises(DataError, match=r"those of author 00, .*, author 19, and 3 more$"):
        load_data(path=path, task="causal-lm", train_size={"nobody": 3}, field="author")


def test_data_without_silos_are_refused_with_what_to_type(tmp_path: Path) -> None:
    path = _write(tmp_path / "mine.csv", 100)
    with pytest.raises(DataError, match=r"mine has none: say a number, such as data\.train_size = 7; or, "):
        load_data(path=path, train_size={"OS": 3, "TED": 4})
    with pytest.raises(DataError, match="no column 'author'"):
        load_data(path=path, train_size={"OS": 3}, field="author")


def test_silos_of_a_path_may_be_named_and_keep_the_shares_of_their_labels(tmp_path: Path) -> None:
    folder = tmp_path / "silos"
    folder.mkdir()
    for name, rows in (("large", 100), ("small", 20)):
        _write(folder / f"{name}.csv", rows)
    data = load_data(path=folder, train_size={"large": 40})
    assert (len(_of(data, "large", "silo")), len(_of(data, "small", "silo"))) == (40, 16)
    seldom = sum(int(text.split()[1]) % 4 == 0 for text in _of(data, "large", "silo"))
    assert seldom == 10
    (folder / "small.csv").write_text(
        "text,label\n" + "".join(f"other {n},{'ao'[n % 2]}\n" for n in range(30))
    )
    beside = load_data(path=folder, train_size={"large": 40})
    assert len(beside.label_names) == 4
    assert _of(beside, "large", "silo") == _of(data, "large", "silo"), "whatever labels the others have"


def test_the_field_of_a_natural_partition_says_what_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "text,label,author\n" + "".join(f"text {n},{n % 2},{'ab'[n % 4 < 1]}\n" for n in range(80))
    )
    document = {
        "data": {"path": str(path), "train_size": {"a": 12}},
        "partition": {"method": "natural", "field": "author"},
    }
    data = open_data(config.parse(document))
    assert len(_of(data, "a", "author")) == 12
    assert len(_of(data, "b", "author")) == len(_of(load_data(path=path), "b", "author"))
    assert data.drawn_from["train"] == 64


def test_a_table_of_sizes_is_typed_and_kept() -> None:
    document = {"data": {"name": "domains", "path": "DIR", "train_size": {"OS": 5}}}
    for typed, sizes in (
        ("data.train_size={OS=100}", {"OS": 100}),
        ("data.train_size.TED=7", {"OS": 5, "TED": 7}),
        ("data.train_size={}", {}),
        ("data.train_size=9", 9),
    ):
        experiment = config.parse(document, overrides=[typed])
        assert experiment.data.train_size == sizes
        assert config.parse(tomllib.loads(config.dump(experiment))) == experiment
    for typed in ("{OS=0}", "0", "true", "all", "{OS=1.5}", "[3]"):
        with pytest.raises(
            ConfigError, match=r"data\.train_size = .*: give a whole number of 1 or more, or such"
        ):
            config.parse(document, overrides=[f"data.train_size={typed}"])
    for typed in ("{plone.app.locales=3}", "{Süd=3}", "{a b=3}"):
        with pytest.raises(ConfigError, match=r"put a name with other characters than .* in quotes"):
            config.parse(document, overrides=[f"data.test_size={typed}"])


def test_the_command_line_draws_of_a_silo(tmp_path: Path) -> None:
    path = str(_domains(tmp_path / "domains"))
    words = ["partition", "domains", "--path", path, "--method", "natural", "--field", "domain", "--json"]
    result = CliRunner().invoke(app, [*words, "--set", "data.train_size={OS=12}"])
    assert result.exit_code == 0, result.output
    assert "domains: 52 of 100 training examples drawn (data.train_size)" in result.stderr
    assert [client["train"] for client in json.loads(result.stdout)["named"]] == [12, 30, 10]
