"""What the pages say of claims: how surely they agree, and what counts as agreement of a ratio or a difference."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fednlp.errors import ConfigError, DamagedError
from fednlp.reproduction.agreement import LARGEST, STANDINGS, Claim, Verdict, judge, measured
from fednlp.reproduction.catalogue import read_paper
from fednlp.reproduction.claims import judged
from fednlp.reproduction.finding import found_bounds, found_claims
from fednlp.reproduction.manifest import Entry
from fednlp.reproduction.results import FoundBounds, FoundClaim, FoundColumn, Results
from fednlp.reproduction.write import markdown_pages, read_results

from .made_up import pages_of, table_of

ENTRY = Entry.model_validate(
    {"id": "table1", "title": "Table 1", "shows": "x", "runs": ["r"], "rows": [{"name": "A"}, {"name": "B"}]}
)
COUNTED = [
    (Verdict(True, True, 3), "agree clearly"),
    (Verdict(True, False, 3), "agree within the uncertainty of the seeds"),
    (Verdict(True, None, 1), "agree by one seed"),
    (Verdict(True, True, 1), "agree by one seed"),
    (Verdict(True, None, 0), "agree by one seed"),
    (Verdict(False, True, 2), "disagree clearly"),
    (Verdict(False, False, 2), "disagree within the uncertainty of the seeds"),
    (Verdict(False, None, 1), "disagree by one seed"),
    (Verdict(True, False, 1), "not decided by one seed"),
    (Verdict(False, False, 1), "not decided by one seed"),
    (Verdict(None), "lack a figure"),
]


def pages(*claims: FoundClaim, name: str = "mine") -> Results:
    """Return the results of a paper with one table that has these claims."""
    return pages_of(name, [table_of(ENTRY, [], [], claims=list(claims))], {})


def column(a: list[float], b: list[float]) -> FoundColumn:
    """Return a column with the figures of two rows by seed; those that are infinite never reached a target."""
    found = {"A": dict(enumerate(a)), "B": dict(enumerate(b))}
    return FoundColumn(
        name="here",
        measure="score",
        figures={
            row: {seed: value for seed, value in values.items() if math.isfinite(value)}
            for row, values in found.items()
        },
        unreached={
            row: [seed for seed, value in values.items() if math.isinf(value)]
            for row, values in found.items()
        },
    )


def claim(kind: str, **bounds: float) -> Claim:
    """Return a claim about two rows."""
    return Claim.model_validate({"says": "A is so", "kind": kind, "rows": ["A", "B"], **bounds})


@pytest.mark.parametrize(("verdict", "standing"), COUNTED)
def test_a_claim_is_counted_by_how_sure_it_is(verdict: Verdict, standing: str) -> None:
    assert verdict.standing == standing
    agrees = standing.startswith("agree")
    assert agrees == bool(verdict.decided and verdict.holds)
    assert ("seed" in verdict.text) == ("seed" in standing)


@given(st.lists(st.sampled_from(COUNTED)), st.lists(st.sampled_from(COUNTED), min_size=1))
def test_the_overview_says_how_many_claims_agree_and_how_surely(first: Any, second: Any) -> None:
    one, other = (
        pages(*(FoundClaim(says=str(i), verdict=verdict) for i, (verdict, _) in enumerate(found)), name=name)
        for name, found in (("one", first), ("other", second))
    )
    results = Results(runs={}, papers=[*one.papers, *other.papers])
    lines = markdown_pages(results)["index.md"].splitlines()
    table = lines[lines.index("## Claims") : lines.index("## How to read the pages")]
    head, _, *rows = [line.strip("| ").split(" | ") for line in table if line.startswith("|")][
        : len(STANDINGS) + 3
    ]
    assert head == ["Claims that", "one", "other", "all"]
    assert [row[0].lower() for row in rows] == [*STANDINGS, "all"]
    for place, found in enumerate((first, second, first + second), 1):
        counts = Counter(standing for _, standing in found)
        assert [int(row[place]) for row in rows] == [*(counts[one] for one in STANDINGS), len(found)]
    counts = Counter(standing for _, standing in first + second)
    agree = [counts[standing] for standing in STANDINGS[:3]]
    decided = sum(agree) + sum(counts[standing] for standing in STANDINGS[3:6])
    tiles = [line for line in lines if line.startswith("| claims that agree")]
    whole = f"| claims that agree | {f'{sum(agree)} of {decided}' if decided else '–'} |"
    surely = [f"| claims that {one} | {count} |" for one, count in zip(STANDINGS, agree, strict=False)]
    assert tiles == [whole, *(surely if any(agree) else [])]


def test_a_ratio_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValidationError, match="no ratio is at least 3 and at most 2"):
        claim("ratio", at_least=3.0, at_most=2.0)


def test_pages_without_claims_have_no_table_of_them() -> None:
    assert "## Claims" not in markdown_pages(pages())["index.md"]


@pytest.mark.parametrize(
    ("made", "a", "b", "said"),
    [
        (
            claim("ratio", at_least=1.3, at_most=2.5),
            [3.0, 3.0, 3.03],
            [2.0] * 3,
            "agrees; counted as agreeing: a ratio of 1.3 to 2.5 (A / B); found: 1.50",
        ),
        (
            claim("ratio", at_least=1.0),
            [1.0, 3.0],
            [2.0, 2.0],
            "agrees, within the uncertainty of the seeds; counted as agreeing: a ratio of at least 1 (A / B); "
            "found: 1.00",
        ),
        (
            claim("ratio", at_most=1e6),
            [12345678.0],
            [1.0],
            "disagrees (one seed); counted as agreeing: a ratio of at most 1,000,000 (A / B); found: 12,345,678",
        ),
        (
            claim("ratio", at_least=0.95),
            [94.996],
            [100.0],
            "disagrees (one seed); counted as agreeing: a ratio of at least 0.95 (A / B); found: 0.94996",
        ),
        (
            claim("ratio"),
            [1.0],
            [3.0],
            "agrees (one seed); counted as agreeing: a ratio of any size (A / B); found: 0.333",
        ),
        (
            claim("close", within=1.0),
            [50.0],
            [50.5],
            "agrees (one seed); counted as agreeing: a difference of at most 1 (A, B); found: 0.500",
        ),
        (
            claim("close"),
            [50.0],
            [50.0],
            "agrees (one seed); counted as agreeing: a difference of at most 0 (A, B); found: 0.00",
        ),
        (
            claim("ratio", at_least=1.0),
            [math.inf] * 3,
            [1.0, 2.0, 3.0],
            "agrees; counted as agreeing: a ratio of at least 1 (A / B); found: none, as one of them did not reach the "
            "target with half of the seeds or more",
        ),
        (
            claim("ratio", at_least=1.0),
            [1.0, 2.0, 3.0],
            [math.inf] * 3,
            "disagrees; counted as agreeing: a ratio of at least 1 (A / B); found: none, as one of them did not reach "
            "the target with half of the seeds or more",
        ),
        (
            claim("ratio", at_least=1.0),
            [4.0, math.inf, 6.0],
            [1.0, 2.0, 3.0],
            "agrees, within the uncertainty of the seeds; counted as agreeing: a ratio of at least 1 (A / B); "
            "found: 3.00",
        ),
        (
            claim("ratio", at_least=2.0),
            [],
            [1.0],
            "nothing to compare; counted as agreeing: a ratio of at least 2 (A / B)",
        ),
        (claim("highest"), [2.0], [1.0], "agrees (one seed)"),
    ],
)
def test_a_page_states_what_counts_as_agreement(
    made: Claim, a: list[float], b: list[float], said: str
) -> None:
    entry = ENTRY.model_copy(update={"claims": [made]})
    (found,) = found_claims(entry, [column(a, b)])
    assert judged(found)[1] == said
    results = Results.model_validate_json(pages(found).to_json())
    assert f"| A is so | {said} |" in markdown_pages(results)["paper-mine.md"].splitlines()
    if found.disagrees:
        assert f"| A is so | {said} |" in markdown_pages(results)["index.md"]


POSITIVE = st.floats(0.01, 1000)


@given(POSITIVE, POSITIVE, st.floats(0, 1000), st.floats(0.01, 1000), st.booleans())
def test_what_was_found_stands_on_the_side_of_the_bounds_that_the_verdict_is_for(
    a: float, b: float, least: float, most: float, near: bool
) -> None:
    """Also where it is so near to a bound that three digits would not tell."""
    least = a / b * (1 + 1e-9) if near else least
    most = max(least, most)
    made = claim("ratio", at_least=least, at_most=most)
    rows = {"A": {0: a}, "B": {0: b}}
    verdict, found = judge(made, rows), measured(made, rows)
    assert found == a / b
    text = judged(FoundClaim(says="", verdict=verdict, bounds=found_bounds(made, [column([a], [b])])))[1]
    shown = float(text.rpartition("found: ")[2].replace(",", ""))
    assert shown == pytest.approx(found, rel=5e-3)
    assert (shown < least, shown > most) == (found < least, found > most)
    if min(abs(found / least - 1) if least else 1, abs(found / most - 1)) > 1e-12:
        assert verdict.holds == ((not least or shown >= least) and shown <= most)


@given(st.floats(0.01, 1000), st.floats(0.01, 1000), st.floats(0, 1000))
def test_a_difference_has_no_sign(a: float, b: float, within: float) -> None:
    made, rows = claim("close", within=within), {"A": {0: a, 1: a}, "B": {0: b, 1: b}}
    assert measured(made, rows) == pytest.approx(abs(a - b))
    assert measured(made, {"A": rows["B"], "B": rows["A"]}) == measured(made, rows)


def test_a_ratio_without_end_is_none() -> None:
    made = claim("ratio", at_least=1.0)
    assert measured(made, {"A": {0: 1e18}, "B": {0: 1e-300}}) is None
    assert measured(made, {"A": {0: 1.0}, "B": {0: 0.0}}) is None
    assert measured(claim("highest"), {"A": {0: 1.0}, "B": {0: 1.0}}) is None


BOUNDS: dict[str, Any] = {"of": "ratio", "rows": ["A", "B"], "at_least": 1.0, "at_most": 2.0, "found": 1.5}


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (BOUNDS | {"found": math.nan}, "found: input should be a finite number"),
        (BOUNDS | {"found": math.inf}, "found: input should be a finite number"),
        (BOUNDS | {"found": 1e19}, "found: input should be less than or equal to"),
        (BOUNDS | {"found": "much"}, "found: input should be a valid number"),
        (BOUNDS | {"at_least": -1.0}, "at_least: input should be greater than or equal to 0"),
        (BOUNDS | {"at_most": 1e300}, "at_most: input should be less than or equal to"),
        (BOUNDS | {"at_most": [1]}, "at_most: input should be a valid number"),
        (BOUNDS | {"of": "falls"}, "of: input should be 'ratio' or 'close'"),
        (BOUNDS | {"rows": ["A"]}, "rows.1: field required"),
        (BOUNDS | {"rows": ["A", "B", "C"]}, "rows: tuple should have at most 2 items"),
        (BOUNDS | {"more": 1}, "more: extra inputs are not permitted"),
        (7, "input should be"),
    ],
)
def test_hostile_bounds_are_an_error_for_people(bounds: Any, message: str, tmp_path: Path) -> None:
    given = json.loads(pages(FoundClaim(says="x", verdict=Verdict(True, None, 1))).to_json())
    given["papers"][0]["entries"][0]["claims"][0]["bounds"] = bounds
    (tmp_path / "results.json").write_text(json.dumps(given))
    with pytest.raises(DamagedError) as error:
        read_results(tmp_path)
    assert "is damaged (papers.0.entries.0.claims.0.bounds" in str(error.value)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_pages_of_an_earlier_version_have_claims_without_bounds() -> None:
    given = json.loads(pages(FoundClaim(says="x", verdict=Verdict(True, None, 1))).to_json())
    assert given["papers"][0]["entries"][0]["claims"][0].pop("bounds") is None
    results = Results.model_validate(given)
    assert "| x | agrees (one seed) |" in markdown_pages(results)["paper-mine.md"]


@pytest.mark.parametrize(
    "bounds", ["at_least = -1.0", "at_least = nan", "at_least = inf", "at_most = nan", "within = 1e300"]
)
def test_bounds_of_a_manifest_are_numbers(bounds: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\ntitle = "t"\nsource = "s"\n[runs.r]\nexperiment = "small"\nmethods = ["fedavg"]\nminutes = 1\n'
        '[[entry]]\nid = "table1"\ntitle = "Table 1"\nshows = "x"\nruns = ["r"]\ncolumns = [{ name = "here" }]\n'
        'rows = [{ name = "A", method = "fedavg" }, { name = "B", method = "fedavg" }]\n'
        f'claims = [{{ says = "x", kind = "ratio", rows = ["A", "B"], {bounds} }}]\n'
    )
    with pytest.raises(ConfigError, match=r"entry\.0\.claims\.0\.(at_least|at_most|within): Input should be"):
        read_paper(path)


def test_a_bound_beyond_all_figures_is_none() -> None:
    made = claim("ratio", at_most=10 * LARGEST)
    assert found_bounds(made, [column([1.0], [1.0])]) == FoundBounds(of="ratio", rows=("A", "B"), found=1.0)
