"""The search for a pace with trials at once, each on idle clients (FeS, Cai et al. 2023, section 3.1).

A pure state machine, as :mod:`fednlp.fewshot.search` is for trials one after the other. A wave is a set of paces that
are tried in the same rounds, each by a group of idle clients. One group more, the control, is the cohort of the run: it
trains the run's model without new labels. What a pace gains is what it gains beyond the control.

docs/methods/pacing.md states the choices that the paper leaves open.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.fewshot.pacing import Pace, aug_e, candidate_percentage, cost, is_labelling_round, num_labellings
from fednlp.fewshot.search_rules import LONGEST, PaceSearchRules
from fednlp.fewshot.search_state import PaceTrial, restored
from fednlp.formatting.units import plural

Groups = tuple[tuple[int, ...], ...]
"""The clients of each group of a wave, disjoint: the control's first, then those of each pace."""


@dataclass(frozen=True)
class TrialWaves:
    """The state of a search between two rounds.

    Attributes:
        paces: The paces of this search; between searches the candidates, the best first.
        tried: Results of the trials of the waves before this one.
        groups: The clients of the present wave; empty between searches.
        started: Accuracy of the run's model before the wave, on the labels that judge the paces; between two waves of
            a search, before the next one.
        searching: True while there are paces left to try.
        age: Number of rounds of the wave, or with the present pace.
        reached: Percentage of the candidates that the paces before had reached.
        switches: Number of searches after the first.
        accuracies: Accuracies of the rounds since the search, 0 to 1; the first is from before them.
    """

    rules: PaceSearchRules
    paces: tuple[Pace, ...]
    tried: tuple[PaceTrial, ...] = ()
    groups: Groups = ()
    started: float = 0.0
    searching: bool = True
    age: int = 0
    reached: float = 0.0
    switches: int = 0
    accuracies: tuple[float, ...] = ()

    @property
    def wave(self) -> tuple[Pace, ...]:
        """The paces that are tried now; between searches the best one alone."""
        if not self.groups:
            return self.paces[:1]
        return self.paces[len(self.tried) : len(self.tried) + len(self.groups) - 1]

    def labelling(self, pace: Pace) -> int:
        """Return g of a pace's labelling in the next round; 0 if its clients do not label then."""
        due = is_labelling_round(pace, self.age, 0)
        return num_labellings(pace, self.age) + 1 if due else 0


def num_idle(clients: int, able: int, most: int) -> int:
    """Return how many clients an ordinary round leaves idle, and trials may have; one at least.

    Args:
        clients: Number of all clients.
        able: Number of clients with a label.
        most: Number of clients that train in a round.

    >>> num_idle(clients=32, able=9, most=10), num_idle(clients=32, able=32, most=10)
    (23, 22)
    """
    return max(1, clients - min(able, most))


def wave_size(paces: Sequence[Pace], idle: int) -> int:
    """Return how many of the first paces are tried at once; each needs n clients that label.

    Args:
        paces: The paces that are left to try, one at least.
        idle: Number of clients that trials may have.

    >>> wave_size([Pace(1, 4, 2), Pace(1, 8, 4), Pace(1, 1, 1)], idle=12)
    2
    """
    return max(1, int((np.cumsum([pace.n for pace in paces]) <= idle).sum()))


def deal_groups(
    wave: Sequence[Pace],
    labels: NDArray[np.int64],
    candidates: NDArray[np.int64],
    idle: int,
    rng: np.random.Generator,
) -> Groups:
    """Deal the clients with most labels to the control, and the idle ones to the paces, n that can label to each first.

    Args:
        labels: int64 (clients,), labelled examples of each client.
        candidates: int64 (clients,), texts of each client that may be given a pseudo label.
        idle: Number of clients that trials may have.

    >>> labels, texts = np.array([3, 0, 3, 0, 0, 0]), np.array([9, 9, 9, 9, 9, 9])
    >>> deal_groups([Pace(1, 1, 1), Pace(1, 3, 1)], labels, texts, 4, np.random.default_rng(0))
    ((0, 2), (4,), (1, 3, 5))
    """
    order = rng.permutation(len(labels))
    ranked = order[np.argsort(-labels[order], kind="stable")].tolist()
    control = ranked[: len(ranked) - idle]
    groups: list[list[int]] = [[] for _ in wave]
    missing = [pace.n for pace in wave]
    for client in [one for one in order.tolist() if one not in {*control}]:
        to = max(range(len(wave)), key=lambda group: (missing[group], -group))
        groups[to].append(client)
        missing[to] -= bool(candidates[client])
    return tuple(tuple(sorted(group)) for group in (control, *groups))


def begin_wave(search: TrialWaves, groups: Groups, started: float) -> TrialWaves:
    """Return the search at the beginning of a wave.

    Args:
        search: The search, between two waves.
        groups: The control's clients, then those of each pace.
        started: Accuracy of the run's model.
    """
    return replace(search, groups=groups, started=started, age=0)


def went_on(search: TrialWaves) -> TrialWaves:
    """Return the search after a round."""
    return replace(search, age=search.age + 1)


def end_wave(
    search: TrialWaves, accuracies: Sequence[float], inference: float, training: float
) -> tuple[TrialWaves, dict[str, Any]]:
    """Return the search after the last round of a wave, and the decision for the round's line.

    The chosen pace begins its curriculum after the search, since labels of trials are not kept. The gain of a pace is
    that of its group less that of the control, a round. Of the rounds of a trial, those count as
    labelling rounds in which its clients did label. A pace that gained is ranked by AUG-E, and before one that did
    not, which is ranked by its gain: divided by its cost, a loss would be the smaller the dearer the pace.

    Args:
        search: The state after the wave's last round.
        accuracies: Accuracy of the model of each group, the control's first.
        inference: l_i: seconds of one client's labelling.
        training: l_t: seconds of one training batch.
    """
    rules, rounds = search.rules, search.age
    gains = [(after - search.started) / rounds for after in accuracies]
    found = []
    for pace, gain, accuracy in zip(search.wave, gains[1:], accuracies[1:], strict=True):
        labellings = num_labellings(pace, rounds) / rounds
        paid = replace(pace, f=1), inference * labellings, training, rules.theta
        efficiency = aug_e(gain - gains[0], *paid, rules.eta, rules.round_seconds)
        found.append(PaceTrial(efficiency, cost(*paid, rules.round_seconds), accuracy))
    decision: dict[str, Any] = {"aug_e": [trial.aug_e for trial in found], "gains": gains}
    tried = (*search.tried, *found)
    if len(tried) < len(search.paces):
        return replace(search, tried=tried, groups=(), started=accuracies[0]), decision
    ranks = sorted(range(len(tried)), key=lambda number: _rank(tried[number]))
    kept = tuple(search.paces[number] for number in ranks[: rules.candidates])
    decision |= {"chosen": list(kept[0].numbers), "candidates": [list(pace.numbers) for pace in kept]}
    return replace(search, paces=kept, tried=(), groups=(), age=0, searching=False), decision


def _rank(trial: PaceTrial) -> tuple[bool, float, float]:
    gain = trial.aug_e * trial.cost
    return gain <= 0, -trial.aug_e if gain > 0 else -gain, trial.cost


def after_round(
    search: TrialWaves, accuracy: float, inference: float, training: float, left: int
) -> tuple[TrialWaves, dict[str, Any]]:
    """Return the search after a round with the chosen pace, and the decision for the round's line.

    AUG-E is computed over the last ``window`` rounds, and a search among the candidates begins where it is below the
    threshold.

    Args:
        search: The state after the round.
        accuracy: Of the model, 0 to 1.
        inference: l_i: seconds of one client's labelling.
        training: l_t: seconds of one training batch.
        left: Number of rounds that the run has left.
    """
    rules, pace = search.rules, search.paces[0]
    recent = (*search.accuracies, accuracy)[-rules.window - 1 :]
    search = replace(search, accuracies=recent)
    if len(recent) <= rules.window:
        return search, {}
    gained = (recent[-1] - recent[0]) / rules.window
    efficiency = aug_e(gained, pace, inference, training, rules.theta, rules.eta, rules.round_seconds)
    decision: dict[str, Any] = {"aug_e": efficiency, "gains": [gained]}
    if decision["aug_e"] >= rules.threshold:
        return search, decision
    if search.switches >= rules.max_searches:
        return search, {**decision, "low": "no switch is left"}
    if len(search.paces) < 2 or rules.trial_rounds * len(search.paces) >= left:
        return search, {**decision, "low": "too few rounds or candidates are left"}
    reached = candidate_percentage(pace, num_labellings(pace, search.age), search.reached)
    again = replace(search, switches=search.switches + 1, reached=reached, accuracies=(), searching=True)
    return again, {**decision, "low": "the candidates are searched again"}


def waves_to_json(search: TrialWaves) -> dict[str, Any]:
    """Return the state as values that JSON writes and reads back unchanged."""
    state: dict[str, Any] = json.loads(json.dumps(asdict(search)))
    return state


def waves_from_json(state: object) -> TrialWaves:
    """Return the state that :func:`waves_to_json` was given.

    Raises:
        RunError: The value is not such a state.
    """
    return restored(TrialWaves, state)


def new_search(paces: Sequence[Pace], rules: PaceSearchRules) -> TrialWaves:
    """Return a search that has not begun its first wave.

    Args:
        paces: The paces to try, without repetition.
        rules: The rules of the search.

    Raises:
        ConfigError: There is no pace, or one occurs twice.
    """
    if not paces or len(paces) > LONGEST or len(set(paces)) < len(paces):
        raise ConfigError(f"{len(paces)} paces to try: give 1 to {LONGEST} that all differ")
    return TrialWaves(rules, tuple(paces))


def require_time(search: TrialWaves, idle: int) -> None:
    """Refuse a first search that would not end before the run.

    Args:
        idle: Number of clients that trials may have.

    Raises:
        ConfigError: It would not.
    """
    paces, waves = list(search.paces), 0
    while paces:
        paces = paces[wave_size(paces, idle) :]
        waves += 1
    needed, rounds = waves * search.rules.trial_rounds, search.rules.rounds or math.inf
    if needed >= rounds:
        raise ConfigError(
            f"{plural(len(search.paces), 'pace')} for {plural(search.rules.trial_rounds, 'round')} each, in "
            f"{plural(waves, 'wave')} on {plural(idle, 'idle client')}, take {plural(needed, 'round')}, and the run "
            f"has {rounds:g}: give it more, or lower fewshot.trial_rounds"
        )
