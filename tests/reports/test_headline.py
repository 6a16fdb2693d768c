"""The first lines of a comparison say who gains by federating, who loses, and on how many examples."""

import csv
from pathlib import Path

import pytest

from fednlp.reports import write_report
from fednlp.reports.content import build
from fednlp.reports.read import read_run
from tests.reports.conftest import MakeRun

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]


def scored(folder: Path, scores: list[float], tests: list[int]) -> Path:
    """Write the clients of a run anew."""
    with (folder / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "name", "train_examples", "test_examples", "accuracy"])
        for place, (score, count) in enumerate(zip(scores, tests, strict=True)):
            writer.writerow([place, ["Nord", "Ost", "West"][place], 100, count, score])
    return folder


@pytest.mark.parametrize(
    ("alone", "tests", "said"),
    [
        ([0.5, 0.9, 0.9], [400, 400, 16], ["gain: Nord; lose: nobody; within chance: Ost, West", "gain by federating"]),
        ([0.9, 0.99, 0.99], [400, 400, 400], ["gain: nobody; lose: Ost, West; within chance", "better off alone"]),
        ([0.9, 0.9, 0.9], [9, 9, 9], ["gain: nobody; lose: nobody; within chance: Nord, Ost, West", "do not decide"]),
    ],
)  # fmt: skip
def test_who_gains(
    alone: list[float], tests: list[int], said: list[str], new_run: MakeRun, tmp_path: Path
) -> None:
    folders = [
        scored(new_run("together", algorithm="fedavg", clients=3), [0.9, 0.9, 0.9], tests),
        scored(new_run("alone", algorithm="local", clients=3), alone, tests),
        scored(new_run("pooled", algorithm="centralised", clients=3), [0.95, 0.9, 0.9], tests),
    ]
    first = build([read_run(folder) for folder in folders]).sections[0]
    assert first.title == "Who gains"
    text = str(first.blocks)
    for part in said:
        assert part in text
    assert f"{sum(tests):,} test examples" in text
    assert "pooled" in text
    page = write_report(folders, tmp_path / "report")[1].read_text()
    assert page.index("Who gains") < page.index("Results")


def test_without_clients_alone_nothing_is_said(new_run: MakeRun) -> None:
    runs = [read_run(new_run(name, algorithm=name)) for name in ("fedavg", "fedopt")]
    assert build(runs).sections[0].title == "Results"
