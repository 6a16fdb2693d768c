"""Clients whose gold labels are wrong are found, and hardly any others."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

import fednlp.fewshot.noisy_labels as module
from fednlp.errors import DataError
from fednlp.fewshot.noisy_labels import find_noisy_clients

Numbers = NDArray[np.int64]


def _gold(rng: np.random.Generator, clients: int, bad: int, accuracy: float, temperature: float = 1.0):  # type: ignore[no-untyped-def]
    """Eight gold texts a client, a model that is right on a share of them, and bad clients' labels moved on."""
    truth = rng.integers(0, 4, size=(clients, 8))
    right = rng.random(truth.shape) < accuracy
    answers = np.where(right, truth, (truth + rng.integers(1, 4, truth.shape)) % 4)
    scores = rng.normal(0, 0.3, (*truth.shape, 4)) + 2.5 * (np.arange(4) == answers[..., None])
    raised = np.exp(scores / temperature)
    labels = truth.copy()
    labels[:bad] = (labels[:bad] + 1) % 4
    owners = np.arange(clients).repeat(8)
    return owners, labels.ravel(), (raised / raised.sum(axis=-1, keepdims=True)).reshape(-1, 4)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 10.0])
def test_clients_with_flipped_labels_are_found_however_sure_the_model_is(temperature: float) -> None:
    found, wrongly = 0, 0
    for seed in range(20):
        owners, labels, given_to = _gold(np.random.default_rng(seed), 10, 3, 0.85, temperature)
        suspected = find_noisy_clients(owners, labels, given_to)
        found += int((suspected < 3).sum())
        wrongly += int((suspected >= 3).sum())
    assert found >= 54  # of 60
    assert wrongly <= 3  # of 140


@pytest.mark.parametrize("accuracy", [0.25, 0.5])
def test_a_weak_model_suspects_few_that_are_right(accuracy: float) -> None:
    wrongly, carelessly = 0, 0
    for seed in range(20):
        gold = _gold(np.random.default_rng(seed), 10, 3, accuracy)
        wrongly += int((find_noisy_clients(*gold) >= 3).sum())
        carelessly += int((find_noisy_clients(*gold, chance=1.0) >= 3).sum())
    assert wrongly <= 7  # of 140
    assert carelessly > 30


def test_the_chance_is_that_of_the_binomial_distribution() -> None:
    """Client 1 disagrees in 3 of 4 texts, the median of the others in 1 of 4: 13 / 256."""
    probabilities = np.array([[0.9, 0.1]] * 16 + [[0.1, 0.9]] * 20)
    labels = [int(i < wrong) for wrong in (1, 3, 1, 1) for i in range(4)] + [1] * 20
    owners = np.array([*np.arange(4).repeat(4), *range(4, 24)])
    assert binom.sf(2, 4, 0.25) == pytest.approx(13 / 256)
    assert find_noisy_clients(owners, np.array(labels), probabilities, chance=0.0509).tolist() == [1]
    assert find_noisy_clients(owners, np.array(labels), probabilities, chance=0.0507).tolist() == []


def test_nobody_is_suspected_where_all_agree() -> None:
    owners, labels, probabilities = _gold(np.random.default_rng(0), 12, 0, 1.0)
    assert find_noisy_clients(owners, labels, probabilities).tolist() == []


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 1.0))
def test_suspicion_knows_no_order_and_no_names_of_classes(seed: int, accuracy: float) -> None:
    rng = np.random.default_rng(seed)
    owners, labels, probabilities = _gold(rng, 6, 2, accuracy)
    plain = find_noisy_clients(owners, labels, probabilities).tolist()
    order = rng.permutation(len(owners))
    assert find_noisy_clients(owners[order], labels[order], probabilities[order]).tolist() == plain
    classes = rng.permutation(4)
    assert (
        find_noisy_clients(owners, np.argsort(classes)[labels], probabilities[:, classes]).tolist() == plain
    )
    numbers = rng.permutation(1000)[:6]
    assert find_noisy_clients(numbers[owners], labels, probabilities).tolist() == sorted(
        numbers[plain].tolist()
    )


def test_fewer_texts_than_asked_for_and_rows_that_say_nothing_are_no_evidence() -> None:
    probabilities = np.array([[0.9, 0.1]] * 4 + [[0.1, 0.9]] * 2)
    owners, labels = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 1, 1, 1])
    assert find_noisy_clients(owners, labels, probabilities).tolist() == [1]
    assert find_noisy_clients(owners, labels, probabilities, least=3).tolist() == []
    probabilities[2] = math.nan
    assert find_noisy_clients(owners, labels, probabilities).tolist() == []
    assert find_noisy_clients(owners, labels, probabilities, least=1).tolist() == [1]
    none = find_noisy_clients(np.array([], np.int64), np.array([], np.int64), np.empty((0, 2)))
    assert (none.tolist(), none.dtype) == ([], np.int64)


def test_a_share_at_the_bound_is_not_above_it() -> None:
    probabilities = np.array([[0.9, 0.1]] * 4 + [[0.1, 0.9]] * 8)
    labels = np.array([0, 0, 0, 1, *[1] * 7, 0])
    owners = np.array([0, 0, 1, 1, *[2] * 8])
    assert find_noisy_clients(owners, labels, probabilities, more_than=0.5, chance=1.0).tolist() == []
    assert find_noisy_clients(owners, labels, probabilities, more_than=0.49, chance=1.0).tolist() == [1]


def test_a_class_that_nobody_has_shown_is_never_sure() -> None:
    probabilities = np.array([[0.4, 0.0, 0.6], [0.4, 0.0, 0.6], [0.2, 0.8, 0.0]])
    assert find_noisy_clients(np.array([0, 0, 1]), np.array([0, 0, 1]), probabilities, least=1).tolist() == []


def _by_the_rule(
    owners: Numbers,
    labels: Numbers,
    probabilities: NDArray[np.float64],
    least: int,
    more_than: float,
    chance: float,
) -> list[int]:
    """Go through the rule of docs/methods/pacing.md text by text and client by client."""
    texts = [
        (owner, label, row)
        for owner, label, row in zip(owners.tolist(), labels.tolist(), probabilities.tolist(), strict=True)
        if not any(map(math.isnan, row))
    ]
    bounds = {j: statistics.mean(row[j] for _, label, row in texts if label == j) for _, j, _ in texts}
    disagreements: dict[int, list[bool]] = {}
    for owner, label, row in texts:
        surely = [j for j in sorted(bounds) if row[j] >= bounds[j] - 1e-6]
        if surely:
            disagreements.setdefault(owner, []).append(max(surely, key=lambda j: row[j]) != label)
    shares = {o: statistics.fmean(wrong) for o, wrong in disagreements.items() if len(wrong) >= max(least, 1)}

    def suspected(owner: int) -> bool:
        wrong = disagreements[owner]
        usual = statistics.median([share for other, share in shares.items() if other != owner] or [0.0])
        unlikely = binom.sf(sum(wrong) - 1, len(wrong), usual) <= chance
        return shares[owner] > more_than and bool(unlikely)

    return [owner for owner in sorted(shares) if suspected(owner)]


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32 - 1),
    clients=st.integers(1, 9),
    texts=st.integers(0, 40),
    classes=st.integers(1, 4),
    least=st.integers(0, 4),
    more_than=st.sampled_from([0.0, 0.3, 0.5]),
    chance=st.sampled_from([0.0123, 0.0511, 0.3217, 1.01]),  # no probability that few texts come to
)
@pytest.mark.whole
def test_suspects_are_those_of_the_rule_taken_literally(
    seed: int, clients: int, texts: int, classes: int, least: int, more_than: float, chance: float
) -> None:
    rng = np.random.default_rng(seed)
    owners = rng.choice(1000, clients, replace=False)[rng.integers(0, clients, texts)]
    labels = rng.integers(0, classes, texts)
    sure = rng.uniform(0, 3) * np.eye(classes)[np.where(rng.random(texts) < 0.6, labels, 0)]
    raised = np.exp(rng.normal(0, 0.4, (texts, classes)) + sure)
    probabilities = raised / raised.sum(axis=1, keepdims=True)
    probabilities[rng.random(texts) < 0.1, -1] = math.nan
    found = find_noisy_clients(owners, labels, probabilities, least, more_than, chance)
    assert found.dtype == np.int64
    assert found.tolist() == _by_the_rule(owners, labels, probabilities, least, more_than, chance)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1), max_size=12))
def test_the_median_is_that_of_the_others(shares: list[float]) -> None:
    others = [shares[:n] + shares[n + 1 :] for n in range(len(shares))]
    wanted = [statistics.median(one or [0.0]) for one in others]
    assert module._medians_of_the_others(np.array(shares)).tolist() == wanted


@pytest.mark.parametrize(("short_by", "suspected"), [(2e-7, [2]), (4e-6, [])])
def test_rounding_does_not_make_a_text_unsure(short_by: float, suspected: list[int]) -> None:
    """The first six texts look alike, but the batch of client 2, who calls them 1, rounds a little lower."""
    probabilities = np.array([[0.9, 0.1]] * 4 + [[0.9 - short_by, 0.1 + short_by]] * 2 + [[0.1, 0.9]] * 4)
    owners, labels = np.arange(5).repeat(2), np.array([0] * 4 + [1] * 6)
    assert find_noisy_clients(owners, labels, probabilities).tolist() == suspected


@pytest.mark.parametrize(
    ("clients", "labels", "shape"),
    [(1, [0, 0], (2, 2)), (2, [0, 0], (3, 2)), (2, [0, 2], (2, 2)), (2, [-1, 0], (2, 2))],
)
def test_gold_labels_that_do_not_fit_are_refused(
    clients: int, labels: list[int], shape: tuple[int, int]
) -> None:
    with pytest.raises(DataError, match="gold"):
        find_noisy_clients(np.zeros(clients, np.int64), np.array(labels), np.full(shape, 0.5))
