"""The table of clients by name: sizes, a column a method, the best of each client, and when there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.reports import group_runs, read_run
from fednlp.reports.document import Grid, Picture
from fednlp.reports.groups import Groups
from fednlp.reports.render import grid, to_csv
from fednlp.reports.sections.clients import MOST_CLIENTS, client_blocks, clients_table

NewRun = Callable[..., Path]
HEAD = "client,name,train_examples,test_examples"


def _run(
    new_run: NewRun,
    algorithm: str,
    *rows: str,
    head: str = f"{HEAD},accuracy",
    seed: int = 0,
    config: dict[str, Any] | None = None,
) -> Path:
    folder = new_run(f"{algorithm}{seed}{config}", algorithm=algorithm, seed=seed, config=config)
    (folder / "clients.csv").write_text("\n".join([head, *rows, ""]), encoding="utf-8")
    return folder


def _groups(*folders: Path) -> Groups:
    return group_runs(map(read_run, folders))


def _page(*folders: Path) -> Grid | None:
    """Return the table as the page shows it."""
    return next((block for block in client_blocks(_groups(*folders)) if isinstance(block, Grid)), None)


def test_sizes_that_sites_keep_are_not_told(new_run: NewRun) -> None:
    rows = ("0,a,5,0,", "1,b,5,not told,", "2,c,not told,not told,0.5")
    groups = _groups(_run(new_run, "fedavg", *rows))
    (run,) = next(iter(groups.values()))
    assert run.clients.train_examples.tolist() == [5, 5, -1]
    assert run.clients.test_examples.tolist() == [0, -1, -1]
    table = clients_table(groups)
    assert table is not None
    sizes = [row[1:3] for row in grid(table)[1]]
    assert sizes == [["5", "0"], ["5", "not told"], ["not told", "not told"]]
    assert "-1" not in to_csv(table)


def test_every_method_has_a_column_and_the_best_of_a_client_is_marked(new_run: NewRun) -> None:
    table = _page(
        _run(new_run, "fedavg", "0,Nord,1000,10,0.5", "1,,7,0,"),
        _run(new_run, "fedopt", "0,Nord,1000,10,0.75", "1,,7,0,"),
        _run(new_run, "local", "0,Nord,1000,10,0.9", "1,,7,0,"),
    )
    assert table is not None
    assert table.heads == ["Client", "Training", "Test", "FedAvg", "FedOpt", "Local only"]
    assert table.rows == [
        ["Nord", "1,000", "10", "50.0", "75.0", "90.0"],
        ["1", "7", "0", "–", "–", "–"],
    ]
    assert table.best == {(0, 4)}
    assert table.notes == [
        "Accuracy in % on each client's own test examples, by the model that it would use."
    ]


def test_scores_after_own_steps_have_a_column_and_others_none(new_run: NewRun) -> None:
    head = f"{HEAD},accuracy,more,accuracy_finetuned"
    run = _run(new_run, "fedavg", "0,Nord,5,5,0.5,x,0.75", "1,Süd,6,5,0.75,x,0.5", head=head)
    table = clients_table(_groups(run, _run(new_run, "local", "0,Nord,5,5,0.25", "1,Süd,6,5,")))
    assert table is not None
    assert [column.heading for column in table.columns] == [
        "Training",
        "Test",
        "FedAvg",
        "FedAvg, own steps",
        "Local only",
    ]
    values = {row.label: [cell and cell.mean for cell in row.cells.values()] for row in table.rows}
    assert values == {"Nord": [5, 5, 0.5, 0.75, 0.25], "Süd": [6, 5, 0.75, 0.5, None]}
    assert table.notes == (
        "FedAvg: best client Süd, worst client Nord",
        "FedAvg, own steps: best client Nord, worst client Süd",
    )


def test_clients_with_equal_scores_are_named_together(new_run: NewRun) -> None:
    head = f"{HEAD},accuracy"
    table = _page(_run(new_run, "fedavg", "0,a,5,5,0.5", "1,b,6,5,0.5", "2,c,6,5,0.25", head=head))
    assert table is not None
    assert "FedAvg: best clients a, b, worst client c" in table.notes


def test_without_scores_there_are_the_sizes(new_run: NewRun) -> None:
    table = _page(_run(new_run, "fedavg", "0,a,5,5", head=HEAD))
    assert table is not None
    assert table.rows == [["a", "5", "5"]]
    assert table.notes == ["How many examples each client has."]
    assert not table.best


def test_seeds_whose_clients_hold_other_examples_are_left_out(new_run: NewRun) -> None:
    folders = [
        _run(new_run, "fedavg", f"0,a,{size},5,{score}", seed=seed)
        for seed, (size, score) in enumerate(((5, 0.5), (5, 0.7), (6, 0.9)))
    ]
    table = _page(*folders)
    assert table is not None
    assert table.rows == [["a", "5", "5", "60.0 ± 14.1"]]
    assert table.notes[0].endswith(", mean ± standard deviation over seeds.")
    assert table.notes[-1].endswith("other examples: runs with seed 2.")


@pytest.mark.parametrize(("drawn_by", "values"), [((0, 0), (0.5, 0.7)), ((0, 1), (0.5,))])
def test_clients_without_names_are_the_same_where_they_were_drawn_once(
    new_run: NewRun, drawn_by: tuple[int, int], values: tuple[float, ...]
) -> None:
    folders = [
        _run(
            new_run,
            "fedavg",
            f"0,,5,5,{score}",
            seed=seed,
            config={"partition": {"method": "uniform", "seed": by}},
        )
        for seed, (by, score) in enumerate(zip(drawn_by, (0.5, 0.7), strict=True))
    ]
    table = clients_table(_groups(*folders))
    assert table is not None
    assert (cell := table.rows[0].cells["FedAvg"]) is not None
    assert cell.values == values


def test_a_method_with_other_clients_is_named_and_one_without_any_is_not(new_run: NewRun) -> None:
    table = clients_table(
        _groups(
            _run(new_run, "centralised"),
            _run(new_run, "fedavg", "0,Nord,5,5,0.5"),
            _run(new_run, "fedopt", "0,Ost,5,5,0.7"),
        )
    )
    assert table is not None
    assert [column.key for column in table.columns[2:]] == ["FedAvg"]
    assert table.notes == ("Left out, because their clients hold other examples: FedOpt.",)


def test_none_of_runs_without_clients(new_run: NewRun) -> None:
    assert clients_table(_groups(_run(new_run, "fedavg"))) is None


@pytest.mark.parametrize("clients", [MOST_CLIENTS, MOST_CLIENTS + 1])
def test_many_clients_are_a_histogram(new_run: NewRun, clients: int) -> None:
    blocks = list(client_blocks(group_runs([read_run(new_run(clients=clients))])))
    named = clients <= MOST_CLIENTS
    assert [isinstance(block, Grid) for block in blocks] == ([True, False] if named else [False, False])
    captions = [block.caption for block in blocks if isinstance(block, Picture)]
    assert ("How many clients have which accuracy on their own tests." in captions) != named
