"""Gold labels: how they are spread over the clients, which examples have one, and wrong ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.fewshot.gold import choose_examples, dirichlet_counts, label_noise

SEEDS = st.integers(0, 2**32)
GAMMAS = st.one_of(st.floats(-9, 9).map(lambda power: 10**power), st.sampled_from([5e-324, 1e300]))
SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=30).map(np.array)


def rng(seed=0):
    return np.random.default_rng(seed)


@st.composite
def federations(draw):
    sizes = draw(SIZES)
    return draw(st.integers(0, int(sizes.sum()))), sizes


def ragged(sizes):
    offsets = np.append(0, np.cumsum(sizes))
    return offsets, rng(1).permutation(3 * offsets[-1])[: offsets[-1]]


@given(federations(), GAMMAS, SEEDS)
def test_every_gold_label_has_an_example(federation, gamma, seed):
    total, sizes = federation
    counts = dirichlet_counts(total, gamma, sizes, rng(seed))
    assert counts.dtype == np.int64
    assert counts.shape == sizes.shape
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert (counts <= sizes).all()


@given(federations(), GAMMAS, SEEDS)
def test_the_same_draw_gives_the_same_spread(federation, gamma, seed):
    total, sizes = federation
    np.testing.assert_array_equal(*(dirichlet_counts(total, gamma, sizes, rng(seed)) for _ in range(2)))


@given(st.integers(1, 200), st.integers(1, 50), SEEDS)
def test_with_a_tiny_gamma_one_client_has_them_all(total, clients, seed):
    counts = dirichlet_counts(total, 1e-12, np.full(clients, total), rng(seed))
    assert np.count_nonzero(counts) == 1


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), SEEDS)
def test_with_a_tiny_gamma_a_client_is_full_before_the_next_has_one(clients, size, spare, seed):
    total = max(1, clients * size - spare)
    counts = np.sort(dirichlet_counts(total, 1e-12, np.full(clients, size), rng(seed)))[::-1]
    np.testing.assert_array_equal(counts, np.clip(total - size * np.arange(clients), 0, size))


@given(st.integers(0, 200), st.integers(1, 50), SEEDS)
def test_with_a_huge_gamma_clients_differ_by_one_at_most(total, clients, seed):
    counts = dirichlet_counts(total, 1e300, np.full(clients, 200), rng(seed))
    assert counts.max() - counts.min() <= 1


def test_who_has_the_odd_label_is_drawn_even_for_a_huge_gamma():
    holders = {int(np.argmax(dirichlet_counts(1, 1e300, np.full(4, 9), rng(seed)))) for seed in range(60)}
    assert holders == {0, 1, 2, 3}


def test_what_a_full_client_cannot_have_goes_on_in_proportion():
    """Shares 1/2, 1/3, 1/6 in effect: the full client takes its 3, and 9 are left for the others."""
    free = dirichlet_counts(12_000, 1.0, np.array([12_000, 12_000, 12_000]), rng(5))
    largest = int(np.argmax(free))
    others = np.delete(free, largest)
    sizes = np.full(3, 12_000)
    sizes[largest] = 3
    counts = dirichlet_counts(9_000, 1.0, sizes, rng(5))
    assert counts[largest] == 3
    expected = others / others.sum() * 8_997
    np.testing.assert_allclose(np.delete(counts, largest), expected, rtol=2e-3, atol=2)


@pytest.mark.whole
def test_the_shares_are_those_of_a_dirichlet():
    """Mean 1/C and variance (C - 1) / C^2 / (C gamma + 1), over many draws."""
    clients, gamma, total = 5, 0.7, 10**6
    draws = (
        np.stack([dirichlet_counts(total, gamma, np.full(clients, total), rng(seed)) for seed in range(4000)])
        / total
    )
    np.testing.assert_allclose(draws.mean(axis=0), 1 / clients, atol=0.02)
    variance = (clients - 1) / clients**2 / (clients * gamma + 1)
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.1)


def test_skew_falls_with_gamma():
    holders = [
        np.mean(
            [np.count_nonzero(dirichlet_counts(64, gamma, np.full(32, 100), rng(seed))) for seed in range(30)]
        )
        for gamma in (1e-3, 1e-2, 1e-1, 1, 10)
    ]
    assert holders == sorted(set(holders))


@pytest.mark.parametrize(
    ("total", "gamma"), [(7, 1.0), (-1, 1.0), (3, 0.0), (3, -1.0), (3, np.inf), (3, np.nan)]
)
def test_what_cannot_be_spread(total, gamma):
    with pytest.raises(ConfigError, match="from 0 to 6" if not 0 <= total <= 6 else "gamma"):
        dirichlet_counts(total, gamma, np.array([4, 2]), rng())


@given(federations(), SEEDS)
def test_each_client_chooses_among_its_own(federation, seed):
    total, sizes = federation
    counts = dirichlet_counts(total, 1.0, sizes, rng(seed))
    offsets, indices = ragged(sizes)
    chosen = choose_examples(counts, offsets, indices, rng(seed))
    assert list(chosen) == np.flatnonzero(counts).tolist()
    for client, numbers in chosen.items():
        assert len(numbers) == counts[client]
        assert (np.diff(numbers) > 0).all()
        assert np.isin(numbers, indices[offsets[client] : offsets[client + 1]]).all()


def test_every_example_may_be_chosen():
    offsets, indices = ragged(np.array([3, 4]))
    seen = [choose_examples(np.array([0, 2]), offsets, indices, rng(seed))[1].tolist() for seed in range(60)]
    assert {number for numbers in seen for number in numbers} == set(indices[3:].tolist())
    assert len({tuple(numbers) for numbers in seen}) == 6


LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40)


@given(LABELS, st.floats(0, 1), SEEDS)
def test_bad_clients_label_everything_wrongly_and_the_others_nothing(pairs, share, seed):
    labels, clients = np.array(pairs).T
    before = labels.copy()
    flipped, bad = label_noise(labels, clients, share, 4, rng(seed))
    np.testing.assert_array_equal(labels, before)
    np.testing.assert_array_equal(flipped != labels, np.isin(clients, bad))
    assert flipped.min() >= 0
    assert flipped.max() < 4
    holders = np.unique(clients)
    assert abs(len(bad) - share * len(holders)) <= 0.5
    assert np.isin(bad, holders).all()
    assert (np.diff(bad) > 0).all()


def test_thirty_per_cent_of_ten_clients_are_three_and_any_of_them():
    clients = np.repeat(np.arange(10), 2)
    drawn = [label_noise(np.zeros(20, dtype=int), clients, 0.3, 3, rng(seed)) for seed in range(60)]
    assert {len(bad) for _, bad in drawn} == {3}
    assert {client for _, bad in drawn for client in bad.tolist()} == set(range(10))
    assert {label for flipped, _ in drawn for label in flipped.tolist()} == {0, 1, 2}


def test_no_bad_clients_need_no_other_label():
    flipped, bad = label_noise(np.zeros(3, dtype=int), np.arange(3), 0.0, 1, rng())
    assert flipped.tolist() == [0, 0, 0]
    assert bad.tolist() == []


@pytest.mark.parametrize(("share", "num_labels"), [(-0.1, 3), (1.1, 3), (np.nan, 3), (1.0, 1)])
def test_what_cannot_be_flipped(share, num_labels):
    with pytest.raises(ConfigError, match="bad clients"):
        label_noise(np.zeros(3, dtype=int), np.arange(3), share, num_labels, rng())
