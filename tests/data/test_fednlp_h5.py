"""The original FedNLP's HDF5 files: written so that it reads them, read whatever the order of their keys.

More than ten examples and clients everywhere: HDF5 sorts the key 10 before 2.
"""

import json
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

h5py = pytest.importorskip("h5py")

from fednlp.data.checks import answers_fault  # noqa: E402
from fednlp.data.fednlp_h5 import TASKS, partition_methods, read_data, write_data  # noqa: E402
from fednlp.data.readers import h5  # noqa: E402
from fednlp.errors import DataError, PartitionError  # noqa: E402
from fednlp.partition.index import Partition, from_owners  # noqa: E402
from fednlp.simulation.partition_file import read_h5_partition, write_h5_partition  # noqa: E402

COUNT = 25
TRAIN, TEST = [20, 3, 11, *range(12, 19), 0, 2], [10, 1, 24]

# Rows of each task, by number.
ROWS: dict[str, tuple[tuple[str, ...], list[tuple[str | None, ...]]]] = {
    "text-classification": (
        ("text", "label", "author"),
        [(f"text ä {n}\n", f"label{n % 3}", f"author {n % 4}") for n in range(COUNT)],
    ),
    "token-classification": (
        ("words", "tags"),
        [
            (json.dumps(["é", f"w{n}"], ensure_ascii=False), json.dumps(["O", f"B-{n % 2}"]))
            for n in range(COUNT)
        ],
    ),
    "question-answering": (
        ("context", "question", "answers", "id"),
        [
            (
                f"Zürich {n} or 12",
                f"which {n}?",
                json.dumps(
                    [{"text": f"rich {n}", "start": 2}]
                    + ([{"text": "12", "start": 11 + len(str(n))}] if n % 2 else [])
                ),
                f"id{n}",
            )
            for n in range(COUNT)
        ],
    ),
    "sequence-to-sequence": (
        ("source", "target", "history"),
        [
            (f"source {n}", f"Ziel {n}", json.dumps([f"before {k}" for k in range(n % 3)]))
            for n in range(COUNT)
        ],
    ),
    "causal-lm": (("text",), [(f"text {n}",) for n in range(COUNT)]),
}


def original(path: Path, task: str) -> dict[int, tuple[Any, ...]]:
    """Read a data file as the original does: by index, from the groups that it knows."""
    groups = {
        "question-answering": ("context_X", "question_X", "Y", "question_ids", "Y_answer"),
        "causal-lm": ("X",),
    }
    groups["sequence-to-sequence"] = ("X", "Y", "history")
    with h5py.File(path, "r", swmr=True) as file:
        attributes = json.loads(file["attributes"][()])

        def value(group: str, index: int) -> Any:
            found = file[group][str(index)][()]
            if isinstance(found, bytes):
                return found.decode("utf-8")
            return [one.decode("utf-8") if isinstance(one, bytes) else int(one) for one in found]

        names = groups.get(task, ("X", "Y"))
        return {index: tuple(value(group, index) for group in names) for index in attributes["index_list"]}


def expected(task: str, row: Sequence[str | None]) -> tuple[Any, ...]:
    if task == "question-answering":
        answer = json.loads(str(row[2]))[0]
        start, text = answer["start"], answer["text"]
        return (row[0], row[1], [start, start + len(text)], row[3], text)
    return tuple(
        json.loads(str(one)) if str(one).startswith("[") else one
        for one in row[: 3 if len(row) == 3 and task[0] == "s" else 2]
    )


@pytest.mark.parametrize("task", ROWS)
def test_the_original_reads_what_is_written(tmp_path: Path, task: str) -> None:
    columns, rows = ROWS[task]
    path = tmp_path / "a_data.h5"
    write_data(path, task, columns, rows, TRAIN, TEST)
    assert original(path, task) == {n: expected(task, row) for n, row in enumerate(rows)}
    with h5py.File(path) as file:
        attributes = json.loads(file["attributes"][()])
    assert attributes["index_list"] == list(range(COUNT))
    assert (attributes["train_index_list"], attributes["test_index_list"]) == (TRAIN, TEST)
    assert TASKS[attributes["task_type"]] == task
    if task == "text-classification":
        assert attributes["label_vocab"] == {"label0": 0, "label1": 1, "label2": 2}
        assert attributes["num_labels"] == 3
    if task == "token-classification":
        assert attributes["label_vocab"] == {"B-0": 0, "B-1": 1, "O": 2}
    assert [one.name for one in tmp_path.iterdir()] == ["a_data.h5"]


@pytest.mark.parametrize("task", ROWS)
def test_what_is_written_comes_back(tmp_path: Path, task: str) -> None:
    columns, rows = ROWS[task]
    path = tmp_path / "a_data.h5"
    write_data(path, task, columns, rows, TRAIN, TEST)
    data = read_data(path)
    assert (data.task, data.columns) == (task, columns)
    assert list(map(tuple, data.rows("train"))) == [rows[n] for n in TRAIN]
    assert list(map(tuple, data.rows("test"))) == [rows[n] for n in TEST]
    assert data.numbers("train") == {index: number for number, index in enumerate(TRAIN)}
    assert data.numbers("test")[24] == 2


anything = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@settings(max_examples=30)
@given(st.lists(st.tuples(anything, anything, st.lists(anything, min_size=1)), min_size=11, max_size=14))
def test_any_text_comes_back(examples: list[tuple[str, str, list[str]]]) -> None:
    numbers = range(len(examples))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a_data.h5"
        rows = [
            (source, target, json.dumps(history, ensure_ascii=False)) for source, target, history in examples
        ]
        write_data(path, "sequence-to-sequence", ("source", "target", "history"), rows, numbers, [])
        assert list(map(tuple, read_data(path).rows("train"))) == rows
        tagged = [(history, history) for _, _, history in rows]
        write_data(path, "token-classification", ("words", "tags"), tagged, numbers, [])
        assert list(map(tuple, read_data(path).rows("train"))) == tagged


def written(path: Path, groups: dict[str, dict[int, Any]], attributes: dict[str, Any]) -> Path:
    """Write a data file as the original's loaders do: one dataset a key."""
    utf8 = h5py.string_dtype("utf-8", None)
    with h5py.File(path, "w") as file:
        file["attributes"] = json.dumps(attributes)
        for group, values in groups.items():
            for key, value in values.items():
                listed = isinstance(value, list) and group not in {"Y_span"}
                file[f"{group.removesuffix('_span')}/{key}"] = (
                    np.array(value, dtype=utf8) if listed else value
                )
    return path


def test_a_question_file_of_the_original(tmp_path: Path) -> None:
    """Several answers of a question are several examples there; attributes become columns."""
    count = 14
    path = written(
        tmp_path / "a.h5",
        {
            "context_X": {n: f"It is {n} o'clock" for n in range(count)},
            "question_X": dict.fromkeys(range(count), "When?"),
            "Y_span": {n: (6, 6 + len(str(n))) for n in range(count)},
            "question_ids": {n: f"q{n // 2}" for n in range(count)},
        },
        {
            "index_list": list(range(count)),
            "task_type": "span_extraction",
            "doc_index": {n: n % 3 for n in range(count)},
            "label_index_list": [f"set{n % 2}" for n in range(count)],
            "label_index": {},
            "train_index_list": list(range(10)),
            "test_index_list": list(range(10, count)),
        },
    )
    data = read_data(path)
    assert data.columns == ("context", "question", "answers", "id", "doc_index", "label_index_list")
    assert list(data.rows("test"))[1] == (
        "It is 11 o'clock",
        "When?",
        '[{"text": "11", "start": 6}]',
        "q5",
        "2",
        "set1",
    )
    assert len(list(data.rows("train"))) == 10


def test_a_file_without_task_type_is_known_by_its_layout(tmp_path: Path) -> None:
    numbers = range(12)
    text = {n: f"t{n}" for n in numbers}
    words = {n: ["a", f"b{n}"] for n in numbers}
    listed = {"index_list": list(numbers)}
    cases: list[tuple[dict[str, dict[int, Any]], dict[str, Any], str]] = [
        ({"X": text, "Y": text, "history": {n: [] for n in numbers}}, listed, "sequence-to-sequence"),
        ({"X": text, "Y": text}, {**listed, "label_vocab": {"t1": 0}}, "text-classification"),
        ({"X": words, "Y": words}, {**listed, "task_type": "sequence_tagging"}, "token-classification"),
        ({"X": text}, listed, "causal-lm"),
        ({"X": words}, {"index_list": None}, "causal-lm"),
        (
            {"context_X": text, "question_X": text, "Y_span": dict.fromkeys(numbers, (0, 1))},
            {},
            "question-answering",
        ),
    ]
    for number, (groups, attributes, task) in enumerate(cases):
        data = read_data(written(tmp_path / f"{number}.h5", groups, attributes))
        assert data.task == task
        assert data.test is None
        assert data.train.tolist() == list(numbers)
        assert str(list(data.rows("train"))[11][0]) in {"t11", '["a", "b11"]', "a b11"}
        assert list(data.rows("test")) == []


def test_label_names_are_sorted_whatever_their_ids(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.h5",
        {"X": {0: "a"}, "Y": {0: "b"}},
        {"index_list": [0], "label_vocab": {"b": 0, "10": 1, "a": 2}},
    )
    assert read_data(path).label_names == ("10", "a", "b")


def _missing(file: Any) -> None:
    del file["Y/11"]


def _number(file: Any) -> None:
    del file["X/11"]
    file["X/11"] = 3


def _elsewhere(file: Any) -> None:
    del file["X/11"]
    file["X/11"] = h5py.ExternalLink("other.h5", "/X")


def _attributes(value: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file["attributes"]
        file["attributes"] = value if isinstance(value, str) else json.dumps(value)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_missing, "/Y/11 is missing"),
        (_number, "/X/11 holds int64, where there should be strings"),
        (_elsewhere, "/X/11 points elsewhere"),
        (_attributes({"index_list": [0, 1, 1]}), "/attributes: index_list holds an index twice"),
        (_attributes({"index_list": [0, 1.5]}), "/attributes: index_list is no list of whole numbers"),
        (_attributes({"index_list": [99], "task_type": "seq2seq"}), "/X/99 is missing"),
        (_attributes("[1]"), "/attributes is no JSON object"),
        (_attributes("{"), ":1: not JSON"),
        (lambda file: file.pop("attributes"), "/attributes is missing"),
        (lambda file: file.pop("X"), "/X is missing"),
    ],
)
def test_data_files_that_are_none(tmp_path: Path, change: Callable[[Any], None], said: str) -> None:
    path = tmp_path / "a_data.h5"
    write_data(path, "text-classification", *ROWS["text-classification"], range(20), range(20, 25))
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(DataError) as caught:
        list(read_data(path).rows("train"))
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_answers_outside_of_their_context_are_for_the_check_to_find(tmp_path: Path) -> None:
    groups = {"context_X": {0: "abc"}, "question_X": {0: "?"}}
    for number, span in enumerate([(3, 4), (-1, 1), (1, 1), (2, 1)]):
        path = written(tmp_path / f"{number}.h5", {**groups, "Y_span": {0: span}}, {"index_list": [0]})
        ((context, _, answers),) = read_data(path).rows("train")
        assert answers_fault(str(context), str(answers)) is not None
    path = written(tmp_path / "a.h5", {**groups, "Y_span": {0: (0, 1, 2)}}, {"index_list": [0]})
    with pytest.raises(DataError, match=r"/Y/0 is not \[start, end\]"):
        list(read_data(path).rows("train"))


def test_an_inclusive_end_is_read_as_one(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.h5",
        {"context_X": {0: "abc"}, "question_X": {0: "?"}, "Y_span": {0: (1, 2)}},
        {"index_list": [0]},
    )
    texts = [
        [json.loads(str(row[2])) for row in read_data(path, end_inclusive=inclusive).rows("train")]
        for inclusive in (False, True)
    ]
    assert texts == [[[{"text": "b", "start": 1}]], [[{"text": "bc", "start": 1}]]]


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    listed = {"index_list": [0, 1], "task_type": "text_classification"}
    path = written(tmp_path / "a.h5", {"X": {0: "a", 1: "b"}, "Y": {0: 3, 1: "3"}}, listed)
    assert list(map(tuple, read_data(path).rows("train"))) == [("a", "3"), ("b", "3")]


def test_rows_that_cannot_be_stored(tmp_path: Path) -> None:
    path = tmp_path / "a_data.h5"

    def fails(task: str, columns: Sequence[str], row: Sequence[str | None], said: str) -> None:
        with pytest.raises(DataError, match=said):
            write_data(path, task, columns, [row], [0], [])
        assert list(tmp_path.iterdir()) == []

    fails("text-classification", ("text", "label"), (None, "a"), "row 0 has a gap")
    fails("text-classification", ("text", "label"), ("a\0b", "a"), "row 0 cannot be stored")
    fails("text-classification", ("text",), ("a",), "no column label, which text-classification needs")
    fails("text-classification", ("text", "label", "num_labels"), ("a", "b", "c"), "has its own 'num_labels'")
    fails("token-classification", ("words", "tags"), ('["a"]', "[]"), "row 0: 1 word and 0 tags")
    fails(
        "question-answering",
        ("context", "question", "answers"),
        ("abc", "?", "[]"),
        "row 0: there is no answer",
    )
    fails("text-regression", ("text", "score"), ("abc", "1"), "has no data files for 'text-regression'")
    with pytest.raises(DataError, match="must be from 0 to 0"):
        write_data(path, "causal-lm", ("text",), [("a",)], [1], [])


def shared(clients: int, names: bool = False) -> Partition:
    rng = random.Random(clients)
    train = np.array([rng.randrange(clients) for _ in range(5 * clients)] + list(range(clients)))
    test = np.array([rng.randrange(clients) for _ in range(3 * clients)])
    called = tuple(f"client ä{n}" for n in range(clients)) if names else None
    return from_owners(train, test, clients, client_names=called)


def same(one: Partition, other: Partition) -> bool:
    arrays = ("train_offsets", "train_indices", "test_offsets", "test_indices")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and (
        one.client_names == other.client_names
    )


def test_the_original_reads_a_written_partition(tmp_path: Path) -> None:
    path = tmp_path / "a_partition.h5"
    partition = shared(13)
    assert write_h5_partition(path, partition, "label", alpha=1.0) == "niid_label_clients=13_alpha=1"
    assert write_h5_partition(path, shared(12), "quantity", beta=5) == "niid_quantity_clients=12_beta=5.0"
    assert write_h5_partition(path, shared(11), "cluster", alpha=0.1) == "niid_cluster_clients=11_alpha=0.1"
    assert write_h5_partition(path, shared(14), "uniform") == "uniform"
    assert write_h5_partition(path, shared(12, names=True), "natural") == "natural_clients=12"
    assert write_h5_partition(path, partition, "label", alpha=1.0) == "niid_label_clients=13_alpha=1"
    with h5py.File(path, "r", swmr=True) as file:
        assert set(file) == {
            "niid_label_clients=13_alpha=1",
            "niid_quantity_clients=12_beta=5.0",
            "niid_cluster_clients=11_alpha=0.1",
            "uniform",
            "natural_clients=12",
        }
        group = file["niid_label_clients=13_alpha=1"]
        assert int(group["n_clients"][()]) == 13
        assert float(group["alpha"][()]) == 1.0
        assert float(file["niid_quantity_clients=12_beta=5.0/beta"][()]) == 5.0
        for client in range(13):
            found = group["partition_data"][str(client)]
            assert found["train"][()].dtype == np.int64
            assert found["train"][()].tolist() == partition.train(client).tolist()
            assert found["test"][()].tolist() == partition.test(client).tolist()
    assert partition_methods(path)[-1] == "uniform"


@given(st.integers(1, 25), st.booleans(), st.randoms())
def test_partitions_come_back(clients: int, names: bool, rng: random.Random) -> None:
    """Whatever indices the data file gives its rows."""
    partition = shared(clients, names)
    indices = rng.sample(range(100 * clients), 9 * clients)
    train, test = indices[: 6 * clients], indices[6 * clients :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a_partition.h5"
        name = write_h5_partition(path, partition, "natural", train=train, test=test)
        assert same(read_h5_partition(path, name, train, test), partition)


def test_a_partition_goes_with_its_data(tmp_path: Path) -> None:
    columns, rows = ROWS["text-classification"]
    write_data(tmp_path / "a_data.h5", "text-classification", columns, rows, TRAIN, TEST)
    data = read_data(tmp_path / "a_data.h5")
    owners = np.arange(len(TRAIN)) % 11
    partition = from_owners(owners, np.array([0, 10, 10]), 11)
    name = write_h5_partition(tmp_path / "p.h5", partition, "uniform", train=data.train, test=data.test)
    with h5py.File(tmp_path / "p.h5") as file:
        assert file["uniform/partition_data/10/train"][()].tolist() == [2 if owners[-1] == 10 else TRAIN[10]]
        assert file["uniform/partition_data/10/test"][()].tolist() == [1, 24]
    assert data.test is not None
    back = read_h5_partition(tmp_path / "p.h5", name, data.train, data.test)
    assert same(back, partition)
    texts = list(data.rows("test"))
    assert [texts[number][0] for number in back.test(10)] == ["text ä 1\n", "text ä 24\n"]


def raw(path: Path, clients: dict[str, tuple[Any, Any]], count: Any = None, name: str = "uniform") -> Path:
    with h5py.File(path, "w") as file:
        file[f"{name}/n_clients"] = len(clients) if count is None else count
        for client, (train, test) in clients.items():
            file[f"{name}/partition_data/{client}/train"] = train
            file[f"{name}/partition_data/{client}/test"] = test
    return path


def test_an_empty_list_of_the_original_is_one_of_floats(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.h5", {"0": ([1, 0], []), "1": ([2], [7])})
    partition = read_h5_partition(path, "uniform", [0, 1, 2], [7])
    assert [partition.test(client).tolist() for client in (0, 1)] == [[], [0]]


@pytest.mark.parametrize("asked", ["niid_label_clients=2_alpha=1", "niid_label_clients=2_alpha=1.0"])
def test_names_may_write_their_numbers_otherwise(tmp_path: Path, asked: str) -> None:
    path = raw(tmp_path / "a.h5", {"0": ([0], []), "1": ([1], [])}, name="niid_label_clients=2_alpha=1.0")
    assert read_h5_partition(path, asked, [0, 1], []).num_clients == 2
    with pytest.raises(
        DataError, match=r"no partition 'niid_label_clients=2_alpha=1\.5'.*there are niid_label"
    ):
        read_h5_partition(path, "niid_label_clients=2_alpha=1.5", [0, 1], [])


@pytest.mark.parametrize(
    ("clients", "count", "said"),
    [
        ({"0": ([0], []), "1": ([5], [])}, None, "the train example 5 is not in the data"),
        ({"0": ([0, 1], []), "1": ([2, 1], [])}, None, "more train examples than the 3 of the data"),
        ({"0": ([0, 0], []), "1": ([1], [])}, None, "example 0 stands twice in train_indices"),
        ({"0": ([0], [0]), "1": ([1], [])}, None, "more test examples than the 0 of the data"),
        ({"0": ([0], []), "2": ([1], [])}, None, "/uniform/partition_data/1 is missing"),
        ({"0": ([0], []), "1": ([1], [])}, 3, "n_clients is 3, and partition_data has 2 clients"),
        (
            {"0": ([0], []), "1": ([1], [])},
            "two",
            "n_clients holds object (), where there should be a number",
        ),
        ({"0": ([0], []), "1": ([0.5], [])}, None, "holds float64, where there should be whole numbers"),
        ({"0": ([0], []), "1": ([], [])}, None, "client 1 holds no training example"),
        ({"0": ([0], []), "1": ([[1]], [])}, None, "has the shape (1, 1)"),
    ],
)
def test_partitions_that_are_none(tmp_path: Path, clients: dict[str, Any], count: Any, said: str) -> None:
    path = raw(tmp_path / "a.h5", clients, count)
    with pytest.raises((DataError, PartitionError)) as caught:
        read_h5_partition(path, "uniform", [0, 1, 2], [])
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_strings_that_share_their_bytes_are_not_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, length = tmp_path / "shared.h5", 10_000
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (500,), dtype=h5py.string_dtype())
        dataset[:] = ["a" * length, *["b"] * 499]
        place = dataset.id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 500 * 16] = content[place : place + 16] * 500  # length, heap and number of each
    path.write_bytes(content)
    monkeypatch.setattr(h5, "_BYTES_AT_ONCE", 10 * length)
    tracemalloc.start()
    with h5.opened(path) as file:
        found = sum(map(len, h5.texts(h5.child(file, "x", "dataset", str(path)))))
    assert found == 500 * length
    assert tracemalloc.get_traced_memory()[1] < 50 * length
    tracemalloc.stop()


def test_a_file_that_is_no_h5_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a_partition.h5"
    path.write_text("precious")
    with pytest.raises(DataError, match="not HDF5, or damaged"):
        write_h5_partition(path, shared(3), "uniform")
    assert path.read_text() == "precious"
    assert [one.name for one in tmp_path.iterdir()] == ["a_partition.h5"]
    with pytest.raises(DataError, match="there are indices for 2 rows"):
        write_h5_partition(tmp_path / "b.h5", shared(3), "uniform", train=[0, 1])
