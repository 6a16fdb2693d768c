"""A sample of a data set: of the size that is asked for, the same each time, and with nothing else in its tables."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp import config
from fednlp.data import load_data
from fednlp.data.store import _BATCH_ROWS
from fednlp.errors import ConfigError, DataError


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
