"""What a site has agreed to: the experiment of a run, checked against the site's policy, and kept."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from fednlp.checked_json import damaged
from fednlp.config import differences
from fednlp.deployment.session.messages import ObjectRef
from fednlp.deployment.session.objects import MOST_FETCHED
from fednlp.deployment.session.setup import (
    ENCODER_FILES,
    MODEL_FILES,
    Setup,
    experiment_of,
    model_files,
    place_models,
    require_names,
    require_placed,
)
from fednlp.deployment.site.dry_run import dry_run
from fednlp.deployment.site.facts import Download, Facts, facts_of
from fednlp.deployment.site.final_model import forget_models
from fednlp.deployment.site.machine import process_memory
from fednlp.deployment.site.memory import check_memory
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.refusals import (
    Refusal,
    check,
    check_call,
    check_model,
    check_settings,
    refused_by,
)
from fednlp.deployment.site.worker import ENCODER, FINETUNED, RECORD, START, SiteWork, open_work
from fednlp.disk import sha256_of, sync_all, write_durably, writing
from fednlp.errors import RunError
from fednlp.federated.runtime import MODEL
from fednlp.formatting.units import human_bytes
from fednlp.simulation.components import Log

_SETUP = "setup.json"
_REMEDY = "then run fednlp join again"


class Agreed(Setup):
    """What a site was set up for, as it keeps it.

    Attributes:
        most_down: Bytes that the objects of a later call may have together.
    """

    most_down: int = Field(default=MOST_FETCHED, ge=0)


class PolicyRefusal(RunError):
    """A site's policy refuses what a server would do."""

    def __init__(self, message: str, refusals: list[Refusal]) -> None:
        super().__init__(message)
        self.refusals = refusals


class ModelDeclined(PolicyRefusal):
    """A site's policy takes no final model: this site is through without it."""


class Agreement:
    """What one site has agreed to with one federation.

    Args:
        folder: Of this site and federation.
        log: Called with a message before each slow step.
    """

    def __init__(self, folder: Path, name: str, policy: SitePolicy, log: Log) -> None:
        self.folder, self.name, self.policy, self.log = folder, name, policy, log

    @property
    def run(self) -> str | None:
        """The run that this site is set up for; None where it is not, or has lost the model that came with it."""
        known = self.known()
        return known.run if known is not None and (self.folder / START).is_dir() else None

    def known(self) -> Agreed | None:
        """Return what the site was set up for last; None if it was not.

        Raises:
            RunError: The file is damaged.
        """
        path = self.folder / _SETUP
        try:
            return Agreed.model_validate(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise damaged(path, error, "delete it and join again") from None

    def require_allowed(self, setup: Setup, objects: Mapping[str, ObjectRef]) -> None:
        """Check what comes to set the site up before any of its objects is fetched.

        Raises:
            RunError: The policy refuses the experiment's text, its model or its size; it is another experiment than
                the site has agreed to; or an object has no place in a model.
        """
        experiment = experiment_of(setup)
        require_names(objects, self._models)
        self._require_same(self.known(), setup)
        downloads = [Download(name, ref.size, ref.digest) for name, ref in objects.items()]
        self._require_none(check_call(self.policy, setup, experiment, downloads))

    def require_model_allowed(self, objects: Mapping[str, ObjectRef]) -> None:
        """Check what comes as the final model before any of it is fetched; nothing comes where the server keeps it.

        Raises:
            ModelDeclined: The policy takes no final model.
            RunError: The site takes part in no run, or in one that keeps its model; the policy refuses it; or it is
                something else.
        """
        known = self.known()
        if known is None or self.run is None:
            raise RunError("this site did not take part: it has no model of this run to begin with")
        if not experiment_of(known).rounds.send_model:
            if not objects:
                return
            raise RunError(
                "the server sends its final model, and the experiment keeps it (rounds.send_model = false)"
            )
        if {*objects} != {MODEL}:
            raise RunError("the server sends something else than the final model")
        ref = objects[MODEL]
        refusals = check_model(self.policy, Download(MODEL, ref.size, ref.digest))
        if not self.policy.allow.final_model:
            raise ModelDeclined("; ".join(refused_by(self.name, refusals)), refusals)
        self._require_none(refusals)

    def keep(self, setup: Setup, most_down: int = MOST_FETCHED) -> None:
        """Take note of what the site has agreed to; when this returns, it is on the disk with the models.

        Args:
            most_down: Bytes that the objects of a later call may have together.
        """
        agreed = Agreed(**dict(setup), most_down=most_down)
        with writing(self.folder, _REMEDY):
            for models in filter(Path.is_dir, self._models.values()):
                sync_all(models)
        write_durably(self.folder / _SETUP, agreed.model_dump_json().encode(), _REMEDY)

    def examine(
        self, setup: Setup, objects: Mapping[str, Path], federation: str, refusal: Exception | None = None
    ) -> tuple[list[str], list[Refusal]]:
        """Return the lines that tell what an experiment would fetch, train and send here, and what is refused of it.

        Args:
            objects: The files that came with it, by name.
            federation: The server's address, for people.
            refusal: Why nothing was fetched for it; None where its objects are there.
        """
        experiment = experiment_of(setup)
        facts: Facts | None = None
        try:
            if refusal is not None:
                raise refusal
            _, facts, refusals = self._look(setup, objects)
        except PolicyRefusal as error:
            refusals = error.refusals
        lines = dry_run(
            federation, self.name, self.policy, experiment, facts, refusals, clients=setup.clients
        )
        return lines, refusals

    def examined(self, setup: Setup, objects: Mapping[str, Path]) -> SiteWork:
        """Return what an experiment is done with that the site's policy allows.

        Raises:
            RunError: It does not; every reason is named.
        """
        before = self.known()
        work, facts, refusals = self._look(setup, objects)
        self._require_none(refusals)
        if before is None or before.run != setup.run:
            forget_models(self.folder)
        if (held := process_memory()) is not None:
            needs = "" if facts.memory is None else f", {human_bytes(facts.memory)} (predicted)"
            has = f"this process, with Python and torch, {human_bytes(held)}"
            self.log(f"memory: the model and its training{needs}; {has}")
        return work

    def _look(self, setup: Setup, objects: Mapping[str, Path]) -> tuple[SiteWork, Facts, list[Refusal]]:
        """Return what an experiment is done with, what it would do, and what the policy refuses of that.

        A model that is refused does not stay on the disk, unless the site has agreed to it before.

        Raises:
            RunError: The policy refuses the experiment's text, so that nothing of it is looked at further.
        """
        experiment = experiment_of(setup)
        agreed = self._has_agreed(setup, objects)
        self._require_none(check_settings(self.policy, experiment))
        if not agreed:
            place_models(objects, self._models)
        refusals: list[Refusal] | None = None
        try:
            self._require_none(check_memory(self.policy, setup, experiment, self.folder / START))
            work = self._open(setup)
            facts = self._facts(setup, work, {name: (path, path.name) for name, path in objects.items()})
            refusals = check(self.policy, experiment, facts)
        finally:
            if refusals != [] and not agreed:
                place_models({}, self._models)
        return work, facts, refusals

    def _facts(self, setup: Setup, work: SiteWork, files: Mapping[str, tuple[Path, str]]) -> Facts:
        """Return what is known of a run; ``files`` are those of the models, each with its digest."""
        worker, labels = work.worker, work.labels
        return facts_of(
            work.experiment,
            worker.replica.model,
            worker.task,
            clients=setup.clients,
            examples=len(worker.partition.train(setup.client)),
            longest=setup.longest,
            downloads=[Download(name, path.stat().st_size, digest) for name, (path, digest) in files.items()],
            gold=None if labels is None else len(labels.gold[0]),
            asks_labels=setup.asked_labels,
        )

    def opened_again(self, setup: Setup) -> SiteWork:
        """Open what the site agreed to before, if its policy, as it is now, still allows all of it.

        Raises:
            RunError: It does not; every reason is named.
        """
        work = self._open(setup)
        files: dict[str, tuple[Path, str]] = {}
        for prefix, folder in self._models.items():
            if folder.is_dir():
                files |= {name: (path, sha256_of(path)) for name, path in model_files(folder, prefix).items()}
        self._require_none(check(self.policy, work.experiment, self._facts(setup, work, files)))
        return work

    def _require_none(self, refusals: list[Refusal]) -> None:
        if refusals:
            raise PolicyRefusal("; ".join(refused_by(self.name, refusals)), refusals)

    def _open(self, setup: Setup) -> SiteWork:
        """Open the site's data and the model.

        Raises:
            RunError: The site's policy, as it is now, refuses the experiment.
        """
        self._require_none(check_settings(self.policy, experiment_of(setup)))
        return open_work(self.folder, self.policy, setup, self.log)

    def _has_agreed(self, setup: Setup, objects: Mapping[str, Path]) -> bool:
        """Return whether this site has agreed to a run before; what it agreed to with another run is forgotten.

        Raises:
            RunError: It has agreed to another experiment, or to other models, of this run.
        """
        known = self.known()
        if known is None:
            return False
        if known.run != setup.run:
            for name in (RECORD, FINETUNED, _SETUP):
                (self.folder / name).unlink(missing_ok=True)
            return False
        self._require_same(known, setup)
        if self.run is None:
            return False
        require_placed(objects, self._models)
        return True

    @staticmethod
    def _require_same(known: Setup | None, setup: Setup) -> None:
        """Check that a run's experiment, and the site's number, are those that it has agreed to, if it has to that run.

        A server that numbers sites anew would choose which of them are drawn into one cohort.

        Raises:
            RunError: It is not.
        """
        if known is None or known.run != setup.run:
            return
        if changed := differences(experiment_of(known), experiment_of(setup)):
            raise RunError(f"the server has changed the experiment of this run: {'; '.join(changed[:5])}")
        if known.client != setup.client:
            raise RunError(
                f"the server gives this site the number {setup.client} in this run, and it was {known.client}"
            )

    @property
    def _models(self) -> dict[str, Path]:
        """The folders of models that come with a setup, by the prefix of their files' names."""
        return {MODEL_FILES: self.folder / START, ENCODER_FILES: self.folder / ENCODER}
