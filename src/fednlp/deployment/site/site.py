"""A site's work: it answers the server's calls with its own examples, which never leave it."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fednlp.deployment.session.message_types import ObjectRef
from fednlp.deployment.session.objects import Written, write_object
from fednlp.deployment.session.request_checks import DERIVED, SiteRequest, require_agreed, require_sent
from fednlp.deployment.session.secure_messages import OF_TESTS, STEPS
from fednlp.deployment.session.secure_terms import request_digest
from fednlp.deployment.session.setup import (
    Ready,
    Setup,
    experiment_of,
    is_setup,
    read_setup,
)
from fednlp.deployment.site.agreement import Agreement
from fednlp.deployment.site.disclosure import (
    redact_kept,
    redact_labels,
    redact_loss,
    redact_result,
    redact_score,
    redact_sizes,
    require_sums_told,
    tells_sums,
)
from fednlp.deployment.site.final_model import final_vector, is_final_model, keep_models, read_final_model
from fednlp.deployment.site.label_telling import asks_labels, tell_labels
from fednlp.deployment.site.lost_state import STATE_IS_LOST, has_lost, require_same_data
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.published import Published
from fednlp.deployment.site.refusals import Refusal
from fednlp.deployment.site.replay_guard import ReplayGuard
from fednlp.deployment.site.secure_agreed import agreed, agreed_on_tests
from fednlp.deployment.site.secure_kept import KeptSessions
from fednlp.deployment.site.secure_sums import SecureSite
from fednlp.deployment.site.worker import FINETUNED, LABELS, SiteWork
from fednlp.errors import RunError
from fednlp.federated.client import ClientLoss, LossRequest, TrainRequest
from fednlp.federated.upload import Trained, upload_pieces
from fednlp.fewshot.pacing import LabelQuota
from fednlp.formatting.units import human_bytes, metric_title, plural
from fednlp.partition import OneClient
from fednlp.runtime.message_json import to_json
from fednlp.runtime.messages import (
    ClientModelRequest,
    ClientModelResult,
    ClientSumsRequest,
    KeepLabelsRequest,
    LabelRequest,
    LabelsKept,
)
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
        name: Of the site.
        policy: What the site decides.
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
            name: Of the call.
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
            name: Of the call.
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
        sums, do = self.sums, partial(self._do, request=request, objects=objects)
        digest = request_digest(request, {one: path.name for one, path in objects.items()})
        if sums is not None:
            sums.over(wanted.round + (not isinstance(wanted, TrainRequest | KeepLabelsRequest)))
            if isinstance(wanted, TrainRequest):
                return sums.train(wanted, digest, do)
        if isinstance(wanted, ClientSumsRequest):
            require_sums_told(self.policy.allow, self.opened.experiment)
            if self.test_sums is not None:
                return self.test_sums.add(wanted, digest, do)
        self._last.require_same(self._run, wanted.round, name, request, objects)
        answer = do(wanted)
        if not isinstance(answer, Trained):
            return _json(to_json(answer)), None
        body = write_object(self.folder / "upload.bin", upload_pieces(answer.upload, worker.layout))
        return _json(to_json(answer.result)), body

    def _do(
        self,
        wanted: SiteRequest,
        request: Mapping[str, Any],
        objects: Mapping[str, Path],
    ) -> Any:
        """Have the worker do what is asked; return its answer without what the server may not know."""
        worker = self.worker
        encoded = request["encoded"]
        vectors = {
            name: self._published.vector(worker, name, objects, wanted.round if name in encoded else None)
            for name in objects.keys() - {DERIVED}
        }
        wanted = self._as_counted(request["counted"], wanted)
        if isinstance(wanted, ClientModelRequest) and wanted.finetune_steps:
            wanted = replace(wanted, save_to=str(self.folder / FINETUNED))
        if isinstance(wanted, KeepLabelsRequest):
            return self._label(wanted, vectors)
        labels = self.opened.labels
        if labels is not None and not isinstance(wanted, ClientSumsRequest | LossRequest):
            wanted = labels.with_labels(wanted)
            fewest = self.policy.allow.fewest_examples
            if isinstance(wanted, TrainRequest) and len(wanted.examples or ()) < fewest:
                raise RunError(
                    f"allow.fewest_examples = {fewest}, and fewer examples here have a label by now"
                )
        answer = worker.handlers[type(wanted)](wanted, vectors)
        worker.trainer.sync()
        if isinstance(answer, ClientModelResult):
            self._say_score(wanted, answer)
            return redact_score(self.policy.allow, answer)
        if isinstance(answer, ClientLoss):
            return redact_loss(self.policy.allow, answer)
        if isinstance(answer, Trained):
            done = answer.result
            self.loss = done.loss / done.examples if done.examples else None
            return replace(answer, result=redact_result(self.policy.allow, answer.result))
        return answer

    def _label(self, wanted: KeepLabelsRequest, vectors: Mapping[str, Tensor]) -> LabelsKept:
        """Give texts of the site's pseudo labels, keep them, and return what the server is told: their number."""
        labels = self.opened.labels
        assert labels is not None
        texts = labels.candidates.tolist()
        found = self.worker.predictions.label(LabelRequest(wanted.client, wanted.round, texts), vectors)
        kept = labels.keep(wanted.round, found, LabelQuota(wanted.percentage, wanted.most))
        rounds = self.opened.experiment.num_rounds
        self.log(f"round {wanted.round} of {rounds}: the model labelled {plural(kept, 'text')} of this site")
        return redact_kept(self.policy.allow, LabelsKept(wanted.client, kept))

    def _say_score(self, wanted: SiteRequest, answer: ClientModelResult) -> None:
        """Say a score on the site's own tests to whom it belongs, whether or not the server is told."""
        if answer.own is not None:
            metric, rounds = metric_title(self.worker.task.metric), self.opened.experiment.num_rounds
            self.log(f"round {wanted.round} of {rounds}: {metric} {answer.own:.4f} on this site's tests")

    def _as_counted(self, counted: int, request: SiteRequest) -> SiteRequest:
        """Leave out what was kept in rounds that came to nothing: the last that counted is the server's to say.

        A model is evaluated as it was after that round, as an update that has not been used yet may still count.
        """
        store = self.worker.trainer.store
        if store is None or counted >= request.round:
            return request
        self._begin_anew(self.worker, request.client, counted)
        if isinstance(request, ClientSumsRequest):
            return request if self.worker.has_global_model else replace(request, round=counted)
        if isinstance(request, ClientModelRequest) and not request.finetune_steps:
            return replace(request, round=counted)
        earlier = isinstance(request, LossRequest | KeepLabelsRequest)  # it may train as well
        before = request.round if earlier else None
        store.forget(request.client, counted + 1, before)
        return request


def _json(message: dict[str, Any] | None) -> dict[str, Any]:
    assert message is not None
    return message
