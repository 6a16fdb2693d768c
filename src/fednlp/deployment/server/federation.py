"""The server of a deployment: it sets its sites up, runs the rounds with them, and goes on where it was stopped."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fednlp.config.values import rate_schedule
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.server.arrivals import by_arrivals
from fednlp.deployment.server.components import server_components
from fednlp.deployment.server.ending import FinalModels
from fednlp.deployment.server.gathering import Gathering, Members
from fednlp.deployment.server.label_agreement import FILE as AGREED
from fednlp.deployment.server.label_agreement import agree, lacks_labels
from fednlp.deployment.server.newcomers import (
    Newcomers,
    PopulationChanged,
    Returning,
    fixed_population,
    said_before,
)
from fednlp.deployment.server.publishing import Publisher
from fednlp.deployment.server.run_directory import noise_secret
from fednlp.deployment.server.site_engine import SiteEngine
from fednlp.deployment.server.waiting import Patience
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import ObjectRef
from fednlp.deployment.session.setup import Again, Setup, model_files, sections_for_sites
from fednlp.errors import TooFewClients
from fednlp.federated.aggregators.noisy_mean import NoisyMean
from fednlp.federated.client import TrainRequest
from fednlp.federated.params import Layout
from fednlp.federated.runtime import MODEL
from fednlp.formatting.units import human_seconds
from fednlp.secure.deployment.server.sums import Asking, SecureSessions
from fednlp.secure.deployment.session.messages import OF_TESTS
from fednlp.simulation.callback import Callback
from fednlp.simulation.components import Log, RunComponents
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.context import RunContext
from fednlp.simulation.facts import write_facts
from fednlp.simulation.protection import check_noise
from fednlp.simulation.rounds import FederatedTraining
from fednlp.simulation.run_dir import RunDir, saving
from fednlp.simulation.start_model import check_start, start_fingerprints, start_model, trained_layout
from fednlp.simulation.train import OpenRun, open_run, train
from fednlp.tasks import agreed_fields
from fednlp.training.requests.predict import ClientSumsRequest

_ENDED = "the federation's last round is done"


class Federation:
    """A federation's run, whatever carries its messages.

    Args:
        directory: From :func:`open_directory`.
        hub: What is asked of whom, and what arrived.
        members: Returns who there is.
        on_look: Called about once a second while sites are awaited; an error that it raises stops the run.
        on_open: Told of the run when it is about to begin.
        components: From :func:`components_before_sites`; made by :meth:`run` if left out.
        rehearsed: Whether the sites are processes of this machine.
    """

    def __init__(
        self,
        directory: RunDir,
        hub: Hub,
        members: Members,
        callback: Callback,
        on_look: Callable[[], None] = lambda: None,
        on_open: Callable[[OpenRun], None] = lambda run: None,
        components: RunComponents | None = None,
        rehearsed: bool = False,
    ) -> None:
        self._components, self.rehearsed = components, rehearsed
        self.on_look, self.on_open = on_look, on_open
        self.directory, self.hub, self.members, self.callback = directory, hub, members, callback
        self.experiment = directory.experiment()
        self._removed: set[int] = set()
        self._newcomers: Newcomers | None = None
        self._returning: Returning | None = None
        self._since: dict[int, float] = {}

    def run(self) -> RunDir:
        """Set the sites up, do the rounds that are left, and write the model and the summary.

        Raises:
            FednlpError: As for a simulation; the rounds before are saved.
        """
        directory, log = self.directory, self.callback.log
        if directory.finished:
            log(f"{directory.folder} is at its end: sites that come are told so")
            self.callback.finished(directory, directory.read_json("summary.json"))
            self._end_again()
            return directory
        if lacks_labels(self.experiment):
            folder = directory.folder / FOLDER
            self.experiment = agree(directory, folder, self.hub, self.members, self._refuse_removed, log)
        experiment = self.experiment
        components = self._components or server_components(experiment, log)
        model = start_model(experiment, components.source, components.task, log)
        start = start_fingerprints(experiment, model, components.tokenizer, components.task)
        if directory.partition.is_file():
            check_start(directory, experiment, directory.read_json("environment.json"), start, log)
        else:
            gathering = self._gathering(components)
            partition = gathering.partition(self._refuse_removed)
            self._since |= gathering.since
            check_noise(experiment, build_algorithm(experiment), partition, model, log)
            with saving(directory.folder):
                for part in experiment.parts("server"):
                    part.save_counts(directory.folder / FOLDER, gathering.ready, partition.num_clients)
                (directory.folder / "checkpoint").mkdir(exist_ok=True)
                write_facts(directory, components, partition, start)
                partition.save(directory.partition)
        self._newcomers = newcomers = self._open_newcomers(components)
        self._returning = self._open_returning(components, newcomers)
        while not self._train(components, model):
            model = start_model(experiment, components.source, components.task)
        return directory

    def _train(self, components: RunComponents, model: nn.Module) -> bool:
        """Do the rounds that are left; return whether that is all, or more sites take part from the next round on."""
        directory, experiment, newcomers = self.directory, self.experiment, self._newcomers
        assert newcomers is not None
        engine = SiteEngine(
            self.hub,
            directory.folder / FOLDER,
            Patience(experiment.rounds.wait, self._waiting, self._refuse_removed),
            counted_rounds(directory.round_lines()),
            experiment.runtime.threads,
            experiment.clients_per_round if experiment.rounds.over_selection > 1 else None,
        )
        with engine:
            run = open_run(
                directory,
                experiment,
                components,
                newcomers.partition,
                model,
                engine,
                self.callback,
                None,
                self._secure_sessions(engine).open,
                self._sum_sessions(engine).open,
                self._open_labels,
            )
            self._keep_noise_secret(run)
            patience = Patience(experiment.rounds.wait, self._waiting, self._refuse_removed)
            by_arrivals(run, engine, directory.folder / FOLDER / "arrivals.jsonl", patience)
            self.on_open(run)
            run.context.facts["clients_were"] = "rehearsed sites" if self.rehearsed else "sites"
            try:
                train(run, newcomers.begin)
                self._end(run.context.worker.layout, run.context.state.params)
            except PopulationChanged:
                return False
            except TooFewClients:
                engine.come_to_nothing()
                self.callback.log(
                    "start the server again to ask those that failed once more; who has delivered does not work twice"
                )
                raise
        return True

    def _end(self, layout: Layout, params: Tensor) -> None:
        """Tell the sites that the last round is done; before, each takes the final model or writes its own."""
        objects: Mapping[str, ObjectRef] = {}
        if self.experiment.rounds.send_model:
            folder = self.directory.folder / FOLDER
            objects = Publisher(self.hub, folder, layout).offer(MODEL, params, None).objects
        self.hub.finish(_ENDED, self._final_models.ask(objects))

    def _end_again(self) -> None:
        """Do the same in a server that was started again: some sites may have come too late the last time."""
        experiment, models = self.experiment, self._final_models
        if models.have_all() or not experiment.rounds.send_model:
            self.hub.finish(_ENDED, models.ask({}))
            return
        components = server_components(experiment, self.callback.log)
        model = start_model(experiment, components.source, components.task)
        layout = trained_layout(experiment, model)
        state = self.directory.load_state(layout)
        assert state is not None
        self._end(layout, state.params)

    @property
    def _final_models(self) -> FinalModels:
        counted = counted_rounds(self.directory.round_lines())
        return FinalModels(self.directory, self.hub, self.members, counted)

    def _open_newcomers(self, components: RunComponents) -> Newcomers:
        """Return what sees to sites that join while the rounds go on."""
        directory, experiment = self.directory, self.experiment
        return Newcomers(
            directory.folder / FOLDER / "population.json",
            directory.partition,
            self.members,
            lambda: self._gathering(components, experiment.num_rounds + 1),
            fixed_population(experiment, build_algorithm(experiment)),
            self.callback.log,
            self._since,
        )

    def _open_returning(self, components: RunComponents, newcomers: Newcomers) -> Returning:
        """Return what sees to sites that come back without what they were set up for."""
        directory = self.directory

        def sites() -> int:
            return newcomers.sites

        def again(client: int) -> Again:
            return said_before(directory.partition, client, counted_rounds(directory.round_lines()))

        def gathering() -> Gathering:
            return self._gathering(components, self.experiment.num_rounds + 2, again, sites)

        return Returning(self.hub, self.members, gathering, sites, self._since, self.callback.log)

    def _gathering(
        self,
        components: RunComponents,
        number: int = 0,
        again: Callable[[int], Again | None] = lambda client: None,
        clients: Callable[[], int] | None = None,
    ) -> Gathering:
        """Return what sets sites up, by calls that carry the number of a round."""
        setup = Setup(
            experiment=sections_for_sites(self.experiment),
            task=components.task_spec,
            task_fields=agreed_fields(components.task),
            longest=components.longest,
            client=0,
            clients=1,
            run=self.hub.run,
            asked_labels=(self.directory.folder / FOLDER / AGREED).is_file(),
        )
        files = model_files(Path(components.source))
        for part in self.experiment.parts("server"):
            files |= part.files(self.experiment)
        log, removal = self.callback.log, self._removal
        return Gathering(self.hub, self.members, setup, files, removal, log, number, again, clients)

    def _open_labels(self, context: RunContext) -> Any:
        """Return what knows how many labels the sites have."""
        [part] = self.experiment.parts("server")
        return part(self.directory.folder / FOLDER, context)

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
        """Refuse the sites that are removed, whatever they are doing; return their numbers."""
        self.on_look()
        for member in self.members():
            removed = member.state == "removed"
            if removed and member.client not in self._removed:
                self._removed.add(member.client)
                self.hub.remove(member.client, f"the site {member.name} was removed from the federation")
            elif not removed and member.client in self._removed:  # it was invited again
                self._removed.discard(member.client)
                self.hub.readmit(member.client)
        for one in (self._newcomers, self._returning):
            if one is not None:
                one.look()
        return self._removed

    @property
    def _removal(self) -> str:
        """The command that removes a site, without its name."""
        return f"fednlp sites remove {self.directory.folder}"

    def _waiting(self, clients: Sequence[int], seconds: float) -> None:
        """Say who is missing, unless they are at work, and what would let the round go on."""
        connected, wait = self.hub.connected(), self.experiment.rounds.wait
        names = [
            f"{member.name} (not connected)"
            for member in self.members()
            if member.client in clients and member.client not in connected
        ]
        if not names:
            return
        until = "it answers" if len(names) == 1 else "they answer"
        over = "" if wait is None else f", or {wait:g} s are over (rounds.wait)"
        self.callback.log(
            f"waiting for {', '.join(names)} for {human_seconds(seconds)}: until {until}{over}; go on without a site "
            f"by: {self._removal} NAME"
        )

    def _secure_sessions(self, engine: SiteEngine) -> SecureSessions:
        folder, experiment = self.directory.folder / FOLDER / "secure", self.experiment
        rate = rate_schedule(experiment.client, experiment.num_rounds)

        def digest(number: int) -> str:
            return engine.digest(TrainRequest(0, number, 1.0, rate=rate.factor(number)))

        return SecureSessions(self._asking(), folder, digest, max(1, experiment.min_clients))

    def _sum_sessions(self, engine: SiteEngine) -> SecureSessions:
        folder = self.directory.folder / FOLDER / "secure-tests"

        def digest(number: int) -> str:
            return engine.digest(ClientSumsRequest(0, number))

        return SecureSessions(self._asking(), folder, digest, prefix=OF_TESTS)

    def _asking(self) -> Asking:
        return Asking(
            self.hub, self.experiment.rounds.wait, self._waiting, self._dropped_out, self._refuse_removed
        )

    def _dropped_out(self, client: int, reason: str) -> None:
        name = next(member.name for member in self.members() if member.client == client)
        self.callback.log(f"{name} drops out of the secure sum: {reason}")


def components_before_sites(directory: RunDir, log: Log) -> RunComponents | None:
    """Return what the server has of an experiment, so that a mistake in it is found before any site is invited.

    None where the sites have to tell the names of their labels first, and for a run that is finished.

    Raises:
        FednlpError: As :func:`fednlp.deployment.server.components.server_components`.
    """
    experiment = directory.experiment()
    return None if directory.finished or lacks_labels(experiment) else server_components(experiment, log)


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
