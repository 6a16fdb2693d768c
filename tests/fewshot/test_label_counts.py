"""Laws of the numbers of pseudo labels of each class."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednlp.fewshot.label_counts import largest_remainder, most_confident_of_each

weights = st.lists(st.integers(0, 1000), min_size=1, max_size=8)


@given(st.integers(0, 5000), weights)
def test_shares_sum_to_the_number_and_are_rounded(total: int, given_weights: list[int]) -> None:
    shares = largest_remainder(total, np.array(given_weights)).tolist()
    whole = sum(given_weights)
    assert sum(shares) == (total if whole else 0)
    for share, weight in zip(shares, given_weights, strict=True):
        assert not whole or -1 < share - Fraction(total * weight, whole) < 1
        assert weight or not share


@given(st.integers(0, 5000), weights.filter(any))
def test_the_largest_remainders_are_rounded_up_of_equal_ones_the_lower_class(
    total: int, given_weights: list[int]
) -> None:
    exact = [Fraction(total * weight, sum(given_weights)) for weight in given_weights]
    down = [int(one) for one in exact]
    order = sorted(range(len(exact)), key=lambda label: (down[label] - exact[label], label))
    for label in order[: total - sum(down)]:
        down[label] += 1
    assert largest_remainder(total, np.array(given_weights)).tolist() == down


@given(weights.filter(any), st.data())
def test_no_class_gets_more_than_it_has(given_weights: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(given_weights)))
    shares = largest_remainder(total, np.array(given_weights))
    assert (shares <= np.array(given_weights)).all()


texts = st.lists(
    st.tuples(st.one_of(st.sampled_from([0.5, 0.9, float("nan")]), st.floats(0, 1)), st.integers(0, 3)),
    max_size=40,
)


@given(texts, st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_the_surest_texts_of_each_class_and_no_other_in_place_of_missing_ones(
    predicted: list[tuple[float, int]], counts: list[int]
) -> None:
    confidences = np.array([one for one, _ in predicted])
    labels = np.array([label for _, label in predicted], dtype=np.int32)
    found = most_confident_of_each(confidences, labels, np.array(counts)).tolist()
    expected = []
    for label, count in enumerate(counts):
        own = [i for i, (sure, one) in enumerate(predicted) if one == label and sure == sure]
        expected += sorted(own, key=lambda i: (-confidences[i], i))[:count]
    assert found == expected
