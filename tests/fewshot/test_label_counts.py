"""Laws of the numbers of pseudo labels of each class."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednlp.fewshot.label_counts import most_confident_of_each

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
