"""Trials of paces at once: who is in which group, what a pace gains, and that the state is read back as it was."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace
from fednlp.fewshot.search_rules import PaceSearchRules, initial_list, laptop_list
from fednlp.fewshot.trial_waves import (
    after_round,
    begin_wave,
    deal_groups,
    end_wave,
    new_search,
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


@given(paces, labels, st.integers(0, 99))
def test_groups_are_disjoint_and_share_labels_out_evenly(
    wave: list[Pace], held: list[int], seed: int
) -> None:
    sizes = np.array(held, dtype=np.int64)
    texts = np.full(len(sizes), 5, dtype=np.int64)
    groups = deal_groups(wave, sizes, texts, np.random.default_rng(seed))
    assert groups == deal_groups(wave, sizes, texts, np.random.default_rng(seed))
    assert len(groups) == len(wave) + 1
    assert sorted(client for group in groups for client in group) == list(range(len(sizes)))
    totals = [int(sizes[list(group)].sum()) for group in groups]
    assert max(totals) - min(totals) <= sizes.max(initial=0)
    if sizes.astype(bool).sum() >= len(groups):
        assert min(totals) > 0
    if not sizes.any() and wave_size(wave, len(sizes), len(wave) + 1) == len(wave):
        assert all(len(group) >= pace.n for group, pace in zip(groups[1:], wave, strict=True))


@given(paces, st.integers(2, 60), st.integers(0, 60))
def test_a_wave_needs_no_more_clients_than_there_are(wave: list[Pace], clients: int, able: int) -> None:
    size = wave_size(wave, clients, able)
    assert 1 <= size <= len(wave)
    if size > 1:
        assert 1 + sum(pace.n for pace in wave[:size]) <= clients
        assert size + 1 <= able


def test_the_papers_list_is_one_wave_of_its_smallest_federation() -> None:
    assert wave_size(initial_list(100), 100, 64) == 32
    assert wave_size(laptop_list(32), 32, 32) == 6


SLOW, FAST = Pace(4, 2, 1), Pace(1, 2, 4)
RULES = PaceSearchRules(trial_rounds=2, window=2, threshold=0.0, max_searches=1, theta=0.5)


def test_a_search_by_hand() -> None:
    """What the control gains too is no gain of a pace; of labelling rounds, those count that there were."""
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1, 2), (3, 4)), (0.5, 0.5, 0.6))
    assert search.wave == (SLOW, FAST)
    assert [search.labelling(pace) for pace in search.wave] == [1, 1]
    search = went_on(search, [4, 8, 8])
    assert [search.labelling(pace) for pace in search.wave] == [0, 2]
    search = went_on(search, [4, 8, 8])
    assert search.examples == (8, 16, 16)
    chosen, told = end_wave(search, [0.6, 0.62, 0.8], inference=3.0, training=2.0)
    # Gains a round: 0.05, 0.06, 0.1. One labelling in two rounds costs 3 * 2 / 2, and one a round 3 * 2.
    assert told["gains"] == [0.05, 0.06, 0.1]
    assert told["aug_e"] == pytest.approx([0.01 / (3.0 + 0.5 * 2.0 * 1), 0.05 / (6.0 + 0.5 * 2.0 * 4)])
    assert told["chosen"] == [1, 2, 4]
    assert chosen.paces == (FAST, SLOW)
    assert not chosen.searching
    assert chosen.labelling(FAST) == 3  # the curriculum goes on


def test_of_paces_that_gain_nothing_the_one_that_loses_least_wins() -> None:
    """By AUG-E alone it would be the dearest."""
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1,), (2,)), (0.5, 0.5, 0.5))
    search = went_on(went_on(search, [1, 1, 1]), [1, 1, 1])
    _, told = end_wave(search, [0.5, 0.49, 0.48], inference=1.0, training=1.0)
    assert told["aug_e"][1] > told["aug_e"][0]
    assert told["chosen"] == [4, 2, 1]


def test_paces_that_do_not_fit_at_once_are_tried_in_waves() -> None:
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1,)), (0.5, 0.5))
    search, told = end_wave(went_on(went_on(search, [1, 1]), [1, 1]), [0.5, 0.7], 1.0, 1.0)
    assert "chosen" not in told
    assert search.searching
    assert search.tried
    search = begin_wave(search, ((0,), (1,)), (0.6, 0.6))
    assert search.wave == (FAST,)
    search, told = end_wave(went_on(went_on(search, [1, 1]), [1, 1]), [0.6, 0.6], 1.0, 1.0)
    assert told["chosen"] == [4, 2, 1]


def test_a_fall_has_the_candidates_searched_again_until_no_search_is_left() -> None:
    search = begin_wave(new_search([SLOW, FAST], RULES), ((0,), (1,), (2,)), (0.5, 0.5, 0.5))
    search, _ = end_wave(went_on(went_on(search, [1] * 3), [1] * 3), [0.5, 0.5, 0.6], 1.0, 1.0)
    told = {}
    for accuracy in (0.6, 0.6, 0.5):
        search, told = after_round(went_on(search), accuracy, 1.0, 1.0, left=9)
    assert told["low"] == "the candidates are searched again"
    assert search.searching
    assert search.reached == 20.0  # five labellings of four percent
    late = after_round(went_on(search), 0.1, 1.0, 1.0, left=9)[0]
    assert late.switches == 1


@given(paces, st.integers(0, 3))
def test_the_state_is_read_back_as_it_was(tried: list[Pace], rounds: int) -> None:
    search = new_search(tried, RULES)
    if rounds:
        groups = tuple((client,) for client in range(len(tried) + 1))
        search = begin_wave(search, groups, [0.5] * len(groups))
        search = went_on(search, [rounds] * len(groups))
    assert waves_from_json(json.loads(json.dumps(waves_to_json(search)))) == search


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 paces to try"):
        new_search([], RULES)
    search = new_search([SLOW, FAST], PaceSearchRules(trial_rounds=5, rounds=10))
    require_time(search, clients=9, able=9)
    with pytest.raises(ConfigError, match="in 2 waves on 9 clients of which 2 have labels, take 10 rounds"):
        require_time(search, clients=9, able=2)
    with pytest.raises(RunError, match="cannot be read"):
        waves_from_json({"paces": "none"})
