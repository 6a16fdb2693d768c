"""Run one experiment: prepare, round after round, save, and finish with a model and a summary."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fednlp import config
from fednlp.clock import DATA, MODEL, OTHER, Clock, in_seconds, running, timed
from fednlp.config import Experiment
from fednlp.config.sections import GIVEN
from fednlp.errors import ConfigError, RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.formatting.units import plural
from fednlp.partition import Partition
from fednlp.plugins import name_of, require_typed
from fednlp.reports.trackers import require_trackers
from fednlp.runtime.engine import Engine, Measured
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.baselines import require_baseline
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.components import RunComponents, as_tested, build_components
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.engines import open_engine
from fednlp.simulation.facts import write_start
from fednlp.simulation.precision import with_precision
from fednlp.simulation.protection import check_noise
from fednlp.simulation.run_dir import (
    RunDir,
    new_run_dir,
    refuse_taken,
    resume_command,
    saving,
    start_again,
)
from fednlp.simulation.start_model import check_start, start_fingerprints, start_model
from fednlp.simulation.train import open_run, train
from fednlp.tasks import require_trusted


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    algorithm: Algorithm | Callable[..., Algorithm] | str | None = None,
    overrides: Sequence[str] = (),
    callback: Callback | None = None,
) -> RunDir:
    """Run an experiment from its start.

    Args:
        experiment: A configuration, its sections as a dictionary, or the path of its TOML file.
        out: The run directory to make; by default ``runs/<name>-<hash>``.
        algorithm: Replaces the one that the experiment names: an :class:`fednlp.Algorithm`, a function that returns
            one, or ``"module:function"``. A value exists only in this process, so that one worker trains.
        overrides: Settings ``"a.b=c"`` that replace those of a file.
        callback: Reports progress; by default a progress bar in a notebook, and nothing elsewhere.

    Returns:
        The run directory.

    Raises:
        FednlpError: The settings, the data or the model do not allow the run; the message says what to do.
    """
    if isinstance(experiment, (str, Path)):
        experiment = config.load(experiment, overrides)
    elif overrides:
        raise RunError("overrides belong to an experiment file; change the configuration itself instead")
    experiment, given = _with_algorithm(config.as_experiment(experiment), algorithm)
    experiment = with_precision(experiment.resolved(given))
    callback = callback or default_callback()
    folder = None if out is None else Path(out)
    refuse_taken(folder)
    require_trackers(experiment.report.report_to)
    with running() as clock, timed(OTHER), open_engine(experiment) as pool:
        components, partition = _shared_out(experiment, build_components(experiment, callback.log), callback)
        model, start = _start(experiment, components, callback)
        check_noise(experiment, build_algorithm(experiment, given), partition, model, callback.log)
        directory = new_run_dir(experiment, folder)
        with directory.alone():
            write_start(directory, experiment, components, partition, start, callback.log)
            opened = open_run(directory, experiment, components, partition, model, pool, callback, given)
            return _profiled(train(opened), clock, pool)


def resume(
    folder: str | Path,
    *,
    expected: Experiment | None = None,
    algorithm: Algorithm | None = None,
    task: str | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    callback: Callback | None = None,
) -> RunDir:
    """Continue a run that was stopped; it ends with the same weights as an uninterrupted run, bit for bit.

    Args:
        expected: The experiment of that run, which is checked if given. The run goes on with its ``runtime.engine``.
        algorithm: The value that the run was given in Python, if it was.
        task: The task of that run, which is checked if given.
        overrides: Settings ``"a.b=c"`` of that run, which are checked; ``runtime.engine`` may be another one. Code of
            the user's own, ``"module:attribute"``, is imported only where one of these settings, ``task`` or
            ``expected`` names it too, and never where only the run directory does.
        workers: Number of workers if it is to change; it affects only the speed.
        callback: Reports progress; by default as for :func:`run`.

    Raises:
        ConfigError: An override is none, or changes a setting.
        RunError: The folder is no run directory; the settings, the data, the model or the tokenizer differ; only the
            run directory names some code; or the checkpoint cannot be read.
    """
    directory, callback = RunDir(Path(folder)), callback or default_callback()
    experiment = _to_resume(folder, directory.experiment(), expected, algorithm, task, overrides)
    if workers is not None:
        experiment = _with_runtime(experiment, workers=workers)
    if directory.finished:
        callback.log(f"{folder} is finished already; nothing to do")
        return directory
    require_trackers(experiment.report.report_to)
    with running() as clock, timed(OTHER), directory.alone(), open_engine(experiment) as pool:
        begun = directory.state.is_file()
        # One line may have been written just before the first checkpoint.
        if not begun and len(directory.round_lines()) > 1:
            raise RunError(
                f"{directory.state} is gone, and with it the rounds done: {start_again(Path(folder))}"
            )
        partition = Partition.load(directory.partition) if begun else None
        known = directory.read_json("environment.json") if begun else None
        components = build_components(experiment, callback.log)
        if known is not None and components.data.fingerprint != known.get("data", {}).get("fingerprint"):
            raise RunError(
                f"the data of {folder} have changed since it was begun: start again with another --out"
            )
        model, start = _start(experiment, components, callback)
        if known is not None:
            check_start(directory, experiment, known, start, callback.log)
        if partition is not None:
            components = as_tested(experiment, components, partition)
        else:
            components, partition = _shared_out(experiment, components, callback)
            write_start(directory, experiment, components, partition, start, callback.log)
        opened = open_run(directory, experiment, components, partition, model, pool, callback, algorithm)
        return _profiled(train(opened), clock, pool)


def _to_resume(
    folder: str | Path,
    experiment: Experiment,
    expected: Experiment | None,
    algorithm: Algorithm | None,
    task: str | None,
    overrides: Sequence[str],
) -> Experiment:
    """Return the experiment with which a run goes on, checked against what the user gives (see :func:`resume`)."""
    if expected is not None and (changed := config.differences(experiment, expected.resolved())):
        raise RunError(
            f"{folder} is a run of other settings ({'; '.join(changed[:5])}): start again, or go on with its own by: "
            f"{resume_command(folder, experiment)}"
        )
    experiment = _with_engine_of(overrides, experiment)
    if expected is None:
        keys = {override.partition("=")[0].strip() for override in overrides}
        _require_named_by_user(folder, experiment, task, keys)
    else:  # the engine is no part of the comparison above: the user's own is taken, not that of the run directory
        experiment = _with_runtime(experiment, engine=expected.runtime.engine)
    _require_given(folder, experiment, algorithm)
    if algorithm is not None:
        experiment.resolved(algorithm)  # the value may be another than at the start: it is checked again
    return experiment


@timed(MODEL)
def _start(
    experiment: Experiment, components: RunComponents, callback: Callback
) -> tuple[nn.Module, dict[str, str]]:
    """Return the model that a run starts from, and its fingerprints."""
    model = start_model(experiment, components.source, components.task, callback.log)
    return model, start_fingerprints(experiment, model, components.tokenizer, components.task)


def _with_algorithm(
    experiment: Experiment, algorithm: Algorithm | Callable[..., Algorithm] | str | None
) -> tuple[Experiment, Algorithm | None]:
    """Return the experiment with the name of the given algorithm, and the algorithm itself if it is a value."""
    if algorithm is None:
        return experiment, None
    value = algorithm if isinstance(algorithm, Algorithm) else None
    name = GIVEN
    if value is None:
        name = algorithm if isinstance(algorithm, str) else name_of(algorithm, "algorithm")
    same = name == experiment.algorithm.name
    section = {**experiment.algorithm.model_dump(), "name": name} if same else {"name": name}
    return config.parse(
        {**experiment.model_dump(exclude_none=True), "algorithm": section}, experiment.name
    ), value


def _with_runtime(experiment: Experiment, **changes: Any) -> Experiment:
    """Return the experiment with other values in ``[runtime]``."""
    runtime = experiment.runtime.model_copy(update=changes)
    return experiment.model_copy(update={"runtime": runtime})


def _with_engine_of(overrides: Sequence[str], experiment: Experiment) -> Experiment:
    """Return the experiment with the engine that overrides name, if one does; nothing of the user's own is imported.

    Raises:
        ConfigError: An override changes another setting.
    """

    if not overrides:
        return experiment

    def same_but_engine(other: Experiment) -> bool:
        kept = _with_runtime(other, engine=experiment.runtime.engine)
        return kept.model_dump() == experiment.model_dump()

    typed = config.with_overrides(experiment, overrides)
    if not same_but_engine(typed):
        changing = [one for one in overrides if not same_but_engine(config.with_overrides(experiment, [one]))]
        raise ConfigError(
            f"a resumed run keeps its settings: leave out {', '.join(changing)}, or start again"
        )
    return _with_runtime(experiment, engine=typed.runtime.engine)


def _require_given(folder: str | Path, experiment: Experiment, algorithm: Algorithm | None) -> None:
    """Check that a resumed run gets an algorithm as a value if, and only if, it began with one.

    Raises:
        RunError: It does not.
    """
    if (experiment.algorithm.name == GIVEN) is (algorithm is not None):
        return
    if algorithm is None:
        raise RunError(
            f"{folder} was given its algorithm in Python: go on with fednlp.resume({str(folder)!r}, algorithm=...)"
        )
    raise RunError(f"{folder} is a run of {experiment.algorithm.name}: resume it without algorithm=")


def _require_named_by_user(
    folder: str | Path, experiment: Experiment, task: str | None, keys: Collection[str]
) -> None:
    """Check that the user names all code that the run directory names; ``task`` can name the task only.

    Args:
        keys: Of the settings that the user has typed, which are those of the run.

    Raises:
        RunError: Only the run directory names some code.
    """
    rest = [(key, name) for key, name in config.own_code(experiment) if key not in {*keys, "task.name"}]
    require_typed(folder, rest, f"type {resume_command(folder, experiment)}")
    named = experiment.task.configured
    if task is not None or (named is not None and "task.name" not in keys):
        require_trusted(folder, named or "inferred from its data", task)


@timed(DATA)
def _shared_out(
    experiment: Experiment, components: RunComponents, callback: Callback
) -> tuple[RunComponents, Partition]:
    """Build the partition, check that it has the clients that the run needs, and set the run's tests.

    Raises:
        ConfigError: It has fewer than ``min_clients``, or not those that the algorithm names, or the algorithm needs
            labels that the task does not have.
    """
    partition = build_partition(experiment, components.data, callback.log)
    if partition.num_clients < experiment.min_clients:
        raise ConfigError(
            f"min_clients = {experiment.min_clients}, but the partition has {plural(partition.num_clients, 'client')} "
            f"(partition.method = {experiment.partition.method}): lower min_clients"
        )
    require_baseline(experiment, partition, components.task)
    return as_tested(experiment, components, partition), partition


def _profiled(directory: RunDir, clock: Clock, pool: Engine) -> RunDir:
    """Write where the time of each worker went until the end of a run; return the run's directory.

    It begins with the worker's process, or with the run where the process has served another one before.

    Args:
        pool: The engine; where it is not :class:`fednlp.runtime.engine.Measured`, only this process is in the profile.
    """
    until = time.monotonic_ns()
    others = pool.spent(until) if isinstance(pool, Measured) else []
    workers = [in_seconds(spent) for spent in (clock.spent(until), *others)]
    with saving(directory.folder):
        directory.write_json("profile.json", {"workers": workers})
    return directory
