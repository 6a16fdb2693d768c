"""Run one experiment: prepare, round after round, save, and finish with a model and a summary."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.sections import GIVEN
from fednlp.data.schema import SCHEMAS
from fednlp.errors import ConfigError, RunError, TooFewClients
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.runtime import MODEL
from fednlp.federated.state import State
from fednlp.models.pretrained import save_model
from fednlp.partition import Partition
from fednlp.plugins import load, name_of, require_typed
from fednlp.reports.trackers import open_trackers, require_trackers, round_numbers
from fednlp.runtime import ENGINES
from fednlp.runtime.engine import Engine
from fednlp.simulation.build import (
    RunComponents,
    attacked,
    attackers_of,
    build_algorithm,
    build_components,
    build_partition,
    worker_spec,
)
from fednlp.simulation.callback import Callback, default_callback
from fednlp.simulation.context import RunContext, Training
from fednlp.simulation.data_profile import profile_run_data
from fednlp.simulation.evaluate import write_clients
from fednlp.simulation.final import evaluate_final, is_due
from fednlp.simulation.loops import training_of
from fednlp.simulation.protection import protect
from fednlp.simulation.run_dir import (
    RunDir,
    create,
    environment,
    refuse_taken,
    require_space,
    saving,
    start_again,
)
from fednlp.simulation.start_model import check_start, start_fingerprints, start_model
from fednlp.simulation.summary import summary_of
from fednlp.tasks import require_trusted
from fednlp.training.replica import flat_weights
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import exact_adapters, personal_names, pick_device


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
    experiment = experiment.resolved(given)
    callback = callback or default_callback()
    folder = None if out is None else Path(out)
    refuse_taken(folder)
    require_trackers(experiment.report.report_to)
    with _engine(experiment) as pool:
        components = build_components(experiment, callback.log)
        partition = _shared_out(experiment, components, callback)
        model = start_model(experiment, components.source, components.task)
        start = start_fingerprints(experiment, model, components.tokenizer)
        directory = create(experiment, folder)
        with directory.alone():
            _write_start(directory, experiment, components, partition, callback, start)
            return _train(_open(directory, experiment, components, partition, model, pool, callback, given))


def resume(
    folder: str | Path,
    *,
    expected: Experiment | None = None,
    algorithm: Algorithm | None = None,
    task: str | None = None,
    workers: int | None = None,
    callback: Callback | None = None,
) -> RunDir:
    """Continue a run that was stopped; it ends with the same weights as an uninterrupted run, bit for bit.

    Args:
        folder: The run directory.
        expected: The experiment of that run, which is checked if given.
        algorithm: The value that the run was given in Python, if it was.
        task: The task of that run, which is checked if given. ``task`` or ``expected`` is needed where the task is a
            user's own class, ``"module:Class"``; ``expected`` is needed where the run names an algorithm, a partition
            method or a transform in this form. Code that only a run directory names is never imported.
        workers: Number of workers if it is to change; it affects only the speed.
        callback: Reports progress; by default as for :func:`run`.

    Raises:
        RunError: The folder is no run directory; the settings, the data, the model or the tokenizer differ; only the
            run directory names some code; or the checkpoint cannot be read.
    """
    directory, callback = RunDir(Path(folder)), callback or default_callback()
    experiment = directory.experiment()
    if expected is not None and (changed := config.differences(experiment, expected.resolved())):
        raise RunError(
            f"{folder} is a run of other settings ({'; '.join(changed[:5])}): resume it without them, or start anew"
        )
    if expected is None:
        _require_named_by_user(folder, experiment, task)
    _require_given(folder, experiment, algorithm)
    if algorithm is not None:
        experiment.resolved(algorithm)  # the value may be another than at the start: it is checked again
    if workers is not None:
        runtime = experiment.runtime.model_copy(update={"workers": workers})
        experiment = experiment.model_copy(update={"runtime": runtime})
    if directory.finished:
        callback.log(f"{folder} is finished already; nothing to do")
        return directory
    require_trackers(experiment.report.report_to)
    with directory.alone(), _engine(experiment) as pool:
        begun = directory.state.is_file()
        if (
            not begun and len(directory.round_lines()) > 1
        ):  # one may have been written just before the first checkpoint
            raise RunError(
                f"{directory.state} is gone, and with it the rounds done: {start_again(Path(folder))}"
            )
        partition = Partition.load(directory.partition) if begun else None
        known = directory.read_json("environment.json") if begun else None
        components = build_components(experiment, callback.log)
        if known is not None and components.data.fingerprint != known.get("data", {}).get("fingerprint"):
            raise RunError(
                f"the data of {folder} have changed since it was begun: start anew with another --out"
            )
        model = start_model(experiment, components.source, components.task)
        start = start_fingerprints(experiment, model, components.tokenizer)
        if known is not None:
            check_start(directory, experiment, known, start, callback.log)
        if partition is None:
            partition = _shared_out(experiment, components, callback)
            _write_start(directory, experiment, components, partition, callback, start)
        return _train(_open(directory, experiment, components, partition, model, pool, callback, algorithm))


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


def _require_named_by_user(folder: str | Path, experiment: Experiment, task: str | None) -> None:
    """Check that the user names all code that the run directory names; ``task`` can name the task only.

    Raises:
        RunError: Only the run directory names some code.
    """
    named = experiment.task.configured
    if (named or task) is not None:
        require_trusted(folder, named or "inferred from its data", task)
    rest = [(key, name) for key, name in config.own_code(experiment) if key != "task.name"]
    require_typed(folder, rest, f"give its experiment too: fednlp run EXPERIMENT.toml --resume {folder}")


def _shared_out(experiment: Experiment, components: RunComponents, callback: Callback) -> Partition:
    """Build the partition, and check that it has as many clients as a round needs.

    Raises:
        ConfigError: It has fewer than ``min_clients``.
    """
    partition = build_partition(experiment, components.data, callback.log)
    if partition.num_clients < experiment.min_clients:
        raise ConfigError(
            f"min_clients = {experiment.min_clients}, but there are only {partition.num_clients} clients "
            f"(partition.method = {experiment.partition.method}): lower min_clients"
        )
    return partition


def _engine(experiment: Experiment) -> Engine:
    """Start the workers, which import most dependencies of all models beforehand."""
    name = experiment.runtime.engine
    build = load(ENGINES.get(name, name), "runtime.engine")
    preload = ("transformers.modeling_layers", "transformers.activations")
    made: Engine = build(
        _workers(experiment), "fednlp.simulation.build:open_worker", experiment.runtime.threads, preload
    )
    return made


def _workers(experiment: Experiment) -> int:
    """Return the number of workers: as configured, or one a GPU, or one a core up to the clients of a round.

    Raises:
        ConfigError: Several are configured, and some code exists only in this process.
    """
    configured = experiment.runtime.workers
    own = [name for _, name in config.own_code(experiment)]
    if experiment.algorithm.name == GIVEN or any(name.startswith("__main__:") for name in own):
        if configured > 1:
            raise ConfigError(
                f"runtime.workers = {configured}: what a notebook or a script defines lies in its own process "
                'alone: write it into a file and name it "module:function", or say runtime.workers = 1'
            )
        return 1
    if pick_device(experiment.runtime.device).type != "cpu":
        return configured or 1
    if experiment.algorithm.name == "centralised" and experiment.evaluation.every >= experiment.num_rounds:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return configured or max(1, min(cores // experiment.runtime.threads, experiment.clients_per_round))


@dataclass(frozen=True)
class _OpenRun:
    """A run that is ready for its next round."""

    directory: RunDir
    context: RunContext
    training: Training
    components: RunComponents
    callback: Callback


def _open(
    directory: RunDir,
    experiment: Experiment,
    components: RunComponents,
    partition: Partition,
    model: nn.Module,
    pool: Engine,
    callback: Callback,
    algorithm: Algorithm | None,
) -> _OpenRun:
    """Build what the rounds need, from the last checkpoint where there is one."""
    method = attacked(build_algorithm(experiment, algorithm), experiment, partition.num_clients)
    with saving(directory.folder):
        np.save(directory.test_numbers, components.data.test_numbers)
        kept = {"keeps": list(method.keeps), "personal_model": method.personal_model}
        directory.write_json("algorithm.json", {"name": method.name, **kept})
    spec = worker_spec(experiment, components, directory.partition, directory.test_numbers, directory.records)
    personal = personal_names(model, spec.train, spec.federated)
    adapters = exact_adapters(model, spec.peft, spec.federated)
    weights = flat_weights(model, personal, [pair.base for pair in adapters])
    protected = protect(method, experiment, partition, weights.numel())
    worker = ClientWorker(spec, model, protected.algorithm)
    pool.start(worker, {"spec": asdict(spec), "experiment": experiment.model_dump(exclude_none=True)})
    state = directory.load_state(worker.layout)
    if state is None:
        state = State(0, worker.layout, weights)
        require_space(directory.folder, 3 * weights.numel() * 4)
    if protected.algorithm.downlink.plain:  # the server's model is what clients get: it lies in shared memory
        pool.publish(MODEL, state.params)
        state.params = pool.vectors[MODEL]
    texts = partial(components.data.input_texts, "train")
    context = RunContext(
        experiment, partition, pool, worker, state, callback.on_progress, callback.log, texts
    )
    if experiment.attack is not None:
        context.facts["attackers"] = attackers_of(experiment, partition.num_clients)
    return _OpenRun(directory, context, training_of(context, protected), components, callback)


def _train(run: _OpenRun) -> RunDir:
    """Do the rounds that are left, saving each, then what comes once after the last; write model and summary."""
    directory, context, training, callback = run.directory, run.context, run.training, run.callback
    context.lines = directory.keep_rounds(context.state.round)
    callback.started(directory, context.experiment, training.rounds, context.state.round)
    with _trackers(directory, context.experiment) as trackers, _finished_early(run):
        begun, first = time.monotonic(), context.state.round
        while context.state.round < training.rounds:
            start = time.monotonic()
            do_round = training.prepare()
            line = training.line(do_round())
            line["seconds"] = round(time.monotonic() - start, 4)
            _save(directory, context, line)
            for tracker in trackers:
                tracker.log(line["round"], round_numbers(line))
            done = context.state.round - first
            left = (time.monotonic() - begun) / done * (training.rounds - context.state.round)
            callback.on_round(line, left)
        if is_due(context):
            numbers = round_numbers(_after_the_last(directory, context))
            for tracker in trackers:
                tracker.log(context.state.round, numbers)
    _finish(directory, context, run.components, callback)
    return directory


@contextmanager
def _finished_early(run: _OpenRun) -> Iterator[None]:
    """Write model and summary of the rounds done where too few clients come through."""
    try:
        yield
    except TooFewClients as error:
        if run.context.lines:
            _finish(run.directory, run.context, run.components, run.callback, stopped=str(error))
        raise


def _save(directory: RunDir, context: RunContext, line: dict[str, Any]) -> None:
    """Save a round."""
    context.lines.append(line)
    with saving(directory.folder):
        directory.append_round(line)
        if "personal" in line.get("evaluation", {}):
            write_clients(directory.folder / "clients.csv", context)
        if context.by_label is not None:
            directory.write_json("by_label.json", asdict(context.by_label))
        context.worker.trainer.sync()
        directory.save_state(context.state)


def _after_the_last(directory: RunDir, context: RunContext) -> dict[str, Any]:
    """Do what comes once after the last round, and add it to that round's line; return this line."""
    start, line = time.monotonic(), context.lines[-1]
    with saving(directory.folder):
        found = evaluate_final(context, directory)
        if "finetuned" in found:
            line["evaluation"]["finetuned"] = found.pop("finetuned")
        line |= found
        line["seconds"] = round(line["seconds"] + time.monotonic() - start, 4)
        directory.write_rounds(context.lines)
    return line


@contextmanager
def _trackers(directory: RunDir, experiment: Experiment) -> Iterator[list[Any]]:
    if not experiment.report.report_to:
        yield []
        return
    settings = experiment.model_dump(exclude_none=True)
    trackers = open_trackers(list(experiment.report.report_to), directory.folder, settings)
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()


def _write_start(
    directory: RunDir,
    experiment: Experiment,
    components: RunComponents,
    partition: Partition,
    callback: Callback,
    start: dict[str, str],
) -> None:
    """Log how the data were read; write what a run begins with, and what reports show of data and partition."""
    look = profile_run_data(experiment, components, partition)
    for line in look.lines():
        callback.log(line)
    with saving(directory.folder):
        (directory.folder / "checkpoint").mkdir(exist_ok=True)
        partition.save(directory.partition)
        directory.write_json("data.json", look.values(texts=False))
        _write_facts(directory, components, partition, start)


def _write_facts(
    directory: RunDir, components: RunComponents, partition: Partition, start: dict[str, str]
) -> None:
    data = components.data
    facts = {
        "name": data.name,
        "source": data.source,
        "fingerprint": data.fingerprint,
        "train": len(data.train_numbers),
        "test": len(data.test_numbers),
        "labels": len(data.label_names) or None,
        "task": components.task.name,
        "metric": components.task.metric,
    }
    directory.write_json("environment.json", {**environment(facts), "start": start})
    directory.write_json("task.json", {"task": components.task_spec, "fields": asdict(components.task)})  # type: ignore[call-overload]
    clients, labels = partition.num_clients, len(data.label_names)
    if SCHEMAS[data.task].kind != "class" or clients * labels > 200_000:
        return
    counts = {}
    for split in ("train", "test"):
        indices, offsets = getattr(partition, f"{split}_indices"), getattr(partition, f"{split}_offsets")
        owner = np.repeat(np.arange(clients), np.diff(offsets))
        known = data.labels(split)[indices]
        table = np.zeros((clients, labels), dtype=np.int64)
        np.add.at(table, (owner[known >= 0], known[known >= 0]), 1)
        counts[split] = table.tolist()
    directory.write_json("labels.json", {"labels": list(data.label_names), **counts})


def _finish(
    directory: RunDir,
    context: RunContext,
    components: RunComponents,
    callback: Callback,
    stopped: str | None = None,
) -> None:
    """Write the model with its card, then the summary, which says that the run is at its end.

    Clients alone end in as many models as there are clients, so there is none to write.
    """
    from fednlp.reports.modelcard import model_card

    known = directory.read_json("environment.json")
    summary = summary_of(context, known["data"], stopped)
    with saving(directory.folder):
        if context.lines and "cross_client_evaluation" in context.lines[-1]:
            directory.write_json("cross_client_evaluation.json", context.lines[-1]["cross_client_evaluation"])
        if context.experiment.algorithm.name != "local":
            context.worker.replica.load_for_evaluation(context.state.params)
            card = model_card(summary, context.experiment.model_dump(exclude_none=True), known)
            save_model(
                context.worker.replica.model, components.tokenizer, directory.model, card, components.longest
            )
        directory.write_json("summary.json", summary)
    callback.finished(directory, summary)
