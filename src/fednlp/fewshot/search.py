"""The search for a pace while the run goes on: Algorithm 1 of FeS (Cai et al. 2023, section 3.1).

A pure state machine. Before every round the run asks (:func:`ask`) under which pace, and whether a model must be
remembered or put back first; after it the run tells (:func:`tell`) what accuracy it came to and what things
took. The state (:mod:`fednlp.fewshot.search_state`) is saved with the run's: a resumed search goes on exactly.

    search = begin(paces, rules, accuracy)
    for every round:
        order = ask(search)
        remember, put back and forget what the order says, then run the round under its pace
        search, decision = tell(search, accuracy, inference_seconds, training_seconds, seconds)

docs/methods/pacing.md says what was chosen where the paper leaves room.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace, aug_e, candidate_percentage, cost, is_labelling_round
from fednlp.fewshot.search_rules import LONGEST, PaceSearchRules
from fednlp.fewshot.search_state import PaceSearch, PaceTrial, SavedModel, checked_accuracy


@dataclass(frozen=True)
class RoundOrder:
    """What to do before a round, and under which pace to run it.

    Attributes:
        pace: The pace.
        iteration: i of Algorithm 1, from 0. Every trial of a search begins at the same one: who draws by it
            gives all trials the same cohorts and batches.
        labelling: g, if clients label in this round, counted since the pace began; else 0.
        reached: The percentage that :func:`fednlp.fewshot.pacing.num_pseudo_labels` starts from.
        remember: First remember the model as it is now under this name.
        restore: Then put back the model remembered under this name.
        keep: Then forget every remembered model but these.
    """

    pace: Pace
    iteration: int
    labelling: int
    reached: float
    remember: SavedModel | None
    restore: SavedModel | None
    keep: tuple[SavedModel, ...]


def begin(paces: Sequence[Pace], rules: PaceSearchRules, accuracy: float) -> PaceSearch:
    """Return a search that is about to try every pace, from the model of before the first round.

    Args:
        paces: What to try, each once. Of equally good ones the cheaper wins, then the earlier.
        rules: The rules of the search.
        accuracy: Of the model before the first round, on the set on which all others are measured.

    Raises:
        ConfigError: There is no pace, one is there twice, or the run is too short to try them all.
    """
    if not paces or len(paces) > LONGEST or len(set(paces)) < len(paces):
        raise ConfigError(f"{len(paces)} paces to try: give 1 to {LONGEST} that all differ")
    needed = len(paces) * rules.trial_rounds
    if rules.rounds is not None and needed >= rules.rounds:
        raise ConfigError(
            f"{len(paces)} paces for {rules.trial_rounds} rounds each take {needed} rounds, and the run has "
            f"{rules.rounds}: give it more than {needed}, or a shorter list, such as the laptop's"
        )
    start = PaceSearch(
        rules=rules,
        paces=tuple(paces),
        pace=paces[0],
        trials=None,
        base=(0, 0.0, 0.0),
        age=0,
        iteration=0,
        done=0,
        switches=0,
        reached=0.0,
        accuracies=(checked_accuracy(accuracy),),
        seconds=(),
        known=(None, None),
        spent=0.0,
        remember=None,
        restore=None,
    )
    return _branch(start)


def ask(search: PaceSearch) -> RoundOrder:
    """Return what the next round is to be; asking changes nothing."""
    keep: tuple[SavedModel, ...] = ()
    if search.trials is not None:
        keep = ("base", "best") if search.trials else ("base",)
    return RoundOrder(
        pace=search.pace,
        iteration=search.iteration,
        labelling=_labellings(search.pace, search.age) + 1
        if is_labelling_round(search.pace, search.age, 0)
        else 0,
        reached=search.reached,
        remember=search.remember,
        restore=search.restore,
        keep=keep,
    )


def tell(
    search: PaceSearch,
    accuracy: float,
    inference_seconds: float | None,
    training_seconds: float | None,
    seconds: float = 0.0,
) -> tuple[PaceSearch, dict[str, Any]]:
    """Return the search after the round that :func:`ask` ordered, by the results of the round.

    Args:
        search: The state before the round.
        accuracy: Of the global model after it, from 0 to 1.
        inference_seconds: l_i: what one client's labelling took, on average over those that labelled; None if
            nobody did, for the last that is known.
        training_seconds: l_t: what one training batch took, on average; None as above.
        seconds: What the whole round took, to be counted as the search's if it is a trial's.

    Seconds are those of a device profile, not of a clock: a run that is done again must decide the same.

    Returns:
        The state after it; and what was decided, for the round's line: ``phase``, ``pace`` and ``iteration``,
        ``aug_e`` where it was taken, and more at the ends of a search (docs/methods/pacing.md).

    Raises:
        RunError: A number is not what it must be, or nothing was ever said of training.
    """
    known = (
        _known(inference_seconds, search.known[0]),
        _known(training_seconds, search.known[1]),
    )
    if not known[1]:
        raise RunError(
            "the pacing search needs the seconds of a training batch, above 0: give training_seconds"
        )
    trying = search.trials is not None
    line: dict[str, Any] = {"phase": "trial" if trying else "run", "pace": _json_pace(search.pace)}
    line["iteration"] = search.iteration
    went_on = replace(
        search,
        age=search.age + 1,
        iteration=search.iteration + 1,
        done=search.done + 1,
        accuracies=(*search.accuracies, checked_accuracy(accuracy)),
        seconds=(*search.seconds, (known[0] or 0.0, known[1])),
        known=known,
        spent=search.spent + (_known(seconds, None) or 0.0 if trying else 0.0),
        remember=None,
        restore=None,
    )
    after, said = _tried(went_on) if trying else _ran(went_on)
    return after, {**line, **said}


def _branch(search: PaceSearch) -> PaceSearch:
    """Begin the trials of ``search.paces``, from the model as it is."""
    base = (search.iteration, search.accuracies[-1], _reached(search))
    begun = replace(search, trials=(), base=base, spent=0.0)
    return replace(_try(begun, search.paces[0]), remember="base")


def _try(search: PaceSearch, pace: Pace) -> PaceSearch:
    """Put everything that a trial changes back to where it branches."""
    iteration, accuracy, reached = search.base
    fresh = replace(search, pace=pace, age=0, iteration=iteration, reached=reached)
    return replace(fresh, accuracies=(accuracy,), seconds=())


def _tried(search: PaceSearch) -> tuple[PaceSearch, dict[str, Any]]:
    """Go on with a trial or, where it is over, with the next; end the search after the last."""
    if search.age < search.rules.trial_rounds:
        return search, {}
    ended = PaceTrial(*_efficiency(search), search.accuracies[-1])
    trials = (*(search.trials or ()), ended)
    said: dict[str, Any] = {"aug_e": ended.aug_e}
    ranks = sorted(range(len(trials)), key=lambda i: (-trials[i].aug_e, trials[i].cost))
    newest_best = ranks[0] == len(trials) - 1
    if len(trials) < len(search.paces):
        after = _try(replace(search, trials=trials), search.paces[len(trials)])
        return replace(after, remember="best" if newest_best else None, restore="base"), said
    kept = tuple(search.paces[i] for i in ranks[: search.rules.candidates])
    after = replace(
        search,
        paces=kept,
        pace=kept[0],
        trials=None,
        accuracies=(trials[ranks[0]].accuracy,),
        seconds=(),
        restore=None if newest_best else "best",
    )
    said |= {"chosen": _json_pace(kept[0]), "candidates": [_json_pace(pace) for pace in kept]}
    cost_of_trials = {"trial_rounds": len(trials) * search.rules.trial_rounds, "trial_seconds": search.spent}
    return after, said | cost_of_trials


def _ran(search: PaceSearch) -> tuple[PaceSearch, dict[str, Any]]:
    """Take AUG-E over the window, where it is full, and search anew where it is too low."""
    rules, window = search.rules, search.rules.window
    if len(search.seconds) < window:
        return search, {}
    search = replace(search, accuracies=search.accuracies[-window - 1 :], seconds=search.seconds[-window:])
    efficiency, _ = _efficiency(search)
    said: dict[str, Any] = {"aug_e": efficiency}
    if efficiency >= rules.threshold:
        return search, said
    if search.switches >= rules.max_searches:
        return search, {**said, "low": "no switch is left"}
    needed = len(search.paces) * rules.trial_rounds
    if rules.rounds is not None and search.done + needed >= rules.rounds:
        return search, {**said, "low": "too few rounds are left"}
    after = _branch(replace(search, switches=search.switches + 1))
    return after, {**said, "low": "the candidates are searched again"}


def _efficiency(search: PaceSearch) -> tuple[float, float]:
    """Return AUG-E and the cost over the recorded rounds, for the mean gain, l_i and l_t of a round."""
    rounds = len(search.seconds)
    gained = (search.accuracies[-1] - search.accuracies[0]) / rounds
    inference = math.fsum(pair[0] for pair in search.seconds) / rounds
    training = math.fsum(pair[1] for pair in search.seconds) / rounds
    theta = search.rules.theta
    return (
        aug_e(gained, search.pace, inference, training, theta, search.rules.eta),
        cost(search.pace, inference, training, theta),
    )


def _labellings(pace: Pace, age: int) -> int:
    return -(-age // pace.f)


def _reached(search: PaceSearch) -> float:
    return candidate_percentage(search.pace, _labellings(search.pace, search.age), search.reached)


def _known(seconds: float | None, before: float | None) -> float | None:
    if seconds is None:
        return before
    if not 0 <= seconds < math.inf:
        raise RunError(f"{seconds!r:.80} seconds: the pacing search needs a finite number from 0")
    return float(seconds)


def _json_pace(pace: Pace) -> list[int | float]:
    return [pace.f, pace.n, pace.k]
