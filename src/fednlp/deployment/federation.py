"""The server of a deployment: it sets its sites up, runs the rounds with them, and goes on where it was stopped."""

import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fednlp import config
from fednlp.config import Experiment
from fednlp.deployment.components import server_components
from fednlp.deployment.enrolment import FOLDER
from fednlp.deployment.hub import Hub
from fednlp.deployment.messages import Call, ObjectRef
from fednlp.deployment.remote import Sites
from fednlp.deployment.remote_labels import RemoteLabels, save_counts
from fednlp.deployment.secure_server import Asking, SecureSessions
from fednlp.deployment.servable import require_servable
from fednlp.deployment.setup import ENCODER_FILES, Ready, Setup, model_files, read_ready
from fednlp.disk import atomic, write_private
from fednlp.errors import RunError
from fednlp.federated.aggregators.noisy_mean import NoisyMean
from fednlp.models.resolve import resolve_model
from fednlp.partition import Partition
from fednlp.partition.embed import ENCODER
from fednlp.simulation.callback import Callback
from fednlp.simulation.components import RunComponents
from fednlp.simulation.facts import write_facts
from fednlp.simulation.rounds import FederatedTraining
from fednlp.simulation.run_dir import RunDir, create, saving
from fednlp.simulation.start_model import check_start, start_fingerprints, start_model
from fednlp.simulation.train import OpenRun, open_run, train

_LOOK = 1.0


class Member(Protocol):
    """A site as the register of sites has it (:class:`fednlp.deployment.sites.Site`)."""

    @property
    def name(self) -> str: ...

    @property
    def client(self) -> int: ...

    @property
    def state(self) -> str: ...


Members = Callable[[], Sequence[Member]]
"""Returns all sites that were ever invited, in the order of their numbers from 0, removed ones among them."""


def open_directory(experiment: Experiment, out: Path) -> RunDir:
    """Make the run directory of a federation, or open that of one that was stopped.

    Args:
        experiment: Resolved.
        out: The run directory.

    Raises:
        ConfigError: A server without training examples cannot run the experiment.
        RunError: The folder holds something else, or a run of other settings.
    """
    require_servable(experiment)
    directory = RunDir(out)
    if not (out / "resolved.toml").is_file():
        for path in out.glob(".resolved.toml.*"):  # of a start that was killed
            path.unlink()
        directory = create(experiment, out)
    changed = config.differences(directory.experiment(), experiment)
    if changed:
        raise RunError(
            f"{out} is a federation of other settings ({'; '.join(changed[:5])}): start it with these, or choose "
            "another --out"
        )
    if not (out / FOLDER).is_dir() and directory.state.is_file():
        raise RunError(f"{out} is a run of a simulation: choose another --out")
    with saving(out):
        (out / FOLDER).mkdir(mode=0o700, exist_ok=True)
    return directory


def run_name(directory: RunDir) -> str:
    """Return the name that a federation's messages carry, drawn once."""
    path = directory.folder / FOLDER / "run.json"
    if not path.is_file():
        with atomic(path) as file:
            file.write(json.dumps({"run": secrets.token_hex(16)}).encode())
    return str(json.loads(path.read_text())["run"])


def noise_secret(folder: Path) -> int:
    """Return the number that a federation's noise is drawn by: from the operating system, once."""
    path = folder / "noise.key"
    if not path.is_file():
        write_private(path, secrets.token_hex(32).encode(), "choose another --out")
    return int(path.read_text(), 16)


class Federation:
    """A federation's run, whatever carries its messages.

    Args:
        directory: From :func:`open_directory`.
        hub: What is asked of whom, and what arrived.
        members: Returns who there is.
        callback: Reports progress.
        on_look: Called about once a second while sites are awaited; an error that it raises stops the run.
        on_open: Told of the run when it is about to begin.
    """

    def __init__(
        self,
        directory: RunDir,
        hub: Hub,
        members: Members,
        callback: Callback,
        on_look: Callable[[], None] = lambda: None,
        on_open: Callable[[OpenRun], None] = lambda run: None,
    ) -> None:
        self.on_look, self.on_open = on_look, on_open
        self.directory, self.hub, self.members, self.callback = directory, hub, members, callback
        self.experiment = directory.experiment()
        self._removed: set[int] = set()

    def run(self) -> RunDir:
        """Set the sites up, do the rounds that are left, and write the model and the summary.

        Raises:
            FednlpError: As for a simulation; the rounds before are saved.
        """
        directory, experiment, log = self.directory, self.experiment, self.callback.log
        components = server_components(experiment, log)
        model = start_model(experiment, components.source, components.task)
        start = start_fingerprints(experiment, model, components.tokenizer)
        begun = directory.partition.is_file()
        if begun:
            check_start(directory, experiment, directory.read_json("environment.json"), start, log)
            partition = Partition.load(directory.partition)
        else:
            partition = self._set_up(components)
            with saving(directory.folder):
                (directory.folder / "checkpoint").mkdir(exist_ok=True)
                write_facts(directory, components, partition, start)
                partition.save(directory.partition)
        engine = Sites(
            self.hub,
            directory.folder / FOLDER,
            wait=experiment.rounds.wait,
            counted=counted_rounds(directory.round_lines()),
            on_waiting=self._waiting,
            gone=self._refuse_removed,
            threads=experiment.runtime.threads,
        )
        arguments = directory, experiment, components, partition, model, engine, self.callback, None
        with engine:
            labels = partial(RemoteLabels, directory.folder / FOLDER)
            run = open_run(*arguments, self._secure_sessions().open, labels)
            self._keep_noise_secret(run)
            self.on_open(run)
            train(run)
        self.hub.finish("the federation's last round is done")
        return directory

    def _set_up(self, components: RunComponents) -> Partition:
        """Tell every site what the experiment is, and return how many examples each has."""
        fewshot, files = self.experiment.fewshot, model_files(Path(components.source))
        if fewshot is not None and fewshot.filter_ratio is not None:
            files |= model_files(Path(resolve_model(ENCODER)), ENCODER_FILES)
        objects = {name: self.hub.add_object(path) for name, path in files.items()}
        ready: dict[int, Ready] = {}
        asked: set[int] = set()
        told = time.monotonic()
        while True:
            self._refuse_removed()
            members = [member for member in self.members() if member.state != "removed"]
            missing = [member.name for member in members if member.client not in ready]
            if members and not missing:
                if self.experiment.fewshot is not None:
                    save_counts(self.directory.folder / FOLDER, ready, len(self.members()))
                return sites_partition(ready, [member.name for member in self.members()])
            for member in members:
                if member.state == "enrolled" and member.client not in asked:
                    total = len(self.members())
                    self.hub.ask(member.client, self._setup_call(components, member.client, total, objects))
                    asked.add(member.client)
            reply = self.hub.take(_LOOK)
            if reply is not None and reply.id.endswith(".setup"):
                name = self.members()[reply.client].name
                if reply.error is not None:
                    raise RunError(f"site {name} does not take part: {reply.error}")
                ready[reply.client] = read_ready(reply.answer)
                self.callback.log(f"site {name} is ready ({len(ready)} of {len(members)})")
            elif time.monotonic() - told > 10 * _LOOK:
                told = time.monotonic()
                self.callback.log(f"waiting for {', '.join(missing)} to join")

    def _keep_noise_secret(self, run: OpenRun) -> None:
        """Draw the server's noise by a secret in place of the experiment's seed, which all sites know.

        The secret stays on the server, so that a round that is done again has the same noise: two draws on one sum
        would average out.
        """
        training = run.training
        assert isinstance(training, FederatedTraining)
        aggregator = training.algorithm.aggregator
        if isinstance(aggregator, NoisyMean):
            secret = replace(aggregator, seed=noise_secret(self.directory.folder / FOLDER))
            training.algorithm = replace(training.algorithm, aggregator=secret)

    def _refuse_removed(self) -> Collection[int]:
        """Refuse the sites that were removed, whatever they are doing; return their numbers."""
        self.on_look()
        for member in self.members():
            if member.state == "removed" and member.client not in self._removed:
                self._removed.add(member.client)
                self.hub.remove(member.client, f"the site {member.name} was removed from the federation")
        return self._removed

    def _waiting(self, clients: Sequence[int], seconds: float) -> None:
        names = [member.name for member in self.members() if member.client in clients]
        until = (
            "they answer"
            if self.experiment.rounds.wait is None
            else f"{self.experiment.rounds.wait:g} s are over"
        )
        self.callback.log(
            f"waiting for {', '.join(names)} ({seconds:.0f} s), until {until} or they are removed"
        )

    def _secure_sessions(self) -> SecureSessions:
        asking = Asking(
            self.hub, self.experiment.rounds.wait, self._waiting, self._dropped_out, self._refuse_removed
        )
        return SecureSessions(
            asking, self.directory.folder / FOLDER / "secure", max(1, self.experiment.min_clients)
        )

    def _dropped_out(self, client: int, reason: str) -> None:
        name = next(member.name for member in self.members() if member.client == client)
        self.callback.log(f"{name} drops out of the secure sum: {reason}")

    def _setup_call(
        self, components: RunComponents, client: int, sites: int, objects: dict[str, ObjectRef]
    ) -> Call:
        fields = json.loads(json.dumps(asdict(components.task)))  # type: ignore[call-overload]
        setup = Setup(
            experiment=self.experiment.model_dump(exclude_none=True),
            task=components.task_spec,
            task_fields=fields,
            longest=components.longest,
            client=client,
            clients=sites,
            run=self.hub.run,
        )
        return Call(f"0.{client}.setup", setup.model_dump(), objects)


def sites_partition(ready: Mapping[int, Ready], names: Sequence[str]) -> Partition:
    """Return the partition that the sites make: how many examples each has, and no example of theirs.

    Args:
        ready: What each site answered, by its number; a site that was removed before has no answer.
        names: Of all sites, in the order of their numbers.
    """
    answers = [ready.get(client, Ready(train=1, test=0)) for client in range(len(names))]
    train, test = (
        np.concatenate([[0], np.cumsum([getattr(answer, part) for answer in answers])]).astype(np.int64)
        for part in ("train", "test")
    )
    indices = np.arange(train[-1]), np.arange(test[-1])
    return Partition(train, indices[0], test, indices[1], np.arange(len(names)), tuple(names))


def counted_rounds(lines: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return the last round by client in which its update counted.

    >>> counted_rounds([{"round": 1, "cohort": [0, 2]}, {"round": 2, "cohort": [2], "dropped": [{"client": 2}]}])
    {0: 1, 2: 1}
    """
    found: dict[int, int] = {}
    for line in lines:
        lost = {one["client"] for one in line.get("dropped", ())}
        if "aborted" not in line:
            found |= {client: line["round"] for client in line["cohort"] if client not in lost}
    return found
