"""The search for a pace while the run goes on: Algorithm 1 of FeS (Cai et al. 2023, section 3.1).

A pure state machine. Before every round, :func:`ask` returns the pace, and which model to save or restore first.
After the round, :func:`tell` takes its accuracy and its times. The state (:mod:`fednlp.fewshot.search_state`) is
saved with the run's, so that a resumed search continues exactly.

    search = begin(paces, rules, accuracy)
    for every round:
        order = ask(search)
        save, restore and delete the models that the order names, then run the round with its pace
        search, decision = tell(search, accuracy, inference_seconds, training_seconds, seconds)

docs/methods/pacing.md states the choices that the paper leaves open.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace, aug_e, candidate_percentage, cost, is_labelling_round, num_labellings
from fednlp.fewshot.search_rules import LONGEST, PaceSearchRules
from fednlp.fewshot.search_state import PaceSearch, PaceTrial, SavedModel, checked_accuracy
from fednlp.formatting.units import plural


@dataclass(frozen=True)
class RoundOrder:
    """The pace of a round, and the models to save, restore and delete before it.

    Attributes:
        iteration: i of Algorithm 1, from 0. Every trial of a search begins at the same one: random draws based on it
            give all trials the same cohorts and batches.
        labelling: g, counted since the pace began, if clients label in this round; else 0.
        reached: The percentage that :func:`fednlp.fewshot.pacing.label_quota` starts from.
        remember: Name under which to save the present model first; None for no saving.
        restore: Name of the saved model to restore then; None for none.
        keep: Names of the saved models to keep; all others are deleted then.
    """

    pace: Pace
    iteration: int
    labelling: int
    reached: float
    remember: SavedModel | None
    restore: SavedModel | None
    keep: tuple[SavedModel, ...]


def begin(paces: Sequence[Pace], rules: PaceSearchRules, accuracy: float) -> PaceSearch:
    """Return a search that begins with a trial of every pace, from the model before the first round.

    Args:
        paces: The paces to evaluate, without repetition. Of equally efficient ones the cheaper wins, then the earlier.
        rules: The rules of the search.
        accuracy: Accuracy of the model before the first round, 0 to 1, on the validation set of the search.

    Raises:
        ConfigError: There is no pace, one occurs twice, or the run is too short to evaluate all of them.
    """
    if not paces or len(paces) > LONGEST or len(set(paces)) < len(paces):
        raise ConfigError(f"{len(paces)} paces to try: give 1 to {LONGEST} that all differ")
    needed = len(paces) * rules.trial_rounds
    if rules.rounds is not None and needed >= rules.rounds:
        raise ConfigError(
            f"{plural(len(paces), 'pace')} for {plural(rules.trial_rounds, 'round')} each: {needed} in all, and the "
            f"run has {rules.rounds}: give it more than {needed}, or a shorter list, such as the laptop's"
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
    """Return the order for the next round; the state does not change."""
    keep: tuple[SavedModel, ...] = ()
    if search.trials is not None:
        keep = ("base", "best") if search.trials else ("base",)
    return RoundOrder(
        pace=search.pace,
        iteration=search.iteration,
        labelling=num_labellings(search.pace, search.age) + 1
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
        accuracy: Accuracy of the global model after the round, 0 to 1.
        inference_seconds: l_i: mean seconds of one client's labelling; None, if no client labelled, for the last known
            value.
        training_seconds: l_t: mean seconds of one training batch; None for the last known value.
        seconds: Seconds of the whole round, which count for the search if it is a trial's.

    Seconds are those of a device profile, not of a clock, so that a repeated run makes the same decisions.

    Returns:
        The state after the round; and the decision for the round's line: ``phase``, ``pace`` and ``iteration``,
        ``aug_e`` where it was computed, and more at the end of a search (docs/methods/pacing.md).

    Raises:
        RunError: A number is out of range, or the time of a training batch was never given.
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
    after, decision = _tried(went_on) if trying else _ran(went_on)
    return after, {**line, **decision}


def _branch(search: PaceSearch) -> PaceSearch:
    """Begin the trials of ``search.paces``, from the present model."""
    base = (search.iteration, search.accuracies[-1], _reached(search))
    begun = replace(search, trials=(), base=base, spent=0.0)
    return replace(_try(begun, search.paces[0]), remember="base")


def _try(search: PaceSearch, pace: Pace) -> PaceSearch:
    """Reset everything that a trial changes to the values at the branching point."""
    iteration, accuracy, reached = search.base
    fresh = replace(search, pace=pace, age=0, iteration=iteration, reached=reached)
    return replace(fresh, accuracies=(accuracy,), seconds=())


def _tried(search: PaceSearch) -> tuple[PaceSearch, dict[str, Any]]:
    """Continue a trial, or begin the next one where it has ended; end the search after the last."""
    if search.age < search.rules.trial_rounds:
        return search, {}
    gained, efficiency, price = _efficiency(search)
    ended = PaceTrial(efficiency, price, search.accuracies[-1])
    trials = (*(search.trials or ()), ended)
    decision: dict[str, Any] = {"aug_e": ended.aug_e, "gains": [gained]}
    ranks = sorted(range(len(trials)), key=lambda i: (-trials[i].aug_e, trials[i].cost))
    newest_best = ranks[0] == len(trials) - 1
    if len(trials) < len(search.paces):
        after = _try(replace(search, trials=trials), search.paces[len(trials)])
        return replace(after, remember="best" if newest_best else None, restore="base"), decision
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
    decision |= {"chosen": _json_pace(kept[0]), "candidates": [_json_pace(pace) for pace in kept]}
    cost_of_trials = {"trial_rounds": len(trials) * search.rules.trial_rounds, "trial_seconds": search.spent}
    return after, decision | cost_of_trials


def _ran(search: PaceSearch) -> tuple[PaceSearch, dict[str, Any]]:
    """Compute AUG-E over a full window, and search again where it is below the threshold."""
    rules, window = search.rules, search.rules.window
    if len(search.seconds) < window:
        return search, {}
    search = replace(search, accuracies=search.accuracies[-window - 1 :], seconds=search.seconds[-window:])
    gained, efficiency, _ = _efficiency(search)
    decision: dict[str, Any] = {"aug_e": efficiency, "gains": [gained]}
    if efficiency >= rules.threshold:
        return search, decision
    if search.switches >= rules.max_searches:
        return search, {**decision, "low": "no switch is left"}
    needed = len(search.paces) * rules.trial_rounds
    if rules.rounds is not None and search.done + needed >= rules.rounds:
        return search, {**decision, "low": "too few rounds are left"}
    after = _branch(replace(search, switches=search.switches + 1))
    return after, {**decision, "low": "the candidates are searched again"}


def _efficiency(search: PaceSearch) -> tuple[float, float, float]:
    """Return the mean gain, AUG-E and the cost of the recorded rounds, from the mean l_i and l_t of a round."""
    rounds = len(search.seconds)
    gained = (search.accuracies[-1] - search.accuracies[0]) / rounds
    inference = math.fsum(pair[0] for pair in search.seconds) / rounds
    training = math.fsum(pair[1] for pair in search.seconds) / rounds
    rules, spent = search.rules, (search.pace, inference, training, search.rules.theta)
    efficiency = aug_e(gained, *spent, rules.eta, rules.round_seconds)
    return gained, efficiency, cost(*spent, rules.round_seconds)


def _reached(search: PaceSearch) -> float:
    return candidate_percentage(search.pace, num_labellings(search.pace, search.age), search.reached)


def _known(seconds: float | None, before: float | None) -> float | None:
    if seconds is None:
        return before
    if not 0 <= seconds < math.inf:
        raise RunError(f"{seconds!r:.80} seconds: the pacing search needs a finite number from 0")
    return float(seconds)


def _json_pace(pace: Pace) -> list[int | float]:
    return list(pace.numbers)
