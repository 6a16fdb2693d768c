"""The laws of uniform partitions, label shift and quantity shift."""

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import PartitionError
from fednlp.partition import jensen_shannon
from fednlp.partition.shift import (
    balanced_numbering,
    count_labels,
    label_owners,
    quantity_owners,
    uniform_owners,
)

# The class sizes of the 20 Newsgroups training set that fednlp knows as 20news.
NEWSGROUPS = [
    480,
    584,
    572,
    590,
    578,
    593,
    585,
    594,
    598,
    597,
    600,
    595,
    591,
    594,
    593,
    598,
    545,
    564,
    465,
    377,
]
NEWS_LABELS = np.repeat(np.arange(20), NEWSGROUPS)

KNOWN_LABEL = [2, 1, 0, 3, 0, 1, 1, 0, 1, 3, 3, 2, 2, 1, 0, 3, 0, 0, 3, 1, 2, 2, 3, 2]
KNOWN_BOTH = [2, 1, 2, 1, 1, 1, 1, 1, 3, 1, 1, 2, 2, 1, 3, 1, 1, 2, 1, 1, 0, 2, 0, 3]
KNOWN_QUANTITY = [0, 1, 2, 2, 1, 1, 2, 2, 2, 1, 1, 1]
KNOWN_UNIFORM = [0, 1, 2, 2, 1, 0, 2, 1, 2, 1, 0, 0]

ALPHAS = st.floats(-6, 6).map(lambda power: 10.0**power)
SEEDS = st.integers(-5, 2**40)


@st.composite
def problems(draw):
    labels = np.array(draw(st.lists(st.integers(0, 6).map(lambda k: k * k), min_size=1, max_size=120)))
    return labels, draw(st.integers(1, len(labels)))


def table(labels, owners, clients):
    counts = np.zeros((clients, int(labels.max()) + 1), dtype=int)
    np.add.at(counts, (owners, labels), 1)
    return counts


def sizes_of(owners, examples, clients):
    """The clients' sizes; every example has one owner, and exactly C clients hold something."""
    assert owners.shape == (examples,)
    sizes = np.bincount(owners, minlength=clients)
    assert len(sizes) == clients
    return sizes


@given(problems(), SEEDS)
def test_uniform(problem, seed):
    labels, clients = problem
    sizes = sizes_of(uniform_owners(len(labels), clients, seed), len(labels), clients)
    assert sizes.min() >= 1
    assert np.ptp(sizes) <= 1


@given(problems(), ALPHAS, SEEDS)
def test_quantity(problem, beta, seed):
    labels, clients = problem
    assert sizes_of(quantity_owners(len(labels), clients, beta, seed), len(labels), clients).min() >= 1


@given(problems(), ALPHAS, ALPHAS | st.none(), SEEDS)
def test_label(problem, alpha, beta, seed):
    labels, clients = problem
    owners = label_owners(labels, clients, alpha, seed, beta)
    sizes = sizes_of(owners, len(labels), clients)
    assert sizes.min() >= 1
    assert beta is not None or np.ptp(sizes) <= 1
    assert np.array_equal(owners, label_owners(labels.copy(), clients, alpha, seed, beta))


@given(problems(), ALPHAS, SEEDS)
def test_the_names_of_the_labels_do_not_matter(problem, alpha, seed):
    labels, clients = problem
    owners = label_owners(labels, clients, alpha, seed)
    assert np.array_equal(owners, label_owners(3 * labels + 1, clients, alpha, seed))


def test_global_generators_and_their_state_do_not_matter():
    np.random.seed(1)  # noqa: NPY002
    first = label_owners(NEWS_LABELS, 100, 1.0, seed=3)
    np.random.seed(2)  # noqa: NPY002
    assert np.array_equal(first, label_owners(NEWS_LABELS, 100, 1.0, seed=3))
    assert not np.array_equal(first, label_owners(NEWS_LABELS, 100, 1.0, seed=4))


def test_a_known_partition_stays():
    """What a seed gave once it gives for ever: a saved configuration stands for its partition."""
    labels = np.arange(24) % 3
    assert label_owners(labels, 4, 0.1, seed=1).tolist() == KNOWN_LABEL
    assert label_owners(labels, 4, 0.1, seed=1, beta=1.0).tolist() == KNOWN_BOTH
    assert quantity_owners(12, 3, 1.0, seed=1).tolist() == KNOWN_QUANTITY
    assert uniform_owners(12, 3, seed=1).tolist() == KNOWN_UNIFORM


@pytest.mark.parametrize("first_seed", [0, 1000])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_neither_early_nor_late_clients_are_favoured(alpha, first_seed):
    """First and last tenth are equally far from the prior, within 10 %, averaged over ten seeds."""
    tenths = []
    for seed in range(first_seed, first_seed + 10):
        counts = table(NEWS_LABELS, label_owners(NEWS_LABELS, 100, alpha, seed), 100)
        divergences = jensen_shannon(counts, NEWSGROUPS)
        tenths.append((divergences[:10].mean(), divergences[-10:].mean()))
    first, last = np.mean(tenths, axis=0)
    assert abs(first / last - 1) < 0.10


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_every_tenth_is_as_far_from_the_prior(alpha):
    """Nearest and farthest of all tenths, over ten seeds: nearer together than chance alone would put them."""
    ratios = []
    for first_seed in range(0, 50, 10):
        tenths = np.zeros(10)
        for seed in range(first_seed, first_seed + 10):
            counts = table(NEWS_LABELS, label_owners(NEWS_LABELS, 100, alpha, seed), 100)
            tenths += jensen_shannon(counts, NEWSGROUPS).reshape(10, 10).mean(axis=1)
        ratios.append(tenths.max() / tenths.min())
    # Clients numbered at random come to 1.08 and more.
    assert np.mean(ratios) < 1.06


def test_small_alpha_is_one_label_a_client_while_supplies_last():
    pure = []
    for seed in range(20):
        counts = table(NEWS_LABELS, label_owners(NEWS_LABELS, 100, 1e-4, seed), 100)
        pure.append((counts.max(axis=1) == counts.sum(axis=1)).mean())
    # Each client draws its label alone: of five that a label can serve, Poisson's law leaves .175 unserved.
    assert np.mean(pure) > 0.75


def test_small_alpha_serves_whole_clients():
    """Of a label that is asked for too often, at most one client is served in part."""
    labels = np.repeat([0, 1], [100, 900])
    for seed in range(20):
        counts = table(labels, label_owners(labels, 100, 1e-6, seed), 100)
        rare = np.sort(counts[:, 0])[::-1]
        assert rare.sum() == 100
        if (rare == 10).sum() >= 9:
            continue
        # Too few asked: what is left over went to those whose own label had run out.
        assert (counts[:, 1] == 10).sum() == 90


def test_large_alpha_is_the_prior():
    counts = table(NEWS_LABELS, label_owners(NEWS_LABELS, 20, 1e6, seed=0), 20)
    uniform = table(NEWS_LABELS, uniform_owners(len(NEWS_LABELS), 20, seed=0), 20)
    mine, iid = (jensen_shannon(part, NEWSGROUPS).mean() for part in (counts, uniform))
    assert mine < 1.2 * iid


def test_divergence_falls_as_alpha_rises():
    means = [
        jensen_shannon(table(NEWS_LABELS, label_owners(NEWS_LABELS, 100, a, 0), 100), NEWSGROUPS).mean()
        for a in (0.1, 1.0, 10.0, 100.0)
    ]
    assert means == sorted(means, reverse=True)
    assert means[0] > 5 * means[-1]


def test_label_and_quantity_has_the_sizes_of_quantity():
    both = np.bincount(label_owners(NEWS_LABELS, 50, 1.0, seed=7, beta=0.5))
    alone = np.bincount(quantity_owners(len(NEWS_LABELS), 50, 0.5, seed=7))
    assert sorted(both) == sorted(alone)


def test_label_and_quantity_favours_nobody():
    tenths = []
    for seed in range(30):
        counts = table(NEWS_LABELS, label_owners(NEWS_LABELS, 100, 1.0, seed, beta=5.0), 100)
        divergences = jensen_shannon(counts, NEWSGROUPS)
        tenths.append((divergences[:10].mean(), divergences[-10:].mean()))
    first, last = np.mean(tenths, axis=0)
    assert abs(first / last - 1) < 0.05


def test_chunks_do_not_show(monkeypatch):
    """Numbering and counting give the same whatever the size of the tables held at once."""
    owners = uniform_owners(500, 40, seed=0)
    labels = np.arange(500) % 7
    whole = balanced_numbering(owners, labels, 40, seed=0)
    monkeypatch.setattr("fednlp.partition.shift._CELLS", 21)
    assert np.array_equal(whole, balanced_numbering(owners, labels, 40, seed=0))


def test_count_labels_known_values():
    held = count_labels(np.array([0, 2, 3, 6]), np.array([1, 1, 2, 0]), slice(1, 3), 3)
    assert held.tolist() == [[0, 1, 0], [1, 1, 1]]


def test_a_hundred_thousand_clients():
    labels = np.random.default_rng(0).integers(0, 20, 300_000)
    owners = label_owners(labels, 100_000, 0.1, seed=0)
    assert sizes_of(owners, 300_000, 100_000).tolist() == [3] * 100_000


@pytest.mark.parametrize(
    "share",
    [
        uniform_owners,
        lambda n, c, s: label_owners(np.zeros(n, int), c, 1.0, s),
        lambda n, c, s: quantity_owners(n, c, 1.0, s),
    ],
)
def test_fewer_examples_than_clients_are_refused(share):
    with pytest.raises(
        PartitionError, match=r"5 clients cannot share 4 training examples: say at most partition.clients = 4"
    ):
        share(4, 5, 0)


def test_the_draws_of_many_clients_and_labels_stay():
    """They follow pieces of a fixed size, which must not change: published partitions would be others."""
    owners = label_owners(np.arange(12_000) % 100, 6_000, 1.0, seed=0)
    assert sha256(owners.astype("<i8").tobytes()).hexdigest().startswith("01ce2b85caefe1bb")
