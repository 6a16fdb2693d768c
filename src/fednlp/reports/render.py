"""A comparison table as text, CSV, Markdown, LaTeX, JSON, or on the terminal."""

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp.formatting.safe_text import clean, csv_text
from fednlp.formatting.units import (
    DASH,
    HIDDEN,
    bytes_unit,
    human_bytes,
    human_joules,
    human_seconds,
    joules_unit,
    places,
    time_unit,
)
from fednlp.reports.markdown import REMEDY, escape, markdown_table
from fednlp.reports.table import MARK, Stat, Table, TableColumn, TableRow

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        '"': r"\textquotedbl{}",
        "|": r"\textbar{}",
        "`": r"\textasciigrave{}",
        "'": r"\textquotesingle{}",
        "[": r"{[}",
        "]": r"{]}",
        "–": "--",
        "±": r"\ensuremath{\pm}",
    }
)

_UNITS = {
    "bytes": (human_bytes, bytes_unit),
    "seconds": (human_seconds, time_unit),
    "joules": (human_joules, joules_unit),
}


def cell_text(column: TableColumn, stat: Stat | None) -> str:
    """Return one cell for people: mean ± spread, in the unit that suits it.

    >>> cell_text(TableColumn("global", "", "share"), Stat((0.5, 0.6)))
    '55.0 ± 7.1'
    >>> cell_text(TableColumn("bytes", "", "bytes"), Stat((1.5e9,)))
    '1.50 GB'
    """
    if stat is None:
        return HIDDEN if column.kind == "size" else DASH
    mean, std = stat.mean, stat.std
    if not math.isfinite(mean):
        return "not finite"
    if column.kind in ("count", "size"):
        low, high = min(stat.values), max(stat.values)
        return f"{low:,.0f}" if low == high else f"{low:,.0f}–{high:,.0f}"
    if column.kind in _UNITS:
        human, unit_of = _UNITS[column.kind]
        if not std:
            return human(mean)
        unit, size = unit_of(mean)
        return f"{mean / size:.{places(mean / size)}f} ± {std / size:.{places(mean / size)}f} {unit}"
    scale, decimals = {"share": (100, 1), "points": (1, 1)}.get(column.kind, (1, 3))
    spread = "" if std is None else f" ± {scale * std:.{decimals}f}"
    return f"{scale * mean:.{decimals}f}{spread}"


def leaders(column: TableColumn, stats: Mapping[int, Stat], least: bool = False) -> set[int]:
    """Return which of several figures are the highest (or ``least``) as shown; none where all are level.

    >>> leaders(TableColumn("", "", "share"), {0: Stat((0.5,)), 1: Stat((0.9,)), 4: Stat((0.9,))})
    {1, 4}
    """
    known = {place: stat.mean for place, stat in stats.items() if math.isfinite(stat.mean)}
    if len(known) < 2:
        return set()
    shown = {place: cell_text(column, Stat((mean,))) for place, mean in known.items()}
    top = shown[(min if least else max)(known, key=lambda place: known[place])]
    level = {place for place in known if shown[place] == top}
    return level if len(level) < len(known) else set()


_HIGHEST = ("global", "federated", "personal", "personal_client_mean", "personal_worst_decile", "finetuned")
_LEAST = ("bytes", "simulated_seconds", "energy_joules")


def best_cells(table: Table) -> set[tuple[int, int]]:
    """Return the cells (row, column) of the grid that show the best figure of the methods; none where all are level.

    What is shown as the same figure is as good. Baselines are left out.
    """
    rivals = [number for number, row in enumerate(table.rows) if not row.baseline]
    best: set[tuple[int, int]] = set()
    for place, column in enumerate(table.columns, start=1):
        if column.key in _HIGHEST + _LEAST:
            stats = {n: stat for n in rivals if (stat := table.rows[n].cells[column.key])}
            best |= {(number, place) for number in leaders(column, stats, least=column.key in _LEAST)}
    return best


def grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows as text: label first, number of seeds last."""
    heads = [table.head, *(column.heading for column in table.columns), "Seeds"]
    return heads, [_texts(table, row) for row in table.rows]


def _texts(table: Table, row: TableRow) -> list[str]:
    columns = [replace(column, kind=row.kind or column.kind) for column in table.columns]
    cells = [cell_text(column, row.cells[column.key]) for column in columns]
    label = f"{row.label} {MARK}" if row.marked else row.label
    return [clean(label), *cells, str(row.seeds)]


def to_text(table: Table) -> str:
    """Return the table in plain text, numbers to the right."""
    heads, rows = grid(table)
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    body = [line(heads), "  ".join("-" * width for width in widths), *(line(row) for row in rows)]
    return "\n".join([*body, "", *_remarks(table)]) + "\n"


def _remarks(table: Table) -> list[str]:
    return [clean(remark) for remark in (table.caption, *table.notes)]


def to_rich(table: Table, title: str | None = None) -> "RichTable":
    """Return the table for the terminal; baselines are dimmed, the remarks are its caption."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    heads, rows = grid(table)
    caption = Text("\n".join(_remarks(table)))
    shown = RichTable(
        title=title and Text(title), caption=caption, box=box.SIMPLE_HEAD, caption_justify="left"
    )
    for i, (head, least) in enumerate(zip(heads, _least_widths(table), strict=True)):
        shown.add_column(Text(head), justify="left" if i == 0 else "right", overflow="fold", min_width=least)
    for row, texts in zip(table.rows, rows, strict=True):
        shown.add_row(*(Text(text) for text in texts), style="dim" if row.baseline else None)
    return shown


def fitting(table: Table, width: int) -> tuple[Table, list[str]]:
    """Leave out the last columns for which a terminal is too narrow; return the table and their headings.

    Headings may go over several lines, between words; numbers and names stay in one piece.
    """
    for count in range(len(table.columns), 0, -1):
        shown = replace(table, columns=table.columns[:count])
        if sum(least + 3 for least in _least_widths(shown)) + 1 <= width:  # its frame
            break
    return shown, [column.heading for column in table.columns[count:]]


def _least_widths(table: Table) -> list[int]:
    """Return the characters that each column needs where headings are broken between words alone."""
    heads, rows = grid(table)
    return [max(map(len, [*head.split(), *cells])) for head, *cells in zip(heads, *rows, strict=True)]


def to_csv(table: Table) -> str:
    """Return the table as CSV: numbers unrounded (shares of one, bytes, seconds), mean and spread apart.

    What a spreadsheet would take for a formula begins with an apostrophe.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = [f"{column.key}_{part}" for column in table.columns for part in ("mean", "std")]
    writer.writerow([table.head.lower(), "baseline", "seeds", *map(csv_text, numbers)])
    for row in table.rows:
        cells = [row.cells[column.key] for column in table.columns]
        flat = [part for stat in cells for part in ((stat.mean, stat.std) if stat else (None, None))]
        writer.writerow([csv_text(clean(row.label)), csv_text(row.baseline or ""), row.seeds, *flat])
    return out.getvalue()


def to_markdown(table: Table) -> str:
    """Return the table in Markdown, remarks as a list under it."""
    heads, rows = grid(table)
    text = markdown_table(heads, rows, numeric=range(1, len(heads)))
    return text + "\n" + "\n".join(f"{escape(remark)}\n" for remark in _remarks(table))


def to_latex(table: Table, stem: str = "table") -> str:
    r"""Return the table as a LaTeX float, the best figures in bold; needs ``\usepackage{booktabs,textcomp}``.

    Args:
        table: The comparison; its caption is the float's.
        stem: The label is ``tab:`` and this.
    """
    heads, rows = grid(table)
    best = best_cells(table)
    body = [
        [
            rf"\textbf{{{latex_escape(cell)}}}" if (number, place) in best else latex_escape(cell)
            for place, cell in enumerate(cells)
        ]
        for number, cells in enumerate(rows)
    ]
    lines = [" & ".join(cells) + r" \\" for cells in ([*map(latex_escape, heads)], *body)]
    caption, *remarks = map(latex_escape, _remarks(table))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{stem}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\smallskip\footnotesize {remark}" for remark in remarks),
            r"\end{table}",
            "",
        ]
    )


def latex_escape(text: str) -> str:
    r"""Return text with every character that LaTeX would act on escaped.

    >>> latex_escape("50 % of a_b")
    '50 \\% of a\\_b'
    """
    return clean(text).translate(_LATEX)


def to_json(table: Table) -> str:
    """Return the table as JSON: every value of every seed, mean and spread; what is not finite is null."""
    rows = [
        {
            table.head.lower(): row.label,
            "baseline": row.baseline,
            "seeds": row.seeds,
            **{column.key: _json_stat(row.cells[column.key]) for column in table.columns},
        }
        for row in table.rows
    ]
    columns = [{"key": c.key, "heading": c.heading, "kind": c.kind} for c in table.columns]
    data = {"caption": table.caption, "columns": columns, "rows": rows, "notes": table.notes}
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _json_stat(stat: Stat | None) -> dict[str, Any] | None:
    if stat is None:
        return None
    return {"mean": _finite(stat.mean), "std": _finite(stat.std), "values": [_finite(v) for v in stat.values]}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def write_table(table: Table, folder: str | Path, stem: str = "table") -> list[Path]:
    """Write the table in every format into a folder (made where it is missing); return the files.

    Raises:
        RunError: The disk is full, or the folder cannot be written.
    """
    from fednlp.disk import own_folder, write

    folder = own_folder(Path(folder), REMEDY)
    renders = {"txt": to_text, "csv": to_csv, "md": to_markdown, "json": to_json}
    texts = {folder / f"{stem}.{suffix}": render(table) for suffix, render in renders.items()}
    texts[folder / f"{stem}.tex"] = to_latex(table, stem)
    for path, text in texts.items():
        # What Unicode cannot encode (a lone surrogate) must not cost the whole table.
        write(path, text.encode(errors="replace"), REMEDY)
    return list(texts)
