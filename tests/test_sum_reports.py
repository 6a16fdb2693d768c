"""Training losses under the masks of secure aggregation: the round's numbers are the same, and no client's are told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.federated.aggregators.base import Outcome
from fednlp.secure.aggregator import SecureCollection
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
SUMMED = {"num_rounds": 2, "secure.sum_reports": True}


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("bits", [None, 5])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.variants(2)
def test_the_round_is_the_same(
    protocol: str, bits: int | None, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights bit for bit, loss, examples and steps; but the server's results have nothing of any client."""
    settings = SUMMED | {"secure.protocol": protocol} | ({"secure.bits": bits} if bits else {})
    told = fednlp.run(experiment(settings | {"secure.sum_reports": False}), tmp_path / "told")
    outcomes: list[Outcome] = []
    finish = SecureCollection.finish

    def watched(self: SecureCollection, *arguments: Any) -> Outcome:
        outcomes.append(finish(self, *arguments))
        return outcomes[-1]

    monkeypatch.setattr(SecureCollection, "finish", watched)
    summed = fednlp.run(experiment(settings), tmp_path / "summed")
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (told, summed)]
    assert weights[0] == weights[1]
    for one, other in zip(lines_of(told), lines_of(summed), strict=True):
        assert (one["examples"], one["steps"]) == (other["examples"], other["steps"])
        assert other["train_loss"] == pytest.approx(one["train_loss"], abs=1e-9)
        assert other["secure"]["bytes"] > one["secure"]["bytes"]
    for outcome in outcomes:
        assert {(one.loss, one.examples, one.steps) for one in outcome.results} == {(0.0, 0, 0)}


@pytest.mark.parametrize("protocol", ["secagg", "lightsecagg"])
def test_a_client_that_drops_out_is_in_no_sum(protocol: str, experiment: Make, tmp_path: Path) -> None:
    """The examples are those of the clients whose updates are in the sum."""
    lossy = {"secure.dropout": 0.25, "secure.simulated_dropout": 0.25, "num_rounds": 5}
    settings = SUMMED | lossy | {"secure.protocol": protocol}
    told, summed = (
        fednlp.run(experiment(settings | {"secure.sum_reports": on}), tmp_path / str(on))
        for on in (False, True)
    )
    pairs = [pair for pair in zip(lines_of(told), lines_of(summed), strict=True) if "aborted" not in pair[1]]
    assert any("dropped" in one for one, _ in pairs)
    for one, other in pairs:
        assert (one["examples"], one["steps"]) == (other["examples"], other["steps"])
        assert other["train_loss"] == pytest.approx(one["train_loss"], abs=1e-9)


@pytest.mark.slow
def test_two_workers_and_one(experiment: Make, tmp_path: Path) -> None:
    made = [experiment(SUMMED | {"secure.protocol": "secagg", "runtime.workers": n}) for n in (1, 2)]
    one, two = (lines_of(fednlp.run(each, tmp_path / str(n))) for n, each in enumerate(made))
    assert [line["train_loss"] for line in one] == [line["train_loss"] for line in two]
