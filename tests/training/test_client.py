"""One client's part in a round: what it begins from, sends, keeps and forgets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.federated.pulling import distances
from fednlp.federated.sums import ExactSum
from fednlp.training.client import Participant, begin_of, exchange_from, record_fields
from fednlp.training.optimizers import LocalTraining
from fednlp.training.replica import Replica, flat_weights

from .small import FEATURES, Classes, small

PLAIN = {"up": [], "down": [], "error_feedback": False, "pull": {}}
LOSSY = PLAIN | {"up": ["topk:0.1"], "error_feedback": True}
PULLED = PLAIN | {"pull": {"rule": "high", "share": 0.4, "push": "selected"}}
SGD = LocalTraining("sgd", 0.3, batch_size=4)
EXAMPLES = np.arange(12)


def participant(
    folder: Path | None,
    exchange: dict[str, Any] = PLAIN,
    options: LocalTraining = SGD,
    personal: frozenset[str] = frozenset(),
    clip: float | None = None,
) -> tuple[Participant, torch.Tensor]:
    model = small()
    x = flat_weights(model, personal)
    replica = Replica(model, torch.device("cpu"), False, personal)
    groups = ("",) * len(replica.layout.entries)
    how = exchange_from(exchange, groups)
    records = None if folder is None else folder / "records"
    return Participant(replica, Classes(), FEATURES, options, how, records, 3, clip), x  # type: ignore[arg-type]


def part(
    one: Participant, x: torch.Tensor, number: int = 1, client: int = 5
) -> tuple[dict[str, Any], torch.Tensor]:
    """Take part in a round alone; return the reply and the update."""
    total = ExactSum(one.replica.layout)
    reply = one.take_part(client, EXAMPLES, 1.0, number, x, total)
    return reply, total.mean(1.0)[0].clone()


def test_what_a_record_holds() -> None:
    """Nothing where nothing is kept; else what is personal, what is owed, the last model, the optimiser's memory."""

    def fields(
        exchange: dict[str, Any], options: LocalTraining = SGD, personal: Any = frozenset()
    ) -> dict[str, int]:
        one, _ = participant(None, exchange, options, personal)
        return record_fields(one.replica, options, one.exchange)

    one, x = participant(None)
    numel, tensors = x.numel(), len(one.replica.layout.entries)
    assert fields(PLAIN) == {}
    assert fields(PLAIN, personal=frozenset({"out.weight"})) == {"own": 8}
    assert fields(LOSSY) == {"owed": numel}
    assert fields(PULLED) == {"model": numel, "sent": tensors}
    momentum = LocalTraining("sgd", 0.3, momentum=0.9, keep_memory=True)
    kept = fields(PLAIN, momentum)
    assert set(kept) == {f"memory.{n}.momentum_buffer" for n in range(len(one.replica.groups))}
    assert sum(kept.values()) == numel


def test_what_is_owed_and_what_was_sent_are_the_update(tmp_path: Path) -> None:
    """Error feedback loses nothing: what arrives and what is owed add up to what was trained, round after round."""
    one, x = participant(tmp_path, LOSSY)
    plain, _ = participant(None)
    owed = torch.zeros_like(x)
    for number in (1, 2):
        trained = part(plain, x, number)[1]
        arrived = part(one, x, number)[1]
        record = one.record(5, number)
        torch.testing.assert_close(arrived + record["owed"], trained + owed, rtol=1e-5, atol=1e-6)
        assert 0 < int((arrived != 0).sum()) < x.numel() // 2
        owed = record["owed"].clone()
    assert owed.norm() > 0


def test_a_round_that_was_not_saved_does_not_count(tmp_path: Path) -> None:
    """A client that does a round again, after a crash, begins as it began before, and makes the same."""
    one, x = participant(tmp_path, LOSSY)
    part(one, x, 1)
    first = part(one, x, 2)[1]
    assert torch.equal(part(one, x, 2)[1], first)
    part(one, x, 3)
    assert not torch.equal(one.record(5, 2)["owed"], one.record(5, 3)["owed"])


def test_a_client_that_fails_is_reported_and_its_record_is_as_before(tmp_path: Path) -> None:
    one, x = participant(tmp_path, LOSSY)
    part(one, x, 1)
    before = one.record(5, 1)["owed"].clone()
    total = ExactSum(one.replica.layout)
    reply = one.take_part(5, EXAMPLES, 1.0, 2, x * float("nan"), total)
    assert reply["error"] is not None
    assert not total.storage.any()
    for saved in (1, 2):
        assert torch.equal(one.record(5, saved)["owed"], before)


def test_what_a_failed_client_kept_in_a_round_that_was_cut_short_is_forgotten(tmp_path: Path) -> None:
    """A round is done again after a crash, and this time the client fails: what counts is the round before."""
    one, x = participant(tmp_path, LOSSY)
    part(one, x, 1)
    before = one.record(5, 1)["owed"].clone()
    part(one, x, 2)
    assert not torch.equal(one.record(5, 2)["owed"], before)
    one.take_part(5, EXAMPLES, 1.0, 2, x * float("nan"), ExactSum(one.replica.layout))
    assert torch.equal(one.record(5, 2)["owed"], before)


def test_a_client_whose_own_tensors_are_no_numbers_fails(tmp_path: Path) -> None:
    """However sound what it would send is."""
    one, x = participant(tmp_path, LOSSY, personal=frozenset({"out.weight"}))
    one.replica.own = lambda: torch.full((8,), float("inf"))  # type: ignore[method-assign]
    total = ExactSum(one.replica.layout)
    assert "NaN" in one.take_part(5, EXAMPLES, 1.0, 1, x, total)["error"]
    assert not total.storage.any()
    assert not one.record(5, 1)


def test_personal_tensors_come_back_and_are_not_sent(tmp_path: Path) -> None:
    """A client goes on from where it was; another one begins with the first."""
    one, x = participant(tmp_path, personal=frozenset({"out.weight"}))
    assert part(one, x)[1].numel() == x.numel()
    own = one.record(5, 1)["own"].clone()
    assert not torch.equal(own, one.replica.first_own)
    assert torch.equal(one.begin(one.record(5, 1), x).own, own)  # type: ignore[arg-type]
    assert one.begin(one.record(6, 1), x).own is None


def test_a_pull_sends_what_moved_most_and_pushes_as_much(tmp_path: Path) -> None:
    one, x = participant(tmp_path, PULLED)
    layout = one.replica.layout
    plain, _ = participant(None)
    trained = part(plain, x)[1]
    reply, arrived = part(one, x)
    most = sorted(range(len(layout.entries)), key=lambda number: -reply["moved"][number])
    assert reply["sent"] == sorted(most[: len(reply["sent"])])
    assert reply["tensors_down"] == len(layout.entries)
    assert 0 < len(reply["sent"]) < len(layout.entries)
    sent = [bool(arrived[e.start : e.stop].any()) for e in layout.entries]
    assert [number for number, one_ in enumerate(sent) if one_] == reply["sent"]
    record = one.record(5, 1)
    torch.testing.assert_close(record["model"], x + trained, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reply["moved"], distances(layout, x + trained, x), rtol=1e-4)
    again, _ = part(one, x + 1.0, 2)
    model = one.record(5, 2)["model"]
    np.testing.assert_allclose(again["moved"], distances(layout, model, record["model"]), rtol=1e-4)
    assert again["tensors_down"] == len(reply["sent"])
    assert again["bytes_down"] < reply["bytes_down"]
    mixed = begin_of(record, one.exchange, layout, x + 1.0).shared
    assert mixed is not None
    for number, entry in enumerate(layout.entries):
        source = x + 1.0 if number in reply["sent"] else record["model"]
        assert torch.equal(mixed[entry.start : entry.stop], source[entry.start : entry.stop])
    assert begin_of({}, one.exchange, layout, x).shared is None


def test_an_update_is_cut_to_the_norm_of_privacy() -> None:
    one, x = participant(None, clip=0.01)
    assert float(part(one, x)[1].norm()) == pytest.approx(0.01, rel=1e-4)
    loose, _ = participant(None, clip=1e6)
    plain, _ = participant(None)
    torch.testing.assert_close(part(loose, x)[1], part(plain, x)[1])


def test_what_an_optimiser_remembers_goes_from_round_to_round(tmp_path: Path) -> None:
    options = LocalTraining("adamw", 0.01, batch_size=4, keep_memory=True)
    one, x = participant(tmp_path, options=options)
    part(one, x)
    steps = [float(value) for name, value in one.record(5, 1).items() if name.endswith("step")]
    assert set(steps) == {3.0}
    part(one, x, 2)
    assert {float(v) for name, v in one.record(5, 2).items() if name.endswith("step")} == {6.0}


def test_a_reply_says_what_was_done() -> None:
    one, x = participant(None)
    reply, _ = part(one, x)
    assert (reply["client"], reply["examples"], reply["steps"], reply["error"]) == (5, 12, 3, None)
    assert reply["loss"] > 0
