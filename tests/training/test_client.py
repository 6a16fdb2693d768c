"""One client's part in a round: what it begins from, sends, keeps and forgets."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.federated.aggregators.noisy_mean import NoisyMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms.fedavg import fedavg
from fednlp.federated.client import ClientResult, Result, TrainRequest
from fednlp.federated.links import Uplink
from fednlp.federated.pulling import Pull, distances
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import make_chain
from fednlp.runtime.shared import PrivateRoom
from fednlp.training.client import ClientTrainer
from fednlp.training.client_record import init_of, model_of, record_fields
from fednlp.training.local_training import LocalTraining
from fednlp.training.model_layout import flat_weights
from fednlp.training.replica import Replica
from fednlp.training.requests.train import train
from fednlp.training.worker import ClientWorker

from .small import FEATURES, Classes, small

PLAIN = fedavg(1)
LOSSY = replace(PLAIN, uplink=Uplink(make_chain(parse_chain(["topk:0.1"], "up")), error_feedback=True))
PULLED = replace(PLAIN, uplink=Uplink(pull=Pull("high", 0.4, push="selected")))
SGD = LocalTraining(optimizer="sgd", learning_rate=0.3, per_device_train_batch_size=4)
EXAMPLES = np.arange(12)


class Worker(ClientWorker):
    """A worker with the small model, whose clients all have the same twelve texts; no file tells it so."""

    def __init__(
        self,
        folder: Path | None,
        algorithm: Algorithm = PLAIN,
        options: LocalTraining = SGD,
        personal: frozenset[str] = frozenset(),
    ) -> None:
        model = small()
        self.x = flat_weights(model, personal)
        self.replica, self.algorithm, self.options = (
            Replica(model, torch.device("cpu"), False, personal),
            algorithm,
            options,
        )
        self.layout, self.train_features = self.replica.layout, FEATURES
        self.partition: Any = SimpleNamespace(train=lambda client: EXAMPLES)
        self.spec: Any = SimpleNamespace(seed=3)
        task: Any = Classes()
        records = None if folder is None else folder / "records"
        self.trainer = ClientTrainer(self.replica, task, FEATURES, options, algorithm, records, 3)

    def take_part(
        self,
        number: int = 1,
        x: torch.Tensor | None = None,
        client: int = 5,
        vectors: Mapping[str, torch.Tensor] | None = None,
    ) -> tuple[ClientResult, dict[str, torch.Tensor]]:
        """Take part in a round alone; return the result and the updates by name."""
        total = self.new_total(PrivateRoom())
        published = {"model": self.x if x is None else x} | dict(vectors or {})
        request = TrainRequest(client, number, 1.0)
        result = self.receive(request, train(self, request, published), published, total)
        assert result.error is None or not any(one.storage.any() for one in total.values())
        return result, {name: one.mean(1.0)[0].clone() for name, one in total.items()}

    def update(self, number: int = 1, x: torch.Tensor | None = None) -> torch.Tensor:
        """Take part in a round alone; return the model's update."""
        return self.take_part(number, x)[1]["model"]


def test_what_a_record_holds() -> None:
    """Nothing where nothing is kept; else what is personal, what is owed, the last model, the optimiser's state."""

    def fields(
        algorithm: Algorithm, options: LocalTraining = SGD, personal: frozenset[str] = frozenset()
    ) -> dict[str, int]:
        return record_fields(Worker(None, algorithm, options, personal).replica, options, algorithm)

    one = Worker(None)
    numel, tensors = one.layout.numel, len(one.layout.entries)
    assert fields(PLAIN) == {}
    assert fields(PLAIN, personal=frozenset({"out.weight"})) == {"personal": 8}
    assert fields(LOSSY) == {"residual": numel}
    assert fields(PULLED) == {"model": numel, "sent": tensors}
    assert fields(replace(PLAIN, keeps=("control",))) == {"method.control": numel}
    momentum = LocalTraining(optimizer="sgd", learning_rate=0.3, momentum=0.9, keep_optimizer=True)
    kept = fields(PLAIN, momentum)
    assert set(kept) == {f"optimizer.{n}.momentum_buffer" for n in range(len(one.replica.groups))}
    assert sum(kept.values()) == numel


def test_what_was_lost_and_what_was_sent_are_the_update(tmp_path: Path) -> None:
    """Error feedback loses nothing: what arrives and the residual add up to what was trained, round after round."""
    one, plain = Worker(tmp_path, LOSSY), Worker(None)
    residual = torch.zeros_like(one.x)
    for number in (1, 2):
        trained, arrived = plain.update(number), one.update(number)
        record = one.trainer.record(5, number)
        torch.testing.assert_close(arrived + record["residual"], trained + residual, rtol=1e-5, atol=1e-6)
        assert 0 < int((arrived != 0).sum()) < len(one.x) // 2
        residual = record["residual"].clone()
    assert residual.norm() > 0


def test_a_round_that_was_not_saved_does_not_count(tmp_path: Path) -> None:
    """A client that does a round again, after a crash, begins as it began before, and makes the same."""
    one = Worker(tmp_path, LOSSY)
    one.update(1)
    first = one.update(2)
    assert torch.equal(one.update(2), first)
    one.update(3)
    assert not torch.equal(one.trainer.record(5, 2)["residual"], one.trainer.record(5, 3)["residual"])


def test_a_client_that_fails_is_reported_and_its_record_is_as_before(tmp_path: Path) -> None:
    one = Worker(tmp_path, LOSSY)
    one.update(1)
    before = one.trainer.record(5, 1)["residual"].clone()
    result, _ = one.take_part(2, one.x * float("nan"))
    assert result.error is not None
    for saved in (1, 2):
        assert torch.equal(one.trainer.record(5, saved)["residual"], before)


def test_what_a_failed_client_kept_in_a_round_that_was_cut_short_is_forgotten(tmp_path: Path) -> None:
    """A round is done again after a crash, and this time the client fails: what counts is the round before."""
    one = Worker(tmp_path, LOSSY)
    one.update(1)
    before = one.trainer.record(5, 1)["residual"].clone()
    one.update(2)
    assert not torch.equal(one.trainer.record(5, 2)["residual"], before)
    one.take_part(2, one.x * float("nan"))
    assert torch.equal(one.trainer.record(5, 2)["residual"], before)


@pytest.mark.parametrize("algorithm", [PLAIN, LOSSY], ids=["plain", "lossy"])
def test_a_client_whose_own_tensors_are_no_numbers_fails(tmp_path: Path, algorithm: Algorithm) -> None:
    """However sound what it would send is."""

    def spoil(local: Any, x: Any, server: Any, own: Any) -> Result:
        y = local.steps(x)
        local.trained_personal.fill_(float("inf"))
        return Result({"model": y - x})

    one = Worker(tmp_path, replace(algorithm, client=spoil), personal=frozenset({"out.weight"}))
    result, _ = one.take_part()
    assert "NaN" in str(result.error)
    assert not one.trainer.record(5, 1)


def test_personal_tensors_come_back_and_are_not_sent(tmp_path: Path) -> None:
    """A client goes on from where it was; another one begins with the first."""
    one = Worker(tmp_path, personal=frozenset({"out.weight"}))
    assert one.update().numel() == one.x.numel() == one.layout.numel
    own = one.trainer.record(5, 1)["personal"].clone()
    assert not torch.equal(own, one.replica.flat.first_own)
    begun = one.trainer.init(5, 1, one.x).personal
    assert begun is not None
    assert torch.equal(begun, own)
    assert one.trainer.init(6, 1, one.x).personal is None


def test_what_is_held_stays_whatever_would_move_it() -> None:
    """Weight decay, a method's own gradient, and what the optimiser remembers of earlier rounds."""
    options = LocalTraining(learning_rate=0.1, weight_decay=0.5, keep_optimizer=True)
    one = Worker(None, options=options)
    memory = one.trainer.local(5, EXAMPLES, 1, one.x, init_of({}, PLAIN, one.layout, one.x))
    memory.steps(one.x)
    init = replace(init_of({}, PLAIN, one.layout, one.x), optimizer=memory.memory)
    held = frozenset({"out.weight"})
    local = one.trainer.local(5, EXAMPLES, 2, one.x, init, held=held)
    after = one.layout.views(local.steps(one.x, lambda g, y: g.add_(1.0)).flat())
    before = one.layout.views(one.x)
    assert torch.equal(after["out.weight"], before["out.weight"])
    assert not any(torch.equal(after[name], before[name]) for name in before if name not in held)
    assert dict(one.replica.model.named_parameters())["out.weight"].requires_grad


def test_a_client_keeps_what_its_first_steps_made(tmp_path: Path) -> None:
    """Steps towards another model leave the personal layers and the optimiser's state of the client as they were."""

    def twice(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
        y = local.steps(x)
        first = local.trained_personal.clone()
        v = local.steps(x + 0.5)
        assert not torch.equal(local.replica.own(), first)
        return Result({"model": y - x}, {"other": v.flat()})

    options = LocalTraining(
        optimizer="adam", learning_rate=0.05, per_device_train_batch_size=4, keep_optimizer=True
    )
    head = frozenset({"out.weight"})
    (tmp_path / "once").mkdir()
    once = Worker(tmp_path / "once", PLAIN, options, head)
    two = Worker(tmp_path, replace(PLAIN, client=twice, keeps=("other",)), options, head)
    for number in (1, 2):
        assert torch.equal(once.update(number), two.update(number))
        record, kept = once.trainer.record(5, number), two.trainer.record(5, number)
        assert {*kept} == {*record, "method.other"}
        assert {"personal", "optimizer.0.exp_avg", "optimizer.0.step"} <= {*record}
        for name, value in record.items():
            assert torch.equal(kept[name], value), name


def test_a_pull_sends_what_moved_most_and_pushes_as_much(tmp_path: Path) -> None:
    one = Worker(tmp_path, PULLED)
    layout, x = one.layout, one.x
    trained = Worker(None).update()
    result, updates = one.take_part()
    norms, sent = result.facts["update_norms"], result.entries
    assert sent is not None
    most = sorted(range(len(layout.entries)), key=lambda number: -norms[number])
    assert sent == sorted(most[: len(sent)])
    assert result.tensors_down == len(layout.entries)
    assert 0 < len(sent) < len(layout.entries)
    arrived = [bool(updates["model"][e.start : e.stop].any()) for e in layout.entries]
    assert [number for number, one_ in enumerate(arrived) if one_] == sent
    record = one.trainer.record(5, 1)
    torch.testing.assert_close(record["model"], x + trained, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(norms, distances(layout, x + trained, x), rtol=1e-4)
    again, _ = one.take_part(2, x + 1.0)
    model = one.trainer.record(5, 2)["model"]
    np.testing.assert_allclose(
        again.facts["update_norms"], distances(layout, model, record["model"]), rtol=1e-4
    )
    assert again.tensors_down == len(sent)
    assert again.bytes_down is not None
    assert result.bytes_down is not None
    assert again.bytes_down < result.bytes_down
    mixed = init_of(record, PULLED, layout, x + 1.0).shared
    assert mixed is not None
    for number, entry in enumerate(layout.entries):
        source = x + 1.0 if number in sent else record["model"]
        assert torch.equal(mixed[entry.start : entry.stop], source[entry.start : entry.stop])
    assert init_of({}, PULLED, layout, x).shared is None


def test_an_update_is_cut_to_the_norm_of_privacy() -> None:
    def clipped(norm: float) -> torch.Tensor:
        return Worker(None, replace(PLAIN, aggregator=NoisyMean(norm, 1.0, 0.0, 3))).update()

    assert float(clipped(0.01).norm()) == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(clipped(1e6), Worker(None).update())


def test_what_an_optimiser_remembers_goes_from_round_to_round(tmp_path: Path) -> None:
    options = LocalTraining(learning_rate=0.01, per_device_train_batch_size=4, keep_optimizer=True)
    one = Worker(tmp_path, options=options)
    for number, steps in ((1, 3.0), (2, 6.0)):
        one.update(number)
        record = one.trainer.record(5, number)
        assert {float(value) for name, value in record.items() if name.endswith("step")} == {steps}


def test_a_result_says_what_was_done() -> None:
    one = Worker(None)
    result, _ = one.take_part()
    assert (result.client, result.examples, result.steps, result.error) == (5, 12, 3, None)
    assert result.loss > 0
    assert (result.bytes_up, result.entries, result.metrics, result.facts) == (None, None, {}, {})


def control(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
    """A client with a vector to send, one of the server's, one that it keeps, and a number to report."""
    y = local.steps(x, lambda g, y, c: g + c, server["control"])
    kept = own.get("control", torch.zeros_like(x)) + 1
    return Result(
        {"model": y - x, "control": 2 * kept},
        {"control": kept, "personal": y.flat()},
        {"kept": float(kept[0])},
    )


METHOD = replace(
    PLAIN,
    client=control,
    sends=("model", "control"),
    reports=("kept",),
    keeps=("control", "personal"),
    receives=("control",),
    personal_model="personal",
)


def test_a_method_s_vectors_travel_and_are_kept(tmp_path: Path) -> None:
    """What it sends arrives by name, in full; what it keeps comes back in its next round; its bytes are counted."""
    one = Worker(tmp_path, METHOD)
    whole = one.layout.message_bytes
    moved = []
    for number, kept in ((1, 1.0), (2, 2.0)):
        server = {"control": torch.full_like(one.x, float(number - 1))}
        result, updates = one.take_part(number, vectors=server)
        assert torch.equal(updates["control"], torch.full_like(one.x, 2 * kept))
        assert result.metrics == {"kept": kept}
        assert (result.bytes_up, result.bytes_down) == (2 * whole, 2 * whole)
        record = one.trainer.record(5, number)
        assert torch.equal(record["method.control"], torch.full_like(one.x, kept))
        torch.testing.assert_close(record["method.personal"], one.x + updates["model"])
        moved.append(updates["model"])
    assert torch.equal(moved[0], Worker(None).update())  # a control of 0 is FedAvg
    assert not torch.equal(moved[0], moved[1])


def test_a_client_s_own_model_is_the_one_that_its_method_names(tmp_path: Path) -> None:
    one = Worker(tmp_path, METHOD)
    assert one.personalised
    zero = {"control": torch.zeros_like(one.x)}
    assert model_of(one.trainer.init(5, 0, one.x), METHOD, one.x) is one.x
    one.take_part(vectors=zero)
    own = model_of(one.trainer.init(5, 1, one.x), METHOD, one.x)
    assert torch.equal(own, one.trainer.record(5, 1)["method.personal"])
    assert not Worker(None).personalised


def test_what_a_method_returns_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    """One vector that is no number: nothing of the client is in any sum, and nothing is kept."""

    def spoiled(local: Any, x: torch.Tensor, server: Any, own: Any) -> Result:
        result = control(local, x, server, own)
        return replace(result, update={**result.update, "control": x * float("inf")})

    one = Worker(tmp_path, replace(METHOD, client=spoiled))
    result, _ = one.take_part(vectors={"control": torch.zeros_like(one.x)})
    assert str(result.error).startswith("NonFiniteUpdate")
    assert not one.trainer.record(5, 1)


def test_a_change_may_be_a_tensor() -> None:
    """A method may compute the update itself: it arrives as it is, or compressed."""

    def own(local: Any, x: torch.Tensor, server: Any, kept: Any) -> Result:
        return Result({"model": 0.5 * (local.steps(x).flat() - x)})

    half = Worker(None, replace(PLAIN, client=own)).update()
    torch.testing.assert_close(half, 0.5 * Worker(None).update(), rtol=1e-4, atol=1e-6)

    def divided(local: Any, x: torch.Tensor, server: Any, kept: Any) -> Result:
        return Result({"model": (local.steps(x) - x) / 2.0})

    torch.testing.assert_close(
        Worker(None, replace(PLAIN, client=divided)).update(), half, rtol=1e-4, atol=1e-6
    )
    sparse = Worker(None, replace(LOSSY, client=divided)).update()
    assert torch.equal(
        sparse[sparse != 0], Worker(None, replace(PLAIN, client=divided)).update()[sparse != 0]
    )


def test_a_request_s_examples_and_labels_hold_for_one_request() -> None:
    """Labels that a request brings are the data's for the time of its training; then nobody has them."""
    one = Worker(None)
    hidden = np.full(len(FEATURES), -1, dtype=np.int64)
    one.train_features = replace(FEATURES, arrays={**FEATURES.arrays, "label": hidden})
    one.trainer.features = one.train_features
    total = one.new_total(PrivateRoom())
    truth = FEATURES.values("label")[:4].tolist()
    request = TrainRequest(5, 1, 1.0, examples=[0, 1, 2, 3], labels=truth)
    published = {"model": one.x}
    result = one.receive(request, train(one, request, published), published, total)
    assert (result.error, result.examples) == (None, 4)
    assert (hidden == -1).all()
    plain = Worker(None)
    plain.partition = SimpleNamespace(train=lambda client: EXAMPLES[:4])
    assert torch.equal(total["model"].mean(1.0)[0], plain.update())


def test_a_client_without_memory_for_a_batch_is_told_what_to_lower() -> None:
    def client(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    worker = Worker(None, replace(PLAIN, client=client))
    found = train(worker, TrainRequest(1, 1, 1.0), {"model": worker.x}).result
    assert found.error is not None
    assert "cpu has no memory left for a batch: lower client.per_device_train_batch_size" in found.error
