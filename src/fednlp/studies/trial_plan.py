"""Which settings of each compared method are tried, for how many rounds: said before the first trial begins."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.round_schedules import WITHOUT_ROUNDS
from fednlp.config.values import server_optimizer
from fednlp.errors import ConfigError
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.server import ServerOptimizer
from fednlp.formatting.units import plural
from fednlp.seeds import generator
from fednlp.simulation.run_dir import settings_hash
from fednlp.studies.halving import Stage, stages, total_rounds

Settings = Mapping[str, Any]
"""Values by dotted keys, such as ``{"client.learning_rate": 1e-3}``."""

_SECTIONS = ("client", "server", "algorithm", "aggregator", "exchange", "pull", "model")
"""The sections whose keys can be chosen: those of the method, and none of the data or of the tests."""
_MOST_COMBINATIONS = 1000
"""Of the values of a method's settings."""
_SERVER = "FedOpt's server optimiser"
_PARTS = {
    "algorithm.mu": "FedProx's proximal term",
    "server.optimizer": _SERVER,
    "server.momentum": _SERVER,
}
"""The parts of methods that other methods can be given, by the settings that begin them."""


@dataclass(frozen=True)
class Candidate:
    """Settings of a method to try.

    Attributes:
        experiment: The trial's configuration, resolved; it has the rounds of the last stage.
    """

    changes: Settings
    experiment: Experiment
    folder: Path


@dataclass(frozen=True)
class MethodSearch:
    """What is tried of one method.

    Attributes:
        method: Name of the algorithm, the baseline or the variant.
        combinations: How many combinations of values the method has.
        lacking: The settings that the method does not have.
        candidates: The combinations that are tried, in the order in which they were drawn; none where the method has
            none of the settings.
        borrowed: The settings that the method takes but that are not its own, each with the part of another method that
            it would add.
        asked: The trials that were asked for; None for as many as the fewest combinations of a method.
    """

    method: str
    combinations: int
    lacking: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    plan: tuple[Stage, ...]
    borrowed: tuple[tuple[str, str], ...] = ()
    asked: int | None = None

    @property
    def in_full(self) -> bool:
        """Whether each trial is trained in full, since the method has no rounds."""
        return any(one.experiment.algorithm.name in WITHOUT_ROUNDS for one in self.candidates)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages after which its trials are compared: the last alone where each is trained in full."""
        return self.plan[-1:] if self.in_full else self.plan

    @property
    def parts(self) -> int:
        """How often a trial is trained up to the end of a stage."""
        if self.in_full or not self.candidates:
            return len(self.candidates)
        return sum(stage.trials for stage in self.plan)

    def describe(self) -> str:
        """Return what is tried, and for how many rounds, in a sentence."""
        lacking = f"; it has no {', '.join(self.lacking)}" if self.lacking else ""
        borrowed = "".join(f"; {key} is left out, as it would add {part}" for key, part in self.borrowed)
        if not self.candidates:
            own = " of its own" if self.borrowed else ""
            return f"{self.method}: it has none of these settings{own} and is compared as it is{borrowed}"
        trials = len(self.candidates)
        tried = f"{self.method}: {trials} of {plural(self.combinations, 'combination')}"
        if trials < self.combinations:
            tried += f" (drawn by the seed {self.candidates[0].experiment.seed})"
        elif trials < (self.asked or 0):
            tried += f" (fewer than the {self.asked} trials asked for, so every method has {trials})"
        if self.in_full:
            return f"{tried}, each trained in full, since this baseline has no rounds{lacking}"
        parts = ", then ".join(f"{stage.trials} up to round {stage.rounds}" for stage in self.plan)
        return f"{tried}: {parts}; {plural(total_rounds(self.plan), 'round')} in all{lacking}{borrowed}"


def shown(changes: Settings) -> str:
    """Return settings as a person reads them.

    >>> shown({"client.optimizer": "sgd", "algorithm.mu": 0.1})
    'client.optimizer = "sgd", algorithm.mu = 0.1'
    """
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in changes.items()) or "as configured"


def plan_searches(
    experiment: Experiment,
    methods: Sequence[str],
    grid: Mapping[str, Sequence[Any]],
    folder: Path,
    *,
    trials: int | None = None,
    rounds: int | None = None,
    least: int | None = None,
    validation_fraction: float = 0.2,
) -> list[MethodSearch]:
    """Say what is tried of each method, before anything is run.

    A method's combinations are those of the settings that it has as its own (:func:`added_part`). Every method gets the
    same number of trials, that of the fewest combinations of a method at most; where a method has more, they are drawn
    by the experiment's seed. A method without any of the settings is not searched.

    Args:
        methods: Names of algorithms, baselines or variants of the experiment.
        grid: Values to choose from, by dotted key; ``"fedprox:algorithm.mu"`` is for one method alone, which need not
            have it as its own.
        folder: Where the trials are kept.
        trials: The most trials of each method; by default as many as the fewest combinations of a method.
        rounds: The most rounds of a trial; by default those of the experiment.
        least: The fewest rounds after which trials are compared; by default as few as halving needs.
        validation_fraction: The share of each client's training examples that trials are compared on.

    Raises:
        ConfigError: A key is unknown, cannot be chosen, has one value, or is of no method; or a method has few
            labels, or one combination alone; or ``trials`` is less than 2.
    """
    if not methods or not grid:
        raise ConfigError("a search needs methods, and values to choose from for a setting at least")
    if trials is not None and trials < 2:
        raise ConfigError(
            f"{plural(trials, 'trial')} of a method cannot be compared: let --trials, or trials, be at least 2"
        )
    values = {key: _different(key, choices) for key, choices in grid.items()}
    accepted, added = _accepted(experiment, methods, values)
    options = {method: _combinations(experiment, method, accepted[method]) for method in methods}
    searched = [method for method in methods if accepted[method]]
    _require_labels(experiment, searched)
    fewest = min(len(options[method]) for method in searched)
    wanted = fewest if trials is None else min(trials, fewest)
    plan = stages(wanted, experiment.num_rounds if rounds is None else rounds, least)
    searches = []
    for method in methods:
        unused = [key for key in grid if ":" not in key and key not in accepted[method]]
        lacking = tuple(key for key in unused if key not in added[method])
        borrowed = tuple((key, added[method][key]) for key in unused if key in added[method])
        if method not in searched:
            searches.append(MethodSearch(method, 0, lacking, (), plan, borrowed, trials))
            continue
        order = generator(experiment.seed, "trials").permutation(len(options[method]))[:wanted]
        tried = sorted(int(number) for number in order)
        candidates = tuple(
            _candidate(experiment, method, options[method][number], folder, plan, validation_fraction)
            for number in tried
        )
        searches.append(
            MethodSearch(method, len(options[method]), lacking, candidates, plan, borrowed, trials)
        )
    return searches


def _require_labels(experiment: Experiment, methods: Sequence[str]) -> None:
    """Check that the labels of the training texts are known, since trials are compared on a part of them."""
    for method in methods:
        if config.with_method(experiment, method, experiment.seed).partly_labelled:
            raise ConfigError(
                f"{method} cannot be tuned: trials are compared on labelled training texts, and most "
                "of its texts have no label; leave the tuning out, and compare settings as [variants]"
            )


def _different(scoped: str, values: Sequence[Any]) -> list[Any]:
    key = scoped.rpartition(":")[2]
    if key.partition(".")[0] not in _SECTIONS or "." not in key or key == "algorithm.name":
        raise ConfigError(
            f"{key or scoped} cannot be tuned: give a setting of the method, such as client.learning_rate, "
            f"server.learning_rate or algorithm.mu (sections {', '.join(_SECTIONS)})"
        )
    found = [value for number, value in enumerate(values) if value not in values[:number]]
    if len(found) < 2:
        one = f": say --set {key}={json.dumps(found[0], default=str)}" if found else ""
        raise ConfigError(f"{key} has {plural(len(found), 'value')} to choose from; give at least two{one}")
    return found


def _accepted(
    experiment: Experiment, methods: Sequence[str], grid: Mapping[str, list[Any]]
) -> tuple[dict[str, dict[str, list[Any]]], dict[str, dict[str, str]]]:
    """Return the settings that each method has, with their values: a method has one if it takes all of its values.

    Of values for all methods it has only those of its own settings. The others are returned too, with the part of
    another method that they would add.

    Raises:
        ConfigError: No method has a setting, or values are for a method that is not compared.
    """
    found: dict[str, dict[str, list[Any]]] = {method: {} for method in methods}
    added: dict[str, dict[str, str]] = {method: {} for method in methods}
    for scoped in sorted(grid, key=lambda one: ":" in one):  # values of a single method replace those of all
        only, _, key = scoped.rpartition(":")
        if only and only not in methods:
            raise ConfigError(f"{scoped}: {only} is not compared; choose from {', '.join(methods)}")
        asked = [only] if only else methods
        tries = {
            method: [_refusal(experiment, method, {key: value}) for value in grid[scoped]] for method in asked
        }
        refused = {method: [error for error in errors if error] for method, errors in tries.items()}
        takers = [method for method in asked if not refused[method]]
        parts = {
            method: None if only else added_part(config.with_method(experiment, method, experiment.seed), key)
            for method in takers
        }
        if not takers:
            nearest = min(asked, key=lambda method: len(refused[method]))
            raise ConfigError(f"{scoped} cannot be tuned: {refused[nearest][0]}")
        if all(parts.values()):
            values = ",".join(json.dumps(value) for value in grid[scoped])
            raise ConfigError(
                f"{key} cannot be tuned: no compared method has it as its own, and it would add {parts[takers[0]]} to "
                f"{takers[0]}; to try that all the same, say --tune {takers[0]}:{key}={values} instead"
            )
        for method, part in parts.items():
            if part is None:
                found[method][key] = grid[scoped]
            else:
                added[method][key] = part
    return found, added


def added_part(experiment: Experiment, key: str) -> str | None:
    """Return which part of another method a setting would add to an experiment's method; None if it adds none.

    What the method has by default, or as it is configured, is its own.

    Args:
        experiment: One whose algorithm takes the setting.
        key: Dotted, such as ``"algorithm.mu"``.

    >>> from fednlp.config import parse
    >>> fedopt = parse({"data": {"name": "20news"}, "algorithm": {"name": "fedopt"}})
    >>> added_part(fedopt, "algorithm.mu")
    "FedProx's proximal term"
    >>> added_part(fedopt, "server.momentum")
    """
    if key not in _PARTS:
        return None
    own = _is_proximal(experiment) if key == "algorithm.mu" else _has_server_optimizer(experiment)
    return None if own else _PARTS[key]


def _is_proximal(experiment: Experiment) -> bool:
    """Whether FedProx's term is in the clients' loss, by default or as configured."""
    options = ALGORITHMS.find(experiment.algorithm.name).options()
    return bool(options.model_fields["mu"].default or experiment.algorithm.function_options.get("mu"))


def _has_server_optimizer(experiment: Experiment) -> bool:
    """Whether the server does more than a step along the mean update, by default or as configured."""
    begun = ALGORITHMS.find(experiment.algorithm.name).server or ServerOptimizer()
    return any(one.name != "sgd" or one.momentum > 0 for one in (begun, server_optimizer(experiment)))


def _refusal(experiment: Experiment, method: str, changes: Settings) -> str | None:
    """Return why a method does not take some settings; None where it does."""
    base = config.with_method(experiment, method, experiment.seed)
    base.resolved()
    if base.algorithm.name == "majority":
        return "majority trains nothing"
    try:
        config.with_settings(base, changes).resolved()
    except ConfigError as error:
        return str(error)
    return None


def _combinations(experiment: Experiment, method: str, values: Mapping[str, list[Any]]) -> list[Settings]:
    """Return the combinations of a method's values that go together."""
    count = 1
    for options in values.values():
        count *= len(options)
    if count > _MOST_COMBINATIONS:
        raise ConfigError(
            f"{method} has {count:,} combinations: give fewer values ({_MOST_COMBINATIONS:,} at most)"
        )
    every = (dict(zip(values, one, strict=True)) for one in itertools.product(*values.values()))
    return [one for one in every if _refusal(experiment, method, one) is None]


def _candidate(
    experiment: Experiment,
    method: str,
    changes: Settings,
    folder: Path,
    plan: tuple[Stage, ...],
    fraction: float,
) -> Candidate:
    base = config.with_settings(config.with_method(experiment, method, experiment.seed), changes)
    fixed = {
        "num_rounds": plan[-1].rounds,
        "evaluation.every": plan[0].rounds,
        "evaluation.validation_fraction": fraction,
        "evaluation.personal": True,
        "evaluation.federated": False,
        "evaluation.cross_client_evaluation": False,
        "report.report_to": [],
    }
    settings = config.with_settings(base, fixed).resolved()
    stem = method.replace(" ", "-").replace(":", ".")
    return Candidate(changes, settings, folder / f"{stem}-{settings_hash(settings)}")
