"""Claims, ranks and intervals, against figures worked out by hand and by SciPy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fednlp.reproduction.agreement import Claim, Verdict, interval, judge, spearman

_FLOATS = st.floats(-100, 100, allow_subnormal=False)


def claim(kind: str, rows: str, **options: float) -> Claim:
    """Return a claim about rows of one letter."""
    return Claim.model_validate({"says": "x", "kind": kind, "rows": list(rows), **options})


def values(**rows: float) -> dict[str, dict[int, float]]:
    """Return one figure a row, of seed 0."""
    return {name: {0: value} for name, value in rows.items()}


@pytest.mark.parametrize(
    ("made", "holds"),
    [
        (claim("rises", "abc"), True),
        (claim("falls", "abc"), False),
        (claim("falls", "cba"), True),
        (claim("rises", "acb"), False),
        (claim("highest", "cab"), True),
        (claim("highest", "bca"), False),
        (claim("lowest", "acb"), True),
        (claim("lowest", "bca"), False),
        (claim("ratio", "ca", at_least=4.0), True),
        (claim("ratio", "ca", at_least=4.1), False),
        (claim("ratio", "ca", at_least=1.0, at_most=3.0), False),
        (claim("ratios fall", "caba"), True),
        (claim("ratios fall", "baca"), False),
        (claim("close", "ab", within=1.0), True),
        (claim("close", "ac", within=1.0), False),
        (claim("highest", "cd"), None),
    ],
)
def test_claims_by_hand(made: Claim, holds: bool | None) -> None:
    assert judge(made, values(a=1.0, b=2.0, c=4.0)).holds is holds


def test_equal_figures_are_no_order() -> None:
    for kind in ("rises", "falls", "highest", "lowest"):
        assert judge(claim(kind, "ab"), values(a=1.0, b=1.0)).holds is False


@given(st.lists(_FLOATS, min_size=2, max_size=6, unique=True))
def test_rising_is_falling_backwards(figures: list[float]) -> None:
    names = "abcdef"[: len(figures)]
    rows = {name: {0: value} for name, value in zip(names, figures, strict=True)}
    assert judge(claim("rises", names), rows) == judge(claim("falls", names[::-1]), rows)
    assert judge(claim("rises", names), rows).holds == (figures == sorted(figures))


def test_a_difference_is_clear_beyond_its_interval_seed_by_seed() -> None:
    """Seeds differ by 10, and the methods by 1 +- 0.1 within each: clear, though the means' intervals overlap."""
    seeds = {0: 10.0, 1: 20.0, 2: 30.0}
    better = {seed: value + 1 + 0.1 * (seed - 1) for seed, value in seeds.items()}
    worse = {seed: value + 5 * (-1) ** seed for seed, value in seeds.items()}
    assert judge(claim("highest", "ab"), {"a": better, "b": seeds}) == Verdict(True, True, 3)
    assert judge(claim("highest", "ab"), {"a": better, "b": worse}).clear is False
    assert judge(claim("highest", "ab"), {"a": {0: 2.0}, "b": {0: 1.0}}) == Verdict(True, None)
    assert judge(claim("highest", "ab"), {"a": {0: 2.0, 1: 2.0}, "b": {2: 1.0, 3: 1.0}}).clear is None


def test_one_clear_contradiction_is_enough_to_disagree_clearly() -> None:
    seeds = {0: 10.0, 1: 20.0, 2: 30.0}
    above = {seed: value + 1 + 0.1 * (seed - 1) for seed, value in seeds.items()}
    unsure = {seed: value - 1 + 5 * (seed - 1) for seed, value in seeds.items()}
    rows = {"a": seeds, "b": above, "c": unsure}
    assert judge(claim("highest", "ac"), rows) == Verdict(True, False, 3)
    assert judge(claim("highest", "abc"), rows) == Verdict(False, True, 3)
    assert judge(claim("highest", "ca"), rows) == Verdict(False, False, 3)
    assert judge(claim("highest", "bac"), rows) == Verdict(True, False, 3)


@pytest.mark.parametrize(
    "made",
    [claim("ratio", "ba", at_least=0.5), claim("ratios fall", "baab"), claim("close", "ab", within=9.0)],
)
def test_claims_without_an_interval_are_of_one_seed_only_where_there_is_one(made: Claim) -> None:
    one, two = {0: 1.0}, {0: 1.0, 1: 2.0}
    assert judge(made, {"a": two, "b": {0: 2.0, 1: 3.0}}).text == "agrees"
    assert judge(made, {"a": one, "b": {0: 2.0, 1: 3.0}}).text == "agrees (one seed)"


def test_verdicts_in_words() -> None:
    assert Verdict(None).text == "not decided"
    assert Verdict(True).text == "agrees (one seed)"
    assert Verdict(False, True).text == "disagrees"
    assert Verdict(True, False).text == "agrees, within the uncertainty of the seeds"


@given(st.lists(st.tuples(_FLOATS, _FLOATS), min_size=3, max_size=12))
def test_spearman_is_that_of_scipy(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    found = spearman(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert found is None
    else:
        ranks = [stats.rankdata(side) for side in (a, b)]
        assert found == pytest.approx(stats.pearsonr(*ranks).statistic, abs=1e-9)


def test_spearman_by_hand() -> None:
    """1 - 6 (0 + 1 + 1) / (3 (9 - 1)); two pairs have no rank worth the name."""
    assert spearman([1, 2, 3], [10, 30, 20]) == 0.5
    assert spearman([1, 2], [1, 2]) is None


@given(st.lists(_FLOATS, min_size=2, max_size=10))
def test_the_interval_is_that_of_scipy(figures: list[float]) -> None:
    mean, half = interval(figures)
    assert half is not None
    error = stats.sem(figures)
    if error > 0:
        low, high = stats.t.interval(0.95, len(figures) - 1, loc=mean, scale=error)
        assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert interval(figures[:1]) == (figures[0], None)
    assert not math.isnan(half)
