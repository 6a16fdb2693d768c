"""The rounds of a run: one after the other, each saved, then what comes once at the end."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fednlp.clock import DISK, OTHER, SUMS, timed
from fednlp.clock import MODEL as BUILDING
from fednlp.config import Experiment
from fednlp.config.sections import WITHOUT_MODEL
from fednlp.config.sections.methods import WEIGHED_BY_TOKENS
from fednlp.data.features import Features
from fednlp.disk import folder_made_whole
from fednlp.errors import ConfigError, TooFewClients
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.pages import set_aside
from fednlp.federated.runtime import MODEL
from fednlp.federated.state import State
from fednlp.models.pretrained import save_model
from fednlp.partition import Partition
from fednlp.privacy.dp import DPMechanism
from fednlp.reports.checks import find_checks
from fednlp.reports.read import read_file
from fednlp.reports.trackers import Outcome, open_trackers, round_numbers
from fednlp.runtime.engine import Engine
from fednlp.simulation.callback import Callback
from fednlp.simulation.components import RunComponents
from fednlp.simulation.configured_algorithm import attacked, attackers_of, build_algorithm
from fednlp.simulation.context import RunContext, Training
from fednlp.simulation.evaluate import evaluate_final, is_due, write_clients
from fednlp.simulation.facts import example_counts
from fednlp.simulation.federated_evaluation import check_federated_evaluation
from fednlp.simulation.loops import training_of
from fednlp.simulation.protection import protect
from fednlp.simulation.run_dir import RunDir, remedy, require_space, saving
from fednlp.simulation.summary import summary_of
from fednlp.simulation.workers import with_references, worker_spec
from fednlp.tasks import generation_of
from fednlp.tasks.base import Task
from fednlp.tasks.label_scores import defined_together
from fednlp.training.model_layout import flat_weights
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import adapters_of, personal_names

if TYPE_CHECKING:
    from fednlp.secure.session import SessionFactory


@dataclass(frozen=True)
class OpenRun:
    """A run that is ready for its next round."""

    directory: RunDir
    context: RunContext
    training: Training
    components: RunComponents
    callback: Callback
    mechanism: DPMechanism | None = None


@timed(BUILDING)
def open_run(
    directory: RunDir,
    experiment: Experiment,
    components: RunComponents,
    partition: Partition,
    model: nn.Module,
    pool: Engine,
    callback: Callback,
    algorithm: Algorithm | None,
    sessions: "SessionFactory | None" = None,
    sum_sessions: "SessionFactory | None" = None,
    open_labels: Callable[[RunContext], Any] | None = None,
) -> OpenRun:
    """Build what the rounds need, from the last checkpoint where there is one.

    Args:
        experiment: Resolved.
        components: Data, task and features of the run.
        partition: The examples of each client.
        model: That the run starts from; trained in place.
        pool: Where the clients are.
        algorithm: A method as a value, which replaces the one that the experiment names.
        sessions: Opens the sessions of secure aggregation; None for sessions in this process.
        sum_sessions: The same for secure sums over the clients' tests.
        open_labels: Opens the labels that change with the rounds, where not this process holds them.
    """
    for line in check_federated_evaluation(experiment, components.task, partition.test_offsets):
        callback.log(line)
    method = attacked(build_algorithm(experiment, algorithm), experiment, partition.num_clients)
    with saving(directory.folder):
        np.save(directory.test_numbers, components.data.test_numbers)
        kept = {"keeps": list(method.keeps), "personal_model": method.personal_model}
        directory.write_json("algorithm.json", {"name": method.name, **kept})
    components = with_references(experiment, components, model, callback.log)
    spec = worker_spec(experiment, components, directory.partition, directory.test_numbers, directory.records)
    personal = personal_names(model, spec.train, spec.federated, spec.peft)
    adapters = adapters_of(model, spec.peft, spec.federated)
    weights = flat_weights(model, personal, adapters.derived)
    tokens = _tokens_of_clients(experiment, components.task, components.train, partition)
    protected = protect(method, experiment, partition, weights.numel(), sessions, tokens)
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
        experiment,
        partition,
        pool,
        worker,
        state,
        callback.on_progress,
        callback.log,
        texts,
        sum_sessions=sum_sessions,
        tokens=tokens,
    )
    if experiment.attack is not None:
        context.facts["attackers"] = attackers_of(experiment, partition.num_clients)
    training = training_of(context, protected, open_labels)
    return OpenRun(directory, context, training, components, callback, protected.mechanism)


def _tokens_of_clients(
    experiment: Experiment, task: Task, features: Features, partition: Partition
) -> NDArray[np.int64] | None:
    """Return how many tokens each client learns in an epoch; None where weights are not functions of these.

    Raises:
        ConfigError: They are to be, and the task does not say which tokens it learns.
    """
    if experiment.algorithm.weighting != "tokens":
        return None
    if not defined_together(task, "trained_tokens", "encode"):
        raise ConfigError(WEIGHED_BY_TOKENS.format(task.name))
    owners = np.repeat(np.arange(partition.num_clients), np.diff(partition.train_offsets))
    found = np.zeros(partition.num_clients, dtype=np.int64)
    tokens = task.trained_tokens(features, partition.train_indices)  # type: ignore[attr-defined]
    np.add.at(found, owners, tokens)
    return found


def train(run: OpenRun, before_round: Callable[[int], None] = lambda number: None) -> RunDir:
    """Do the rounds that are left, saving each, then what comes once after the last; write model and summary.

    Args:
        before_round: Called with the number of each round that is about to begin; an error that it raises ends the
            rounds before this one.
    """
    directory, context, training, callback = run.directory, run.context, run.training, run.callback
    context.lines = directory.keep_rounds(context.state.round)
    callback.started(directory, context.experiment, training.rounds, context.state.round)
    with _trackers(directory, context.experiment) as trackers, _finished_early(run):
        begun, first = time.monotonic(), context.state.round
        while context.state.round < training.rounds:
            start = time.monotonic()
            before_round(context.state.round + 1)
            do_round = training.prepare()
            with timed(SUMS):
                done = do_round()
            line = training.line(done)
            line["seconds"] = round(time.monotonic() - start, 4)
            _save(directory, context, line)
            for tracker in trackers:
                tracker.log(line["round"], round_numbers(line))
            taken = (time.monotonic() - begun) / (context.state.round - first)
            left = taken * (training.rounds - context.state.round)
            callback.on_round(line, left)
        if is_due(context):
            numbers = round_numbers(_after_the_last(directory, context))
            for tracker in trackers:
                tracker.log(context.state.round, numbers)
    _finish(directory, context, run.components, callback)
    return directory


@contextmanager
def _finished_early(run: OpenRun) -> Iterator[None]:
    """Write model and summary of the rounds done where too few clients come through."""
    try:
        yield
    except TooFewClients as error:
        if run.context.lines:
            _finish(run.directory, run.context, run.components, run.callback, stopped=str(error))
        raise


@timed(DISK)
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
    outcome: Outcome = "failed"
    try:
        yield trackers
        outcome = "finished"
    except (KeyboardInterrupt, SystemExit):
        outcome = "interrupted"
        raise
    finally:
        for tracker in trackers:
            tracker.close(outcome)


@timed(BUILDING)
def _finish(
    directory: RunDir,
    context: RunContext,
    components: RunComponents,
    callback: Callback,
    stopped: str | None = None,
) -> None:
    """Write the model with its card, then the summary, which says that the run is at its end.

    Clients alone end in as many models as there are clients, or train none, so there is none to write.
    """
    known = directory.read_json("environment.json")
    data = known["data"]
    if context.experiment.data.at_sites:  # sites may have joined since
        data = {k: v for k, v in data.items() if k != "not_told"}
        data |= example_counts(components.data, context.partition)
    summary = summary_of(context, data, stopped)
    by_label = read_file(directory.folder / "by_label.json")
    checks = find_checks(context.experiment.model_dump(exclude_none=True), context.lines, summary, by_label)
    summary["checks"] = [asdict(check) for check in checks]
    with saving(directory.folder):
        if context.lines and "cross_client_evaluation" in context.lines[-1]:
            directory.write_json("cross_client_evaluation.json", context.lines[-1]["cross_client_evaluation"])
        if context.experiment.algorithm.name not in WITHOUT_MODEL:
            write_model(
                context.worker,
                context.state.params,
                context.experiment,
                components,
                summary,
                known,
                directory.model,
                remedy(directory.folder),
            )
        directory.write_json("summary.json", summary)
    with timed(OTHER):
        callback.finished(directory, summary)


def write_model(
    worker: ClientWorker,
    params: Tensor,
    experiment: Experiment,
    components: RunComponents,
    summary: Mapping[str, Any],
    environment: Mapping[str, Any],
    folder: Path,
    remedy: str,
) -> None:
    """Write the final model with its tokenizer and card, as a folder that ``from_pretrained`` reads.

    Args:
        worker: Holds the model; its weights are replaced.
        params: The final model, flat, in the worker's layout.
        summary: The run's ``summary.json``.
        environment: Its ``environment.json``.
        folder: Where to.
        remedy: Advice for the end of a message that the disk is full.
    """
    from fednlp.reports.modelcard import model_card

    worker.replica.load_for_evaluation(params)
    set_aside(params)
    card = model_card(summary, experiment.model_dump(exclude_none=True), environment)
    model = worker.replica.model
    generation = generation_of(worker.task, model)
    with folder_made_whole(folder, remedy) as made:
        base = experiment.model.name_or_path
        save_model(model, components.tokenizer, made, card, components.longest, generation, base)
