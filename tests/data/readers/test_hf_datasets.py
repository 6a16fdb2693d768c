"""Data sets of Hugging Face datasets: folders for real, the hub with its answers made up."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.data import load_data
from fednlp.data.readers import hf_datasets
from fednlp.data.readers.hf_datasets import hub_rows, is_saved, saved_rows
from fednlp.data.store import Fault, Rows
from fednlp.errors import DataError, MissingDependency
from fednlp.hubs import huggingface

datasets = pytest.importorskip("datasets")


def read(rows: Rows | None, **roles: str) -> list[dict[str, str | None]]:
    """Read rows whose columns are what they are called, but for some; the first fault is an error."""
    assert rows is not None
    columns, iterator = rows.read({**{name: name for name in rows.names()}, **roles})
    found = []
    for place, row in iterator:
        if isinstance(row, Fault):
            raise DataError(f"{place}: {row.message}")
        found.append(dict(zip(columns, row, strict=True)))
    return found


def dataset(labels: list[int], **columns: list[Any]) -> Any:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    texts = [f"text {number}" for number in range(len(labels))]
    return datasets.Dataset.from_dict({"text": texts, "label": labels}, datasets.Features(features))


def test_a_saved_folder_gives_names_of_labels_and_every_column(tmp_path: Path) -> None:
    table = {"body": ["a", "b"], "score": [1, 2], "label": ["x", "y"], "tags": [["t"], []]}
    datasets.Dataset.from_dict(table).save_to_disk(tmp_path / "saved")
    assert is_saved(tmp_path / "saved")
    assert not is_saved(tmp_path)
    train, test, _ = saved_rows(tmp_path / "saved")
    assert test is None
    assert read(train) == [
        {"body": "a", "score": "1", "label": "x", "tags": '["t"]'},
        {"body": "b", "score": "2", "label": "y", "tags": "[]"},
    ]


def test_splits_of_a_saved_folder_become_training_and_test(tmp_path: Path) -> None:
    splits = {"validation": dataset([1]), "test": dataset([0, 1]), "train": dataset([1, 0, 1])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path)
    train, test, _ = saved_rows(tmp_path)
    assert [row["label"] for row in read(train)] == ["good", "bad", "good"]
    assert [row["label"] for row in read(test)] == ["bad", "good"]
    assert train.what != test.what if test else False


def test_a_test_split_without_labels_gives_way_to_the_validation_split(tmp_path: Path) -> None:
    splits = {"train": dataset([1, 0]), "validation": dataset([1]), "test": dataset([-1, -1, -1])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path)
    _, test, _ = saved_rows(tmp_path)
    assert len(read(test)) == 1


def test_the_only_split_is_not_its_own_test_set(tmp_path: Path) -> None:
    datasets.DatasetDict({"validation": dataset([1, 0])}).save_to_disk(tmp_path)
    train, test, _ = saved_rows(tmp_path)
    assert len(read(train)) == 2
    assert test is None


def test_many_rows_are_all_there_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_datasets, "_ROWS_AT_ONCE", 3)
    dataset([0, 1] * 5).select(range(1, 9)).save_to_disk(tmp_path)
    assert [row["text"] for row in read(saved_rows(tmp_path)[0])] == [f"text {n}" for n in range(1, 9)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: datasets.Dataset.from_dict({"text": [["a"], ["b"]], "label": ["x", "y"]}),
            r"row 0: the text is missing: 'text' must be a string",
        ),
        (
            lambda: datasets.DatasetDict({"a": dataset([0]), "b": dataset([0])}),
            "no split 'train': the splits are a, b",
        ),
        (lambda: dataset([]), "not a whole data set of save_to_disk"),
    ],
)
def test_faults_name_the_folder_and_the_row(tmp_path: Path, make: Callable[[], Any], expected: str) -> None:
    make().save_to_disk(tmp_path)
    with pytest.raises(DataError, match=expected) as caught:
        read(saved_rows(tmp_path)[0])
    assert str(caught.value).startswith(str(tmp_path))


def test_a_label_that_is_missing_is_empty_and_refused_where_each_row_needs_one(tmp_path: Path) -> None:
    dataset([0, -1]).save_to_disk(tmp_path)
    assert [row["label"] for row in read(saved_rows(tmp_path)[0])][1] == ""
    with pytest.raises(DataError, match="row 1: the label is missing: fill in 'label'"):
        load_data(path=tmp_path, task="text-classification")


def test_a_broken_folder_is_one_line(tmp_path: Path) -> None:
    dataset([0, 1]).save_to_disk(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DataError, match="not a whole data set of save_to_disk") as caught:
        saved_rows(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_library_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match=r"run .*pip install .*\[hub\]'?, or give"):
        saved_rows(tmp_path)
    with pytest.raises(MissingDependency, match=r"run .*pip install .*\[hub\]'?, or give"):
        hub_rows("owner/name")


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that has every data set asked for."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that nobody answers for."""
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)


@pytest.mark.usefixtures("reachable")
def test_a_hub_name_is_loaded_and_its_columns_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, config: str | None, revision: str | None) -> Any:
        asked.append((name, config, revision))
        return datasets.DatasetDict({"train": dataset([1, 0]).rename_column("text", "sentence")})

    monkeypatch.setattr(datasets, "load_dataset", load)
    train, test = hub_rows("owner/name", rename={"sentence": "text"}, config="c", revision="r")
    assert asked == [("owner/name", "c", "r")]
    assert read(train)[0] == {"text": "text 0", "label": "good"}
    assert test is None
    assert train.shown == "hub data set owner/name, c, split train"


@pytest.mark.usefixtures("unreachable")
def test_an_unreachable_hub_is_asked_once_and_then_the_library_stays_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets.config
    import huggingface_hub.constants

    before = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    seen = []

    def load(name: str, config: str | None, revision: str | None) -> Any:
        seen.append((datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE))
        raise ConnectionError(f"no {name}\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError) as caught:
        hub_rows("owner/name")
    assert seen == [(True, True)]
    after = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
    assert after == before
    assert str(caught.value) == (
        "cannot load 'owner/name' from the hub (it cannot be reached, and has not given it before): go online, or "
        "give your own files by path"
    )


@pytest.mark.usefixtures("reachable")
def test_whatever_the_library_raises_becomes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, config: str | None, revision: str | None) -> Any:
        raise RuntimeError("Config name is missing\nPick one")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(
        DataError, match=r"from the hub \(Config name is missing\): go online, or give"
    ) as caught:
        hub_rows("owner/name")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("reachable")
def test_a_split_without_examples_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = datasets.DatasetDict(train=dataset([]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: empty)
    with pytest.raises(DataError, match=r"^hub data set owner/name, split train: no examples$"):
        hub_rows("owner/name")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RepositoryNotFoundError", "the hub has no data set 'owner/name': check the owner and the name"),
        (
            "GatedRepoError",
            "the hub keeps 'owner/name' behind its terms: accept them there, then run hf auth login",
        ),
    ],
)
def test_what_the_hub_does_not_have_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    kind = getattr(errors, name)

    def fail(*_: object, **__: object) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    with pytest.raises(DataError) as caught:
        hub_rows("owner/name")
    assert str(caught.value) == expected


def test_tags_answers_and_translations_come_in_the_ways_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = datasets.ClassLabel(names=["O", "B-PER"])
    tagged = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(names)}
    )
    table = {"tokens": [["Ann", "sees"], ["it"]], "ner_tags": [[1, 0], [0]]}
    datasets.Dataset.from_dict(table, tagged).save_to_disk(tmp_path / "tags")
    data = load_data(path=tmp_path / "tags", columns={"words": "tokens", "tags": "ner_tags"})
    assert (data.task, data.label_names) == ("token-classification", ("O", "B-PER"))
    assert data.column("train", "ner_tags").to_pylist() == ['["B-PER", "O"]', '["O"]']

    asked = {"context": "in 1912", "question": "when?", "answers": {"text": ["1912"], "answer_start": [3]}}
    datasets.Dataset.from_list([asked] * 2).save_to_disk(tmp_path / "squad")
    data = load_data(path=tmp_path / "squad")
    assert data.column("train", "answers").to_pylist() == ['[{"text": "1912", "start": 3}]'] * 2

    pairs = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list([{"translation": {"de": "eins", "en": "one"}}])}
    )
    monkeypatch.setattr(huggingface, "_is_reachable", lambda name: True)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pairs)
    train, _ = hub_rows("owner/name", rename={"translation.de": "source", "translation.en": "target"})
    assert read(train) == [{"source": "eins", "target": "one"}]
