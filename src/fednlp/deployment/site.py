"""A site's work: it answers the server's calls with its own examples, which never leave it."""

import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fednlp.config import Experiment
from fednlp.data import TextData
from fednlp.deployment.components import with_labels
from fednlp.deployment.setup import Setup, experiment_of, place_model, read_setup
from fednlp.disk import atomic
from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.federated.communication import decode_broadcast, entry_shapes
from fednlp.federated.message import unpack
from fednlp.federated.runtime import MODEL
from fednlp.federated.transforms import RngKey
from fednlp.federated.upload import Trained, pack_upload
from fednlp.partition import OneClient
from fednlp.runtime.messages import ClientModelRequest, from_json, to_json
from fednlp.simulation.build import Log, RunComponents, build_components, client_algorithm, worker_spec
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import load_model

_TAKEN = (TrainRequest, ClientModelRequest)
"""What a server may ask of a site."""
_SETUP = "setup.json"


class SiteData(Protocol):
    """What a site decides: which data an experiment gets, and whether it may run here at all."""

    def check(self, experiment: Experiment, setup: Setup) -> None:
        """Check an experiment against the site's policy.

        Raises:
            RunError: The site does not allow it.
        """

    def load(self, experiment: Experiment) -> TextData:
        """Return the site's own examples, with labels of their own.

        Raises:
            DataError: They cannot be loaded.
        """

    def tells_size(self) -> bool:
        """Return whether the server may know how many examples the site has."""

    def device(self) -> str:
        """Return the device to train on, as ``runtime.device``."""


class Site:
    """Answers the calls of one federation.

    Args:
        folder: Of this site and federation: what was set up, the record, the model.
        owner: What the site decides.
        log: Called with a message before each slow step.
    """

    def __init__(self, folder: Path, owner: SiteData, log: Log) -> None:
        self.folder, self.owner, self.log = folder, owner, log
        self._worker: ClientWorker | None = None
        self._published: dict[str, tuple[str, Tensor]] = {}

    def answer(
        self, name: str, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> tuple[dict[str, Any], Path | None]:
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
        if name == "setup":
            return self._set_up(read_setup(request), objects), None
        return self._work(request, objects)

    @property
    def worker(self) -> ClientWorker:
        """The worker, made again from what was set up where this process has none yet."""
        if self._worker is None:
            path = self.folder / _SETUP
            if not path.is_file():
                raise RunError(
                    "the server asks for work before it has set this site up: start the server again"
                )
            self._worker = self._open(read_setup(json.loads(path.read_text())))
        return self._worker

    def _set_up(self, setup: Setup, objects: Mapping[str, Path]) -> dict[str, Any]:
        experiment = experiment_of(setup)
        self.owner.check(experiment, setup)
        place_model(objects, self.folder / "start")
        self._worker = self._open(setup)
        with atomic(self.folder / _SETUP) as file:
            file.write(setup.model_dump_json().encode())
        own = self._worker.partition
        train, test = (len(part(setup.client)) for part in (own.train, own.test))
        return {"train": train if self.owner.tells_size() else 1, "test": test}

    def _open(self, setup: Setup) -> ClientWorker:
        """Build the worker that has this site's examples alone."""
        experiment = self._own_experiment(setup)
        data = with_labels(self.owner.load(experiment), tuple(experiment.data.labels or ()))
        components = build_components(experiment, self.log, data)
        self._compare(setup, components)
        np.save(self.folder / "no-tests.npy", np.zeros(0, dtype=np.int64))
        spec = worker_spec(
            experiment,
            components,
            self.folder / "partition",
            self.folder / "no-tests.npy",
            self.folder / "record.bin",
        )
        own = OneClient(setup.client, setup.clients, data.train_numbers, data.test_numbers)
        return ClientWorker(spec, load_model(spec), client_algorithm(experiment, setup.clients), own)

    def _own_experiment(self, setup: Setup) -> Experiment:
        """Return the experiment with this site's own model folder and device."""
        experiment = experiment_of(setup)
        model = experiment.model.model_copy(update={"name_or_path": str((self.folder / "start").resolve())})
        runtime = experiment.runtime.model_copy(update={"device": self.owner.device()})
        return experiment.model_copy(update={"model": model, "runtime": runtime})

    def _compare(self, setup: Setup, components: RunComponents) -> None:
        """Check that this version makes of the experiment what the server's makes of it."""
        fields = json.loads(json.dumps(asdict(components.task)))  # type: ignore[call-overload]
        if (components.task_spec, fields, components.longest) != (
            setup.task,
            setup.task_fields,
            setup.longest,
        ):
            raise RunError(
                "this version of fednlp understands the task otherwise than the server's: install the same version"
            )

    def _work(
        self, request: Mapping[str, Any], objects: Mapping[str, Path]
    ) -> tuple[dict[str, Any], Path | None]:
        wanted = from_json(request.get("request"))
        if not isinstance(wanted, _TAKEN):
            raise RunError(f"a site does not answer a {type(wanted).__name__}")
        worker = self.worker
        own = worker.partition
        assert isinstance(own, OneClient)
        if wanted.client != own.client:
            raise RunError(
                f"the server asks for client {wanted.client}, and this site is client {own.client}"
            )
        if isinstance(wanted, ClientModelRequest) and (wanted.on_all or wanted.save_to is not None):
            raise RunError("a site has its own test examples alone, and keeps its model to itself")
        encoded = set(request.get("encoded") or ())
        vectors = {
            name: self._vector(name, path, wanted.round if name in encoded else None)
            for name, path in objects.items()
        }
        missing = {MODEL, *worker.receives} - vectors.keys()
        if missing:
            raise RunError(f"the server did not send {', '.join(sorted(missing))}")
        self._forget_after(request.get("counted"), wanted)
        answer = worker.handlers[type(wanted)](wanted, vectors)
        worker.trainer.sync()
        if not isinstance(answer, Trained):
            return _json(to_json(answer)), None
        path = self.folder / "upload.bin"
        with path.open("wb") as file:
            file.write(pack_upload(answer.upload, worker.layout))
        return _json(to_json(answer.result)), path

    def _forget_after(self, counted: Any, request: TrainRequest | ClientModelRequest) -> None:
        """Take back what was kept in rounds that came to nothing: the last that counted is the server's to say."""
        store = self.worker.trainer.store
        if store is not None and isinstance(counted, int) and 0 <= counted < request.round:
            store.forget(request.client, counted + 1)

    def _vector(self, name: str, path: Path, encoded_in: int | None) -> Tensor:
        """Return what the server published under a name, flat; the last of each name is kept."""
        key = f"{path.name} {encoded_in}"
        known = self._published.get(name)
        if known is not None and known[0] == key:
            return known[1]
        worker = self.worker
        layout, downlink = worker.layout, worker.algorithm.downlink
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                if encoded_in is None:
                    tensors: Mapping[str, Tensor] = unpack(view, entry_shapes(layout.entries))
                else:
                    rng = RngKey(worker.spec.seed, encoded_in, -1)
                    tensors = decode_broadcast(downlink, layout, view, rng)
            finally:
                view.release()
        flat = layout.flatten(tensors)
        self._published[name] = (key, flat)
        return flat


def _json(message: dict[str, Any] | None) -> dict[str, Any]:
    assert message is not None
    return message


AnswerCall = Callable[[str, Mapping[str, Any], Mapping[str, Path]], tuple[dict[str, Any], Path | None]]
"""(name of the call, request, objects) -> the answer and the file that goes with it: :meth:`Site.answer`."""
