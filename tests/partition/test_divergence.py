"""The Jensen-Shannon divergence against SciPy, and what is said of a partition."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from fednlp.errors import PartitionError
from fednlp.partition import (
    divergence_from_prior,
    divergence_matrix,
    from_owners,
    jensen_shannon,
    label_counts,
    summary,
)
from fednlp.partition.divergence import sample_clients
from fednlp.partition.shift import label_owners

PAIRS = st.integers(1, 12).flatmap(
    lambda k: st.tuples(*[st.lists(st.integers(0, 50), min_size=k, max_size=k).filter(any)] * 2)
)


@given(PAIRS)
def test_agrees_with_scipy(pair):
    p, q = pair
    mine = float(jensen_shannon(p, q))
    with np.errstate(invalid="ignore"):
        theirs = np.nan_to_num(jensenshannon(p, q, base=2)) ** 2
    assert mine == pytest.approx(theirs, abs=1e-12)
    assert 0 <= mine <= 1
    assert mine == pytest.approx(float(jensen_shannon(q, p)), abs=1e-15)


def test_known_values():
    assert jensen_shannon([1, 0], [0, 1]) == 1
    assert jensen_shannon([1, 2, 3], [2, 4, 6]) == 0
    # Half of one label against both: 3/4 log2(4/3) + 1/4 log2(4) - 1/2 = 0.31128.
    assert float(jensen_shannon([1, 0], [1, 1])) == pytest.approx(0.75 * np.log2(4 / 3) + 0.5 - 0.5)
    assert np.isnan(jensen_shannon([0, 0], [1, 1]))


def made(clients=30, examples=600, labels=5):
    ids = np.random.default_rng(1).integers(0, labels, examples)
    numbers = np.arange(examples) * 2
    by_number = np.full(2 * examples, -1)
    by_number[numbers] = ids
    owners = label_owners(ids, clients, 1.0, seed=0)
    return from_owners(owners, owners[:50], clients, numbers, numbers[:50]), by_number


def test_a_matrix_is_every_pair():
    partition, labels = made()
    counts = label_counts(partition, labels, 5)
    matrix = divergence_matrix(counts)
    assert matrix.shape == (30, 30)
    assert np.array_equal(matrix, matrix.T)
    assert (np.diag(matrix) == 0).all()
    assert matrix[3, 7] == jensen_shannon(counts[3], counts[7])


def test_counts_and_divergences_follow_example_numbers(monkeypatch):
    partition, labels = made()
    counts = label_counts(partition, labels, 5)
    expected = [np.bincount(labels[partition.train(c)], minlength=5) for c in range(30)]
    assert np.array_equal(counts, expected)
    some = np.array([4, 29, 0])
    assert np.array_equal(label_counts(partition, labels, 5, some), counts[some])
    tests = label_counts(partition, labels, 5, split="test")
    assert tests.sum() == 50
    whole = divergence_from_prior(partition, labels, 5)
    np.testing.assert_allclose(whole, jensen_shannon(counts, counts.sum(axis=0)), atol=1e-15)
    monkeypatch.setattr("fednlp.partition.shift._CELLS", 12)
    assert np.array_equal(whole, divergence_from_prior(partition, labels, 5))


def test_a_summary_is_json_and_says_what_is_there():
    partition, labels = made()
    said = json.loads(json.dumps(summary(partition, labels, 5)))
    divergences = divergence_from_prior(partition, labels, 5)
    assert (said["clients"], said["train_examples"], said["test_examples"]) == (30, 600, 50)
    assert said["sizes"] == {"min": 20, "median": 20.0, "max": 20}
    assert said["mean_divergence"] == pytest.approx(divergences.mean())
    assert said["first_tenth"]["clients"] == said["last_tenth"]["clients"] == 3
    assert said["first_tenth"]["mean_divergence"] == pytest.approx(divergences[:3].mean())
    assert said["last_tenth"]["mean_divergence"] == pytest.approx(divergences[-3:].mean())


def test_without_labels_a_summary_says_only_sizes():
    partition = from_owners(np.array([0, 1, 1]), np.array([1]), 2)
    said = summary(partition)
    assert "mean_divergence" not in said
    assert said["sizes"] == {"min": 1, "median": 1.5, "max": 2}
    assert said["test_sizes"] == {"min": 0, "median": 0.5, "max": 1}
    assert said["first_tenth"]["sizes"]["max"] == 1
    assert said["last_tenth"]["sizes"]["max"] == 2


def test_a_partition_of_other_data_is_refused():
    partition = from_owners(np.array([0, 1, 1]), np.array([1]), 2)
    with pytest.raises(PartitionError, match="holds train example 2, but there are only 2"):
        divergence_from_prior(partition, np.array([0, 1]), 2)
    with pytest.raises(PartitionError, match="holds train example 2, but there are only 1"):
        divergence_from_prior(partition, np.array([0]), 2)
    with pytest.raises(PartitionError, match="train example 1 has no label from 0 to 1"):
        summary(partition, np.array([0, -1, 1]), 2)


def test_a_sample_of_clients_is_in_order_and_stays():
    assert sample_clients(7, 10).tolist() == list(range(7))
    drawn = sample_clients(100_000, 200)
    assert len(set(drawn.tolist())) == 200
    assert (np.diff(drawn) > 0).all()
    assert np.array_equal(drawn, sample_clients(100_000, 200))
    assert 30_000 < drawn.mean() < 70_000
