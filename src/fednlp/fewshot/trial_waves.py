"""The search for a pace with trials at once, each on clients of its own (FeS, Cai et al. 2023, section 3.1).

A pure state machine, as :mod:`fednlp.fewshot.search` is for trials one after the other. A wave is a set of paces that
are tried in the same rounds, each by a group of clients that has a model of its own. One group more, the control,
trains without labelling: what a pace gains is what it gains beyond the control. After the last round of a wave the
groups' models are averaged, and the run goes on from there, so that no round is lost.

docs/methods/pacing.md states the choices that the paper leaves open.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace, aug_e, candidate_percentage, cost, is_labelling_round, num_labellings
from fednlp.fewshot.search_rules import LONGEST, PaceSearchRules
from fednlp.fewshot.search_state import PaceTrial

Groups = tuple[tuple[int, ...], ...]
"""The clients of each group of a wave, disjoint: the control's first, then those of each pace."""


@dataclass(frozen=True)
class TrialWaves:
    """The state of a search between two rounds.

    Attributes:
        rules: Rules of the search.
        paces: The paces of this search; between searches the candidates, the best first.
        tried: Results of the trials of the waves before this one.
        groups: The clients of the present wave; empty between searches.
        started: Accuracy of each group's model before the wave, on the labels that judge it.
        searching: True while there are paces left to try.
        age: Number of rounds of the wave, or with the present pace.
        examples: Examples that each group of the wave has trained on.
        reached: Percentage of the candidates that the paces before had reached.
        switches: Number of searches after the first.
        accuracies: Accuracies of the rounds since the search, 0 to 1; the first is from before them.
    """

    rules: PaceSearchRules
    paces: tuple[Pace, ...]
    tried: tuple[PaceTrial, ...] = ()
    groups: Groups = ()
    started: tuple[float, ...] = ()
    searching: bool = True
    age: int = 0
    examples: tuple[int, ...] = ()
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


def wave_size(paces: Sequence[Pace], clients: int, able: int) -> int:
    """Return how many of the first paces are tried at once.

    Each needs n clients that label and one that trains, and so does the control.

    Args:
        paces: The paces that are left to try, one at least.
        clients: Number of all clients.
        able: Number of clients with a label.

    >>> wave_size([Pace(1, 4, 2), Pace(1, 8, 4), Pace(1, 1, 1)], clients=13, able=10)
    2
    """
    needed = np.cumsum([pace.n for pace in paces]) + 1
    return max(1, min(int((needed <= clients).sum()), able - 1))


def deal_groups(
    wave: Sequence[Pace],
    labels: NDArray[np.int64],
    candidates: NDArray[np.int64],
    rng: np.random.Generator,
) -> Groups:
    """Deal all clients to the control and to the paces of a wave: labels evenly, and n clients that can label to each.

    Args:
        wave: The paces.
        labels: int64 (clients,), labelled examples of each client.
        candidates: int64 (clients,), texts of each client that may be given a pseudo label.
        rng: The random generator.

    >>> labels, texts = np.array([3, 0, 3, 0]), np.array([9, 9, 9, 9])
    >>> groups = deal_groups([Pace(1, 2, 1)], labels, texts, np.random.default_rng(0))
    >>> [len(group) for group in groups], [int(labels[list(group)].sum()) for group in groups]
    ([2, 2], [3, 3])
    """
    needs = [1, *(pace.n for pace in wave)]
    order = rng.permutation(len(labels))
    order = order[np.argsort(-labels[order], kind="stable")]
    groups: list[list[int]] = [[] for _ in needs]
    held, able = [0] * len(needs), [0] * len(needs)
    for client in order.tolist():
        if labels[client]:
            to = min(range(len(needs)), key=lambda group: (held[group], able[group] - needs[group], group))
        else:
            to = min(range(len(needs)), key=lambda group: (able[group] - needs[group], group))
        groups[to].append(client)
        held[to] += int(labels[client])
        able[to] += bool(candidates[client])
    return tuple(tuple(sorted(group)) for group in groups)


def begin_wave(search: TrialWaves, groups: Groups, started: Sequence[float]) -> TrialWaves:
    """Return the search at the beginning of a wave.

    Args:
        search: The search, between two waves.
        groups: The control's clients, then those of each pace.
        started: Accuracy of the model, as each group is judged.
    """
    return replace(search, groups=groups, started=tuple(started), age=0, examples=(0,) * len(groups))


def went_on(search: TrialWaves, examples: Sequence[int] = ()) -> TrialWaves:
    """Return the search after a round.

    Args:
        search: The state before the round.
        examples: Examples that each group trained on; none between searches.
    """
    done = tuple(before + now for before, now in zip(search.examples, examples, strict=False))
    return replace(search, age=search.age + 1, examples=done)


def end_wave(
    search: TrialWaves, accuracies: Sequence[float], inference: float, training: float
) -> tuple[TrialWaves, dict[str, Any]]:
    """Return the search after the last round of a wave, and the decision for the round's line.

    The gain of a pace is that of its group less that of the control, a round. Of the rounds of a trial, those count as
    labelling rounds in which its clients did label. A pace that gained is ranked by AUG-E, and before one that did
    not, which is ranked by its gain: divided by its cost, a loss would be the smaller the dearer the pace.

    Args:
        search: The state after the wave's last round.
        accuracies: Accuracy of each group's model, the control's first.
        inference: l_i: seconds of one client's labelling.
        training: l_t: seconds of one training batch.
    """
    rules, rounds = search.rules, search.age
    gains = [(after - before) / rounds for after, before in zip(accuracies, search.started, strict=True)]
    found = []
    for pace, gain, accuracy in zip(search.wave, gains[1:], accuracies[1:], strict=True):
        labellings = num_labellings(pace, rounds) / rounds
        paid = replace(pace, f=1), inference * labellings, training, rules.theta
        found.append(PaceTrial(aug_e(gain - gains[0], *paid, rules.eta), cost(*paid), accuracy))
    decision: dict[str, Any] = {
        "aug_e": [trial.aug_e for trial in found],
        "gains": [round(gain, 6) for gain in gains],
    }
    tried = (*search.tried, *found)
    if len(tried) < len(search.paces):
        return replace(search, tried=tried, groups=(), started=()), decision
    ranks = sorted(range(len(tried)), key=lambda number: _rank(tried[number]))
    kept = tuple(search.paces[number] for number in ranks[: rules.candidates])
    decision |= {"chosen": list(kept[0].numbers), "candidates": [list(pace.numbers) for pace in kept]}
    chosen = replace(search, paces=kept, tried=(), groups=(), started=(), examples=(), searching=False)
    return chosen, decision


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
    decision: dict[str, Any] = {"aug_e": aug_e(gained, pace, inference, training, rules.theta, rules.eta)}
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
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(TrialWaves).validate_python(state)
    except (ValidationError, ConfigError) as error:
        first = str(error).splitlines()[0]
        raise RunError(
            f"the saved state of the pacing search cannot be read ({first}): start the run again"
        ) from None


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


def require_time(search: TrialWaves, clients: int, able: int) -> None:
    """Refuse a first search that would not end before the run.

    Args:
        search: A new search.
        clients: Number of all clients.
        able: Number of clients with a label.

    Raises:
        ConfigError: It would not.
    """
    paces, waves = list(search.paces), 0
    while paces:
        paces = paces[wave_size(paces, clients, able) :]
        waves += 1
    needed, rounds = waves * search.rules.trial_rounds, search.rules.rounds or math.inf
    if needed >= rounds:
        raise ConfigError(
            f"{len(search.paces)} paces for {search.rules.trial_rounds} rounds each, in {waves} waves on {clients} "
            f"clients of which {able} have labels, take {needed} rounds, and the run has {rounds:g}: give it more, "
            "or set fewshot.pace_grid to a shorter list"
        )
