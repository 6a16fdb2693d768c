"""Find a client of a run by name or number, and load its model."""

import shlex
import unicodedata
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES, WITHOUT_MODEL
from fednlp.config.values import algorithm_of
from fednlp.errors import RunError
from fednlp.federated.adapters import rule_of
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.cohort import uniform_cohort
from fednlp.federated.links import Uplink
from fednlp.federated.pulling import Pull
from fednlp.federated.store import ClientStore
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formatting.units import plural
from fednlp.partition import Partition
from fednlp.simulation.run_dir import RunDir
from fednlp.training.client_record import init_of, model_of, record_fields
from fednlp.training.replica import Replica
from fednlp.training.worker_spec import adapters_of, model_fields, personal_names

_LISTED = 20
"""Maximum number of clients that are named in a message."""


class NoClientModel(RunError):
    """One client of a run has no model of its own, while others have."""


def client_number(partition: Partition, client: str | int) -> int:
    """Return the id of a client by its name or its number; a name comes before a number.

    Raises:
        RunError: There is no such client; the message has the nearest name, and all names where they are few.
    """
    names, given = list(partition.client_names or ()), str(client)
    if given in names:
        return names.index(given)
    composed = [unicodedata.normalize("NFC", name) for name in names]  # one name may be typed in two forms
    if composed.count(unicodedata.normalize("NFC", given)) == 1:
        return composed.index(unicodedata.normalize("NFC", given))
    if given.isdecimal() and int(given) < partition.num_clients:
        return int(given)
    raise RunError(f"there is no client '{given}': {did_you_mean(given, names)}{_known(partition)}")


def client_name(partition: Partition, client: int) -> str:
    """Return a client's name, or its number where it has none."""
    return partition.client_names[client] if partition.client_names else str(client)


def _known(partition: Partition) -> str:
    last = partition.num_clients - 1
    if partition.client_names and last < _LISTED:
        return f"there are {', '.join(partition.client_names)}"
    return f"there are clients 0 to {last}"


def _algorithm_of(run: RunDir, experiment: Experiment) -> Algorithm:
    """Return an algorithm whose clients keep what those of a run kept, as far as their records go.

    No code of the user's own is needed: the run directory says what the method declared.

    Raises:
        RunError: It does not say so, because the run is of an older version and its method is not one of fednlp's.
    """
    name, exchange = experiment.algorithm.name, experiment.exchange
    uplink = Uplink(error_feedback=exchange.error_feedback, pull=Pull(**experiment.pull.model_dump()))
    if (run.folder / "algorithm.json").is_file():
        said = run.read_json("algorithm.json")
        keeps, personal = tuple(said["keeps"]), said["personal_model"]
        return Algorithm(name, uniform_cohort(1), uplink=uplink, keeps=keeps, personal_model=personal)
    if name not in (*ALGORITHMS.names(), *BASELINES):
        raise RunError(
            f"{run.folder} has no algorithm.json, which says what the clients of {name} keep: its run is of an older "
            "version; run it again"
        )
    return replace(algorithm_of(experiment), uplink=uplink)


def load_client(run: RunDir, experiment: Experiment, model: nn.Module, client: str | int | None) -> None:
    """Give a run's model the tensors of one client.

    A client's own model is the one after its fine-tuning steps, where these are kept; else the shared tensors with
    those that it kept to itself, where it has any.

    Args:
        model: The architecture that was trained, with its frozen and first personal tensors; changed in place.
        client: A name or a number; None for the shared model, which leaves ``model`` unchanged.

    Raises:
        NoClientModel: This client has no model of its own, while others may have one.
        RunError: The clients are sites; there is no such client; no client has a model of its own; no client was
            named, and no client uses the shared model; or the records are damaged or missing.
    """
    federated = experiment.algorithm.name not in BASELINES
    personal = personal_names(model, experiment.model.train, federated, experiment.model.peft)
    own_factor = federated and rule_of(experiment.model.peft).personal  # which no merged model has
    has_global = not (personal or own_factor) and experiment.pull.push == "all"
    if client is None and has_global:
        return
    if run.is_at_site:
        whose = "the one of this site with --own" if client is None else "--own in place of --client"
        raise RunError(f"{run.folder.name} is a federation that this site took part in: say {whose}")
    if experiment.data.at_sites:
        raise RunError(
            f"the clients of {run.folder} are sites, and what is their own lies there: fednlp export FEDERATION --own "
            "at the site, by the name that fednlp join takes"
        )
    partition = Partition.load(run.partition)
    if client is None:
        example = shlex.quote(client_name(partition, 0))
        raise RunError(
            f"the clients of {run.folder} have models of their own: say whose, with --client {example} "
            f"({_known(partition)})"
        )
    algorithm = _algorithm_of(run, experiment)
    if has_global and algorithm.personal_model is None:
        _require_kept(run, experiment, partition.num_clients)
    number = client_number(partition, client)
    derived = adapters_of(model, experiment.model.peft, federated).derived
    replica = Replica(model, next(model.parameters()).device, False, personal, derived)
    state = run.load_state(replica.layout)
    if state is None:
        raise RunError(f"{run.folder} holds no records of clients: its run is not begun")
    if run.client_models.is_file():
        record = _record(run.client_models, model_fields(replica), number, state.round)
        why = "has no model after its fine-tuning steps: it failed in them, or has nothing to train on"
    else:
        record = _record(
            run.records, record_fields(replica, experiment.client, algorithm), number, state.round
        )
        why = "never took part"
    if record is None:
        raise NoClientModel(f"client {client_name(partition, number)} of {run.folder} {why}: choose another")
    if run.client_models.is_file():
        replica.load_for_evaluation(record["shared"], record["personal"])
        return
    init = init_of(record, algorithm, replica.layout, state.params)
    replica.load_for_evaluation(model_of(init, algorithm, state.params), init.personal)


def _require_kept(run: RunDir, experiment: Experiment, clients: int) -> None:
    """Check that the clients' models after their fine-tuning steps are kept.

    Raises:
        RunError: There are none, or they are not kept; the message says what to do.
    """
    if run.client_models.is_file():
        return
    if not experiment.client.finetune_steps or experiment.algorithm.name in WITHOUT_MODEL:
        raise RunError(f"the clients of {run.folder} have no models of their own: leave out --client")
    most = experiment.evaluation.keep_client_models
    stopped = (
        run.read_json("summary.json").get("stopped") if (run.folder / "summary.json").is_file() else None
    )
    why = (
        f"its run stopped early: {stopped}"
        if stopped
        else f"its run is not at its end: go on with: fednlp run --resume {run.folder}"
    )
    if run.finished:
        why = "the disk was full, or the run is of an older version: run it again"
    if clients > most:
        many = plural(clients, "client")
        why = f"the run has {many}, and evaluation.keep_client_models = {most}: run again with a larger one"
    raise RunError(f"{run.folder} holds no models of clients after their fine-tuning steps ({why})")


def _record(path: Path, fields: dict[str, int], client: int, saved: int) -> dict[str, Tensor] | None:
    if not path.is_file():
        raise RunError(f"{path} is missing: copy the whole run directory, or run again")
    with closing(ClientStore(path, fields)) as store:
        return store.read(client, saved)
