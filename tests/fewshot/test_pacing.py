"""Laws of pacing, and of the search for wrong gold labels."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.fewshot.pacing import (
    FixedPacing,
    Pace,
    aug_e,
    candidate_percentage,
    cost,
    is_labelling_round,
    label_quota,
    most_confident,
)

paces = st.builds(
    Pace,
    f=st.integers(1, 10),
    n=st.integers(1, 20),
    k=st.one_of(st.integers(1, 100), st.integers(1, 1000).map(lambda tenths: tenths / 10)),
)


def num_pseudo_labels(pace: Pace | FixedPacing, labelling: int, candidates: int, reached: float = 0.0) -> int:
    return label_quota(pace, labelling, reached).of(candidates)


@given(paces, st.integers(1, 300), st.integers(0, 100_000))
def test_take_is_the_share_rounded_up(pace: Pace, labelling: int, candidates: int) -> None:
    exact = min(Fraction(1), labelling * Fraction(str(pace.k)) / 100)
    assert num_pseudo_labels(pace, labelling, candidates) == math.ceil(exact * candidates)


@given(paces, st.integers(1, 300), st.integers(0, 10_000))
def test_a_curriculum_never_goes_back(pace: Pace, labelling: int, candidates: int) -> None:
    assert (
        num_pseudo_labels(pace, labelling, candidates)
        <= num_pseudo_labels(pace, labelling + 1, candidates)
        <= candidates
    )


@given(paces, paces, st.integers(0, 40), st.integers(1, 40), st.integers(1, 10_000))
def test_a_change_of_pace_goes_on_from_what_was_reached(
    before: Pace, after: Pace, labellings: int, labelling: int, candidates: int
) -> None:
    reached = candidate_percentage(before, labellings)
    took = num_pseudo_labels(after, labelling, candidates, reached)
    assert took >= num_pseudo_labels(after, labelling, candidates)
    assert labellings == 0 or took >= num_pseudo_labels(before, labellings, candidates)
    assert num_pseudo_labels(before, labelling, candidates, reached) == num_pseudo_labels(
        before, labellings + labelling, candidates
    )


def test_one_percent_more_at_each_labelling_as_the_paper_says() -> None:
    assert [num_pseudo_labels(Pace(5, 2, 1), g, 1000) for g in (1, 2, 100, 101)] == [10, 20, 1000, 1000]


@given(st.integers(1, 500), st.integers(1, 50), st.integers(0, 1000))
def test_static_pacing_takes_as_many_at_every_labelling(
    per_client: int, labelling: int, candidates: int
) -> None:
    assert num_pseudo_labels(FixedPacing(per_client), labelling, candidates) == min(per_client, candidates)


def test_labellings_are_counted_from_one() -> None:
    with pytest.raises(ConfigError, match="counted from 1"):
        num_pseudo_labels(FixedPacing(), 0, 10)


@given(paces, st.integers(0, 50), st.integers(1, 20))
@pytest.mark.whole
def test_labelling_is_due_at_first_and_then_once_in_every_f_rounds(
    pace: Pace, first: int, times: int
) -> None:
    rounds = [r for r in range(first + times * pace.f) if is_labelling_round(pace, r, first)]
    assert rounds == [first + i * pace.f for i in range(times)]


numbers = st.lists(st.one_of(st.sampled_from([0.0, 0.25, 0.5, math.nan]), st.floats(width=32)), max_size=30)


@given(numbers, st.integers(0, 40))
def test_most_confident_is_a_plain_sort(confidences: list[float], count: int) -> None:
    plain = sorted((-c, i) for i, c in enumerate(confidences) if not math.isnan(c))
    found = most_confident(np.array(confidences, dtype=np.float32), count)
    assert found.dtype == np.int64
    assert found.tolist() == [i for _, i in plain[:count]]


@given(st.lists(st.tuples(st.floats(0, 1, width=16), st.integers(0, 3)), min_size=1, max_size=40), st.data())
def test_of_each_label_the_same_share(texts: list[tuple[float, int]], data: st.DataObject) -> None:
    """Its surest, and one text more of any label would be a greater share of it than of the others."""
    confidences, labels = (np.array(part) for part in zip(*texts, strict=True))
    count = data.draw(st.integers(0, len(texts)))
    found = most_confident(confidences, count, labels)
    assert len(set(found.tolist())) == len(found) == count
    shares = {}
    for label in set(labels.tolist()):
        own = np.flatnonzero(labels == label)
        given = [place for place in found if labels[place] == label]
        assert given == own[most_confident(confidences[own], len(given))].tolist()
        shares[label] = len(given), len(own)
    for taken, of in shares.values():
        assert all((taken - 1) * others <= some * of for some, others in shares.values())


efficiencies = {
    "gained": st.floats(-1, 1),
    "pace": paces,
    "inference": st.floats(0, 1e4),
    "training": st.floats(1e-3, 1e4),
    "theta": st.floats(1e-3, 1e3),
}


@given(**efficiencies, scale=st.sampled_from([0.5, 2.0, 1024.0]))
def test_aug_e_scales(
    gained: float, pace: Pace, inference: float, training: float, theta: float, scale: float
) -> None:
    plain = aug_e(gained, pace, inference, training, theta)
    assert plain == pytest.approx(gained / (inference * pace.n / pace.f + theta * training * pace.k))
    assert aug_e(gained, pace, inference, training, theta, eta=scale) == pytest.approx(scale * plain)
    assert aug_e(gained, pace, scale * inference, scale * training, theta) == pytest.approx(plain / scale)
    assert aug_e(gained, pace, inference, training, scale * theta) == pytest.approx(
        aug_e(gained, pace, inference, scale * training, theta)
    )
    if gained > 1e-6:
        further = 1 / aug_e(gained, pace, inference, training, 2 * theta) - 1 / plain
        assert further == pytest.approx(theta * training * pace.k / gained, rel=1e-3, abs=1e-9 / plain)


@given(**efficiencies, scale=st.sampled_from([0.0, 1.0, 60.0]))
def test_what_a_round_costs_anyway_is_added_to_the_cost_of_its_labels(
    gained: float, pace: Pace, inference: float, training: float, theta: float, scale: float
) -> None:
    labels = cost(pace, inference, training, theta)
    assert cost(pace, inference, training, theta, scale) == labels + scale
    found = aug_e(gained, pace, inference, training, theta, round_seconds=scale)
    assert found == pytest.approx(gained / (labels + scale))


def test_the_dearer_a_round_is_anyway_the_more_the_gain_decides() -> None:
    """FeS, 3.1: AUG-E measures "the gradient of the time-to-accuracy curve"."""
    slow, fast = Pace(1, 1, 1), Pace(1, 8, 4)
    gains = {slow: 0.0013, fast: 0.0042}  # a round, measured with SmolLM2 on BBC News

    def better(round_seconds: float) -> Pace:
        return max(
            gains, key=lambda pace: aug_e(gains[pace], pace, 1.0, 1.0, 0.03, round_seconds=round_seconds)
        )

    assert better(0.0) == slow
    assert better(30.0) == fast


def test_aug_e_by_hand() -> None:
    # <2, 4, 3>: 5 * 4 / 2 = 10 seconds of labelling a round, 0.5 * (2 * 3) of training.
    assert aug_e(0.26, Pace(2, 4, 3), 5.0, 2.0, theta=0.5, eta=100.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("inference", "training"), [(0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0), (-9.0, 1.0)]
)
def test_aug_e_of_no_cost_is_refused(inference: float, training: float) -> None:
    with pytest.raises(ConfigError, match="not all 0"):
        aug_e(0.1, Pace(1, 1, 1), inference, training)


@pytest.mark.parametrize(
    ("f", "n", "k"),
    [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 101), (1.0, 1, 1), (True, 1, 1), (1, 1, math.nan), (1, 1, True)],
)
def test_what_is_no_pace_is_refused(f: int, n: int, k: float) -> None:
    with pytest.raises(ConfigError, match="give a"):
        Pace(f, n, k)


def test_what_is_no_static_pace_is_refused() -> None:
    with pytest.raises(ConfigError, match="per_client = 0"):
        FixedPacing(0)
