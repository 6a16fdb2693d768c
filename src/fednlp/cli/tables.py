"""Tables on the terminal: scores, label by label, and client by client."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import HIDDEN, metric_title, plural
from fednlp.reports.read import ClientTable, read_run
from fednlp.reports.sections.clients import MOST_CLIENTS, client_names, marks_of
from fednlp.reports.sections.time import profile_of, profile_table
from fednlp.tasks.label_scores import LabelScores

_MOST_LABELS = 40
_LARGEST_MATRIX = 12
_PAIRS = 10
_LONGEST_NAME = 32


def plain_console(**options: Any) -> RichConsole:
    """Return a console that prints words as they are: no markup is read in them, and no names of emoji."""
    return RichConsole(highlight=False, markup=False, emoji=False, **options)


def show(output: RichConsole, table: Table) -> None:
    """Print a table, whose texts may come from files and sites.

    On a terminal it is as wide as that; into a pipe as wide as it is, without blanks at the ends of lines.
    """
    if output.is_terminal:
        output.print(_Harmless(table))
        return
    text = io.StringIO()
    plain_console(file=text, width=100_000, color_system=None, force_jupyter=False).print(table)
    for line in text.getvalue().split("\n")[:-1]:
        output.print(clean(line.rstrip()), markup=False, highlight=False, soft_wrap=True)


class _Harmless:
    """A table whose texts move no cursor and set no title of a window."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._table, options.update(markup=False)):
            yield Segment(text if text == "\n" else clean(text), style, control)


def show_written(paths: Sequence[Path], verbose: bool) -> None:
    """Print the page of a report, and how many files lie beside it; or each file by its path.

    Args:
        paths: What was written, the page first.
        verbose: Whether each file is named.
    """
    if verbose:
        for path in paths:
            print(path)
        return
    page, *others = paths
    print(f"{page} (and {plural(len(others), 'file')} beside it)" if others else page)


def show_profile(folder: Path) -> None:
    """Print where the time of a run's workers went; nothing for a run without a profile."""
    workers = profile_of(read_run(folder))
    if workers is None:
        return
    heads, rows = profile_table(workers)
    table = _columns(heads[0], *heads[1:-1])
    table.add_column(heads[-1], style="dim")
    for row in rows:
        table.add_row(*row)
    output = plain_console()
    output.print("\nwhere the time went")
    show(output, table)


def score_table(scores: Mapping[str, float | None], interval: Mapping[str, Any] | None = None) -> Table:
    """Return the metrics of one evaluation, and the interval of one of them."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    add_scores(table, scores, interval)
    return table


def add_scores(
    table: Table, scores: Mapping[str, float | None], interval: Mapping[str, Any] | None = None
) -> None:
    """Add a row for each metric, one with its interval."""
    for name, value in scores.items():
        found = interval is not None and interval["metric"] == name
        between = f" ({interval_text(interval)})" if found and interval else ""
        table.add_row(f"test {metric_title(name)}", four_digits(value) + between)


def interval_text(interval: Mapping[str, Any]) -> str:
    """Return between what a score lies, by so many examples.

    >>> interval_text({"low": 0.75, "high": 0.85, "examples": 1200})
    '95 %: 0.7500 to 0.8500, by 1,200 examples'
    """
    low, high = four_digits(interval["low"]), four_digits(interval["high"])
    return f"95 %: {low} to {high}, by {plural(interval['examples'], 'example')}"


def four_digits(value: float | None) -> str:
    """Return a score with four decimals, or "not defined"."""
    return "not defined" if value is None else f"{value:.4f}"


def _columns(head: str, *numbers: str) -> Table:
    """Return an empty table: names to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(head)
    for number in numbers:
        table.add_column(number, justify="right")
    return table


def label_tables(scores: LabelScores) -> list[Table]:
    """Return the scores by label, and which labels are taken for which: a matrix, or the pairs confused most."""
    tables = [_by_label(scores)]
    if scores.confusion is not None:
        confusion = np.array(scores.confusion, np.int64).reshape(len(scores.labels), -1)
        small = len(scores.labels) <= _LARGEST_MATRIX
        tables += [_matrix(scores.labels, confusion)] if small else _pairs(scores.labels, confusion)
    return tables


def _by_label(scores: LabelScores) -> Table:
    order = list(range(len(scores.labels)))
    head = "label"
    if len(order) > _MOST_LABELS:
        order = sorted(order, key=lambda place: scores.f1[place])[:_MOST_LABELS]
        head = f"label ({_MOST_LABELS} of lowest F1, of {len(scores.labels)}; --json has all)"
    table = _columns(head, "precision", "recall", "F1", "support")
    for place in order:
        values = (part[place] for part in (scores.precision, scores.recall, scores.f1))
        table.add_row(
            _name(scores.labels[place]), *(f"{value:.4f}" for value in values), f"{scores.support[place]:,}"
        )
    return table


def _matrix(labels: Sequence[str], confusion: np.ndarray) -> Table:
    """Return the whole matrix; the columns go by the numbers of the rows."""
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    table = _columns("true label (rows), predicted (columns)", *numbers)
    for number, label, row in zip(numbers, labels, confusion.tolist(), strict=True):
        table.add_row(Text.assemble(f"{number:>{len(numbers[-1])}} ", _name(label)), *(f"{n:,}" for n in row))
    return table


def _pairs(labels: Sequence[str], confusion: np.ndarray) -> list[Table]:
    wrong = confusion * (1 - np.eye(len(labels), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    table = _columns("true label, most often taken for", "examples")
    for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if wrong[true, predicted]:
            pair = Text.assemble(_name(labels[true]), " → ", _name(labels[predicted]))
            table.add_row(pair, f"{wrong[true, predicted]:,}")
    return [table] if table.row_count else []


def clients_table(clients: ClientTable, metric: str, at_sites: bool = False) -> Table | None:
    """Return the clients one by one, the best and the worst marked; None where they are many, or have no scores.

    Args:
        clients: The clients of ``clients.csv``.
        metric: The metric of their scores.
        at_sites: Whether the clients are sites, which may keep their numbers and scores.
    """
    final = bool(np.isfinite(clients.finetuned_scores).any())
    last = clients.finetuned_scores if final else clients.scores
    if not 0 < len(clients) <= MOST_CLIENTS or not np.isfinite(last).any():
        return None
    more = [("after own steps", clients.finetuned_scores)] if final else []
    columns = [(f"test {metric_title(metric)}", clients.scores), *more]
    table = _columns("client", "training", "test", *(head for head, _ in columns))
    table.add_column("")
    marks = marks_of(last)
    for place, name in enumerate(client_names(clients)):
        table.add_row(
            _name(name),
            *(
                f"{sizes[place]:,}" if sizes[place] >= 0 else HIDDEN
                for sizes in (clients.train_examples, clients.test_examples)
            ),
            *(f"{v[place]:.4f}" if np.isfinite(v[place]) else HIDDEN if at_sites else "" for _, v in columns),
            marks[place],
        )
    return table


def _name(text: str) -> Text:
    """Return a name in one piece that a terminal can show."""
    shown = clean(text)
    return Text(shown if len(shown) <= _LONGEST_NAME else f"{shown[:_LONGEST_NAME]}…", no_wrap=True)


def decile_text(scores: Mapping[str, float], metric: str) -> str:
    """Return the worst decile and the standard deviation of the clients' scores as text."""
    worst, spread = scores[f"{metric}_worst_decile"], scores[f"{metric}_std"]
    return (
        f"{scores[metric]:.4f} (worst decile {worst:.4f}, spread {spread:.4f}, "
        f"{plural(int(scores['clients']), 'client')})"
    )
