"""The folder of a comparison in place of its run directories, and the trials that its report shows."""

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import DamagedError, RunError
from fednlp.reports import write_report, write_table
from fednlp.reports.comparison import kept_trials, lacks_trials, run_directories
from fednlp.reports.table import Stat, Table, TableColumn, TableRow

from .conftest import make_run

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

TRIALS = Table(
    (TableColumn("round_2", "Round 2", "share"),),
    (TableRow("FedAvg: lr = 1", None, 1, {"round_2": Stat((0.25,))}),),
    "Choice of settings.",
    ("Chosen for FedAvg: lr = 1.",),
    head="Trial",
)


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """A comparison of two methods and two seeds, one of them begun, with the report of its trials."""
    folder = tmp_path / "cmp"
    for seed in (10, 2):
        for name in ("fedopt", "fedavg"):
            begun = (seed, name) == (10, "fedavg")
            make_run(folder / f"{name}-seed{seed}", algorithm=name, seed=seed, clients=3, finished=not begun)
    make_run(folder / "tuning" / "fedavg-1", algorithm="fedavg")
    write_table(TRIALS, folder / "report", "tuning")
    return folder


@given(
    st.dictionaries(st.sampled_from(["fedavg", "local", "a b"]), st.sets(st.integers(0, 999), min_size=1)),
    st.randoms(),
)
def test_runs_are_in_the_order_of_their_methods_and_seeds(
    tmp_path_factory: pytest.TempPathFactory, seeds: dict[str, set[int]], random: Random
) -> None:
    folder = tmp_path_factory.mktemp("cmp")
    expected = [folder / f"{name}-seed{seed}" for name in sorted(seeds) for seed in sorted(seeds[name])]
    for run in random.sample(expected, len(expected)):
        run.mkdir()
        (run / "resolved.toml").touch()
    (folder / "report").mkdir()
    (folder / "notes.txt").touch()
    if expected:
        assert run_directories([folder]) == expected
        assert run_directories([expected[-1], folder]) == [expected[-1], *expected]
    else:
        with pytest.raises(RunError, match="no run directory"):
            run_directories([folder])


def test_the_folder_stands_for_all_of_its_runs(comparison: Path, tmp_path: Path) -> None:
    """The report is that of the run directories, with the trials besides."""
    folder = write_report([comparison], comparison / "report", 0.5)
    runs = write_report(run_directories([comparison]), tmp_path / "cmp" / "other", 0.5, TRIALS)
    assert [path.name for path in folder] == [path.name for path in runs]
    assert [path.read_bytes() for path in folder] == [path.read_bytes() for path in runs]
    assert "clients.csv" in {path.name for path in folder}
    text = folder[1].read_text()
    assert "FedAvg: lr = 1" in text
    assert "FedAvg: seed 10 is unfinished" in text
    assert "FedOpt" in text


def test_what_holds_no_runs_says_what_to_give(comparison: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"but folders that do: give one of them, such as {comparison}$"):
        run_directories([tmp_path])
    searching = tmp_path / "searching"
    make_run(searching / "tuning" / "fedavg-1")
    with pytest.raises(RunError, match="no run yet: go on with the same fednlp compare command"):
        run_directories([searching])
    assert lacks_trials(searching)
    assert not lacks_trials(comparison)


@pytest.mark.slow
def test_no_report_with_trials_is_lost(comparison: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", algorithm="fedprox")
    before = (comparison / "report" / "tuning.json").read_bytes()
    with pytest.raises(RunError, match="choose another folder with --out"):
        write_report([comparison, run], comparison / "report")
    assert [path.name for path in (comparison / "report").glob("report.*")] == []
    pages = write_report([comparison, run], tmp_path / "both")
    assert "tuning.json" not in {path.name for path in pages}
    assert (comparison / "report" / "tuning.json").read_bytes() == before


words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=9)
stats = st.none() | st.floats(-10, 10).map(lambda value: Stat((value,)))


@given(st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True), st.data())
def test_trials_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[int], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["share", "plain"]))
    columns = tuple(TableColumn(f"round_{number}", f"Round {number}", kind) for number in rounds)
    cells = st.fixed_dictionaries({column.key: stats for column in columns})
    rows = data.draw(st.lists(st.builds(TableRow, words, st.none(), st.just(1), cells), max_size=4))
    table = Table(columns, tuple(rows), data.draw(words), tuple(data.draw(st.lists(words))), head="Trial")
    folder = tmp_path_factory.mktemp("cmp")
    write_table(table, folder / "report", "tuning")
    assert kept_trials([folder], folder) == table


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": [{"trial": 1}]},
        {"columns": "x"},
        {"rows": [{"trial": "a", "baseline": None, "seeds": 1, "x": 5}]},
    ],
)
def test_damaged_trials_are_named(comparison: Path, changes: dict[str, object]) -> None:
    path = comparison / "report" / "tuning.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(DamagedError, match=r"tuning\.json is damaged .*the same fednlp compare command"):
        write_report([comparison], comparison / "report")
