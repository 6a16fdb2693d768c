"""The state of a search for a pace between two rounds, as a value and as JSON values."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fednlp.errors import ConfigError, RunError
from fednlp.fewshot.pacing import Pace
from fednlp.fewshot.search_rules import LONGEST, PaceSearchRules

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Search = TypeVar("Search")
SavedModel = Literal["base", "best"]
"""Names of saved models: the one that a search's trials start from, and the one of its best trial so far."""


@dataclass(frozen=True)
class PaceTrial:
    """The result of a trial.

    Attributes:
        aug_e: AUG-E of its rounds.
        accuracy: Accuracy after its last round, 0 to 1.
    """

    aug_e: float
    cost: float
    accuracy: float


@dataclass(frozen=True)
class PaceSearch:
    """The state of a search, from ``begin`` and ``tell`` of :mod:`fednlp.fewshot.search` and :func:`from_json`.

    Attributes:
        paces: The paces of this search; between searches the candidates, the best first.
        trials: Results of the finished trials of this search; None between searches.
        base: Iteration, accuracy and percentage reached at the point where this search's trials branch.
        age: Number of rounds with this pace in this branch.
        iteration: Iteration of the next round.
        done: Number of finished rounds, trials included.
        switches: Number of searches after the first.
        reached: Percentage of the candidates that the paces before this one had reached.
        accuracies: Accuracies in this branch or window, 0 to 1; the first is from before it.
        seconds: l_i and l_t of the rounds between these accuracies.
        known: Last known l_i and l_t; None for one that was never given.
        spent: Seconds of this search so far.
        remember: Saved model of the next round's order (:class:`fednlp.fewshot.search.RoundOrder`).
        restore: Restored model of the next round's order.
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
        RunError: The value is not such a state.
    """
    return restored(PaceSearch, state, _require_sound)


def restored(
    shape: Callable[..., Search], state: object, require: Callable[[Search], None] = lambda search: None
) -> Search:
    """Return the state of a search that was saved as JSON values.

    Args:
        shape: The dataclass of the state.
        require: Called with the state; raises a :class:`RunError` where its parts do not fit together.

    Raises:
        RunError: The values are not such a state.
    """
    from pydantic import ValidationError

    try:
        search: Search = _adapter(shape).validate_python(state)
        require(search)
        return search
    except (ValidationError, ConfigError, RunError) as error:
        first = str(error).splitlines()[0]
        raise RunError(
            f"the saved state of the pacing search cannot be read ({first}): start the run again"
        ) from None


@cache
def _adapter(shape: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


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
        RunError: The accuracy is not from 0 to 1.
    """
    if not 0 <= accuracy <= 1:
        raise RunError(f"accuracy {accuracy!r:.80}: the pacing search needs one from 0 to 1")
    return float(accuracy)


def _lists(value: Any) -> Any:
    """Return the value with lists for tuples, as JSON reads them."""
    if isinstance(value, dict):
        return {name: _lists(inner) for name, inner in value.items()}
    return [_lists(inner) for inner in value] if isinstance(value, list | tuple) else value
