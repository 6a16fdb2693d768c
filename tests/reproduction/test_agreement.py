"""Claims, ranks and intervals, against figures worked out by hand and by SciPy."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fednlp.reproduction.agreement import Claim, Verdict, judge, spearman, standard_error
from fednlp.tasks.intervals import of_mean

_FLOATS = st.floats(-100, 100, allow_subnormal=False)
_COUNTS = st.tuples(st.integers(1, 100), st.integers(1, 100))


def claim(kind: str, rows: str | list[str], **options: float) -> Claim:
    """Return a claim about rows, of one letter where they are given as a word."""
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


def test_seeds_that_only_one_method_has_do_not_turn_a_difference_round() -> None:
    """The third seed puts the first method's mean below, but by the seeds of both it is clearly above."""
    rows = {"a": {0: 90.0, 1: 91.0, 2: 10.0}, "b": {0: 80.0, 1: 81.5}}
    assert judge(claim("highest", "ab"), rows) == Verdict(False, False, 2)
    assert judge(claim("highest", "ba"), rows) == Verdict(True, False, 2)


@given(
    st.sampled_from([2, 4]).flatmap(lambda seeds: st.lists(_COUNTS, min_size=seeds, max_size=seeds)),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(0, 50),
)
def test_a_ratio_and_a_closeness_are_as_clear_as_the_orders_that_they_stand_for(
    found: list[tuple[int, int]], bound: float, within: int
) -> None:
    """The figures are such that no sum or mean is rounded."""
    a, b = ({seed: pair[side] for seed, pair in enumerate(found)} for side in (0, 1))
    scaled = {seed: bound * value for seed, value in b.items()}
    above, below = ({seed: value + side * within for seed, value in b.items()} for side in (1, -1))
    rows = {"a": a, "b": b, "scaled": scaled, "above": above, "below": below}
    for ratio, order in (("at_least", ["a", "scaled"]), ("at_most", ["scaled", "a"])):
        assert (
            judge(claim("ratio", "ab", **{ratio: bound}), rows).clear
            == judge(claim("highest", order), rows).clear
        )
    orders = [judge(claim("highest", names), rows) for names in (["above", "a"], ["a", "below"])]
    close = judge(claim("close", "ab", within=within), rows)
    assume(all(one.holds for one in orders) == close.holds)  # an order of equal figures does not hold
    wrong = [bool(one.clear) for one in orders if not one.holds]
    assert close.clear == (any(wrong) if wrong else all(one.clear for one in orders))


def test_ratios_with_seeds_by_hand() -> None:
    rows = {
        "slow": {0: 8.0, 1: 8.1, 2: 7.9},
        "fast": {0: 4.0, 1: 4.0, 2: 4.0},
        "wide": {0: 5.0, 1: 15.0, 2: 7.0},
        "none": {0: 0.0, 1: 0.0, 2: 0.0},
        "less": {0: 1.0, 1: -1.0, 2: 1.0},
    }
    assert judge(claim("ratio", ["slow", "fast"], at_least=1.9), rows) == Verdict(True, True, 3)
    assert judge(claim("ratio", ["slow", "fast"], at_least=2.0), rows) == Verdict(True, False, 3)
    assert judge(claim("ratio", ["slow", "fast"], at_least=1.5, at_most=1.9), rows) == Verdict(False, True, 3)
    assert judge(claim("ratios fall", ["slow", "fast", "fast", "slow"]), rows) == Verdict(True, True, 3)
    assert judge(claim("ratios fall", ["wide", "fast", "slow", "fast"]), rows) == Verdict(True, False, 3)
    assert judge(claim("ratio", ["none", "fast"], at_least=0.5), rows) == Verdict(False, True, 3)
    for nothing in ("none", "less"):
        assert judge(claim("ratio", ["slow", nothing], at_least=1.9), rows) == Verdict(None)
        assert judge(claim("ratio", [nothing, nothing], at_most=1.9), rows) == Verdict(None)
        assert judge(claim("ratios fall", ["slow", nothing, "slow", "fast"]), rows) == Verdict(None)
    assert judge(claim("close", ["slow", "fast"], within=4.5), rows) == Verdict(True, True, 3)
    assert judge(claim("close", ["slow", "fast"], within=3.0), rows) == Verdict(False, True, 3)
    assert judge(claim("close", ["wide", "slow"], within=2.0), rows) == Verdict(True, False, 3)


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ([1.0, 1.5, 2.0], "agrees"),
        ([1.0, 2.0, math.inf], "agrees, within the uncertainty of the seeds"),
        ([1.0, math.inf, math.inf], "disagrees, within the uncertainty of the seeds"),
        ([math.inf] * 3, "disagrees"),
    ],
)
def test_what_never_came_to_pass_is_later_than_all_else(slow: list[float], text: str) -> None:
    rows = {"a": dict(enumerate(slow)), "b": {0: 8.0, 1: 9.0, 2: 10.0}}
    assert judge(claim("lowest", "ab"), rows).text == text
    assert judge(claim("ratio", "ba", at_least=1.0), rows).text == text


def test_medians_are_compared_with_medians() -> None:
    """The mean of b is later than the median of a."""
    rows = {"a": {0: 1.0, 1: 20.0, 2: math.inf}, "b": {0: 8.0, 1: 9.0, 2: 100.0}}
    assert judge(claim("lowest", "ab"), rows).holds is False


@pytest.mark.parametrize("kind", ["rises", "falls", "highest", "lowest", "ratio", "close"])
def test_two_that_never_came_to_pass_are_not_compared(kind: str) -> None:
    never = dict.fromkeys(range(3), math.inf)
    assert judge(claim(kind, "ab", at_least=1.0, within=1.0), {"a": never, "b": never}).holds is None


def test_verdicts_in_words() -> None:
    assert Verdict(None).text == "nothing to compare"
    assert Verdict(True).text == Verdict(True, True).text == "agrees (one seed)"
    assert Verdict(False).text == Verdict(False, True).text == "disagrees (one seed)"
    assert Verdict(True, False).text == Verdict(False, False).text == "not decided by one seed"
    assert Verdict(False, True, 3).text == "disagrees"
    assert judge(claim("falls", "ab"), {"a": {0: 2.0}, "b": {1: 1.0}}).text == "agrees (no seed in common)"
    assert Verdict(True, False, 3).text == "agrees, within the uncertainty of the seeds"


@given(
    st.sampled_from(["rises", "falls", "highest", "lowest", "close", "ratio"]),
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 20)), min_size=2, max_size=5),
    st.floats(0, 3),
)
def test_the_test_set_decides_what_is_decided_and_never_on_which_side(
    kind: str, found: list[tuple[float, float]], bound: float
) -> None:
    names = "abcde"[: 2 if kind in ("close", "ratio") else len(found)]
    made = claim(kind, names, within=bound, at_least=bound)
    rows = {name: {0: figure} for name, (figure, _) in zip(names, found, strict=False)}
    errors = {name: error for name, (_, error) in zip(names, found, strict=False)}
    without, exact = judge(made, rows), judge(made, rows, dict.fromkeys(names, 0.0))
    verdict = judge(made, rows, errors)
    wider = judge(made, rows, {name: 2 * error + 1 for name, error in errors.items()})
    assert without.holds == exact.holds == verdict.holds == wider.holds
    assert without.decided
    assert verdict.decided or not wider.decided, "a smaller test set decides no more"
    assert not judge(made, rows, dict.fromkeys(names, 1e6)).decided or (kind, bound) == ("ratio", 0)
    two_seeds = {name: {0: figure[0], 1: figure[0]} for name, figure in rows.items()}
    assert judge(made, two_seeds, errors) == judge(made, two_seeds), "with seeds, their interval counts"


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 20), st.floats(0, 20))
def test_claim_and_contrary_claim_are_decided_alike(a: float, b: float, of_a: float, of_b: float) -> None:
    errors = {"a": of_a, "b": of_b}
    one = judge(claim("highest", "ab"), values(a=a, b=b), errors)
    other = judge(claim("highest", "ba"), values(a=a, b=b), errors)
    assert one.decided == other.decided
    assert one.clear == (abs(a - b) > stats.norm.ppf(0.975) * math.hypot(of_a, of_b))


def test_differences_on_a_small_test_set_by_hand() -> None:
    """Of 445 texts 90 and 93 % right: 2 * 1.96 * 1.3 points overlap; of 4,450 they do not."""
    rows = values(a=93.0, b=90.0, c=60.0)
    small, large = (
        {name: 100 * standard_error(rows[name][0] / 100, count) for name in rows} for count in (445, 4450)
    )
    assert small["b"] == pytest.approx(100 * math.sqrt(0.9 * 0.1 / 445), rel=0.01)
    for names, holds in (("ab", True), ("ba", False)):
        assert judge(claim("highest", names), rows, small) == Verdict(holds, False)
        assert judge(claim("highest", names), rows, large) == Verdict(holds, True)
    assert judge(claim("highest", "abc"), rows, small).text == "not decided by one seed"
    assert judge(claim("highest", "cab"), rows, small).text == "disagrees (one seed)"
    assert judge(claim("close", "ab", within=4.0), rows, small).text == "not decided by one seed"
    assert judge(claim("close", "ab", within=9.0), rows, small).text == "agrees (one seed)"
    assert judge(claim("ratio", "ab", at_least=1.02), rows, small).text == "not decided by one seed"
    assert judge(claim("ratio", "ac", at_most=1.2), rows, small).text == "disagrees (one seed)"
    assert judge(claim("highest", "ab"), rows, {"a": small["a"]}).text == "agrees (one seed)"
    assert 0 < standard_error(1.0, 445) < standard_error(0.99, 445)


@given(st.integers(1, 5000), st.data())
def test_the_error_is_that_of_a_binomial_share(examples: int, data: st.DataObject) -> None:
    """With one more right and one more wrong."""
    right = data.draw(st.integers(0, examples))
    share = stats.binom(examples + 2, (right + 1) / (examples + 2)).std() / (examples + 2)
    assert standard_error(right / examples, examples) == pytest.approx(share, rel=1e-9)


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
    mean, half = of_mean(figures)
    assert half is not None
    error = stats.sem(figures)
    if error > 0:
        low, high = stats.t.interval(0.95, len(figures) - 1, loc=mean, scale=error)
        assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert of_mean(figures[:1]) == (figures[0], None)
    assert not math.isnan(half)
