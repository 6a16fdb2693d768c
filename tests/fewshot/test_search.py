"""The pacing search against Algorithm 1 written out in straight lines, over made-up accuracy curves."""

import json
import random
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace
from fednlp.fewshot.search import ask, begin, tell
from fednlp.fewshot.search_rules import PaceSearchRules, initial_list, laptop_list
from fednlp.fewshot.search_state import PaceSearch, from_json, to_json

Round = tuple[Pace, int, int, float]  # what the world is told of a round: pace, iteration, labelling, reached
Model = tuple[float, tuple[Round, ...]]  # its accuracy, and every round that made it


@dataclass(frozen=True)
class World:
    """A federation in which every round is a made-up gain, drawn from all that made the model."""

    seed: int

    def train(self, model: Model, told: Round) -> Model:
        accuracy, history = model
        pace, iteration, labelling, reached = told
        draw = random.Random(f"{self.seed} {history} {told}")
        gain = draw.uniform(-0.03, 0.03) + 0.01 * pace.k * (0.6 - accuracy)
        return min(1.0, max(0.0, accuracy + gain)), (*history, (pace, iteration, labelling, reached))

    def seconds(self, told: Round) -> tuple[float | None, float]:
        draw = random.Random(f"seconds {self.seed} {told}")
        return (draw.uniform(1, 9) if told[2] else None), draw.uniform(1, 2)


START: Model = (0.3, ())


def straight(
    world: World, paces: list[Pace], rules: PaceSearchRules, rounds: int
) -> tuple[list[Round], list[Pace], Model]:
    """Algorithm 1 (FeS, section 3.1), line by line, with models as plain values."""
    log: list[Round] = []
    chosen: list[Pace] = []
    last_inference = 0.0

    def pacing(model: Model, told: Round) -> tuple[Model, float, float]:
        nonlocal last_inference
        log.append(told)
        inference, training = world.seconds(told)
        last_inference = last_inference if inference is None else inference
        return world.train(model, told), last_inference, training

    def efficiency(
        pace: Pace, gained: float, inference: list[float], training: list[float]
    ) -> tuple[float, float]:
        labels = fmean(inference) * pace.n / pace.f + rules.theta * fmean(training) * pace.k
        price = labels + rules.round_seconds
        return rules.eta * (gained / len(training)) / price, price

    def switch(model: Model, i: int, tried: list[Pace], reached: float) -> tuple[list[Pace], Model, int]:
        ends = []
        for place, pace in enumerate(tried):
            now, labelled, inference, training = model, 0, [], []
            for step in range(rules.trial_rounds):
                labels = step % pace.f == 0
                labelled += labels
                now, l_i, l_t = pacing(now, (pace, i + step, labelled if labels else 0, reached))
                inference.append(l_i)
                training.append(l_t)
            reward, price = efficiency(pace, now[0] - model[0], inference, training)
            ends.append((-reward, price, place, now, labelled))
        ends.sort(key=lambda end: end[:3])
        best = ends[0]
        chosen.append(tried[best[2]])
        return [tried[end[2]] for end in ends[: rules.candidates]], best[3], best[4]

    candidates, model, labelled = switch(START, 0, paces, 0.0)
    i, reached, age, switches = rules.trial_rounds, 0.0, rules.trial_rounds, 0
    accuracies, inference, training = [model[0]], [], []
    while len(log) < rounds:
        pace = candidates[0]
        labels = age % pace.f == 0
        labelled += labels
        model, l_i, l_t = pacing(model, (pace, i, labelled if labels else 0, reached))
        i, age = i + 1, age + 1
        accuracies.append(model[0])
        inference.append(l_i)
        training.append(l_t)
        w = rules.window
        if len(training) < w:
            continue
        gained = accuracies[-1] - accuracies[-1 - w]
        reward, _ = efficiency(pace, gained, inference[-w:], training[-w:])
        long_enough = rules.rounds is None or len(log) + len(candidates) * rules.trial_rounds < rules.rounds
        if reward < rules.threshold and switches < rules.max_searches and long_enough:
            switches += 1
            reached = min(100.0, round(reached + labelled * pace.k, 9))
            candidates, model, labelled = switch(model, i, candidates, reached)
            i, age = i + rules.trial_rounds, rules.trial_rounds
            accuracies, inference, training = [model[0]], [], []
    return log[:rounds], chosen, model


def live(
    world: World, paces: list[Pace], rules: PaceSearchRules, rounds: int, saved: bool = False
) -> tuple[list[Round], list[dict[str, Any]], Model, PaceSearch]:
    """A run that obeys the search; where saved, all that it remembers goes through JSON before every round."""
    search, model, kept = begin(paces, rules, START[0]), START, {}
    log, lines = [], []
    for _ in range(rounds):
        if saved:
            search = from_json(json.loads(json.dumps(to_json(search))))
        order = ask(search)
        assert ask(search) == order
        if order.remember:
            kept[order.remember] = model
        if order.restore:
            model = kept[order.restore]
        kept = {name: kept[name] for name in order.keep}
        told = (order.pace, order.iteration, order.labelling, order.reached)
        log.append(told)
        model = world.train(model, told)
        search, line = tell(search, model[0], *world.seconds(told), seconds=3.0)
        lines.append(line)
    return log, lines, model, search


rules_of = st.builds(
    PaceSearchRules,
    trial_rounds=st.integers(2, 4),
    candidates=st.integers(1, 4),
    threshold=st.sampled_from([-0.001, 0.0, 0.001]),
    window=st.integers(1, 4),
    theta=st.sampled_from([0.1, 1.0, 10.0]),
    eta=st.sampled_from([1.0, 100.0]),
    max_searches=st.integers(0, 4),
    rounds=st.sampled_from([None, 60]),
    round_seconds=st.sampled_from([0.0, 5.0]),
)
lists = st.lists(
    st.builds(Pace, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=6
)


@settings(deadline=None)
@example(
    -70,
    [Pace(1, 1, 1), Pace(1, 1, 2), Pace(1, 2, 1), Pace(1, 2, 2)],
    PaceSearchRules(2, 3, -0.001, 4, 0.1, 1.0, 2),
)
@given(st.integers(), lists, rules_of)
@pytest.mark.whole
def test_the_search_is_algorithm_1(seed: int, paces: list[Pace], rules: PaceSearchRules) -> None:
    paces, world = list(dict.fromkeys(paces)), World(seed)
    log, chosen, model = straight(world, paces, rules, 60)
    found, lines, ended, _ = live(world, paces, rules, 60)
    assert found == log
    decided = [Pace(*line["chosen"]) for line in lines if "chosen" in line]
    # A search that the end of the run cuts short, even before its first round (possible where the run's length is not
    # known), has chosen nothing.
    assert decided == chosen[: len(decided)]
    assert len(chosen) - len(decided) <= (rules.rounds is None)
    if lines[-1]["phase"] == "run" and len(chosen) == len(decided):
        assert ended == model


@settings(deadline=None, max_examples=30)
@given(st.integers(), lists, rules_of)
def test_a_search_saved_before_every_round_decides_the_same(
    seed: int, paces: list[Pace], rules: PaceSearchRules
) -> None:
    paces, world = list(dict.fromkeys(paces)), World(seed)
    plain, saved = live(world, paces, rules, 40), live(world, paces, rules, 40, saved=True)
    assert saved == plain
    assert json.dumps(saved[1]) == json.dumps(plain[1])
    state = to_json(saved[3])
    assert json.dumps(json.loads(json.dumps(state))) == json.dumps(to_json(from_json(state)))
    assert json.loads(json.dumps(state)) == state


@settings(deadline=None, max_examples=30)
@given(st.integers(), lists, rules_of, st.sampled_from([0.25, 8.0]))
def test_eta_scales_aug_e_and_nothing_else(
    seed: int, paces: list[Pace], rules: PaceSearchRules, scale: float
) -> None:
    paces, world = list(dict.fromkeys(paces)), World(seed)
    log, lines, _, _ = live(world, paces, rules, 60)
    scaled = replace(rules, eta=scale * rules.eta, threshold=scale * rules.threshold)
    log_scaled, lines_scaled, _, _ = live(world, paces, scaled, 60)
    assert log_scaled == log
    for line, other in zip(lines, lines_scaled, strict=True):
        assert ("aug_e" in line) == ("aug_e" in other)
        assert "aug_e" not in line or other["aug_e"] == scale * line["aug_e"]


def _tell(
    search: PaceSearch, accuracies: list[float], seconds: float = 0.0
) -> tuple[PaceSearch, list[dict[str, Any]]]:
    lines = []
    for accuracy in accuracies:
        inference = 1.0 if ask(search).labelling else None
        search, line = tell(search, accuracy, inference, 1.0, seconds)
        lines.append(line)
    return search, lines


def test_theta_says_whether_labelling_or_training_is_dear() -> None:
    little_training, little_labelling = Pace(1, 4, 1), Pace(2, 1, 4)
    for theta, better in ((0.01, little_labelling), (100.0, little_training)):
        rules = PaceSearchRules(trial_rounds=2, theta=theta)
        _, lines = _tell(begin([little_training, little_labelling], rules, 0.5), [0.5, 0.6] * 2)
        assert lines[-1]["chosen"] == [better.f, better.n, better.k]


def test_a_whole_search_by_hand() -> None:
    """Two trials, of which the first is better; then a fall, and the two are searched again."""
    slow, fast = Pace(2, 1, 1), Pace(1, 1, 3)
    rules = PaceSearchRules(trial_rounds=2, window=2, max_searches=1)
    search = begin([slow, fast], rules, 0.5)
    asked = []
    lines = []
    for accuracy in (0.5, 0.53, 0.5, 0.54, 0.54, 0.50, 0.51, 0.52, 0.51, 0.58, 0.6, 0.5):
        order = ask(search)
        asked.append(
            (order.pace, order.iteration, order.labelling, order.reached, order.remember, order.restore)
        )
        search, line = tell(search, accuracy, 1.0 if order.labelling else None, 1.0, seconds=7.0)
        lines.append(line)
    assert asked == [
        (slow, 0, 1, 0.0, "base", None),
        (slow, 1, 0, 0.0, None, None),
        (fast, 0, 1, 0.0, "best", "base"),
        (fast, 1, 2, 0.0, None, None),
        (slow, 2, 2, 0.0, None, "best"),  # 0.015 / 1.5 beats 0.02 / 4; the winner's rounds are kept
        (slow, 3, 0, 0.0, None, None),
        (slow, 4, 1, 2.0, "base", None),  # the curriculum goes on from its two percent
        (slow, 5, 0, 2.0, None, None),
        (fast, 4, 1, 2.0, "best", "base"),
        (fast, 5, 2, 2.0, None, None),
        (fast, 6, 3, 2.0, None, None),  # the last trial was the best: nothing is put back
        (fast, 7, 4, 2.0, None, None),
    ]
    assert lines[1] == {
        "phase": "trial",
        "pace": [2, 1, 1],
        "iteration": 1,
        "aug_e": pytest.approx(0.01),
        "gains": [pytest.approx(0.015)],
    }
    assert lines[3] == {
        "phase": "trial",
        "pace": [1, 1, 3],
        "iteration": 1,
        "aug_e": pytest.approx(0.005),
        "gains": [pytest.approx(0.02)],
        "chosen": [2, 1, 1],
        "candidates": [[2, 1, 1], [1, 1, 3]],
        "trial_rounds": 4,
        "trial_seconds": 28.0,
    }
    assert lines[4] == {"phase": "run", "pace": [2, 1, 1], "iteration": 2}
    assert lines[5] == {
        "phase": "run",
        "pace": [2, 1, 1],
        "iteration": 3,
        "aug_e": pytest.approx(-0.01),
        "gains": [pytest.approx(-0.015)],
        "low": "the candidates are searched again",
    }
    assert lines[11]["aug_e"] == pytest.approx(-0.01)
    assert lines[11]["low"] == "no switch is left"


def test_models_are_kept_only_while_a_search_needs_them() -> None:
    search = begin([Pace(1, 1, k) for k in (1, 2, 3)], PaceSearchRules(trial_rounds=2), 0.5)
    kept = []
    for accuracy in (0.5, 0.5, 0.5, 0.6, 0.5, 0.5, 0.7):
        order = ask(search)
        kept.append((order.remember, order.restore, order.keep))
        search, _ = tell(search, accuracy, 1.0, 1.0)
    both = ("base", "best")
    assert kept == [
        ("base", None, ("base",)),
        (None, None, ("base",)),
        ("best", "base", both),
        (None, None, both),
        ("best", "base", both),
        (None, None, both),
        (None, "best", ()),
    ]


def test_of_paces_that_gain_nothing_the_cheapest_wins_and_then_the_earliest() -> None:
    paces = [Pace(1, 4, 1), Pace(2, 4, 2), Pace(1, 3, 1), Pace(2, 6, 1), Pace(1, 1, 4)]
    _, lines = _tell(begin(paces, PaceSearchRules(trial_rounds=2, candidates=3), 0.5), [0.5] * 10)
    assert lines[-1]["candidates"] == [[2, 4, 2], [1, 3, 1], [2, 6, 1]]  # 4 seconds each; the others 5


def test_a_search_that_would_not_end_before_the_run_is_not_begun() -> None:
    paces = [Pace(1, 1, 1), Pace(1, 1, 2)]
    with pytest.raises(ConfigError, match=r"4 in all, and the run has 4"):
        begin(paces, PaceSearchRules(trial_rounds=2, rounds=4), 0.5)
    for rounds, low in ((9, "too few rounds are left"), (10, "the candidates are searched again")):
        rules = PaceSearchRules(trial_rounds=2, window=1, rounds=rounds)
        _, lines = _tell(begin(paces, rules, 0.5), [0.6, 0.7, 0.6, 0.7, 0.5])
        assert lines[-1]["low"] == low


def test_lists() -> None:
    assert len(set(initial_list(100))) == len(initial_list(100)) == 32
    assert {Pace(5, 2, 1), Pace(1, 4, 2)} <= set(initial_list(8))
    assert len(laptop_list(4)) == 6
    assert set(laptop_list(4)) <= set(initial_list(4))
    for clients in range(1, 12):
        for paces in (initial_list(clients), laptop_list(clients)):
            assert len(set(paces)) == len(paces) > 0
            assert max(pace.n for pace in paces) <= clients
    with pytest.raises(ConfigError, match="0 clients"):
        initial_list(0)


@pytest.mark.parametrize("paces", [[], [Pace(1, 1, 1)] * 2])
def test_paces_that_cannot_be_tried_are_refused(paces: list[Pace]) -> None:
    with pytest.raises(ConfigError, match="paces to try"):
        begin(paces, PaceSearchRules(), 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trial_rounds": 1},
        {"candidates": 0},
        {"window": 2.5},
        {"max_searches": -1},
        {"rounds": 0},
        {"theta": 0},
        {"eta": -1.0},
        {"round_seconds": -1.0},
        {"round_seconds": float("inf")},
        {"threshold": float("nan")},
        {"trial_rounds": None},
    ],
)
def test_rules_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PaceSearchRules(**wrong)


@pytest.mark.parametrize(
    ("accuracy", "inference", "training"),
    [
        (float("nan"), 1.0, 1.0),
        (1.5, 1.0, 1.0),
        (0.5, -1.0, 1.0),
        (0.5, 1.0, None),
        (0.5, 1.0, float("inf")),
        (0.5, 1.0, 0),
    ],
)
def test_what_cannot_be_is_not_taken_in(accuracy: float, inference: float, training: float | None) -> None:
    with pytest.raises(RunError, match="the pacing search needs"):
        tell(begin([Pace(1, 1, 1)], PaceSearchRules(), 0.5), accuracy, inference, training)


def _broken(name: str, value: object) -> dict[str, Any]:
    search, _ = _tell(begin([Pace(1, 1, 1), Pace(1, 1, 2)], PaceSearchRules(), 0.5), [0.5] * 6)
    return {**to_json(search), name: value}


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        _broken("paces", []),
        _broken("paces", [{"f": 0, "n": 1, "k": 1}]),
        _broken("age", -1),
        _broken("age", 5),
        _broken("accuracies", [0.5]),
        _broken("accuracies", [0.5, float("nan")]),
        _broken("trials", [{"aug_e": 0.0, "cost": 1.0, "accuracy": 0.5}] * 2),
        _broken("restore", "something else"),
    ],
)
def test_a_broken_state_is_refused_in_one_line(state: object) -> None:
    with pytest.raises(
        RunError, match=r"^the saved state of the pacing search cannot be read .*start the run again$"
    ):
        from_json(state)


def test_a_thousand_paces_at_most() -> None:
    paces = [Pace(number, 1, 1) for number in range(1, 1002)]
    assert len(begin(paces[:1000], PaceSearchRules(), 0.5).paces) == 1000
    with pytest.raises(ConfigError, match="1001 paces to try: give 1 to 1000"):
        begin(paces, PaceSearchRules(), 0.5)


@pytest.mark.parametrize(("rounds", "fits"), [(3, False), (4, False), (5, True)])
def test_a_search_must_end_before_the_run(rounds: int, fits: bool) -> None:
    paces, rules = [Pace(1, 1, 1), Pace(2, 1, 1)], PaceSearchRules(trial_rounds=2, rounds=rounds)
    if fits:
        assert begin(paces, rules, 0.5).paces == tuple(paces)
        return
    with pytest.raises(ConfigError, match=r"give it more than 4"):
        begin(paces, rules, 0.5)
