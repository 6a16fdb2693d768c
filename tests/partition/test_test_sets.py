"""A client's own test set follows its training set."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednlp.partition import Partition, jensen_shannon
from fednlp.partition.shift import label_owners
from fednlp.partition.test_sets import assign_test_examples, split_own_tests

GROUPS = st.lists(st.integers(0, 4), min_size=1, max_size=80)


@given(GROUPS, st.lists(st.integers(-1, 6), max_size=80), st.data(), st.integers(0, 99))
def test_each_client_gets_its_share_of_each_group(train, test, data, seed):
    train, test = np.array(train), np.array(test, dtype=int)
    owners = np.array(data.draw(st.lists(st.integers(0, 7), min_size=len(train), max_size=len(train))))
    assigned = assign_test_examples(train, owners, test, seed)
    assert assigned.shape == test.shape
    assert np.isin(assigned, owners).all()
    test = np.where(np.isin(test, train), test, -1)
    for group in np.unique(test):
        mine = np.bincount(assigned[test == group], minlength=8)
        held = np.bincount(owners[train == group], minlength=8)
        if held.sum() == 0:
            held = np.bincount(owners, minlength=8)
        exact = held / held.sum() * mine.sum()
        assert (np.abs(mine - exact) < 1 + 1e-9).all()


@given(GROUPS, st.lists(st.integers(-1, 6), max_size=80))
def test_unseen_groups_can_be_left_out(train, test):
    train, test = np.array(train), np.array(test, dtype=int)
    assigned = assign_test_examples(train, np.arange(len(train)), test, 0, unseen=False)
    assert np.array_equal(assigned < 0, ~np.isin(test, train))


def test_nobody_is_favoured_by_the_rounding():
    """Ten clients alike and three test examples: over seeds each gets three tenths."""
    train, owners = np.zeros(50, int), np.arange(50) % 10
    got = sum(
        np.bincount(assign_test_examples(train, owners, np.zeros(3, int), seed), minlength=10)
        for seed in range(3000)
    )
    np.testing.assert_allclose(got / 3000, 0.3, atol=0.04)


def test_which_test_examples_a_client_gets_is_drawn():
    train, owners, test = np.zeros(4, int), np.array([0, 0, 1, 1]), np.zeros(40, int)
    first, second = assign_test_examples(train, owners, test, 0), assign_test_examples(train, owners, test, 1)
    assert np.bincount(first).tolist() == np.bincount(second).tolist() == [20, 20]
    assert not np.array_equal(first, second)
    assert np.array_equal(first, assign_test_examples(train, owners, test, 0))


def test_own_test_labels_are_nearer_to_own_training_labels():
    rng = np.random.default_rng(0)
    train, test = rng.integers(0, 10, 5000), rng.integers(0, 10, 3000)
    for alpha in (0.1, 1.0, 10.0):
        owners = label_owners(train, 50, alpha, seed=0)
        assigned = assign_test_examples(train, owners, test, seed=0)
        held, given_out = np.zeros((50, 10)), np.zeros((50, 10))
        np.add.at(held, (owners, train), 1)
        np.add.at(given_out, (assigned, test), 1)
        between = jensen_shannon(given_out[:, None], held[None])
        own = np.diag(between)
        others = (between.sum(axis=1) - own) / 49
        assert (own < others).all()
        assert own.mean() < 0.05


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.sampled_from([0.1, 0.2, 0.5, 0.9]),
    st.integers(0, 9),
)
def test_a_client_s_own_split_is_disjoint_and_covers_its_examples(sizes, fraction, seed):
    """A fifth of each client's own examples, to half an example; nobody is left without a training example."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    numbers = np.random.default_rng(seed).permutation(3 * offsets[-1])[: offsets[-1]]
    none = np.zeros(len(sizes) + 1, int)
    whole = Partition(offsets, numbers, none, [], np.arange(len(sizes)))
    split = split_own_tests(whole, fraction, seed)
    for client, size in enumerate(sizes):
        train, test = split.train(client), split.test(client)
        assert sorted([*train, *test]) == sorted(whole.train(client))
        assert len(train) >= 1
        assert abs(len(test) - fraction * size) <= 0.5 or len(test) in (1, size - 1)
        assert len(test) >= 1 or size == 1
    again = split_own_tests(whole, fraction, seed)
    assert np.array_equal(split.test_indices, again.test_indices)
    if offsets[-1] > 60:
        assert not np.array_equal(split.test_indices, split_own_tests(whole, fraction, seed + 1).test_indices)
