"""The table of clients by name: sizes, and a column a method."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fednlp.reports import group_runs, read_run
from fednlp.reports.clients import MOST_NAMED, client_blocks, client_grid
from fednlp.reports.document import Grid, Picture

NewRun = Callable[..., Path]
HEAD = "client,name,train_examples,test_examples"


def _grid(*folders: Path) -> Grid | None:
    return client_grid(group_runs(map(read_run, folders)))


def _run(new_run: NewRun, algorithm: str, *rows: str, head: str = f"{HEAD},accuracy", seed: int = 0) -> Path:
    folder = new_run(f"{algorithm}{seed}", algorithm=algorithm, seed=seed)
    (folder / "clients.csv").write_text("\n".join([head, *rows, ""]), encoding="utf-8")
    return folder


def test_every_method_has_a_column_and_the_best_of_a_client_is_marked(new_run: NewRun) -> None:
    table = _grid(
        _run(new_run, "fedavg", "0,Nord,1000,10,0.5", "1,,7,0,"),
        _run(new_run, "fedopt", "0,Nord,1000,10,0.75", "1,,7,0,"),
        _run(new_run, "local", "0,Nord,1000,10,0.9", "1,,7,0,"),
    )
    assert table is not None
    assert table.heads == ["Client", "Training examples", "Test examples", "FedAvg", "FedOpt", "Local only"]
    assert table.rows == [
        ["Nord", "1,000", "10", "50.0", "75.0", "90.0"],
        ["Client 1", "7", "0", "–", "–", "–"],
    ]
    assert table.best == {(0, 4)}


def test_scores_after_own_steps_have_a_column_and_others_none(new_run: NewRun) -> None:
    table = _grid(_run(new_run, "fedavg", "0,a,5,5,0.5,x,0.6", head=f"{HEAD},accuracy,more,accuracy_final"))
    assert table is not None
    assert list(table.heads[3:]) == ["Own test accuracy (%)", "Own test accuracy (%), after own steps"]
    assert table.rows == [["a", "5", "5", "50.0", "60.0"]]


def test_without_scores_there_are_the_sizes(new_run: NewRun) -> None:
    table = _grid(_run(new_run, "fedavg", "0,a,5,5", head=HEAD))
    assert table is not None
    assert table.rows == [["a", "5", "5"]]


def test_seeds_whose_clients_hold_other_examples_are_left_out(new_run: NewRun) -> None:
    folders = [
        _run(new_run, "fedavg", f"0,a,{size},5,{score}", seed=seed)
        for seed, (size, score) in enumerate(((5, 0.5), (5, 0.7), (6, 0.9)))
    ]
    table = _grid(*folders)
    assert table is not None
    assert table.rows == [["a", "5", "5", "60.0 ± 14.1"]]
    assert table.notes[-1].endswith("runs with seed 2.")


@pytest.mark.parametrize("clients", [MOST_NAMED, MOST_NAMED + 1])
def test_many_clients_are_a_histogram(new_run: NewRun, clients: int) -> None:
    blocks = list(client_blocks(group_runs([read_run(new_run(clients=clients))])))
    named = clients <= MOST_NAMED
    assert [isinstance(block, Grid) for block in blocks] == ([True, False] if named else [False, False])
    captions = [block.caption for block in blocks if isinstance(block, Picture)]
    assert ("How many clients have which accuracy on their own tests." in captions) != named
