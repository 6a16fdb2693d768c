"""What a method's clients report is in the rounds' lines: the mean over the examples seen, as the training loss is."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fednlp
from fednlp import Algorithm, Result
from fednlp.config import Experiment
from fednlp.deployment.site.policy import Allow
from fednlp.deployment.site.requests import redact_result
from fednlp.federated.client import ClientResult, Local
from fednlp.federated.cohort import by_examples, equally, uniform_cohort
from fednlp.federated.round import mean_over_examples
from fednlp.partition import Partition
from fednlp.reports import write_report
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


def reporting(weight: Callable[[int], float]) -> Algorithm:
    """FedAvg whose clients report how far they went, and who they are."""

    def client(local: Local, x: Tensor, server: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Result:
        y = local.steps(x)
        drift = float((x - y).norm())
        return Result(update={"model": y - x}, metrics={"drift": drift, "client": float(local.client)})

    return Algorithm("reporting", uniform_cohort(4), weight, client=client, reports=("drift", "client"))


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-1e3, 1e3)), min_size=1, max_size=6))
def test_the_mean_is_over_the_examples(drawn: list[tuple[int, float]]) -> None:
    results = [ClientResult(n, 0.1, examples=seen, metrics={"a": one}) for n, (seen, one) in enumerate(drawn)]
    found, examples = mean_over_examples(results), sum(seen for seen, _ in drawn)
    if not examples:
        assert found == {}
        return
    assert found == {"a": pytest.approx(sum(seen * one for seen, one in drawn) / examples, abs=1e-9)}


def test_the_weights_of_the_updates_make_no_difference(experiment: Make, tmp_path: Path) -> None:
    made = experiment({"num_rounds": 1, "clients_per_round": 4, "client.max_steps": -1})
    found = []
    for name, weight in (("examples", by_examples), ("equal", equally)):
        run = fednlp.run(made, tmp_path / name, algorithm=reporting(weight))
        (line,) = lines_of(run)
        sizes = np.diff(Partition.load(run.partition).train_offsets)
        mean = sum(sizes[client] * client for client in line["cohort"]) / sum(
            sizes[c] for c in line["cohort"]
        )
        assert line["client_metrics"]["client"] == pytest.approx(mean)
        found.append(line["client_metrics"])
    assert found[0] == found[1]
    assert found[0]["drift"] > 0


def test_a_method_that_reports_nothing_has_no_such_entry(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment({"num_rounds": 1}), tmp_path / "run")
    assert "client_metrics" not in lines_of(run)[0]


@pytest.mark.usefixtures("undrawn")
def test_it_is_drawn(experiment: Make, tmp_path: Path) -> None:
    run = fednlp.run(experiment({"num_rounds": 2}), tmp_path / "run", algorithm=reporting(by_examples))
    write_report([run.folder], tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "What the clients of each round report as drift" in page


def test_a_site_that_tells_no_size_counts_once() -> None:
    result = ClientResult(1, 0.5, examples=40, steps=5, loss=20.0, metrics={"drift": 2.0})
    assert redact_result(Allow(), result) == result
    assert redact_result(Allow(tell_size=False), result) == replace(result, loss=0.5, examples=1, steps=0)
    assert redact_result(Allow(tell_scores=False), result).metrics == {"drift": 2.0}
