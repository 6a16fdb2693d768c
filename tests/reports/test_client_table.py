"""The table of clients by name: what it holds, and when there is none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fednlp.reports.client_table import clients_table
from fednlp.reports.read import ClientTable

NAMES = ("Nord", "Süd")


def run(
    scores: list[float],
    final: list[float] | None = None,
    *,
    names: tuple[str, ...] = NAMES,
    seed: int = 0,
    partition_seed: int | None = None,
) -> Any:
    """Return what the table reads of a run: its clients, metric and seeds."""
    count = len(scores)
    names = names if len(names) == count else ("",) * count
    sizes = np.arange(count) + 3
    table = ClientTable(
        np.arange(count), names, sizes, sizes, np.array(scores), np.array(final or [np.nan] * count)
    )
    settings = {"partition.seed": partition_seed}
    return SimpleNamespace(clients=table, metric="accuracy", seed=seed, setting=settings.get, folder=Path())


def test_a_row_a_client_and_a_column_a_method() -> None:
    found = clients_table({"FedAvg": [run([0.5, 0.75], [0.75, 0.5])], "Local only": [run([0.25, np.nan])]})
    assert found is not None
    assert [column.heading for column in found.columns] == [
        "Training",
        "Test",
        "FedAvg",
        "FedAvg, own steps",
        "Local only",
    ]
    assert [row.label for row in found.rows] == list(NAMES)
    values = [[cell and cell.mean for cell in row.cells.values()] for row in found.rows]
    assert values == [[3, 3, 0.5, 0.75, 0.25], [4, 4, 0.75, 0.5, None]]
    assert found.notes == (
        "FedAvg: best Süd, worst Nord",
        "FedAvg, own steps: best Nord, worst Süd",
    )


def test_named_clients_are_the_same_over_seeds() -> None:
    found = clients_table({"FedAvg": [run([0.5, 0.5]), run([1.0, 0.5], seed=1)]})
    assert found is not None
    cell = found.rows[0].cells["FedAvg"]
    assert cell is not None
    assert cell.values == (0.5, 1.0)


@pytest.mark.parametrize(
    ("runs", "there"),
    [
        ([run([0.5, 0.5], names=()), run([0.5, 0.5], names=(), seed=1)], False),
        ([run([0.5], names=(), partition_seed=0), run([0.5], names=(), seed=1, partition_seed=0)], True),
        ([run([0.5, 0.5]), run([0.5, 0.5], names=("Ost", "West"))], False),
        ([run([0.5] * 20)], True),
        ([run([0.5] * 21)], False),
        ([run([np.nan])], False),
        ([run([])], False),
    ],
)
def test_when_there_is_one(runs: list[Any], there: bool) -> None:
    assert (clients_table({"FedAvg": runs}) is not None) is there
