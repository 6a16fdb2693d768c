"""Choose the settings of each compared method: the same number of trials for all, and no look at the test sets.

Trials are runs on the experiment's own partition. Each client sets aside a part of its training examples, and trials
are compared on these, by successive halving. Trials are kept on disk, so that a search that was stopped goes on.
"""

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednlp import config
from fednlp.checked_json import damaged
from fednlp.config import Experiment
from fednlp.disk import atomic
from fednlp.errors import DIVERGED, RunError, TooFewClients
from fednlp.formatting.units import is_share, metric_title, metric_value, plural
from fednlp.reports.client_tensors import keeps_tensors
from fednlp.reports.groups import algorithm_title
from fednlp.reports.table import ColumnKind, Stat, Table, TableColumn, TableRow
from fednlp.runtime.jobs import JobProcess
from fednlp.runtime.worker_process import kept_workers
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.run_dir import RunDir, remedy
from fednlp.studies.halving import Stage, best
from fednlp.studies.run_or_resume import jobs_of, run_or_resume
from fednlp.studies.runs_callback import RunsCallback
from fednlp.studies.same_data import SameData
from fednlp.studies.trial_plan import Candidate, MethodSearch, Settings, plan_searches, shown

_FAILED = "failed.json"


@dataclass(frozen=True)
class SearchResult:
    """What came out of one method's search.

    Attributes:
        scores: Of each candidate, its validation scores after the stages that it took part in; None where it failed.
        chosen: The settings with the highest score in the last stage.
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
    jobs: int = 1,
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
        trials: The most trials of each method; by default as many as the fewest combinations of a method.
        rounds: The most rounds of a trial; by default those of the experiment.
        least: The fewest rounds after which trials are compared; by default as few as halving needs. With as many as
            ``rounds``, all trials are trained in full.
        validation_fraction: The share of each client's training examples that trials are compared on.
        callback: Reports progress; by default as for :func:`fednlp.run`.
        same_data: Checks the data of the trials; given to :func:`fednlp.compare` too, it checks those of its runs
            against the trials'.
        jobs: How many trials are trained at once, as for :func:`fednlp.compare`.

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
    same_data = same_data or SameData()
    candidates = [one for search in searches for one in search.candidates]
    for candidate in candidates:
        same_data.add(candidate.experiment, candidate.folder)
    parts = sum(search.parts for search in searches)
    processes = jobs_of([one.experiment for one in candidates], jobs)
    told = RunsCallback(callback, parts, 0, processes.number, "stages of trials")
    halvings = [_Halving(search, told.log) for search in searches]

    def take() -> _Trial | None:
        return next((trial for one in halvings if (trial := one.take()) is not None), None)

    def do(trial: _Trial, process: JobProcess | None) -> None:
        search, candidate = trial.of.search, trial.of.search.candidates[trial.number]
        upto = None if search.in_full else trial.stage.rounds
        name = f"{search.method} ({shown(candidate.changes)})"
        result = _result(candidate, upto, told.of(name), same_data, process)
        same_data.add(candidate.experiment, candidate.folder)
        metric = RunDir(candidate.folder).read_json("environment.json")["data"]["metric"]
        told.log(_line(search, candidate, trial.stage, result, metric))
        told.done(name)
        trial.of.put(trial, result, metric)

    with processes:
        told.log_start()
        processes.each(take, do)
    return {one.search.method: one.result() for one in halvings}


class _Paused(Exception):
    """A trial has done the rounds of its stage."""


class _TrialCallback:
    """The callback of a trial: its line follows when it is done, and it is paused after its stage.

    Args:
        until: The last round of the stage; None where that is the trial's last one.
    """

    def __init__(self, callback: Callback, until: int | None) -> None:
        self.log, self.started, self.on_progress = callback.log, callback.started, callback.on_progress
        self._until = until

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Pause the trial at the end of its stage."""
        if line["round"] == self._until:
            raise _Paused

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Show nothing."""


@dataclass(frozen=True)
class _Trial:
    """One trial, up to the end of a stage."""

    of: "_Halving"
    number: int
    stage: Stage


class _Halving:
    """One method's search: gives out the trials of a stage, and goes on to the next when all of them are done.

    Args:
        log: Called with the settings that were chosen, and the doubts about them.
    """

    def __init__(self, search: MethodSearch, log: Callable[[str], None]) -> None:
        self.search, self._log = search, log
        self._lock = threading.Lock()
        self._results: list[list[tuple[float, float] | None]] = [[] for _ in search.candidates]
        self._stages = list(search.stages)
        self._left = list(range(len(search.candidates)))
        self._metric = ""
        self._waiting: list[_Trial] = []
        self._undone = 0
        self._begin()

    def take(self) -> _Trial | None:
        """Return a trial that is to be done; None where others have to be done before, or all are."""
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def put(self, trial: _Trial, result: tuple[float, float] | None, metric: str) -> None:
        """Take the result of a trial, and where it is the last of a stage choose those that go on."""
        with self._lock:
            self._results[trial.number].append(result)
            self._metric = metric
            self._undone -= 1
            if not self._undone:
                self._halve(trial.stage)
                self._begin()

    def result(self) -> SearchResult:
        """Return what came out of the search.

        Raises:
            RunError: All trials failed.
        """
        if not self.search.candidates:
            return SearchResult(self.search, (), {}, self._metric)
        winner = self._winner()
        scores = tuple(tuple(one and one[0] for one in stages) for stages in self._results)
        return SearchResult(self.search, scores, winner.changes, self._metric)

    def _begin(self) -> None:
        """Begin the next stage; after the last one say what was chosen."""
        if self._stages and self._left:
            stage = self._stages.pop(0)
            self._waiting = [_Trial(self, number, stage) for number in self._left]
            self._undone = len(self._waiting)
        elif self._left:
            winner = self._winner()
            _remove_weights(winner.folder)
            self._log(f"{self.search.method}: chosen {shown(winner.changes)}")
            for doubt in doubts(self.result()):
                self._log(f"  {doubt}")

    def _halve(self, stage: Stage) -> None:
        """Keep the better half of the trials, or the best after the last stage."""
        last = {number: self._results[number][-1] for number in self._left}
        following = 1 if stage is self.search.plan[-1] else -(-len(self._left) // 2)
        self._left = best(last, following)
        for number in set(last) - set(self._left):
            _remove_weights(self.search.candidates[number].folder)

    def _winner(self) -> Candidate:
        """Return the best trial of the last stage.

        Raises:
            RunError: All trials failed.
        """
        winner = self.search.candidates[self._left[0]]
        if self._results[self._left[0]][-1] is None:
            failed = winner.folder / _FAILED
            why = (
                json.loads(failed.read_text())["reason"]
                if failed.is_file()
                else f"their {self._metric} is not defined"
            )
            raise RunError(f"every trial of {self.search.method} failed ({why}): give other values")
        return winner


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
    candidate: Candidate,
    rounds: int | None,
    callback: Callback,
    same_data: SameData,
    process: JobProcess | None,
) -> tuple[float, float] | None:
    """Run a trial up to a round, or to its end; return its score and training loss there, None where it failed."""
    folder = RunDir(candidate.folder)
    if (candidate.folder / _FAILED).is_file():
        return None
    if not (folder.finished if rounds is None else _lines_at(folder, rounds)):
        until = rounds if rounds is not None and rounds < candidate.experiment.num_rounds else None
        try:
            _drop_without_weights(folder)
            if not folder.state.is_file():  # else resume checks the data
                same_data.require(candidate.experiment, callback.log)
            run_or_resume(candidate.experiment, candidate.folder, _TrialCallback(callback, until), process)
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


def tuning_table(results: Mapping[str, SearchResult]) -> Table:
    """Return the validation scores of all trials, and the settings that were chosen.

    Args:
        results: Of the methods that were searched, from :func:`fednlp.tune`.
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
    drawn = any(len(found.search.candidates) < found.search.combinations for found in searched.values())
    caption = (
        f"Choice of settings: {metric_title(first.metric)} on {fraction:.0%} of each client's training examples, which "
        f"trials do not train on. Every method has {len(first.search.candidates)} trials"
        f"{', drawn by the seed where it has more combinations' if drawn else ''}."
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
