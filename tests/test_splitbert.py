"""FedSplitBERT's experiments: the paper's label shares as files, and the variants that are compared."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp import config
from fednlp.config import canonical
from fednlp.data import load_data
from fednlp.data.catalogue import entry
from fednlp.data.readers.glue import GLUE
from fednlp.errors import PartitionError
from fednlp.partition import Partition, PartitionSpec, make_partition
from fednlp.partition.proportion_tables import read_proportions

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
TABLES = sorted(path.stem for path in (EXPERIMENTS / "proportions").iterdir())
FILES = sorted(path.stem for path in EXPERIMENTS.glob("splitbert*.toml"))

# Li et al. 2022, Tables I and II: the first share of two, by client.
OTHER, TEN = [80, 50, 20], [90, 80, 70, 60, 50, 40, 30, 20, 10, 2]
PUBLISHED = {
    "mrpc-3": [95, 75, 25],
    "cola-3": [90.5, 83, 40],
    "qqp-3": [70, 37, 13],
    "sst2-3": OTHER,
    "rte-3": OTHER,
    "qnli-3": OTHER,
    "wnli-3": OTHER,
    "qqp-10": TEN,
    "sst2-10": TEN,
    "qnli-10": TEN,
    "mrpc-10": [92, 86, 71, 66, 50, 44, 35, 28, 12, 100 * 51 / 99],
}
FIRST = {"mrpc": "equivalent", "cola": "acceptable", "qqp": "duplicate", "sst2": "positive"}
MNLI = [[86, 5, 9], [5, 90, 5], [5, 5, 90]]


def shared_out(table: str, shares: np.ndarray, labels: tuple[str, ...], each: int) -> np.ndarray:
    """Return the label counts of clients, from data that holds just what the published shares ask for."""
    supply = (shares.sum(axis=0) * each / 100).round().astype(int)
    train = np.repeat(np.arange(len(labels)), supply)
    part = make_partition(
        PartitionSpec("proportions", proportions=table), train, [], num_labels=len(labels), label_names=labels
    )
    return np.array([np.bincount(train[part.train(c)], minlength=len(labels)) for c in range(len(shares))])


def test_there_is_a_table_for_each_published_row_and_no_other() -> None:
    assert sorted([*PUBLISHED, "mnli-3", "stsb-3"]) == TABLES


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_labels_of_its_data_set_and_says_where_it_is_from(name: str) -> None:
    data, _, clients = name.rpartition("-")
    table = read_proportions(name)
    assert table.by == "client"
    assert len(table.shares) == int(clients)
    assert table.clients == tuple(f"client{n + 1}" for n in range(int(clients)))
    if data != "stsb":
        assert set(table.labels) == set(GLUE[data].labels.values())
    assert "arXiv:2205.13299), Table I" in (EXPERIMENTS / "proportions" / f"{name}.csv").read_text()


@pytest.mark.parametrize("name", PUBLISHED)
def test_clients_hold_the_published_shares(name: str) -> None:
    data = name.rpartition("-")[0]
    first = FIRST.get(data, "entailment")
    labels = tuple(sorted(set(GLUE[data].labels.values()), key=lambda label: label != first))
    shares = np.array([[share, 100 - share] for share in PUBLISHED[name]])
    counts = shared_out(name, shares, labels, 1000)
    np.testing.assert_allclose(counts / 10, shares, atol=0.2)
    np.testing.assert_allclose(
        shared_out(name, shares[:, ::-1], labels[::-1], 1000) / 10, shares[:, ::-1], atol=0.2
    )


def test_clients_hold_the_published_shares_of_three_labels() -> None:
    labels = ("entailment", "neutral", "contradiction")
    counts = shared_out("mnli-3", np.array(MNLI), labels, 1000)
    np.testing.assert_allclose(counts / 10, MNLI, atol=0.2)


def cut(scores: np.ndarray, tests: np.ndarray, seed: int = 0) -> Partition:
    return make_partition(PartitionSpec("proportions", proportions="stsb-3", seed=seed), scores, tests)


@given(st.lists(st.integers(0, 25), min_size=3, max_size=80), st.integers(0, 99))
def test_scores_are_sorted_and_cut_in_equal_runs(tenths: list[int], seed: int) -> None:
    """Without one exception: no client holds a score above the next one's lowest."""
    scores = np.array(tenths) / 5
    part = cut(scores, scores, seed)
    held = [scores[part.train(client)] for client in range(3)]
    assert np.ptp([len(one) for one in held]) <= 1
    assert all(low.max() <= high.min() for low, high in pairwise(held))


def test_stsb_has_the_published_means() -> None:
    folder = os.environ.get("FEDNLP_TEST_DATA")
    if folder is None or not Path(folder, "glue/STS-B").is_dir():
        pytest.skip("set FEDNLP_TEST_DATA to a folder with glue/STS-B")
    data = load_data("stsb", f"{folder}/glue/STS-B")
    train, test = data.scores("train"), data.scores("test")
    part = cut(train, test)
    means = [train[part.train(client)].mean() for client in range(3)]
    assert means == pytest.approx([0.93, 2.90, 4.26], abs=0.01)
    ends = [train[part.train(client)].max() for client in range(3)]
    assert ends == [2.0, 3.6, 5.0]


def test_a_table_is_found_by_its_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_proportions("mrpc-3").shares[0].tolist() == [0.95, 0.05]
    assert config.load("splitbert").resolved().partition.proportions == "mrpc-3"
    with pytest.raises(
        PartitionError, match="no file of proportions mrpc-4: did you mean 'mrpc-3'"
    ) as caught:
        read_proportions("mrpc-4")
    assert "stsb-3" in str(caught.value)
    (tmp_path / "mrpc-3").write_text("equivalent,not_equivalent\n40,60\n")
    assert read_proportions("mrpc-3").shares.tolist() == [[0.4, 0.6]], "a file of that path comes first"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_variant_is_sound(name: str, full: bool) -> None:
    if full and name == "splitbert-bbc":
        return
    experiment = config.load(name, full=full)
    assert experiment.evaluation.every == 1, "accuracy against rounds, and bytes to reach it"
    for variant in experiment.variants:
        run = config.with_method(experiment, variant, seed=1).resolved()
        assert (run.variant, run.seed) == (variant, 1)
        assert run.model.train["embeddings"] == "frozen"
        if run.partition.proportions is not None:
            assert run.data.name is not None
            labels = entry(run.data.name).labels
            assert labels == len(read_proportions(run.partition.proportions).labels)


@pytest.mark.parametrize(("full", "layers", "shared"), [(False, 6, 4), (True, 12, 6)])
def test_the_variants_are_the_papers_methods(full: bool, layers: int, shared: int) -> None:
    experiment, by_layer = (config.load(name, full=full) for name in ("splitbert", "splitbert-layers"))

    def settings(of: config.Experiment, variant: str) -> dict[str, object]:
        return canonical(config.with_method(of, variant, 0).resolved())

    assert list(experiment.variants) == ["fedavg", "fedprox", "fedadam", "fedsplitbert", "fedsplitbert-16bit"]
    assert settings(experiment, "fedavg") == settings(by_layer, f"c{layers}"), "c = L is FedAvg"
    assert settings(experiment, "fedsplitbert") == settings(by_layer, f"c{shared}")
    split, half = settings(experiment, "fedsplitbert"), settings(experiment, "fedsplitbert-16bit")
    assert {key for key in split if split[key] != half[key]} == {"exchange"}
    numbers = [int(variant[1:]) for variant in by_layer.variants]
    assert numbers == ([0, 1, 2, 3, 4, 5, 6, 8, 10, 12] if full else [0, 1, 2, 3, 4, 5, 6])
    for number in numbers:
        run = config.with_method(by_layer, f"c{number}", 0)
        assert run.model.train["critical_layer"] == number


@pytest.mark.parametrize("table", TABLES)
def test_other_data_sets_need_three_settings(table: str) -> None:
    data, _, clients = table.rpartition("-")
    name = "glue-sst2" if data == "sst2" else data
    changes = [f"data.name={name}", "data.path=DIR", f"partition.proportions={table}"]
    experiment = config.load("splitbert", [*changes, f"clients_per_round={clients}"])
    for variant in experiment.variants:
        run = config.with_method(experiment, variant, 0).resolved()
        assert (run.data.name, run.data.path, run.partition.proportions) == (name, "DIR", table)
