"""Laws of the held-out test set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data.split import hold_out, hold_out_labelled
from fednlp.errors import DataError

labellings = st.lists(st.integers(0, 5), min_size=2, max_size=200).map(lambda ids: np.array(ids, np.int64))
fractions = st.floats(0.001, 0.999)


@settings(deadline=None)
@given(labels=labellings, fraction=fractions, seed=st.integers(0, 2**31))
def test_every_example_is_on_one_side_and_shares_are_those_of_the_largest_remainder(
    labels: np.ndarray, fraction: float, seed: int
) -> None:
    train, test = hold_out(labels, 6, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    assert np.all(np.diff(train) > 0)
    assert np.all(np.diff(test) > 0)
    assert len(train) > 0
    assert len(test) > 0
    if 1 <= fraction * len(labels) <= len(labels) - 1:
        assert abs(len(test) - fraction * len(labels)) <= 0.5 + 1e-9
    exact = np.bincount(labels, minlength=6) * fraction
    assert np.all(np.abs(np.bincount(labels[test], minlength=6) - exact) < 1 + 1e-9)


@settings(deadline=None)
@given(labels=labellings, fraction=fractions, seed=st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_split(labels: np.ndarray, fraction: float, seed: int) -> None:
    first, second = hold_out(labels, 6, fraction, seed), hold_out(labels.copy(), 6, fraction, seed)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_another_seed_gives_another_split() -> None:
    labels = np.zeros(1000, np.int64)
    assert not np.array_equal(hold_out(labels, 1, 0.5, 0)[1], hold_out(labels, 1, 0.5, 1)[1])


def test_every_example_is_held_out_equally_often() -> None:
    labels = np.array([0] * 10 + [1] * 5)
    drawn = sum(np.bincount(hold_out(labels, 2, 0.2, seed)[1], minlength=15) for seed in range(2000))
    # 400 expected of each; the standard deviation of one count is 18
    assert np.all(np.abs(drawn - 400) < 90)


def test_remainders_go_to_the_largest_and_of_equals_to_the_most_frequent() -> None:
    labels = np.repeat([0, 1, 2], [7, 8, 13])  # a fifth is 1.4, 1.6, 2.6: 6 in all, by two of the three
    assert np.bincount(labels[hold_out(labels, 3, 0.2, 0)[1]]).tolist() == [1, 2, 3]
    labels = np.repeat([0, 1], [1, 3])  # halves: .5 and 1.5, 2 in all
    assert np.bincount(labels[hold_out(labels, 2, 0.5, 0)[1]], minlength=2).tolist() == [0, 2]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_beyond_its_bounds_is_refused(fraction: float) -> None:
    with pytest.raises(DataError, match=r"test_fraction is .*: give a number above 0 and below 1"):
        hold_out(np.zeros(10, np.int64), 1, fraction, 0)


def test_one_example_cannot_be_split() -> None:
    with pytest.raises(DataError, match="cannot be held out of one example"):
        hold_out(np.zeros(1, np.int64), 1, 0.5, 0)


@settings(deadline=None)
@given(st.lists(st.integers(-1, 5), max_size=200), fractions, st.integers(0, 2**31))
def test_examples_without_a_label_are_never_held_out(ids: list[int], fraction: float, seed: int) -> None:
    labels = np.array(ids, np.int64)
    train, test = hold_out_labelled(labels, 6, fraction, seed)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    known = np.flatnonzero(labels >= 0)
    if len(known) < 2:
        assert len(test) == 0
    else:
        assert np.array_equal(test, known[hold_out(labels[known], 6, fraction, seed)[1]])
