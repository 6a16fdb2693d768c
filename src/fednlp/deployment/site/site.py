"""A site's work: it answers the server's calls with its own examples, which never leave it."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fednlp.deployment.session.messages import ObjectRef
from fednlp.deployment.session.objects import Written, write_object
from fednlp.deployment.session.setup import (
    Ready,
    Setup,
    experiment_of,
    is_setup,
    read_setup,
)
from fednlp.deployment.session.site_kinds import DERIVED
from fednlp.deployment.site.agreement import Agreement
from fednlp.deployment.site.disclosure import (
    redact_labels,
    redact_sizes,
    tells_sums,
)
from fednlp.deployment.site.final_model import final_vector, is_final_model, keep_models, read_final_model
from fednlp.deployment.site.label_telling import asks_labels, tell_labels
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.published import Published
from fednlp.deployment.site.refusals import Refusal
from fednlp.deployment.site.replay_guard import ReplayGuard
from fednlp.deployment.site.requests import SITE_KINDS, require_agreed, require_sent
from fednlp.deployment.site.worker import (
    LABELS,
    STATE_IS_LOST,
    SiteWork,
    has_lost,
    require_same_data,
)
from fednlp.errors import RunError
from fednlp.federated.upload import upload_pieces
from fednlp.formatting.units import human_bytes
from fednlp.partition import OneClient
from fednlp.runtime.messages import to_json, trains
from fednlp.secure.deployment.session.messages import OF_TESTS, STEPS
from fednlp.secure.deployment.session.terms import request_digest
from fednlp.secure.deployment.site.agreed import agreed, agreed_on_tests
from fednlp.secure.deployment.site.kept import KeptSessions
from fednlp.secure.deployment.site.sums import SecureSite
from fednlp.simulation.components import Log
from fednlp.simulation.run_dir import RunDir
from fednlp.training.worker import ClientWorker

_SECURE, _SECURE_TESTS, _LAST = "secure", "secure-tests", "asked.json"


class Site:
    """Answers the calls of one federation.

    Attributes:
        loss: Mean over the examples of the last training, for this site's own terminal; None without any.

    Args:
        folder: Of this site and federation: what was set up, the record, the model.
        log: Called with a message before each slow step.
    """

    def __init__(self, folder: Path, name: str, policy: SitePolicy, log: Log) -> None:
        self.folder, self.name, self.policy, self.log = folder, name, policy, log
        self._opened: SiteWork | None = None
        self._sums: SecureSite | None = None
        self._test_sums: SecureSite | None = None
        self._published = Published()
        self._last = ReplayGuard(folder / _LAST)
        self._agreement = Agreement(folder, name, policy, log)
        self._begun_anew, self._run = False, ""
        self.loss: float | None = None

    def admits(self, name: str, request: Mapping[str, Any], objects: Mapping[str, ObjectRef]) -> bool:
        """Return whether the objects of a call may be fetched; what is asked before the site is set up waits.

        Args:
            request: What is asked, as JSON.
            objects: What would be fetched, by name.

        Raises:
            FednlpError: The call is refused by what it says: nothing of it is fetched.
        """
        if asks_labels(name):
            if objects:
                raise RunError("the server sends files with its question for the names of labels")
            return True
        if is_setup(name):
            self._agreement.require_allowed(read_setup(request), objects)
            return True
        if is_final_model(name):
            self._agreement.require_model_allowed(objects)
        known = self._agreement.known()
        if known is None or self.run is None:
            return False
        size = sum(ref.size for ref in objects.values())
        if size > known.most_down:
            raise RunError(
                f"the server sends {human_bytes(size)}, and the experiment has {human_bytes(known.most_down)} sent to "
                "a site at most"
            )
        return True

    def answer(
        self, name: str, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> tuple[dict[str, Any], Path | Written | None]:
        """Do what the server asks.

        Args:
            request: What is asked, as JSON.
            objects: The files that came with it, by name.

        Returns:
            The answer as JSON, and the file of what else is sent; None for nothing.

        Raises:
            FednlpError: The site cannot or may not do it.
        """
        if asks_labels(name):
            return tell_labels(self.policy, self.name, request), None
        if is_final_model(name):
            return self._keep_models(request, objects), None
        if is_setup(name):
            return self._set_up(read_setup(request), objects), None
        step = name.removeprefix(OF_TESTS)
        if step in STEPS:
            sums = self.sums if step == name else self.test_sums
            if sums is None:
                raise RunError("the server asks for a secure sum, and the experiment has none")
            return sums.answer(step, request, objects)
        return self._work(name, request, objects)

    def _keep_models(self, request: Mapping[str, Any], objects: Mapping[str, Path]) -> dict[str, Any]:
        """Write the final model, where it has come, and this site's own, where it has one."""
        told = read_final_model(request)
        if not objects and not self.policy.allow.final_model:
            return {}
        work, model = self.opened, None
        if objects:
            model = final_vector(self._published, work.worker, objects)
            self.log("the last round is done: writing the final model")
        keep_models(self.folder, self.name, self.policy, work, told, model, self.log)
        return {}

    def end(self) -> None:
        """Remove pseudo labels, and what is kept for secure sums: the run is over."""
        if (self.folder / LABELS).is_dir():
            shutil.rmtree(self.folder / LABELS)
        setup = self._agreement.known()
        for name, prefix in ((_SECURE, ""), (_SECURE_TESTS, OF_TESTS)):
            if (self.folder / name).is_dir() and setup is not None:
                KeptSessions(self.folder / name, prefix + setup.run, setup.clients).end()

    @property
    def lacks_model(self) -> bool:
        """Whether this site is due a final model that is not here."""
        setup = self._agreement.known()
        due = setup is not None and experiment_of(setup).rounds.send_model and self.policy.allow.final_model
        return due and not RunDir(self.folder).is_at_site

    @property
    def run(self) -> str | None:
        """The run that this site is set up for; None where it is not, or has lost the model that came with it."""
        return self._agreement.run if self._opened is None else self._run

    @property
    def opened(self) -> SiteWork:
        """What the site works with, opened again from what was set up where this process has not yet."""
        if self._opened is None:
            setup = self._agreement.known()
            if setup is None:
                raise RunError("the server asks for work before it has set this site up")
            self._begin(setup, self._agreement.opened_again(setup))
            assert self._opened is not None
        return self._opened

    @property
    def worker(self) -> ClientWorker:
        """The worker that has this site's examples alone."""
        return self.opened.worker

    @property
    def sums(self) -> SecureSite | None:
        """This site's part in secure sums; None where the experiment has none."""
        return self._sums if self.opened is not None else None

    @property
    def test_sums(self) -> SecureSite | None:
        """This site's part in secure sums over the sites' tests; None where the experiment has none."""
        return self._test_sums if self.worker is not None else None

    def _set_up(self, setup: Setup, objects: Mapping[str, Path]) -> dict[str, Any]:
        work = self._agreement.examined(setup, objects)
        ready = self._ready(setup, work)
        require_same_data(setup.again, ready)
        if setup.again is not None:
            self._begin_anew(work.worker, setup.client, setup.again.counted)
        self._begin(setup, work)
        self._agreement.keep(setup, work.most_down)
        return ready.model_dump(exclude_none=True) | {"clients": setup.clients}

    def _begin(self, setup: Setup, work: SiteWork) -> None:
        """Go on with what the site has agreed to."""
        self._opened, self._run = work, setup.run
        self._open_sums(setup, work.worker)

    def _begin_anew(self, worker: ClientWorker, client: int, counted: int) -> None:
        """Say once where what the site keeps is lost, and refuse where the method cannot begin without it."""
        if has_lost(worker, client, counted) and not self._begun_anew:
            self._begun_anew = True
            self.log(STATE_IS_LOST)

    def examine(
        self, setup: Setup, objects: Mapping[str, Path], federation: str, refusal: Exception | None
    ) -> tuple[list[str], list[Refusal]]:
        """Return what an experiment would do here, and what is refused of it; see :class:`Agreement`."""
        return self._agreement.examine(setup, objects, federation, refusal)

    def _ready(self, setup: Setup, work: SiteWork) -> Ready:
        """Return how many examples the site has, as far as the server may know."""
        allow, own = self.policy.allow, work.worker.partition
        train, test = (len(part(setup.client)) for part in (own.train, own.test))
        sums = tells_sums(allow, work.experiment)
        ready = redact_sizes(allow, train, test, sums=sums)
        if work.labels is None:
            return ready
        return redact_labels(allow, ready, len(work.labels.gold[0]), len(work.labels.candidates))

    def _open_sums(self, setup: Setup, worker: ClientWorker) -> None:
        """Open what answers the calls of secure sums, as far as the experiment has any."""
        own, allow, experiment = worker.partition, self.policy.allow, experiment_of(setup)
        train, test = (len(part(setup.client)) for part in (own.train, own.test))
        expected = agreed(
            experiment,
            setup.run,
            own=setup.client,
            clients=setup.clients,
            parameters=worker.layout.numel,
            examples=redact_sizes(allow, train, test).train,
            smallest=allow.smallest_cohort,
        )
        self._sums = None if expected is None else SecureSite(self.folder / _SECURE, expected)
        terms = agreed_on_tests(
            experiment,
            setup.run,
            worker.task,
            own=setup.client,
            clients=setup.clients,
            smallest=allow.smallest_cohort,
        )
        self._test_sums = None if terms is None else SecureSite(self.folder / _SECURE_TESTS, terms)

    def _work(
        self, name: str, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> tuple[dict[str, Any], Path | Written | None]:
        worker = self.worker
        own = worker.partition
        assert isinstance(own, OneClient)
        wanted = require_agreed(request.get("request"), name, self.opened.experiment, own)
        require_sent(request, objects, wanted, worker.algorithm, worker.layout)
        sums, answered = self.sums, partial(self._answered, request=request, objects=objects)
        digest = request_digest(request, {one: path.name for one, path in objects.items()})
        kind = SITE_KINDS[type(wanted)]
        if sums is not None:
            sums.over(wanted.round + (not kind.in_round))
        kind.allowed(self.policy.allow, self.opened.experiment)
        masked = kind.masked(self)
        if masked is not None:
            said: tuple[dict[str, Any], Path | None] = masked(wanted, digest, answered)
            return said
        self._last.require_same(self._run, wanted.round, name, request, objects)
        answer, body = answered(wanted), None
        if trains(wanted):
            if answer.upload is not None:
                body = write_object(self.folder / "upload.bin", upload_pieces(answer.upload, worker.layout))
            answer = answer.result
        told = to_json(answer)
        assert told is not None
        return told, body

    def _answered(self, wanted: Any, request: Mapping[str, Any], objects: Mapping[str, Path]) -> Any:
        """Do what is asked; return the answer without what the server may not know."""
        kind, worker = SITE_KINDS[type(wanted)], self.worker
        encoded, counted = request["encoded"], request["counted"]
        vectors = {
            name: self._published.vector(worker, name, objects, wanted.round if name in encoded else None)
            for name in objects.keys() - {DERIVED}
        }
        if worker.trainer.store is not None and counted < wanted.round:
            self._begin_anew(worker, wanted.client, counted)
            wanted = kind.as_counted(worker, wanted, counted)
        return kind.withhold(self.policy.allow, kind.answer(self, wanted, vectors))

    def labelled(self, wanted: Any) -> Any:
        """Return a request by which this site trains, to do so on the labels that it has, where it keeps labels."""
        labels = self.opened.labels
        return wanted if labels is None else labels.with_labels(wanted)

    def do(self, wanted: Any, vectors: Mapping[str, Tensor]) -> Any:
        """Have the worker answer a request; what it keeps is on the disk."""
        answer = self.worker.handlers[type(wanted)](wanted, vectors)
        self.worker.trainer.sync()
        return answer
