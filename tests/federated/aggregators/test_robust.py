"""The median and the trimmed mean: what NumPy and SciPy say, whoever adds the updates, in whatever order."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

import fednlp
from fednlp import fedavg, federate
from fednlp.config import Experiment
from fednlp.errors import RunError, TooFewClients
from fednlp.federated.aggregators import kept_updates
from fednlp.federated.aggregators.base import AggregatedUpdate
from fednlp.federated.aggregators.coordinate_wise import CoordinateWise
from fednlp.federated.aggregators.kept_updates import UpdateFile
from fednlp.federated.aggregators.median import Median, median
from fednlp.federated.aggregators.trimmed_mean import TrimmedMean, cut_of, trimmed_mean
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import Cohort, Population, RoundPlan, equally
from fednlp.federated.params import Kind, Layout
from fednlp.federated.sums import NonFiniteUpdate
from fednlp.federated.update import Update
from fednlp.runtime.shared import PrivateRoom, SharedRoom, remove_scratch

SHAPES: dict[str, tuple[tuple[int, ...], Kind]] = {
    "w": ((2, 3), "parameter"),
    "words": ((4, 2), "parameter"),
    "mean": ((2,), "buffer"),
}
LAYOUT = Layout.of(SHAPES, table="words")
DENSE = Layout.of({"w": ((3,), "parameter"), "product": ((2,), "derived")})
Make = Callable[..., Experiment]
values = st.floats(-1e4, 1e4, width=32)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty temporary folder, of this process and of those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def plan_of(clients: Sequence[int]) -> RoundPlan:
    population = Population(np.ones(1 + max(clients, default=0), dtype=np.int64))
    return RoundPlan(1, Cohort(clients), dict.fromkeys(clients, 1.0), 1.0, population, equally)


def sparse(rows: Sequence[int], numbers: Sequence[float]) -> Update:
    """An update of the dense part and of some rows of the table."""
    flat = torch.tensor(numbers)
    return Update(flat[: LAYOUT.dense], torch.tensor(rows, dtype=torch.int64), LAYOUT.rows(flat)[list(rows)])


@st.composite
def cohorts(draw: st.DrawFn) -> dict[int, dict[str, Update]]:
    """Clients, each with two vectors: one that changes some words, and one that changes all."""
    numbers = st.lists(values, min_size=LAYOUT.numel, max_size=LAYOUT.numel)
    clients = draw(st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True))
    return {
        client: {
            "model": sparse(draw(st.lists(st.integers(0, 3), unique=True)), draw(numbers)),
            "control": Update.of(torch.tensor(draw(numbers)), LAYOUT),
        }
        for client in clients
    }


def aggregate(
    rule: CoordinateWise,
    cohort: dict[int, dict[str, Update]],
    workers: Sequence[int],
    order: Sequence[int],
    weights: dict[int, float],
) -> AggregatedUpdate:
    """Have clients' updates added by the workers that have them, in an order, and joined."""
    rooms = [PrivateRoom() for _ in range(1 + max(workers))]
    totals = [rule.init(LAYOUT, ("model", "control"), room) for room in rooms]
    clients = list(cohort)
    for place in order:
        client = clients[place]
        rule.add(totals[workers[place]], TrainRequest(client, 1, weights[client]), cohort[client])
    for other in totals[1:]:
        rule.merge(totals[0], other)
        rule.clear(other)
        assert not other.records()
    results = [ClientResult(client, weights[client]) for client in sorted(clients)]
    return rule.finish(totals[0], plan_of(sorted(clients)), results)


def expected(rule: CoordinateWise, stacked: np.ndarray) -> np.ndarray:
    if isinstance(rule, TrimmedMean):
        cut = cut_of(rule.fraction, len(stacked))
        return np.asarray(trim_mean(stacked.astype(np.float64), (cut + 0.5) / len(stacked), axis=0))
    return np.asarray(np.median(stacked.astype(np.float64), axis=0))


@given(cohort=cohorts(), data=st.data(), fraction=st.none() | st.floats(0, 0.49))
@settings(max_examples=100)
@pytest.mark.whole
def test_each_coordinate_is_what_numpy_and_scipy_say(
    cohort: dict[int, dict[str, Update]], data: st.DataObject, fraction: float | None
) -> None:
    rule = Median() if fraction is None else TrimmedMean(fraction)
    clients = len(cohort)
    workers = data.draw(st.lists(st.integers(0, 2), min_size=clients, max_size=clients))
    order = data.draw(st.permutations(range(clients)))
    weights = {client: data.draw(st.floats(0, 1)) for client in cohort}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_updates, "VALUES_AT_ONCE", data.draw(st.integers(1, 200)))
        found = aggregate(rule, cohort, workers, order, weights)
    plain = aggregate(rule, cohort, [0] * clients, range(clients), weights)
    assert found.clients == clients
    assert found.weight == pytest.approx(sum(weights.values()))
    for name in ("model", "control"):
        stacked = np.stack([cohort[client][name].flat(LAYOUT).numpy() for client in sorted(cohort)])
        delta, rows = found.vectors[name].delta, found.vectors[name].rows
        np.testing.assert_allclose(delta.numpy(), expected(rule, stacked), rtol=1e-6, atol=1e-3 * 2**-20)
        assert delta.numpy().tobytes() == plain.vectors[name].delta.numpy().tobytes()
        outside = torch.ones(4, dtype=torch.bool)
        outside[rows] = False
        assert not LAYOUT.rows(delta)[outside].any()
        assert bool(LAYOUT.rows(delta)[rows].any(1).all())


@given(
    honest=st.lists(values, min_size=3, max_size=12), bad=st.lists(st.floats(-1e6, 1e6, width=32), max_size=5)
)
def test_a_minority_cannot_move_the_result_out_of_what_others_say(
    honest: list[float], bad: list[float]
) -> None:
    bad = bad[: (len(honest) - 1) // 2]
    every = np.array([*honest, *bad], dtype=np.float32)[:, None]
    for rule in (Median(), TrimmedMean(0.499)):
        if isinstance(rule, Median) or cut_of(rule.fraction, len(every)) >= len(bad):
            (found,) = rule.combine(every.copy())
            assert min(honest) - 1e-3 <= found <= max(honest) + 1e-3


def test_the_mean_is_moved_by_one_client_where_the_median_is_not() -> None:
    every = np.array([[1.0], [2.0], [3.0], [1e6]], dtype=np.float32)
    assert Median().combine(every.copy()) == 2.5
    assert TrimmedMean(0.25).combine(every.copy()) == 2.5
    assert TrimmedMean(0.0).combine(every.copy()) == pytest.approx(1e6 / 4, rel=1e-4)


def test_no_more_values_are_read_at_a_time_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_updates, "VALUES_AT_ONCE", 10)
    seen: list[tuple[int, ...]] = []

    class Watched(Median):
        def combine(self, values: np.ndarray) -> np.ndarray:
            seen.append(values.shape)
            return super().combine(values)

    cohort = {c: {"model": Update.of(torch.ones(16), LAYOUT)} for c in range(4)}
    rule = Watched()
    total = rule.init(LAYOUT, ("model",), PrivateRoom())
    for client, update in cohort.items():
        rule.add(total, TrainRequest(client, 1, 1.0), update)
    rule.finish(total, plan_of(range(4)), [ClientResult(c, 1.0) for c in range(4)])
    assert seen == [(4, 2)] * 8


def test_only_those_who_came_through_count_and_a_cleared_file_is_empty() -> None:
    rule = Median()
    total = rule.init(DENSE, ("model",), PrivateRoom())
    for client, number in enumerate([1.0, 2.0, 50.0]):
        rule.add(total, TrainRequest(client, 1, 1.0), {"model": Update.of(torch.full((5,), number), DENSE)})
    plan = plan_of(range(3))
    first = rule.finish(total, plan, [ClientResult(client, 1.0) for client in (0, 1)])
    assert first.model.delta.tolist() == [1.5] * 5
    assert first.model.unsent == [slice(3, 5)], "the server computes derived tensors itself"
    assert not len(first.model.rows)
    rule.clear(total)
    nobody = rule.finish(total, plan, [])
    assert (nobody.clients, nobody.model.delta.tolist()) == (0, [0.0] * 5)
    rule.add(total, TrainRequest(2, 2, 1.0), {"model": Update.of(torch.full((5,), 7.0), DENSE)})
    assert rule.finish(total, plan, [ClientResult(2, 1.0)]).model.delta.tolist() == [7.0] * 5


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2.0**21])
def test_an_update_that_is_no_number_is_not_added(bad: float) -> None:
    rule = Median()
    total = rule.init(DENSE, ("model", "control"), PrivateRoom())
    fine, broken = torch.zeros(5), torch.tensor([0, 0, bad, 0, 0])
    update = {"model": Update.of(fine, DENSE), "control": Update.of(broken, DENSE)}
    with pytest.raises(NonFiniteUpdate):
        rule.add(total, TrainRequest(0, 1, 1.0), update)
    assert not total.records()


class FullDisk:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, part: memoryview) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        part = part[: self.room]
        self.room -= len(part)
        return int(self._file.write(part))


def test_a_full_disk_leaves_no_part_of_an_update() -> None:
    file = FullDisk(PrivateRoom().file("updates"), room=8 + 20 + 17)
    total = UpdateFile(DENSE, ("model",), file)  # type: ignore[arg-type]
    total.append(3, [np.full(5, 1, dtype=np.float32)])
    with pytest.raises(OSError, match="No space left"):
        total.append(4, [np.full(5, 2, dtype=np.float32)])
    assert list(total.records()) == [3]
    file.room = 1000
    total.append(5, [np.full(5, 3, dtype=np.float32)])
    records = total.records()
    assert list(records) == [3, 5]
    ((start, read),) = total.blocks(0, [records[5], records[3]])
    assert (start, read.tolist()) == (0, [[3.0] * 5, [1.0] * 5])


def test_a_round_that_has_no_room_on_disk_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Median()
    needed = 2 * 3 * (8 + 4 * LAYOUT.numel)
    free = needed
    monkeypatch.setattr(kept_updates.shutil, "disk_usage", lambda folder: type("", (), {"free": free})())
    rule.open(plan_of(range(3)), LAYOUT)
    free -= 1
    with pytest.raises(RunError, match="set TMPDIR to a folder with more, or lower clients_per_round"):
        rule.open(plan_of(range(3)), LAYOUT)


def test_a_shared_file_has_no_name_once_both_have_it(temporary: Path) -> None:
    folder = temporary / "scratch"
    folder.mkdir()
    one = SharedRoom(folder, "0").file("updates")
    (named,) = (path for path in temporary.iterdir() if path != folder)
    assert named.stat().st_mode & 0o077 == 0, "updates are nobody else's to read"
    other = SharedRoom(folder, "0").file("updates")
    assert list(temporary.iterdir()) == [folder]
    other.write(b"update")
    assert one.read() == b"update"
    for file in (one, other):
        file.close()


def test_a_shared_file_that_nobody_else_opened_is_removed(temporary: Path) -> None:
    folder = temporary / "scratch"
    folder.mkdir()
    with SharedRoom(folder, "0").file("updates"):
        remove_scratch(folder)
    assert not list(temporary.iterdir())


def test_a_private_file_has_no_name_and_is_closed_with_its_total(temporary: Path) -> None:
    file = PrivateRoom().file("updates")
    total = Median().init(LAYOUT, ("model",), type("", (), {"file": lambda self, name: file})())
    assert not list(temporary.iterdir())
    del total
    assert file.closed


def test_an_own_trainer_is_moved_to_the_median(number_trainer: Callable[..., Any]) -> None:
    clients = [[1.0, 10.0], [2.0, 20.0], [900.0, 900.0]]
    plain = fedavg(3)
    for rule, wanted in (
        (median(), {"w": 2.0, "seen": 20.0}),
        (trimmed_mean(0.34), {"w": 2.0, "seen": 20.0}),
    ):
        found = federate(
            number_trainer("seen"), clients, replace(plain, aggregator=rule), num_rounds=2
        ).params
        assert {name: float(value) for name, value in found.items()} == wanted
    assert float(federate(number_trainer("seen"), clients, plain, num_rounds=1).params["w"]) == pytest.approx(
        301
    )


RUN = {"num_rounds": 2, "algorithm.weighting": "uniform"}


@pytest.mark.parametrize("rule", [{"name": "median"}, {"name": "trimmed-mean", "fraction": 0.25}])
@pytest.mark.slow
def test_workers_change_nothing_and_leave_nothing_behind(
    experiment: Make, tmp_path: Path, temporary: Path, outcome: Callable[..., Any], rule: dict[str, Any]
) -> None:
    one = fednlp.run(experiment(RUN | {"aggregator": rule}), tmp_path / "one")
    three = fednlp.run(experiment(RUN | {"aggregator": rule, "runtime.workers": 3}), tmp_path / "three")
    mean = fednlp.run(experiment(RUN), tmp_path / "mean")
    assert outcome(one) == outcome(three)
    assert outcome(one)["weights"] != outcome(mean)["weights"]
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.variants(1)
def test_a_run_that_stops_leaves_nothing_behind(
    experiment: Make,
    poisoned_model: Path,
    tmp_path: Path,
    temporary: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    workers: int,
) -> None:
    rows = [(f"poison {text}", label, site) for text, label, site in make_rows(200)]
    changes = {
        "aggregator": {"name": "median"},
        "data.path": str(make_csv(tmp_path / "poison.csv", rows)),
        "model.name_or_path": str(poisoned_model),
        "runtime.workers": workers,
    }
    with pytest.raises(TooFewClients):
        fednlp.run(experiment(RUN | changes), tmp_path / "run")
    assert not list(temporary.iterdir())


@pytest.mark.whole
def test_a_method_with_an_aggregator_of_its_own_keeps_it(experiment: Make, tmp_path: Path) -> None:
    own = replace(fedavg(4, weight=equally), aggregator=Median())
    wanted = experiment(RUN | {"num_rounds": 1, "aggregator": {"name": "mean"}})
    with pytest.raises(
        fednlp.FednlpError, match=r"has an aggregator of its own \(Median\): leave \[aggregator\] out"
    ):
        fednlp.run(wanted, tmp_path / "refused", algorithm=own)
    given_value = fednlp.run(experiment({"num_rounds": 1}), tmp_path / "value", algorithm=own)
    named = fednlp.run(
        experiment(RUN | {"num_rounds": 1, "aggregator": {"name": "median"}}), tmp_path / "named"
    )
    assert (given_value.model / "model.safetensors").read_bytes() == (
        named.model / "model.safetensors"
    ).read_bytes()


@given(st.floats(0, 0.5, exclude_max=True), st.integers(1, 10_000))
def test_a_trimmed_mean_cuts_its_fraction_rounded_down_and_never_all(fraction: float, clients: int) -> None:
    cut = cut_of(fraction, clients)
    assert 0 <= 2 * cut < clients
    assert cut <= fraction * clients + 1e-9
    assert cut + 1 > fraction * clients - 1e-9 or 2 * (cut + 1) >= clients


def test_a_trimmed_mean_of_which_dropouts_make_a_mean_is_refused() -> None:
    rule, clients = TrimmedMean(0.2), range(5)
    total = rule.init(LAYOUT, ("model",), PrivateRoom())
    for client in clients:
        rule.add(total, TrainRequest(client, 1, 1.0), {"model": Update.of(LAYOUT.zeros(), LAYOUT)})
    results = [ClientResult(client, 1.0) for client in clients]
    assert rule.finish(total, plan_of(clients), results).clients == 5
    with pytest.raises(
        TooFewClients, match=r"4 clients answered, of which trimmed-mean with fraction = 0\.2 cuts none"
    ):
        rule.finish(total, plan_of(clients), results[1:])
