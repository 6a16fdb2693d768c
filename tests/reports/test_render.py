"""Every format of the table holds the same numbers, and no name can break it."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import RunError
from fednlp.formatting.safe_text import clean, text_of_csv
from fednlp.reports import render
from fednlp.reports.render import (
    cell_text,
    fitting,
    grid,
    latex_escape,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
    to_rich,
    to_text,
)
from fednlp.reports.table import Stat, Table, TableColumn, TableRow

COLUMNS = (
    TableColumn("global", "Global test", "share"),
    TableColumn("loss", "Loss", "plain"),
    TableColumn("bytes", "Sent", "bytes"),
    TableColumn("seconds", "Time", "seconds"),
    TableColumn("rounds", "Rounds", "count"),
)
numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=0, max_value=1e15)
stats = st.none() | st.lists(numbers, min_size=1, max_size=4).map(lambda values: Stat(tuple(values)))
rows = st.builds(
    TableRow,
    label=st.text(st.characters(codec="utf-8"), min_size=1),
    baseline=st.sampled_from([None, "local"]),
    seeds=st.integers(1, 9),
    cells=st.fixed_dictionaries({column.key: stats for column in COLUMNS}),
)
tables = st.builds(
    Table,
    columns=st.just(COLUMNS),
    rows=st.lists(rows, min_size=1, max_size=4).map(tuple),
    caption=st.just("Accuracy in %."),
    notes=st.lists(st.text(max_size=20), max_size=2).map(tuple),
)


def small(label: str = "FedAvg", note: str = "a note") -> Table:
    cells = {
        "global": Stat((0.50, 0.52)),
        "loss": Stat((1.25,)),
        "bytes": Stat((6.18e9,)),
        "seconds": None,
        "rounds": Stat((22.0, 20.0)),
    }
    return Table(COLUMNS, (TableRow(label, None, 2, cells),), "Accuracy in %.", (note,))


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        ("share", (0.5142,), "51.4"),
        ("share", (0.50, 0.52), "51.0 ± 1.4"),
        ("plain", (2.0, 2.5), "2.250 ± 0.354"),
        ("bytes", (6.18e9,), "6.18 GB"),
        ("bytes", (1e6, 3e6), "2.00 ± 1.41 MB"),
        ("bytes", (5e6, 5e6), "5 MB"),
        ("bytes", (0.0, 0.0), "0 B"),
        ("seconds", (60.0, 62.0), "61.0 ± 1.4 s"),
        ("seconds", (600.0,), "10 min"),
        ("count", (22.0, 22.0), "22"),
        ("count", (20.0, 22.0), "20–22"),
        ("plain", (float("nan"),), "not finite"),
        ("bytes", (float("inf"), 1.0), "not finite"),
    ],
)
def test_cells_for_people(kind: str, values: tuple[float, ...], text: str) -> None:
    assert cell_text(TableColumn("x", "X", kind), Stat(values)) == text  # type: ignore[arg-type]


@settings(deadline=None)
@given(tables)
def test_csv_read_again_holds_every_number_unrounded(table: Table) -> None:
    again = list(csv.DictReader(io.StringIO(to_csv(table), newline="")))
    assert len(again) == len(table.rows)
    for line, row in zip(again, table.rows, strict=True):
        assert text_of_csv(line["algorithm"]) == clean(row.label)
        assert line["baseline"] == (row.baseline or "")
        assert int(line["seeds"]) == row.seeds
        for key, stat in row.cells.items():
            mean, std = line[f"{key}_mean"], line[f"{key}_std"]
            assert (float(mean) if mean else None) == (stat.mean if stat else None)
            assert (float(std) if std else None) == (stat.std if stat else None)


@settings(deadline=None)
@given(tables)
def test_json_read_again_holds_every_value(table: Table) -> None:
    data = json.loads(to_json(table))
    assert [column["key"] for column in data["columns"]] == [column.key for column in COLUMNS]
    for line, row in zip(data["rows"], table.rows, strict=True):
        assert line["algorithm"] == row.label
        for key, stat in row.cells.items():
            assert (line[key] and tuple(line[key]["values"])) == (stat and stat.values)
    assert tuple(data["notes"]) == table.notes


def test_json_has_null_for_what_is_not_finite() -> None:
    cells: dict[str, Stat | None] = dict.fromkeys(column.key for column in COLUMNS)
    table = Table(COLUMNS, (TableRow("A", None, 1, cells | {"loss": Stat((float("nan"),))}),), "", ())
    assert json.loads(to_json(table))["rows"][0]["loss"] == {"mean": None, "std": None, "values": [None]}


@settings(deadline=None)
@given(tables)
def test_plain_text_is_one_line_a_row_and_columns_stand_under_each_other(table: Table) -> None:
    lines = to_text(table).split("\n")
    body = lines[: len(table.rows) + 2]
    assert set(body[1]) == {"-", " "}
    ends = [match.end() for match in re.finditer("-+", body[1])]
    for line in (body[0], *body[2:]):
        padded = line.ljust(ends[-1])
        assert all(padded[end : end + 2].strip() == "" for end in ends[:-1])
    assert lines[len(table.rows) + 2] == ""


@settings(deadline=None)
@given(tables)
def test_markdown_is_one_line_a_row_with_as_many_cells_as_heads(table: Table) -> None:
    lines = to_markdown(table).split("\n")[: len(table.rows) + 2]
    for line in lines:
        assert line.startswith("| ")
        assert line.endswith(" |")
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == len(COLUMNS) + 3


def test_latex_of_a_small_table() -> None:
    table = small("Fed_Avg & co")
    worse = {**table.rows[0].cells, "global": Stat((0.3, 0.3))}
    alone = {**table.rows[0].cells, "global": Stat((0.9, 0.9))}
    rows = (*table.rows, TableRow("worse", None, 2, worse), TableRow("alone", "local", 2, alone))
    assert to_latex(replace(table, rows=rows), "clients") == (
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{Accuracy in \\%.}\n"
        "\\label{tab:clients}\n"
        "\\begin{tabular}{lrrrrrr}\n"
        "\\toprule\n"
        "Algorithm & Global test & Loss & Sent & Time & Rounds & Seeds \\\\\n"
        "\\midrule\n"
        "Fed\\_Avg \\& co & \\textbf{51.0 \\ensuremath{\\pm} 1.4} & 1.250 & 6.18 GB & -- & 20--22 & 2 \\\\\n"
        "worse & 30.0 \\ensuremath{\\pm} 0.0 & 1.250 & 6.18 GB & -- & 20--22 & 2 \\\\\n"
        "alone & 90.0 \\ensuremath{\\pm} 0.0 & 1.250 & 6.18 GB & -- & 20--22 & 2 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\par\\smallskip\\footnotesize a note\n"
        "\\end{table}\n"
    )


@settings(deadline=None)
@given(st.text())
def test_latex_escaping_leaves_nothing_that_latex_acts_on(text: str) -> None:
    escaped = latex_escape(text)
    bare = re.sub(r"\\(?:text[a-z]+\{\}|ensuremath\{\\pm\}|[{}$&#%_])|\{[\[\]]\}", "", escaped)
    assert not set(bare) & set("\\{}$&#%_^~<>\"|`'[]")
    assert "\n" not in escaped


@settings(deadline=None)
@given(st.text(st.characters(codec="ascii", exclude_categories=["C"])))
def test_latex_escaping_loses_nothing(text: str) -> None:
    escaped = latex_escape(text)
    for character, written in sorted(render._LATEX.items(), key=lambda item: -len(str(item[1]))):
        if written.startswith("\\text"):
            escaped = escaped.replace(written, chr(0xE000 + character))
    escaped = re.sub(r"\{([\[\]])\}", r"\1", escaped)
    escaped = re.sub(r"\\([{}$&#%_])", r"\1", escaped)
    assert "".join(chr(ord(c) - 0xE000) if ord(c) >= 0xE000 else c for c in escaped) == text


def test_the_terminal_shows_names_as_they_are_and_dims_baselines() -> None:
    from rich.console import Console

    table = Table(
        COLUMNS,
        (*small("[red]x[/red]").rows, TableRow("ref", "local", 1, small().rows[0].cells)),
        "",
        ("n[b]",),
    )
    console = Console(width=200, file=io.StringIO(), force_terminal=True, record=True)
    console.print(to_rich(table, "title"))
    text = console.export_text(styles=False, clear=False)
    assert "[red]x[/red]" in text
    assert "n[b]" in text
    assert "51.0 ± 1.4" in text
    (dimmed,) = (line for line in console.export_text(styles=True).splitlines() if "ref" in line)
    assert "\x1b[2m" in dimmed


@settings(deadline=None)
@given(tables, st.integers(1, 120))
@pytest.mark.whole
def test_a_narrow_terminal_gets_fewer_columns_and_no_broken_cell(table: Table, width: int) -> None:
    from rich.cells import cell_len
    from rich.console import Console

    shown, hidden = fitting(table, width)
    assert [*shown.columns] == [*table.columns[: len(shown.columns)]]
    assert hidden == [column.heading for column in table.columns[len(shown.columns) :]]
    widest = [max(map(len, [*head.split(), *cells])) for head, *cells in zip(*flat(shown), strict=True)]
    if sum(one + 3 for one in widest) + 1 > width:  # the first column is always shown
        assert len(shown.columns) == 1
        return
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(to_rich(shown))
    lines = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(cell_len, lines.splitlines())) <= width
    for column in zip(*grid(shown)[1], strict=True):
        for cell in column[1:]:
            assert cell in lines


def flat(table: Table) -> tuple[list[str], ...]:
    heads, rows = grid(table)
    return (heads, *rows)


def test_all_formats_are_written(tmp_path: Path) -> None:
    paths = render.write_table(small(note="lone \ud800"), tmp_path / "new")
    assert {path.suffix for path in paths} == {".txt", ".csv", ".md", ".tex", ".json"}
    assert all(path.parent == tmp_path / "new" for path in paths)
    assert (tmp_path / "new" / "table.csv").read_bytes().decode() == to_csv(small())


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file") as caught:
        render.write_table(small(), tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)
