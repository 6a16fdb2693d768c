"""Choose the settings of each compared method: the same number of trials for all, and no look at the test sets.

Trials are runs on the experiment's own partition. Each client sets aside a part of its training examples, and trials
are compared on these, by successive halving. Trials are kept on disk, so that a search that was stopped goes on.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.checked_json import damaged
from fednlp.config import Experiment
from fednlp.disk import atomic
from fednlp.errors import RunError, TooFewClients
from fednlp.federated.sums import DIVERGED
from fednlp.formatting.units import is_share, metric_title, metric_value, plural
from fednlp.reports.client_tensors import keeps_tensors
from fednlp.reports.groups import algorithm_title
from fednlp.reports.table import ColumnKind, Stat, Table, TableColumn, TableRow
from fednlp.runtime.worker_process import kept_workers
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.halving import Stage, best
from fednlp.simulation.run import resume, run
from fednlp.simulation.run_dir import RunDir, remedy
from fednlp.simulation.same_data import SameData
from fednlp.simulation.trial_plan import Candidate, MethodSearch, Settings, plan_searches, shown

_FAILED = "failed.json"


@dataclass(frozen=True)
class SearchResult:
    """What came out of one method's search.

    Attributes:
        search: What was tried.
        scores: Of each candidate, its validation scores after the stages that it took part in; None where it failed.
        chosen: The settings with the highest score in the last stage.
        metric: Name of the score.
    """

    search: MethodSearch
    scores: tuple[tuple[float | None, ...], ...]
    chosen: Settings
    metric: str


@kept_workers()
def tune(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    methods: Sequence[str],
    grid: Mapping[str, Sequence[Any]],
    folder: str | Path | None = None,
    *,
    trials: int | None = None,
    rounds: int | None = None,
    least: int | None = None,
    validation_fraction: float = 0.2,
    callback: Callback | None = None,
    same_data: SameData | None = None,
) -> dict[str, SearchResult]:
    """Choose the settings of each method on a validation part of the training examples.

    Args:
        experiment: The common settings, the same as a dictionary, or the path of their TOML file.
        methods: Names of algorithms, baselines or variants of the experiment.
        grid: Values to choose from, by dotted key: ``{"client.learning_rate": [1e-4, 1e-3]}``;
            ``"fedprox:algorithm.mu"`` is for one method alone. Values for all methods are tried where the setting is
            the method's own: ``algorithm.mu`` not with FedOpt, for example.
        folder: Where the trials are kept; by default ``runs/compare-<name>/tuning``. A search that was stopped goes on
            there.
        trials: The trials of each method; by default as many as the fewest combinations of a method.
        rounds: The most rounds of a trial; by default those of the experiment.
        least: The fewest rounds after which trials are compared; by default as few as halving needs. With as many as
            ``rounds``, all trials are trained in full.
        validation_fraction: The share of each client's training examples that trials are compared on.
        callback: Reports progress; by default as for :func:`fednlp.run`.
        same_data: Checks the data of the trials; given to :func:`fednlp.compare` too, it checks those of its runs
            against the trials'.

    Returns:
        The result of each method. :func:`fednlp.compare` takes the chosen settings as ``settings``:
        ``{method: result.chosen for method, result in found.items()}``.

    Raises:
        ConfigError: As for :func:`plan_searches`.
        RunError: All trials of a method failed: they diverged, or have no score; or the data have changed since an
            earlier trial.
        FednlpError: As for :func:`fednlp.run`.
    """
    experiment = config.as_experiment(experiment)
    kept = Path("runs") / f"compare-{experiment.name}" / "tuning" if folder is None else Path(folder)
    searches = plan_searches(
        experiment,
        list(dict.fromkeys(methods)),
        grid,
        kept,
        trials=trials,
        rounds=rounds,
        least=least,
        validation_fraction=validation_fraction,
    )
    callback = callback or default_callback()
    callback.log(
        f"settings are chosen on {validation_fraction:.0%} of each client's training examples; "
        "the test sets are not used"
    )
    for search in searches:
        callback.log(search.describe())
    trial, same_data = _TrialCallback(callback), same_data or SameData()
    for candidate in (one for search in searches for one in search.candidates):
        same_data.add(candidate.experiment, candidate.folder)
    return {search.method: _searched(search, trial, same_data) for search in searches}


def tuning_table(results: Mapping[str, SearchResult]) -> Table:
    """Return the validation scores of all trials, and the settings that were chosen.

    Args:
        results: Of the methods that were searched, from :func:`tune`.
    """
    searched = {
        algorithm_title(method): found for method, found in results.items() if found.search.candidates
    }
    first = next(iter(searched.values()))
    kind: ColumnKind = "share" if is_share(first.metric) else "plain"
    columns = [
        TableColumn(f"round_{stage.rounds}", f"Round {stage.rounds}", kind) for stage in first.search.plan
    ]
    rows = [
        TableRow(f"{title}: {shown(candidate.changes)}", None, 1, _cells(columns, found, scores))
        for title, found in searched.items()
        for candidate, scores in zip(found.search.candidates, found.scores, strict=True)
    ]
    fraction = first.search.candidates[0].experiment.evaluation.validation_fraction
    caption = (
        f"Choice of settings: {metric_title(first.metric)} on {fraction:.0%} of each client's training examples, which "
        f"trials do not train on. Every method has {len(first.search.candidates)} trials."
    )
    notes = [f"Chosen for {title}: {shown(found.chosen)}." for title, found in searched.items()]
    notes += [f"{title}: {doubt}." for title, found in searched.items() for doubt in doubts(found)]
    return Table(tuple(columns), tuple(rows), caption, tuple(notes), head="Trial")


def doubts(found: SearchResult) -> list[str]:
    """Return why other values may be better than those chosen.

    Args:
        found: The result of a search. The best may lie beyond a number at an end of those tried, and equal scores tell
            nothing.
    """
    reasons = []
    for key, value in found.chosen.items():
        tried = [one.changes[key] for one in found.search.candidates]
        if not all(type(one) in (int, float) for one in tried) or min(tried) < value < max(tried):
            continue
        if min(tried) < max(tried):
            end, beyond = ("lowest", "lower") if value == min(tried) else ("highest", "higher")
            reasons.append(
                f"{key} = {json.dumps(value)} is the {end} value tried; {beyond} ones may be better"
            )
    stages_done = max(map(len, found.scores), default=0)
    last = [scores[-1] for scores in found.scores if len(scores) == stages_done]
    known = [score for score in last if score is not None]
    if known and known.count(max(known)) > 1:
        reasons.append("the best trials have the same score, and the training loss chose among them")
    return reasons


def _cells(
    columns: Sequence[TableColumn], found: SearchResult, scores: Sequence[float | None]
) -> dict[str, Stat | None]:
    """Return the cells of a trial; a baseline without rounds has one score, in the last column."""
    places = columns[-1:] if found.search.in_full else columns
    cells: dict[str, Stat | None] = {column.key: None for column in columns}
    known = zip(places, scores, strict=False)
    return cells | {column.key: None if score is None else Stat((score,)) for column, score in known}


class _Paused(Exception):
    """A trial has done the rounds of its stage."""


class _TrialCallback:
    """A callback of trials: it shows one line for each, and pauses a trial after its stage."""

    def __init__(self, callback: Callback) -> None:
        self._to = callback
        self._logged: set[str] = set()
        self.on_progress, self.started = callback.on_progress, callback.started
        self.until: int | None = None

    def log(self, text: str) -> None:
        """Log a text once: data and partition are those of all trials."""
        if text not in self._logged:
            self._logged.add(text)
            self._to.log(text)

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Pause the trial at the end of its stage."""
        if line["round"] == self.until:
            raise _Paused

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Show nothing: the trial's line follows."""


def _searched(search: MethodSearch, callback: _TrialCallback, same_data: SameData) -> SearchResult:
    """Run what is left of one method's search."""
    results: list[list[tuple[float, float] | None]] = [[] for _ in search.candidates]
    left, metric = list(range(len(search.candidates))), ""
    for stage in search.plan[-1:] if search.in_full else search.plan:
        for number in left:
            candidate = search.candidates[number]
            upto = None if search.in_full else stage.rounds
            results[number].append(_result(candidate, upto, callback, same_data))
            same_data.add(candidate.experiment, candidate.folder)
            metric = RunDir(candidate.folder).read_json("environment.json")["data"]["metric"]
            callback.log(_line(search, candidate, stage, results[number][-1], metric))
        last = {number: results[number][-1] for number in left}
        following = 1 if stage is search.plan[-1] else -(-len(left) // 2)
        left = best(last, following)
        for number in set(last) - set(left):
            _remove_weights(search.candidates[number].folder)
    if not search.candidates:
        return SearchResult(search, (), {}, metric)
    winner = search.candidates[left[0]]
    if results[left[0]][-1] is None:
        failed = winner.folder / _FAILED
        why = (
            json.loads(failed.read_text())["reason"] if failed.is_file() else f"their {metric} is not defined"
        )
        raise RunError(f"every trial of {search.method} failed ({why}): give other values")
    _remove_weights(winner.folder)
    callback.log(f"{search.method}: chosen {shown(winner.changes)}")
    scores = tuple(tuple(one and one[0] for one in stages) for stages in results)
    found = SearchResult(search, scores, winner.changes, metric)
    for doubt in doubts(found):
        callback.log(f"  {doubt}")
    return found


def _line(
    search: MethodSearch,
    candidate: Candidate,
    stage: Stage,
    result: tuple[float, float] | None,
    metric: str,
) -> str:
    what = f"validation {metric_title(metric)} {metric_value(metric, result[0])}" if result else "failed"
    after = "" if search.in_full else f" after round {stage.rounds}"
    return f"  {search.method} ({shown(candidate.changes)}): {what}{after}"


def _result(
    candidate: Candidate, rounds: int | None, callback: _TrialCallback, same_data: SameData
) -> tuple[float, float] | None:
    """Run a trial up to a round, or to its end; return its score and training loss there, None where it failed."""
    folder = RunDir(candidate.folder)
    if (candidate.folder / _FAILED).is_file():
        return None
    if not (folder.finished if rounds is None else _lines_at(folder, rounds)):
        callback.until = rounds if rounds is not None and rounds < candidate.experiment.num_rounds else None
        try:
            _drop_without_weights(folder)
            if not folder.state.is_file():  # else resume checks the data
                same_data.require(candidate.experiment, callback.log)
            if (candidate.folder / "resolved.toml").is_file():
                resume(candidate.folder, expected=candidate.experiment, callback=callback)
            else:
                run(candidate.experiment, candidate.folder, callback=callback)
        except _Paused:
            pass
        except RunError as error:
            if not isinstance(error, TooFewClients) and DIVERGED not in str(error):
                raise
            with atomic(candidate.folder / _FAILED, remedy(candidate.folder)) as file:
                file.write(json.dumps({"reason": str(error)}).encode())
            return None
    return _validation_result(folder, rounds)


def _drop_without_weights(folder: RunDir) -> None:
    """Remove a trial that an earlier search gave up, with its weights, and that this one takes further."""
    if folder.round_lines() and not folder.state.is_file():
        shutil.rmtree(folder.folder)


def _lines_at(folder: RunDir, rounds: int) -> list[dict[str, Any]]:
    return [line for line in folder.round_lines() if line["round"] == rounds]


def _validation_result(folder: RunDir, rounds: int | None) -> tuple[float, float] | None:
    """Return the score of the common model, or of the clients' own where they have some, and the training loss.

    A sum of masked updates has no training loss, and counts as 0.
    """
    environment, algorithm = folder.read_json("environment.json"), folder.read_json("algorithm.json")
    settings = folder.experiment()
    own = algorithm["personal_model"] is not None or keeps_tensors(settings.model_dump())
    lines = folder.round_lines()[-1:] if rounds is None else _lines_at(folder, rounds)
    if not lines:
        wanted = settings.num_rounds if rounds is None else rounds
        why = ValueError(f"{len(folder.round_lines())} of {plural(wanted, 'round')}")
        raise damaged(folder.folder / "rounds.jsonl", why, "remove the folder, and run the command again")
    line = lines[0]
    scores = line.get("evaluation", {})
    parts = ("personal", "global") if own or settings.algorithm.name == "local" else ("global", "personal")
    metric = environment["data"]["metric"]
    found = (scores.get(part, {}).get(metric) for part in parts)
    score = next((value for value in found if value is not None), None)
    return None if score is None else (score, line["train_loss"] or 0.0)


def _remove_weights(folder: Path) -> None:
    """Remove what only a trial that goes on needs; its rounds and scores stay."""
    for name in ("checkpoint", "model"):
        shutil.rmtree(folder / name, ignore_errors=True)
