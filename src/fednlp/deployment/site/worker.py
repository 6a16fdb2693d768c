"""Opens what a site works with: the worker that has this site's examples alone, and the labels that it keeps.

What a method keeps between rounds may be lost, and the run goes on: the site begins without it, or cannot.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fednlp.config import Experiment
from fednlp.deployment.session.setup import Again, Ready, Setup, experiment_of
from fednlp.deployment.site.data import open_site_data
from fednlp.deployment.site.policy import SitePolicy
from fednlp.errors import RunError
from fednlp.federated.communication import bytes_down, derived_entries, entry_shapes
from fednlp.federated.message import message_bytes
from fednlp.partition import OneClient
from fednlp.simulation.components import Log, RunComponents, build_components
from fednlp.simulation.start_model import start_model
from fednlp.simulation.workers import client_algorithm, with_references, worker_spec
from fednlp.tasks import agreed_fields
from fednlp.training.worker import ClientWorker

if TYPE_CHECKING:
    from fednlp.fewshot.deployment.site import SiteLabels

START, ENCODER = "start", "encoder"
"""Folders of the models that come with the setup: the starting model, and the one that filters texts."""
LABELS = "labels"
_SEALED = 1 << 20
"""Bytes that a sealed piece may have beyond those of a model: sums over tests are short."""
RECORD = "record.bin"
"""File of what the method keeps between rounds."""
FINETUNED = "finetuned.bin"
"""File of the site's model after its fine-tuning steps."""
STATE_IS_LOST = "what this site keeps between rounds is lost: it begins without it, as in its first round"


@dataclass(frozen=True)
class SiteWork:
    """What a site works with.

    Attributes:
        experiment: That the site has agreed to, as the server sent it.
        components: What it was opened from.
        own: This site's examples.
        labels: What the site keeps of labels; None where all its examples have theirs.
    """

    experiment: Experiment
    components: RunComponents
    own: OneClient
    worker: ClientWorker
    labels: "SiteLabels | None"

    @property
    def most_down(self) -> int:
        """Bytes that the objects of a call may have together: the server's vectors, or the pieces of a secure sum."""
        layout, algorithm, secure = self.worker.layout, self.worker.algorithm, self.experiment.secure
        derived = message_bytes(entry_shapes(derived_entries(layout))) if layout.derived else 0
        model = max(layout.message_bytes, bytes_down(algorithm.downlink, layout) + derived)
        vectors = model + len(algorithm.receives) * layout.message_bytes
        if secure.protocol != "lightsecagg":
            return vectors
        cohort = min(self.experiment.clients_per_round, self.worker.partition.num_clients)
        return max(vectors, cohort * (layout.message_bytes + _SEALED))


def open_work(folder: Path, policy: SitePolicy, setup: Setup, log: Log) -> SiteWork:
    """Open the site's data and the model for an experiment that the site's policy allows.

    Args:
        folder: Of this site and federation, with the models that came with the setup.
        log: Called with a message before each slow step.

    Raises:
        FednlpError: The site's data do not fit, or its version of fednlp.
    """
    agreed = experiment_of(setup)
    experiment = _own_experiment(agreed, folder, policy)
    torch.set_num_threads(experiment.runtime.threads)
    task = experiment.task.configured
    data = open_site_data(
        policy, task or setup.task, experiment.data.labels or (), unlabelled=experiment.partly_labelled
    )
    components = build_components(experiment, log, data)
    _compare(setup, components)
    np.save(folder / "no-tests.npy", np.zeros(0, dtype=np.int64))
    model = start_model(
        experiment, components.source, components.task
    )  # as the server: it is written as there
    components = with_references(experiment, components, model, log)
    spec = worker_spec(experiment, components, folder / "partition", folder / "no-tests.npy", folder / RECORD)
    own = OneClient(setup.client, setup.clients, data.train_numbers, data.test_numbers)
    worker = ClientWorker(spec, model, client_algorithm(experiment, setup.clients), own)
    labels = None
    for open_labels in experiment.parts("site"):
        labels = open_labels(folder / LABELS, setup.run, experiment, data, folder / ENCODER, log)
    return SiteWork(agreed, components, own, worker, labels)


def _own_experiment(experiment: Experiment, folder: Path, policy: SitePolicy) -> Experiment:
    """Return the experiment with this site's own model folder and device."""
    start = {"name_or_path": str((folder / START).resolve()), "added_layers": None}  # it has them already
    model = experiment.model.model_copy(update=start)
    device = policy.device
    runtime = experiment.runtime.model_copy(
        update={"device": device.device, "threads": device.threads or experiment.runtime.threads}
    )
    return experiment.model_copy(update={"model": model, "runtime": runtime})


def _compare(setup: Setup, components: RunComponents) -> None:
    """Check that this version makes of the experiment what the server's makes of it."""
    fields = agreed_fields(components.task)
    if (components.task_spec, fields, components.longest) != (setup.task, setup.task_fields, setup.longest):
        raise RunError(
            "this version of fednlp understands the task otherwise than the server's: install the same version"
        )


def require_same_data(again: Again | None, now: Ready) -> None:
    """Check that a site which is set up again has as many examples as it had.

    Args:
        again: What it said before; None for a site that is set up for the first time.

    Raises:
        RunError: It has others, and the server would weigh its updates wrongly.
    """
    if again is None:
        return
    for what, before, there in (("training", again.train, now.train), ("test", again.test, now.test)):
        if before not in (None, there):
            raise RunError(
                f"this site said that it has {before:,} {what} examples when the run began, and has {there:,} now: "
                "join with the same data and the same site's file as then"
            )


def has_lost(worker: ClientWorker, client: int, counted: int) -> bool:
    """Return whether a site has lost what its method keeps between rounds.

    A method whose server adds up what clients keep, as SCAFFOLD does with their control variates, cannot go on with a
    client that begins at zero again: the server's sum would never lose the share that it had before.

    Args:
        client: Its number.
        counted: The last round in which its update counted, by the server; 0 for none.

    Raises:
        RunError: It has, and the method cannot begin anew.
    """
    store = worker.trainer.store
    if store is None or not counted or store.has(client, counted):
        return False
    if worker.algorithm.receives:
        raise RunError(
            f"what {worker.algorithm.name} keeps at this site is lost, and the server's sum over all sites still has "
            "it: put this site's folder back from a backup, or have the site removed"
        )
    return True
