"""Workers as actors of Ray: on this machine, or on those of a cluster.

The model lies in Ray's object store. Each actor keeps a total of the updates that it has made, and hands it over at the
end of a round. An actor that is lost takes its total with it: what it had answered in the round is done again by
others. Totals are exact sums, so that neither the number of actors nor a loss leaves a trace in the weights.
"""

import json
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fednlp.clock import IDLE, timed
from fednlp.errors import MissingDependency, RunError, install_command
from fednlp.formatting.units import plural
from fednlp.plugins import raised
from fednlp.runtime.engine import Worker, vectors_in
from fednlp.runtime.messages import from_json, to_json
from fednlp.runtime.placement import gpu_share, most_workers
from fednlp.runtime.schedule import scheduled
from fednlp.runtime.shared import PrivateRoom
from fednlp.runtime.travelling import Arriving, Piece, RemoteWorker, import_all

try:
    import ray
    from ray.exceptions import RayActorError, RayError
except ImportError:
    raise MissingDependency(f"this engine needs Ray: run {install_command('ray')}") from None

_AT_ONCE = 2
"""Requests that an actor has before it: the next one lies there when it is done with one."""
_MOST_LOST = 5
"""Actors that may be lost in one round."""
_PATIENCE = 10.0
"""Seconds for a connection to a cluster's address."""


class Ray:
    """The engine of Ray.

    Args:
        factory: ``"module:function"`` that builds a worker in an actor from arguments.
        threads: torch threads, and cores, of each actor.
        preload: Modules that the factory will need.
        address: Of a cluster, as ``ray.init`` takes it; by default what ``RAY_ADDRESS`` names, or this machine.
        gpus: Whether actors ask for the cluster's GPUs, if it has any.

    Raises:
        RunError: The cluster is not reached, or is too small.
    """

    def __init__(
        self,
        workers: int,
        factory: str,
        threads: int = 1,
        preload: Sequence[str] = (),
        address: str | None = None,
        gpus: bool = True,
    ) -> None:
        self._begun = not ray.is_initialized()
        if self._begun:
            _begin_cluster(workers * threads, address)
        try:
            share = _gpus_each(workers, threads, gpus)  # Ray hides the others from an actor
        except RunError:
            if self._begun:
                ray.shutdown()
            raise
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(threads)
        remote = ray.remote(num_cpus=threads, num_gpus=share, max_restarts=0, max_concurrency=1)(_Actor)
        self._new: Callable[[], Any] = lambda: remote.remote(factory, threads, list(preload))
        self._actors = [self._new() for _ in range(workers)]
        self._arguments = ""
        self._objects: dict[str, Any] = {}
        self._changed: set[str] = set()
        self.vectors: dict[str, Tensor] = {}
        self.total: Any = None

    def __len__(self) -> int:
        return len(self._actors)

    def start(self, worker: Worker, arguments: dict[str, Any]) -> None:
        """Have the actors build their workers.

        Args:
            worker: The one in this process, which merges totals.
            arguments: JSON values from which the factory builds the same worker elsewhere.
        """
        self.worker, self._arguments = worker, json.dumps(arguments)
        self.vectors = vectors_in(worker, PrivateRoom())
        self.total = worker.new_total(PrivateRoom())
        for actor in self._actors:
            actor.build.remote(self._arguments)

    def publish(self, name: str, vector: Tensor, message: bytes | None = None) -> None:
        """Let all actors have a vector under a name; it is put into the object store with the next requests."""
        if vector is not self.vectors[name]:
            self.vectors[name].copy_(vector)
        self._changed.add(name)

    def do(
        self, requests: Sequence[Any], on_progress: Callable[[int], None] = lambda done: None
    ) -> list[Any]:
        """Have requests answered by the actors; return the answers in their order. Updates are in ``self.total``.

        Args:
            requests: In any order.
            on_progress: Told how many are answered.

        Raises:
            RunError: An actor failed, or too many were lost; the message says how.
        """
        for name in self._changed:
            self._objects[name] = ray.put(self.vectors[name].numpy())
        self._changed.clear()
        try:
            answers = _Round(self, requests, on_progress).run()
        except RayError as error:
            last = str(error).strip().splitlines()[-1:]
            raise RunError(f"a worker failed: {''.join(last)}") from None
        return [answers[number] for number in range(len(requests))]

    def ask(self, actor: Any, request: Any) -> Any:
        """Ask an actor, which looks at what is published first; return a reference to its answer."""
        return actor.answer.remote(
            json.dumps(to_json(request)), list(self._objects), [*self._objects.values()]
        )

    def replace(self, place: int) -> None:
        """Put a new actor in the place of one that was lost."""
        self._actors[place] = self._new()
        self._actors[place].build.remote(self._arguments)

    @property
    def actors(self) -> list[Any]:
        """The actors, by their places."""
        return self._actors

    def close(self) -> None:
        """End the actors, and Ray itself if it was begun here; give torch its threads back."""
        torch.set_num_threads(self._threads_before)
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._objects, self.total = [], {}, None
        if self._begun:
            ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Round:
    """The answering of some requests.

    Attributes:
        waiting: Numbers of the requests that no actor has.
        held: Numbers by place of the actor that has them, or whose total has their updates.
        asked: Place and number by the reference to an answer on its way.
        answers: By number.
    """

    def __init__(self, engine: Ray, requests: Sequence[Any], on_progress: Callable[[int], None]) -> None:
        self.engine, self.requests, self.on_progress = engine, requests, on_progress
        self.waiting = deque(scheduled(requests, engine.worker.work, len(engine.actors)))
        self.held: dict[int, set[int]] = {place: set() for place in range(len(engine.actors))}
        self.asked: dict[Any, tuple[int, int]] = {}
        self.answers: dict[int, Any] = {}
        self.lost = 0

    def run(self) -> dict[int, Any]:
        """Have all requests answered and all totals merged."""
        while self.held:
            self._answer_all()
            self._merge_all()
        return self.answers

    def _answer_all(self) -> None:
        self._hand_out()
        while self.asked:
            with timed(IDLE):
                (done,), _ = ray.wait(list(self.asked), num_returns=1)
            place, number = self.asked.pop(done)
            try:
                self.answers[number] = from_json(json.loads(ray.get(done)))
            except RayActorError:
                self._redo(place)
            self._hand_out()
            self.on_progress(len(self.answers))

    def _merge_all(self) -> None:
        """Merge the totals of all actors that answered; one that is lost has its requests back in the queue."""
        for place in list(self.held):
            arriving = Arriving(self.engine.worker)
            try:
                for found in self.engine.actors[place].hand_over.remote():
                    arriving.room.put(Piece(*ray.get(found)))
            except RayActorError:
                self._redo(place)
                continue
            arriving.merge_into(self.engine.total)
            del self.held[place]
            if self.waiting:  # of one that was lost while it handed its total over
                self.held[place] = set()

    def _hand_out(self) -> None:
        """Give every actor requests, an even number first: all have one before any has two."""
        for depth in range(1, _AT_ONCE + 1):
            for place in self.held:
                before = sum(one == place for one, _ in self.asked.values())
                if self.waiting and before < depth:
                    number = self.waiting.popleft()
                    self.held[place].add(number)
                    found = self.engine.ask(self.engine.actors[place], self.requests[number])
                    self.asked[found] = place, number

    def _redo(self, place: int) -> None:
        """Put what a lost actor had back into the queue, and a new actor in its place."""
        self.lost += 1
        if self.lost > _MOST_LOST:
            raise RunError(
                f"{self.lost} workers were lost in one round: is memory short? lower runtime.workers"
            )
        lost, self.held[place] = self.held[place], set()
        self.asked = {found: one for found, one in self.asked.items() if one[0] != place}
        for number in sorted(lost, reverse=True):
            self.answers.pop(number, None)
            self.waiting.appendleft(number)
        self.engine.replace(place)


class _Actor:
    """A worker in a process of Ray."""

    def __init__(self, factory: str, threads: int, preload: list[str]) -> None:
        torch.set_num_threads(threads)
        self._factory, self._threads = factory, threads
        import_all(preload)
        self._seen: dict[str, Any] = {}

    def build(self, arguments: str) -> None:
        """Build the worker; where that fails, each answer says why."""
        self._fault = ""
        try:
            self._worker = RemoteWorker(self._factory, json.loads(arguments), self._threads)
        except Exception as error:
            self._fault = raised(error)

    def answer(self, request: str, names: list[str], published: list[Any]) -> str:
        """Answer a request, as JSON, with what is published.

        Raises:
            RunError: The worker could not be built.
        """
        if self._fault:
            raise RunError(self._fault)
        worker = self._worker
        for name, found in zip(names, published, strict=True):
            if self._seen.get(name) != found:
                np.copyto(worker.vectors[name].numpy(), ray.get(found))
                self._seen[name] = found
        worker.worker.begin()
        return json.dumps(worker.answer(json.loads(request)))

    def hand_over(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the total in pieces, and empty it."""
        for piece in self._worker.hand_over():
            yield piece.name, piece.blocks, piece.values


def _gpus_each(workers: int, threads: int, asked: bool) -> float:
    """Return how much of a GPU each actor asks for.

    Args:
        asked: Whether they ask for GPUs at all.

    Raises:
        RunError: The cluster has too few cores, or they are not where the GPUs are: some actors would wait for ever.
    """
    found = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    machines = [(int(one.get("CPU", 0)), int(one.get("GPU", 0))) for one in found]
    cores, gpus = sum(one for one, _ in machines), sum(one for _, one in machines)
    if workers * threads > cores:
        raise RunError(
            f"the cluster of Ray has {plural(cores, 'core')}, and runtime.workers = {workers} with runtime.threads = "
            f"{threads} needs {workers * threads}: lower runtime.workers, or add machines to the cluster"
        )
    share = gpu_share(workers, gpus if asked else 0)
    most = most_workers(machines, threads, share)
    if workers > most:
        gpu = f" and {share:g} of a GPU" if share else ""
        raise RunError(
            f"the cluster of Ray has a place for {plural(most, 'worker')}, and runtime.workers = {workers}: each needs "
            f"runtime.threads = {threads} cores{gpu} on one machine; lower one of these, or add machines to the cluster"
        )
    return share


def _begin_cluster(cores: int, address: str | None) -> None:
    """Connect to a cluster, or begin one on this machine, which is reached from this machine alone.

    Args:
        cores: Of the one that is begun here.
        address: Of a cluster; None for what ``RAY_ADDRESS`` names, or this machine.

    Raises:
        RunError: The cluster is not reached.
    """
    settings: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "error"}
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        _look_at(address or "")
        if address is None:
            ray.init("local", num_cpus=cores, _node_ip_address="127.0.0.1", **settings)
        else:
            ray.init(address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        last = (getattr(error, "strerror", None) or str(error)).strip().splitlines()[:1]
        raise RunError(
            f"Ray is not reached at {address or 'this machine'} ({''.join(last)}): compare runtime.address with what "
            "ray start printed, and set RAY_AUTH_MODE=token if it says that token authentication is enabled"
        ) from None


def _look_at(address: str) -> None:
    """Look whether somebody listens at an address, if it is ``host:port``: Ray itself tries for minutes.

    Raises:
        OSError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
