"""What the console shows: the curve, the bar, tables that can be piped, the clients by name."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as RichConsole
from rich.table import Table

from fednlp.cli.console import Console, curve
from fednlp.cli.tables import clients_table, label_tables, plain_console, show
from fednlp.reports.read import ClientTable
from fednlp.reports.round_line import round_text
from fednlp.tasks.label_scores import LabelScores, class_scores


def shown(table: Table | None, width: int = 80) -> list[str]:
    assert table is not None
    text = io.StringIO()
    show(RichConsole(file=text, width=width), table)
    return text.getvalue().splitlines()


@given(st.floats(-1, 1), st.integers(1, 60))
def test_equal_values_are_a_line_at_their_height(value: float, count: int) -> None:
    (line,) = curve([value] * count)
    label, _, cells = line.partition(" ┤")
    assert float(label) == pytest.approx(value, abs=6e-4)
    assert cells == "▄" * count


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_the_axis_stays_within_the_values(values: list[float]) -> None:
    labels = [float(line.partition("┤")[0]) for line in curve(values)]
    assert min(values) - 6e-4 <= min(labels) <= max(labels) <= max(values) + 6e-4


def test_the_bar_counts_only_what_it_knows() -> None:
    text = io.StringIO()
    console = Console(output=RichConsole(file=text, force_terminal=True, width=100))
    console.begin()
    console._progress.refresh()
    assert "None" not in text.getvalue()
    console.on_progress(3, 7, "clients")
    console._progress.refresh()
    assert "3/7" in text.getvalue()
    console.on_progress(1200, None, "rows")
    console._progress.refresh()
    console.close()
    assert "1,200" in text.getvalue()
    assert "None" not in text.getvalue()


def test_a_piped_table_is_whole_and_has_no_blanks_at_the_ends() -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("note", "words " * 40)
    table.add_row("[a]", "b")
    lines = shown(table)
    assert lines[0] == "note  " + ("words " * 40).rstrip()
    assert all(line == line.rstrip() for line in lines)


def clients(scores: list[float], final: list[float] | None = None, names: Any = ()) -> ClientTable:
    count = len(scores)
    sizes = np.arange(count) + 10
    final = final or [np.nan] * count
    return ClientTable(
        np.arange(count), tuple(names or [""] * count), sizes, sizes, np.array(scores), np.array(final)
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_table_moves_no_cursor(terminal: bool) -> None:
    table, text = Table("name"), io.StringIO()
    table.add_row("\x1b]0;pwn\x07\x1b[2J\u202e")
    show(RichConsole(file=text, force_terminal=terminal, width=80, color_system=None), table)
    assert not [one for one in ("\x1b]0", "\x1b[2J", "\x07", "\u202e") if one in text.getvalue()]


@pytest.mark.parametrize("terminal", [True, False])
def test_words_are_neither_markup_nor_emoji(terminal: bool) -> None:
    """In a table, a sentence, the bar and the title of the curve: they may be a stranger's labels and names."""
    word, text = "[/b] [link=http://a]b[/link] :smile:", io.StringIO()
    output = plain_console(file=text, force_terminal=terminal, width=200, color_system=None)
    table = Table("name")
    table.add_row(word)
    show(output, table)
    console = Console(output=output)
    console.log(word)
    console.begin()
    console.on_progress(1, 2, word)
    console._progress.refresh()
    console.close()
    assert text.getvalue().count(word) >= (3 if terminal else 2)


def test_few_clients_are_shown_by_name() -> None:
    table = clients_table(clients([0.5, 0.75, np.nan, 0.25], names=["Nord", "Süd", "Ost", "a\x1b[31m"]), "f1")
    assert shown(table) == [
        "client  training  test  test F1",
        "Nord          10    10   0.5000",
        "Süd           11    11   0.7500  best",
        "Ost           12    12",
        "a�[31m        13    13   0.2500  worst",
    ]


def test_what_a_site_keeps_is_not_shown_as_none() -> None:
    known = clients([0.5, np.nan], names=["west", "nord"])
    known.test_examples[1] = -1
    words = shown(clients_table(known, "accuracy", at_sites=True))[2].split()
    assert words[-4:] == ["not", "told"] * 2


def test_a_round_of_sites_says_what_was_told() -> None:
    line = {"round": 1, "train_loss": None, "bytes_up": 0, "seconds": 3.0}
    told = {"accuracy": 0.9, "accuracy_worst_decile": 0.8, "clients": 2}
    for own, said in ((told, "own accuracy 0.900 of 2 sites"), ({"clients": 0}, "own accuracy not told")):
        text = round_text(line | {"evaluation": {"personal": own}}, 2, "accuracy", None, at_sites=True)
        assert "loss not told" in text
        assert said in text


def test_clients_after_their_own_steps() -> None:
    """The best and the worst are those by the model that a client ends with."""
    lines = shown(clients_table(clients([0.5, 0.25], [0.5, 0.75]), "accuracy"))
    assert lines[0].endswith("test accuracy  after own steps")
    assert [line.split() for line in lines[1:]] == [
        ["0", "10", "10", "0.5000", "0.5000", "worst"],
        ["1", "11", "11", "0.2500", "0.7500", "best"],
    ]


def test_no_table_of_many_clients_or_without_scores() -> None:
    assert clients_table(clients([0.5] * 21), "accuracy") is None
    assert clients_table(clients([np.nan] * 3), "accuracy") is None
    assert clients_table(clients([]), "accuracy") is None
    lines = shown(clients_table(clients([0.5] * 20), "accuracy"))
    assert len(lines) == 21
    assert "best" not in " ".join(lines)


def test_labels_taken_for_another() -> None:
    """Few labels: the whole matrix. More: the pairs, the most frequent first. None where all are right."""
    truth = np.array([0, 1, 1, 2, 2, 2])
    small = class_scores(["a", "b", "c"], truth, np.array([0, 2, 1, 1, 1, 2]))
    assert [line.split() for line in shown(label_tables(small)[1])[1:]] == [
        ["1", "a", "1", "0", "0"],
        ["2", "b", "0", "1", "1"],
        ["3", "c", "0", "2", "1"],
    ]
    names = [f"label {number}" for number in range(13)]
    large = class_scores(names, truth, np.array([0, 2, 1, 1, 1, 2]))
    assert [" ".join(line.split()) for line in shown(label_tables(large)[1])[1:]] == [
        "label 2 → label 1 2",
        "label 1 → label 2 1",
    ]
    assert len(label_tables(class_scores(names, truth, truth))) == 1


def test_very_many_labels_show_the_lowest() -> None:
    names = [f"l{number}" for number in range(60)]
    scores = LabelScores(names, [1.0] * 60, [1.0] * 60, [number / 60 for number in range(60)], [5] * 60)
    lines = shown(label_tables(scores)[0])
    assert lines[0].startswith("label (40 of lowest F1, of 60; --json has all)")
    assert [line.split()[0] for line in lines[1:]] == names[:40]


@pytest.mark.whole
def test_a_run_ends_with_its_clients(tmp_path: Path, experiment: Any) -> None:
    from fednlp.simulation.run import run

    text = io.StringIO()
    changes = {"num_rounds": 1, "clients_per_round": 1, "client.finetune_steps": 1}
    run(experiment(changes), tmp_path / "run", callback=Console(output=RichConsole(file=text, width=80)))
    output = text.getvalue()
    assert "1 round ->" in output
    assert "client  training  test  test accuracy  after own steps" in output
    assert "worst decile" in output
    rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert rows[0].split(",")[4:] == ["accuracy", "accuracy_finetuned"]
    for row in rows[1:]:
        client, _, train, test, own, final = row.split(",")
        line = next(line.split() for line in output.splitlines() if line.split()[:3] == [client, train, test])
        assert line[3:5] == [f"{float(score):.4f}" for score in (own, final) if score]
    assert [line for line in output.splitlines() if line != line.rstrip()] == []
