"""The pool: answers in the order of the requests, what is published, and workers that die."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.runtime.pool import Pool
from fednlp.runtime.worker_process import WorkerCommand, WorkerProcess, kept_workers, started_ahead
from fednlp.training.requests.predict import EvaluateRequest, LabelRequest, Labels, ProbabilitiesRequest

from .counting import Counting

pytestmark = pytest.mark.whole

MANY = 400
"""Enough requests that each worker answers some: a worker that has begun takes the next at once."""


@contextmanager
def pool(workers: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Pool, Counting]]:
    """Start a pool of counting workers."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    worker = Counting(os.getpid())
    with Pool(workers, "counting:build") as made:
        made.start(worker, {"here": os.getpid()})
        yield made, worker


def ask_all(made: Pool, request: Any) -> None:
    """Ask until every worker has taken a request."""
    for _ in range(1000):
        made.do([request] * MANY)


@pytest.mark.parametrize("workers", [1, 3])
def test_answers_come_in_the_order_of_the_requests(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all types together, whoever answered; totals of all workers are merged, and each request is done once."""
    with pool(workers, monkeypatch) as (made, worker):
        assert len(made) == workers
        for again in (1, 2):
            requests: list[Any] = [TrainRequest(client, 1, 0.5) for client in range(MANY)]
            requests.insert(7, LabelRequest(3, 1, [5, 6]))
            progress: list[int] = []
            answers = made.do(requests, progress.append)
            assert answers.pop(7) == Labels([5, 6], [3.0])
            assert [answer.client for answer in answers] == list(range(MANY))
            assert {answer.facts["number"] for answer in answers} <= set(range(workers))
            processes = {(answer.facts["process"], answer.facts["number"]) for answer in answers}
            assert len(processes) == len({process for process, _ in processes})
            assert int(made.total) == again * sum(range(MANY))
            assert progress == sorted(progress)
            assert progress[-1] == MANY + 1
            assert worker.begun == again
        assert made.do([]) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_published_reaches_every_worker(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pool(workers, monkeypatch) as (made, _):
        assert set(made.vectors) == {"model", "control"}
        for value in (1.0, 2.0):
            given = torch.full((4,), value)
            made.publish("model", given)
            made.publish("control", -given)
            given.zero_()  # what is published is a copy
            answers = made.do([TrainRequest(client, 1, 0.5) for client in range(MANY)])
            assert all(answer.metrics == {"model": value, "control": -value} for answer in answers)
        mine = made.vectors["model"]
        mine.fill_(7.0)
        made.publish("model", mine)  # it lies there already
        assert made.vectors["model"] is mine
        assert made.do([TrainRequest(0, 1, 0.5)])[0].metrics["model"] == 7.0


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (EvaluateRequest(0, 0), r"died \(signal SIGKILL.*smaller runtime\.workers"),
        (ProbabilitiesRequest([]), "a worker process failed: ValueError: out of cheese"),
    ],
    ids=["killed", "failed"],
)
def test_a_worker_that_does_not_answer_says_why_and_is_not_kept(
    request_: Any, why: str, started_workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_workers():
        with pool(2, monkeypatch) as (made, _), pytest.raises(RunError, match=why):
            ask_all(made, request_)
        assert not started_workers[0].alive


def test_a_worker_that_cannot_be_built_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with Pool(2, "counting:build") as made:
        made.start(Counting(os.getpid()), {"nonsense": 1})
        with pytest.raises(RunError, match=r"died \(exit status 1: TypeError: build\(\) got an unexpected"):
            made.do([TrainRequest(0, 1, 0.5)])


def test_nothing_of_a_pool_stays_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither processes nor files nor torch's threads."""
    monkeypatch.setattr("fednlp.runtime.shared.tempfile.gettempdir", lambda: str(tmp_path))
    threads = torch.get_num_threads()
    with pool(2, monkeypatch) as (made, _):
        made.do([TrainRequest(0, 1, 0.5)])
        assert made._scratch is None  # the files have no names any more
        children = [child._child._process for child in made._children]
        assert all(process.poll() is None for process in children)
    assert all(process.poll() is not None for process in children)
    assert torch.get_num_threads() == threads
    assert not list(tmp_path.iterdir())


def test_a_pool_takes_the_workers_that_were_started_ahead(
    started_workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its own command alone; the others are stopped, and nothing of them stays behind."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    fitting = WorkerCommand(1, "counting:build", 1, ())
    others = [replace(fitting, threads=2), replace(fitting, number=5)]
    with started_ahead([*others, fitting]):
        with Pool(3, "counting:build") as made:
            assert [child.command for child in made._children] == [fitting, replace(fitting, number=2)]
            assert made._children[0] is started_workers[2]
            assert len(started_workers) == 4
            made.start(Counting(os.getpid()), {"here": os.getpid()})
            assert made.do([TrainRequest(1, 1, 0.5)])[0].client == 1
        assert [child._child._process.poll() is None for child in started_workers] == [
            True,
            True,
            False,
            False,
        ]
    assert all(child._child._process.poll() is not None for child in started_workers)
    with Pool(2, "counting:build") as made:
        assert made._children[0] is started_workers[4]


def test_pools_take_the_workers_that_are_kept(
    started_workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin anew: with their total, with the time that they measure, and with what was published."""
    with kept_workers():
        for count, spent in ((2, "imports"), (1, ""), (2, "")):
            with pool(count, monkeypatch) as (made, _), kept_workers():
                assert not any(child.spent for child in made._children)
                answers = made.do([TrainRequest(client, 1, 0.5) for client in range(MANY)])
                assert all(answer.metrics["model"] == 0.0 for answer in answers)
                assert int(made.total) == sum(range(MANY))
                made.publish("model", torch.ones(4))
                assert all((child.spent["imports"] > 0) == (spent == "imports") for child in made._children)
            assert len(started_workers) == 1
            assert all(worker.alive for worker in started_workers)
    assert not any(worker.alive for worker in started_workers)


def test_a_worker_that_is_still_at_work_is_not_kept(
    started_workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with kept_workers():
        with pytest.raises(KeyboardInterrupt), pool(2, monkeypatch) as (made, _):
            made.do([TrainRequest(client, 1, 0.5) for client in range(MANY)], stop)
        assert not started_workers[0].alive
