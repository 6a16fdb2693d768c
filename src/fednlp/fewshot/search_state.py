"""The state of a search for a pace between two rounds, as a value and as JSON values."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace
from fednlp.fewshot.search_rules import LONGEST, PaceSearchRules

SavedModel = Literal["base", "best"]
"""Remembered models: what a search's trials branch from, and where its best trial so far ended."""


@dataclass(frozen=True)
class PaceTrial:
    """How one trial ended: AUG-E, what its pace costs, and its last accuracy."""

    aug_e: float
    cost: float
    accuracy: float


@dataclass(frozen=True)
class PaceSearch:
    """The state of a search, from ``begin`` and ``tell`` of :mod:`fednlp.fewshot.search` and :func:`from_json`.

    Attributes:
        rules: Its rules.
        paces: What is tried; while no search goes on, the candidates, the best first.
        pace: The pace now.
        trials: How the trials of this search ended that are over; None while no search goes on.
        base: Where this search's trials branch from: iteration, accuracy, percentage reached by then.
        age: Rounds with this pace, of this branch.
        iteration: Of the next round.
        done: Rounds told, trials included.
        switches: Searches begun after the first.
        reached: Percentage of the candidates that the paces before had come to.
        accuracies: Of this branch or window, the first from before it.
        seconds: l_i and l_t of the rounds between these.
        known: l_i and l_t as last told; None for one that never was.
        spent: Seconds of this search so far.
        remember: As in :class:`fednlp.fewshot.search.RoundOrder`, for the next round.
        restore: As in :class:`fednlp.fewshot.search.RoundOrder`, for the next round.
    """

    rules: PaceSearchRules
    paces: tuple[Pace, ...]
    pace: Pace
    trials: tuple[PaceTrial, ...] | None
    base: tuple[int, float, float]
    age: int
    iteration: int
    done: int
    switches: int
    reached: float
    accuracies: tuple[float, ...]
    seconds: tuple[tuple[float, float], ...]
    known: tuple[float | None, float | None]
    spent: float
    remember: SavedModel | None
    restore: SavedModel | None


def to_json(search: PaceSearch) -> dict[str, Any]:
    """Return the state as values that JSON writes and reads back unchanged."""
    state = asdict(search)
    return {name: _lists(value) for name, value in state.items()}


def from_json(state: object) -> PaceSearch:
    """Return the state that :func:`to_json` was given.

    Raises:
        RunError: It is no such state.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        search = TypeAdapter(PaceSearch).validate_python(state)
        _require_sound(search)
        return search
    except (ValidationError, ConfigError, RunError) as error:
        first = str(error).splitlines()[0]
        raise RunError(
            f"the saved state of the pacing search cannot be read ({first}): start the run anew"
        ) from None


def _require_sound(search: PaceSearch) -> None:
    trials = search.trials or ()
    whole = (
        len(trials) < len(search.paces) <= LONGEST
        and search.pace == search.paces[len(trials)]
        and len(search.accuracies) == len(search.seconds) + 1
        and min(search.age, search.iteration, search.done, search.switches) >= 0
        and (search.trials is None or search.age < search.rules.trial_rounds)
    )
    if not whole:
        raise RunError("its parts do not fit together")
    for accuracy in (*search.accuracies, search.base[1], *(trial.accuracy for trial in trials)):
        checked_accuracy(accuracy)


def checked_accuracy(accuracy: float) -> float:
    """Return an accuracy, checked.

    Raises:
        RunError: It is not from 0 to 1.
    """
    if not 0 <= accuracy <= 1:
        raise RunError(f"accuracy {accuracy!r:.80}: the pacing search needs one from 0 to 1")
    return float(accuracy)


def _lists(value: Any) -> Any:
    """Return the value with lists for tuples, as JSON reads them."""
    if isinstance(value, dict):
        return {name: _lists(inner) for name, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value
