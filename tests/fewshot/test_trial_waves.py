"""Trials of paces at once: who is in which group, what a pace gains, and that the state is read back as it was."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.gold import every_second
from fednlp.fewshot.pacing import Pace
from fednlp.fewshot.search_rules import PaceSearchRules, initial_list, laptop_list
from fednlp.fewshot.trial_waves import (
    after_round,
    begin_wave,
    deal_groups,
    end_wave,
    new_search,
    num_idle,
    require_time,
    wave_size,
    waves_from_json,
    waves_to_json,
    went_on,
)

paces = st.lists(
    st.builds(Pace, st.integers(1, 4), st.integers(1, 4), st.integers(1, 8)),
    min_size=1,
    max_size=5,
    unique=True,
)
labels = st.lists(st.integers(0, 9), min_size=8, max_size=40)


@given(paces, labels, st.integers(1, 12), st.integers(0, 99))
def test_trials_have_the_clients_that_an_ordinary_round_leaves_idle(
    wave: list[Pace], held: list[int], most: int, seed: int
) -> None:
    sizes = np.array(held, dtype=np.int64)
    texts = np.full(len(sizes), 5, dtype=np.int64)
    idle = num_idle(len(sizes), int(np.count_nonzero(sizes)), most)
    groups = deal_groups(wave, sizes, texts, idle, np.random.default_rng(seed))
    assert groups == deal_groups(wave, sizes, texts, idle, np.random.default_rng(seed))
    control, *trying = groups
    assert len(trying) == len(wave)
    assert sorted(client for group in groups for client in group) == list(range(len(sizes)))
    assert sum(map(len, trying)) == idle
    free = [client for group in trying for client in group]
    if control and free:
        assert sizes[list(control)].min() >= sizes[free].max()
    if wave_size(wave, idle) == len(wave) and wave[0].n <= idle:
        assert all(len(group) >= pace.n for group, pace in zip(trying, wave, strict=True))


@given(paces, st.integers(1, 60))
def test_a_wave_needs_no_more_clients_than_are_idle(wave: list[Pace], idle: int) -> None:
    size = wave_size(wave, idle)
    assert 1 <= size <= len(wave)
    if size > 1:
        assert sum(pace.n for pace in wave[:size]) <= idle


def test_the_papers_list_is_one_wave_of_its_smallest_federation() -> None:
    assert wave_size(initial_list(100), num_idle(100, 64, 5)) == 32
    assert wave_size(laptop_list(32), num_idle(32, 6, 10)) == 6


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_half_of_every_class_is_held_out(gold: list[tuple[int, int]]) -> None:
    owners, classes = np.array(gold, dtype=np.int64).reshape(-1, 2).T
    held = every_second(owners, classes)
    for one in np.unique(classes):
        own = held[classes == one]
        assert own.sum() == len(own) // 2


SLOW, FAST = Pace(4, 2, 1), Pace(1, 2, 4)
RULES = PaceSearchRules(trial_rounds=2, window=2, threshold=0.0, max_searches=1, theta=0.5)


def test_a_search_by_hand() -> None:
    """What the control gains too is no gain of a pace; of labelling rounds, those count that there were."""
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1, 2), (3, 4)), 0.5)
    assert search.wave == (SLOW, FAST)
    assert [search.labelling(pace) for pace in search.wave] == [1, 1]
    search = went_on(search)
    assert [search.labelling(pace) for pace in search.wave] == [0, 2]
    search = went_on(search)
    chosen, told = end_wave(search, [0.6, 0.62, 0.7], inference=3.0, training=2.0)
    # Gains a round: 0.05, 0.06, 0.1. One labelling in two rounds costs 3 * 2 / 2, and one a round 3 * 2.
    assert told["gains"] == pytest.approx([0.05, 0.06, 0.1])
    assert told["aug_e"] == pytest.approx([0.01 / (3.0 + 0.5 * 2.0 * 1), 0.05 / (6.0 + 0.5 * 2.0 * 4)])
    assert told["chosen"] == [1, 2, 4]
    assert chosen.paces == (FAST, SLOW)
    assert not chosen.searching
    assert chosen.labelling(FAST) == 1  # the labels of trials are not kept


@given(st.floats(0.0, 1e3))
def test_the_cost_of_a_round_counts_for_every_pace(round_seconds: float) -> None:
    rules = replace(RULES, round_seconds=round_seconds)
    search = begin_wave(new_search([SLOW, FAST], rules), ((0,), (1, 2), (3, 4)), 0.5)
    chosen, told = end_wave(went_on(went_on(search)), [0.6, 0.62, 0.7], inference=3.0, training=2.0)
    assert told["aug_e"] == pytest.approx([0.01 / (4.0 + round_seconds), 0.05 / (10.0 + round_seconds)])
    chosen, told = after_round(replace(chosen, accuracies=(0.7, 0.7)), 0.8, 3.0, 2.0, left=9)
    assert told["aug_e"] == pytest.approx(0.05 / (3.0 * 2 + 0.5 * 2.0 * 4 + round_seconds))


def test_of_paces_that_gain_nothing_the_one_that_loses_least_wins() -> None:
    """By AUG-E alone it would be the dearest."""
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1,), (2,)), 0.5)
    search = went_on(went_on(search))
    _, told = end_wave(search, [0.5, 0.49, 0.48], inference=1.0, training=1.0)
    assert told["aug_e"][1] > told["aug_e"][0]
    assert told["chosen"] == [4, 2, 1]


def test_paces_that_do_not_fit_at_once_are_tried_in_waves() -> None:
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1,)), 0.5)
    search, told = end_wave(went_on(went_on(search)), [0.52, 0.7], 1.0, 1.0)
    assert "chosen" not in told
    assert search.searching
    assert search.tried
    assert search.started == 0.52, "the control's model is that of the run, and has been judged"
    search = begin_wave(search, ((0,), (1,)), 0.6)
    assert search.wave == (FAST,)
    search, told = end_wave(went_on(went_on(search)), [0.6, 0.6], 1.0, 1.0)
    assert told["chosen"] == [4, 2, 1]


def test_a_fall_has_the_candidates_searched_again_until_no_search_is_left() -> None:
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1,), (2,)), 0.5)
    search, _ = end_wave(went_on(went_on(search)), [0.5, 0.5, 0.6], 1.0, 1.0)
    told = {}
    for accuracy in (0.6, 0.6, 0.5):
        search, told = after_round(went_on(search), accuracy, 1.0, 1.0, left=9)
    assert told["low"] == "the candidates are searched again"
    assert search.searching
    assert search.reached == 12.0  # three labellings of four percent
    late = after_round(went_on(search), 0.1, 1.0, 1.0, left=9)[0]
    assert late.switches == 1


@given(paces, st.integers(0, 3))
def test_the_state_is_read_back_as_it_was(tried: list[Pace], rounds: int) -> None:
    search = new_search(tried, RULES)
    if rounds:
        groups = tuple((client,) for client in range(len(tried) + 1))
        search = begin_wave(search, groups, 0.5)
        search = went_on(search)
    assert waves_from_json(json.loads(json.dumps(waves_to_json(search)))) == search


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 paces to try"):
        new_search([], RULES)
    search = new_search([SLOW, FAST], PaceSearchRules(trial_rounds=5, rounds=10))
    require_time(search, idle=4)
    with pytest.raises(ConfigError, match="in 2 waves on 3 idle clients, take 10 rounds"):
        require_time(search, idle=3)
    with pytest.raises(RunError, match="cannot be read"):
        waves_from_json({"paces": "none"})
