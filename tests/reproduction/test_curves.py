"""Learning curves: their points in ``results.json``, the union of them, and the pictures that are drawn of them."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import DamagedError
from fednlp.reports.charts import draw
from fednlp.reports.plots import against_simulated_seconds, learning_curves
from fednlp.reports.read import ClientTable, Run
from fednlp.reports.style import image
from fednlp.reproduction import Request, reproduce
from fednlp.reproduction.curves import charts_of, found_curves
from fednlp.reproduction.joining import unite
from fednlp.reproduction.manifest import Paper
from fednlp.reproduction.naming import run_name
from fednlp.reproduction.notes import seeds_left_out
from fednlp.reproduction.parts import MOST_POINTS, FoundCurve, FoundPicture, FoundRun
from fednlp.reproduction.results import Finding, Results
from fednlp.reproduction.stored_pages import read_results

from .made_up import pages_of, table_of

pytestmark = pytest.mark.whole

METHODS, SEEDS = ("a", "b", "local"), range(3)
SOURCES = [(method, seed) for method in METHODS for seed in SEEDS]
Points = Mapping[tuple[str, int], list[float]]


def paper(**changes: Any) -> Paper:
    """Return a paper with one figure of curves, of two methods and a baseline."""
    runs = {"experiment": "small", "methods": ["a", "b"], "baselines": ["local"], "seeds": 3, "minutes": 1.0}
    entry = {"id": "figure1", "title": "Figure 1", "shows": "x", "runs": ["r"], "curves": "global"} | changes
    made = {"name": "mine", "title": "t", "source": "s", "runs": {"r": runs}, "entry": [entry]}
    return Paper.model_validate(made)


PAPER = paper()
NAMES = {source: run_name(PAPER.runs["r"], *source) for source in SOURCES}


def curve_of(values: list[float], **changes: Any) -> FoundCurve:
    """Return a curve of accuracies, a point a round."""
    plain = {"of": "global", "metric": "accuracy", "data": "texts"}
    rounds = list(range(1, len(values) + 1))
    return FoundCurve.model_validate(plain | {"rounds": rounds, "values": values} | changes)


def found(
    points: Points,
    finished: set[tuple[str, int]] | None = None,
    settings: Mapping[tuple[str, int], str] | None = None,
    pictures: list[FoundPicture] | None = None,
    of: Paper = PAPER,
) -> Results:
    """Return what one found who has these curves, and pictures that are drawn of them if none are given."""
    curves = {NAMES[source]: curve_of(points[source]) for source in SOURCES if source in points}
    (entry,) = of.entries
    drawn = [picture for picture, _ in charts_of(of, entry, curves)]
    done = set(points) if finished is None else finished
    table = table_of(
        entry,
        list(NAMES.values()),
        [],
        curves=curves,
        pictures=drawn if pictures is None else pictures,
        state="made" if done else "not made",
    )
    digests = settings or {}
    runs = {
        NAMES[one]: FoundRun(finished=True, seconds=1.0, settings=digests.get(one, ""))
        for one in SOURCES
        if one in done
    }
    return pages_of("mine", [table], runs)


def united(*every: Results, of: Paper = PAPER) -> Results:
    """Return a union."""
    here, *joined = every
    return unite({"mine": of}, here, joined)


def figure(results: Results) -> Finding:
    """Return the only figure."""
    return results.papers[0].entries[0]


VALUES = st.lists(st.floats(0, 1).map(lambda one: float(f"{one:.6g}")), min_size=1, max_size=4)
POINTS = st.dictionaries(st.sampled_from(SOURCES), VALUES)
EVERYONE = st.lists(POINTS, min_size=1, max_size=4)


@given(EVERYONE)
def test_a_curve_is_that_of_the_first_who_has_it(everyone: list[Points]) -> None:
    expected: dict[tuple[str, int], list[float]] = {}
    for points in everyone:
        expected = {**points, **expected}
    union = figure(united(*map(found, everyone)))
    assert {name: one.values for name, one in union.curves.items()} == {
        NAMES[source]: expected[source] for source in SOURCES if source in expected
    }
    assert list(union.curves) == [NAMES[source] for source in SOURCES if source in expected], "in one order"


@given(EVERYONE)
def test_joining_again_changes_neither_points_nor_pictures(everyone: list[Points]) -> None:
    every = [found(points) for points in everyone]
    whole = united(*every)
    assert united(*every, whole) == united(whole, *every) == united(whole, whole) == whole
    for cut in range(1, len(every)):
        assert united(united(*every[:cut]), *every[cut:]) == whole
    assert united(*every).to_json() == united(*every, whole).to_json()


@given(st.dictionaries(st.sampled_from(SOURCES), VALUES, min_size=1), st.data())
def test_seeds_of_several_folders_are_in_one_picture(points: Points, data: st.DataObject) -> None:
    """It is that of one who made all of them."""
    owner = {source: data.draw(st.integers(0, 2)) for source in points}
    parts = [found({one: points[one] for one in points if owner[one] == part}) for part in range(3)]
    assert figure(united(*parts)).pictures == figure(found(points)).pictures


def old(seeds: str, finished: int, **changes: Any) -> Results:
    """Return pages of an earlier version, which have a picture without points."""
    picture = FoundPicture(name="mine-figure1-curves-0", caption=f"Figure 1, here: earlier, {seeds}")
    return found({}, set(SOURCES[:finished]), pictures=[picture], **changes)


@pytest.mark.parametrize("known", [0, 5, 9])
def test_an_old_picture_is_kept_until_all_finished_runs_have_points(known: int) -> None:
    own, pages = found({source: [0.5, 0.6] for source in SOURCES[:known]}), old("3 seeds", 9)
    union = united(own, pages)
    (picture,) = figure(union).pictures
    assert (picture.curves > 0) == (known == 9)
    assert known == 9 or picture == figure(pages).pictures[0]
    assert len(figure(union).curves) == known, "the points are kept for the next one"
    assert united(own, pages, union) == united(union, pages) == union
    assert read_again(union) == union


def test_points_of_another_kind_of_curve_are_left_out() -> None:
    given = found({("a", 0): [0.5]})
    for changes in ({"curves": "personal"}, {"curves": "train_loss"}, {"curves": None}):
        assert figure(united(given, of=paper(**changes))).curves == {}


def read_again(results: Results) -> Results:
    """Return results as they are read from their JSON."""
    return Results.model_validate_json(results.to_json())


# ------------------------------------------------------------------------------------------- points of runs


def run_of(rounds: Mapping[int, Mapping[str, Any]], seed: int = 0, algorithm: str = "fedavg") -> Run:
    """Return a run with these lines."""
    lines = tuple({"round": number, **line} for number, line in rounds.items())
    environment = {"data": {"metric": "accuracy", "name": "texts"}}
    config = {"seed": seed, "algorithm": {"name": algorithm}}
    return Run(Path(), config, environment, lines, {"data": {"name": "texts"}}, cast(ClientTable, None))


def evaluated(values: list[float], **line: Any) -> dict[int, dict[str, Any]]:
    """Return lines of which every second one has an evaluation."""
    return {
        number: line | ({"evaluation": {"global": {"accuracy": values[number // 2]}}} if number % 2 else {})
        for number in range(1, 2 * len(values) + 1)
    }


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("kind", ["global", "train_loss"])
@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=4, max_size=4))
def test_a_chart_of_points_is_that_of_the_runs(kind: Any, timed: bool, values: list[list[float]]) -> None:
    """With a mean and a band over two seeds, a baseline as a level line, and simulated time."""
    short = [[float(f"{value:.6g}") for value in one] for one in values]
    of = paper(curves=kind, curves_by="simulated time" if timed else "round")
    sources = [("a", 0), ("a", 1), ("b", 0), ("local", 0)]
    runs = {}
    for (method, seed), one in zip(sources, short, strict=True):
        priced = {} if method == "local" else {"simulated_seconds": 2.5}
        lines = evaluated(one, **priced)
        for number, line in lines.items():
            line["train_loss"] = one[(number - 1) // 2]
        runs[method, seed] = run_of(lines, seed, "local" if method == "local" else "fedavg")
    groups = {name: [run for (of, _), run in runs.items() if of == name] for name in METHODS}
    shown = kind if kind == "train_loss" else "global.accuracy"
    expected = (against_simulated_seconds if timed else learning_curves)(groups, shown)
    (entry,) = of.entries
    curves = found_curves(of, entry, {NAMES[source]: run for source, run in runs.items()})
    ((picture, chart),) = charts_of(of, entry, read_again(pages_with(of, curves)).papers[0].entries[0].curves)
    assert expected is not None
    assert chart == expected
    assert picture.name == "mine-figure1-curves-0"
    by = "simulated time" if timed else "round"
    assert picture.caption == f"Figure 1, here: {chart.title} by {by}, {SPREAD} over 1 to 2 seeds"
    assert picture.curves == 4


SPREAD = "mean and standard deviation"


def pages_with(of: Paper, curves: Mapping[str, FoundCurve]) -> Results:
    """Return pages whose only figure has these curves."""
    return pages_of("mine", [table_of(of.entries[0], list(curves), [], curves=dict(curves))], {})


def test_points_have_six_digits_and_are_finite() -> None:
    lines = evaluated([1 / 3, math.nan, 2 / 3, math.inf, 1e300, 0.0], simulated_seconds=1 / 3)
    (one,) = found_curves(PAPER, PAPER.entries[0], {NAMES["a", 0]: run_of(lines)}).values()
    assert (one.rounds, one.values) == ([1, 5, 11], [0.333333, 0.666667, 0.0])
    assert one.seconds == [0.333333, 1.66667, 3.66667]
    nothing = found_curves(PAPER, PAPER.entries[0], {NAMES["a", 0]: run_of({1: {}, 2: {"train_loss": 1.0}})})
    assert [one.rounds for one in nothing.values()] == [[]]
    assert list(charts_of(PAPER, PAPER.entries[0], nothing)) == []
    lost = paper(curves=None)
    assert found_curves(lost, lost.entries[0], {NAMES["a", 0]: run_of(lines)}) == {}


@pytest.mark.parametrize(
    "line", [{"simulated_seconds": -1.0}, {"simulated_seconds": 1e300}, {"round": 2**60}]
)
def test_lines_that_no_run_writes_give_no_points(line: dict[str, Any]) -> None:
    """A damaged run does not keep the pages from being written."""
    run = run_of({number: of | line for number, of in evaluated([0.5, 0.6, 0.7]).items()})
    (one,) = found_curves(PAPER, PAPER.entries[0], {NAMES["a", 0]: run}).values()
    assert one == curve_of([])


@given(st.integers(1, 3 * MOST_POINTS))
def test_a_long_curve_is_thinned_out(rounds: int) -> None:
    """Every seed at the same rounds, so that they have a mean."""
    lines = {number: {"train_loss": float(number)} for number in range(1, rounds + 1)}
    of = paper(curves="train_loss")
    (one,) = found_curves(of, of.entries[0], {NAMES["a", 0]: run_of(lines)}).values()
    assert len(one.rounds) == min(rounds, MOST_POINTS)
    assert {1, rounds} <= set(one.rounds) <= set(lines)
    assert one.values == [float(f"{number:.6g}") for number in one.rounds]
    assert read_again(pages_with(of, {NAMES["a", 0]: one})).papers[0].entries[0].curves == {
        NAMES["a", 0]: one
    }


def test_each_data_set_and_metric_has_a_picture() -> None:
    curves = {
        NAMES["a", 0]: curve_of([0.5]),
        NAMES["a", 1]: curve_of([0.5], data="other texts"),
        NAMES["b", 0]: curve_of([0.5], metric="f1"),
    }
    pictures = [one for one, _ in charts_of(PAPER, PAPER.entries[0], curves)]
    assert [one.name for one in pictures] == [f"mine-figure1-curves-{number}" for number in range(3)]
    assert [one.caption.split(" (%)")[0] for one in pictures] == [
        "Figure 1, here: Global test accuracy",
        "Figure 1, here: Global test accuracy",
        "Figure 1, here: Global test F1",
    ]


def test_curves_of_any_allowed_size_are_drawn() -> None:
    far = curve_of([1e18, -1e18], rounds=[0, 2**53], seconds=[0.0, 1e18], metric="\u202ea\nb\x1b[2J" * 9)
    for by in ("round", "simulated time"):
        of = paper(curves_by=by)
        ((picture, chart),) = charts_of(of, of.entries[0], {NAMES["a", 0]: far, NAMES["a", 1]: far})
        assert image(draw(chart)).startswith(b"\x89PNG")
        assert picture.caption.isprintable()


# ------------------------------------------------------------------------------------------- stored points

PLAIN: dict[str, Any] = {
    "of": "global",
    "metric": "accuracy",
    "data": "d",
    "rounds": [1, 2],
    "values": [0, 1],
}
TIMED = PLAIN | {"seconds": [0.5, 1.5]}


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (PLAIN | {"values": [0.1]}, "a curve has not as many values, or seconds, as rounds"),
        (PLAIN | {"seconds": [0.1]}, "a curve has not as many values, or seconds, as rounds"),
        (PLAIN | {"rounds": [2, 2]}, "the rounds or the seconds of a curve do not rise"),
        (PLAIN | {"rounds": [2, 1]}, "the rounds or the seconds of a curve do not rise"),
        (TIMED | {"seconds": [2.0, 1.0]}, "the rounds or the seconds of a curve do not rise"),
        (PLAIN | {"rounds": [-1, 1]}, "rounds.0: input should be greater than or equal to 0"),
        (PLAIN | {"rounds": [0.5, 1]}, "rounds.0: input should be a valid integer"),
        (PLAIN | {"rounds": [1, 2**60]}, "rounds.1: input should be less than or equal to"),
        (PLAIN | {"rounds": {"1": 2}}, "rounds: input should be a valid array"),
        (PLAIN | {"values": [0.1, math.nan]}, "values.1: input should be a finite number"),
        (PLAIN | {"values": [0.1, -math.inf]}, "values.1: input should be a finite number"),
        (PLAIN | {"values": [0.1, 1e19]}, "values.1: input should be less than or equal to"),
        (PLAIN | {"values": [0.1, None]}, "values.1: input should be a valid number"),
        (PLAIN | {"values": [0.1, [1]]}, "values.1: input should be a valid number"),
        (TIMED | {"seconds": [-0.1, 1.0]}, "seconds.0: input should be greater than or equal to 0"),
        (TIMED | {"seconds": [0.1, 1e300]}, "seconds.1: input should be less than or equal to"),
        (PLAIN | {"rounds": list(range(1001)), "values": [0.1] * 1001}, "should have at most 1000 items"),
        (PLAIN | {"of": "personal.accuracy"}, "of: input should be 'global'"),
        (PLAIN | {"metric": "m" * 201}, "metric: string should have at most 200 characters"),
        (PLAIN | {"data": 7}, "data: input should be a valid string"),
        (PLAIN | {"more": 1}, "more: extra inputs are not permitted"),
        ([], "input should be"),
    ],
)
def test_hostile_points_are_an_error_for_people(curve: Any, message: str, tmp_path: Path) -> None:
    given = json.loads(found({("a", 0): [0.5]}).to_json())
    (entry,) = given["papers"][0]["entries"]
    entry["curves"] = {NAMES["a", 0]: curve}
    (tmp_path / "results.json").write_text(json.dumps(given))
    with pytest.raises(DamagedError) as error:
        read_results(tmp_path)
    assert message in str(error.value)
    assert "is damaged (papers.0.entries.0.curves." in str(error.value)
    assert len(str(error.value)) < 500
    assert str(error.value).isprintable()


@pytest.mark.parametrize("curves", [-1, 2**60, 0.5, "x"])
def test_a_picture_is_of_a_number_of_curves(curves: Any, tmp_path: Path) -> None:
    given = json.loads(found({("a", 0): [0.5]}).to_json())
    given["papers"][0]["entries"][0]["pictures"][0]["curves"] = curves
    (tmp_path / "results.json").write_text(json.dumps(given))
    with pytest.raises(DamagedError, match=r"pictures\.0\.curves: input should be"):
        read_results(tmp_path)


def test_pages_of_an_earlier_version_are_read() -> None:
    given = json.loads(old("one seed", 9).to_json())
    (entry,) = given["papers"][0]["entries"]
    assert entry.pop("curves") == {}
    assert entry["pictures"][0].pop("curves") == 0
    assert Results.model_validate(given) == old("one seed", 9)


# ------------------------------------------------------------------------------------------- real folders


def test_pictures_are_drawn_of_the_points_alone(here: Path, document: Callable[..., dict[str, Any]]) -> None:
    """Also where neither the runs nor a picture are left; an old picture is copied while there are no points."""
    (here / "quick.toml").write_text(tomli_w.dumps(document({"name": "quick", "num_rounds": 2})))
    runs = {"r": {"experiment": "quick.toml", "methods": ["fedavg"], "seeds": 2, "minutes": 0.1}}
    entry = {"id": "figure1", "title": "Figure 1", "shows": "x", "runs": ["r"], "curves": "global"}
    made = {"name": "mine", "title": "t", "source": "s", "runs": runs, "entry": [entry]}
    (here / "mine.toml").write_text(tomli_w.dumps(made))
    first, second, third = here / "first", here / "second", here / "third"
    name = "page/figures/mine-figure1-curves-0.png"
    reproduce(Request(["mine.toml"]), 3600, first)
    stored = read_results(first / "page")
    assert {label: len(one.rounds) for label, one in figure(stored).curves.items()} == {
        f"quick.toml/fedavg-seed{seed}": 2 for seed in (0, 1)
    }
    drawn = (first / name).read_bytes()
    (first / name).unlink()
    reproduce(Request(["mine.toml"], join=[first]), 0, second)
    assert (second / name).read_bytes() == drawn
    assert figure(read_results(second / "page")) == figure(stored)
    assert "data:image/png" not in (second / "page/paper-mine.html").read_text(), "it is a chart to explore"
    picture = figure(stored).pictures[0].model_copy(update={"caption": "earlier", "curves": 0})
    table = figure(stored).model_copy(update={"curves": {}, "pictures": [picture]})
    (mine,) = stored.papers
    earlier = replace_papers(stored, mine.model_copy(update={"entries": [table]}))
    (first / "page/results.json").write_text(earlier.to_json())
    (first / name).write_bytes(drawn + b"earlier")
    reproduce(Request(["mine.toml"], join=[first]), 0, third)
    assert (third / name).read_bytes() == drawn + b"earlier"
    assert figure(read_results(third / "page")).pictures == [picture]


def replace_papers(results: Results, *papers: Any) -> Results:
    """Return results with other papers."""
    return results.model_copy(update={"papers": list(papers)})


@pytest.mark.parametrize(
    ("seeds", "said"),
    [("one seed", True), (f"{SPREAD} over 1 to 2 seeds", True), (f"{SPREAD} over 3 seeds", False)],
)
def test_a_picture_of_fewer_seeds_than_were_run_says_so(seeds: str, said: bool) -> None:
    picture = FoundPicture(name="mine-figure1-curves-0", caption=f"Figure 1, here: earlier, {seeds}")
    results = found({source: [0.5] for source in SOURCES}, pictures=[picture])
    notes = list(seeds_left_out(results, figure(results), [picture, picture]))
    assert [note[:56] for note in notes] == [
        "These curves are of fewer seeds than were run (3): the p"
    ] * said
