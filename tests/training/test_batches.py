"""Batches: every example once, of like length, in an order that is drawn."""

import math
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fednlp.training.batches import epoch_batches, evaluation_batches, local_batches, passes

sizes = st.integers(0, 200)


def lengths_of(examples: int) -> np.ndarray:
    return np.random.default_rng(1).integers(1, 50, examples)


@given(sizes, st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_an_epoch_holds_every_example_once(examples: int, batch: int, by_length: bool, seed: int) -> None:
    numbers = np.arange(examples) * 3 + 7
    rng = np.random.default_rng(seed)
    batches = epoch_batches(numbers, lengths_of(examples), batch, rng, by_length)
    assert sorted(number for one in batches for number in one.tolist()) == numbers.tolist()
    assert len(batches) == math.ceil(examples / batch)
    assert sum(len(one) == batch for one in batches) == examples // batch


def test_batches_are_of_like_length_only_if_asked_for() -> None:
    """In a pool, which holds 32 batches, lengths of two batches do not overlap; pools are shuffled."""
    lengths = np.random.default_rng(1).permutation(64)
    numbers = np.arange(64)

    def spans(by_length: bool, examples: int = 64) -> list[tuple[int, int]]:
        rng = np.random.default_rng(0)
        made = epoch_batches(numbers[:examples], lengths[:examples], 2, rng, by_length)
        return [(int(lengths[one].min()), int(lengths[one].max())) for one in made]

    sorted_spans = sorted(spans(True))
    assert all(before[1] < after[0] for before, after in pairwise(sorted_spans))
    assert spans(True) != sorted_spans
    assert not all(before[1] < after[0] for before, after in pairwise(sorted(spans(False))))


def test_the_pool_is_a_part_of_many_examples() -> None:
    """Else the same examples would meet in every epoch."""
    numbers = np.arange(256)

    def pairs(seed: int) -> set[tuple[int, ...]]:
        made = epoch_batches(numbers, numbers, 2, np.random.default_rng(seed))
        return {tuple(sorted(one.tolist())) for one in made}

    assert len(pairs(0) & pairs(1)) < 40
    gaps = [max(one) - min(one) for one in pairs(0)]
    assert 1 < np.mean(gaps) < 20


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 20))
def test_steps_go_on_from_epoch_to_epoch(examples: int, batch: int, steps: int) -> None:
    numbers, lengths = np.arange(examples), lengths_of(examples)
    batches = list(local_batches(numbers, lengths, batch, steps, np.random.default_rng(0)))
    assert len(batches) == steps
    rng = np.random.default_rng(0)
    expected: list[np.ndarray] = []
    while len(expected) < steps:
        expected += epoch_batches(numbers, lengths, batch, rng)
    assert [one.tolist() for one in batches] == [one.tolist() for one in expected[:steps]]


def test_local_batches_are_not_sorted_where_that_is_not_asked_for() -> None:
    numbers, lengths = np.arange(64), np.arange(64)
    batches = list(local_batches(numbers, lengths, 2, 32, np.random.default_rng(0), by_length=False))
    assert max(int(one.max() - one.min()) for one in batches) > 30


@given(sizes, st.integers(1, 9), st.just(0) | st.integers(1, 300))
def test_passes_hold_every_example_once_and_fit(examples: int, batch: int, tokens: int) -> None:
    numbers, lengths = np.arange(examples) + 7, lengths_of(examples)
    cut = passes(numbers, lambda some: lengths, batch, tokens)
    assert sorted(number for one in cut for number in one.tolist()) == numbers.tolist()
    if not tokens:
        assert [len(one) for one in cut] == [min(batch, examples - i) for i in range(0, examples, batch)]
        return
    longest = [int(lengths[one - 7].max(initial=0)) for one in cut]
    assert longest == sorted(longest)
    assert all(len(one) * most <= tokens or len(one) == 1 for one, most in zip(cut, longest, strict=True))
    for one, after in pairwise(cut):  # no pass has room for the next example
        assert (len(one) + 1) * lengths[after[0] - 7] > tokens


@given(sizes, st.integers(1, 9))
def test_batches_of_a_test_are_the_longest_first(examples: int, batch: int) -> None:
    lengths = lengths_of(examples)
    numbers = np.arange(examples)
    batches = evaluation_batches(numbers + 5, lengths, batch)
    order = [number - 5 for one in batches for number in one.tolist()]
    assert sorted(order) == numbers.tolist()
    assert order == sorted(order, key=lambda number: (-lengths[number], number))
    assert [len(one) for one in batches] == [
        min(batch, examples - start) for start in range(0, examples, batch)
    ]
