"""The console of a run: a line a round, a closing table, a learning curve."""

import math
import shlex
import sys
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from fednlp.cli.tables import add_scores, clients_table, decile_text, four_digits, plain_console, show
from fednlp.config import Experiment
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import human_bytes, human_joules, human_seconds, metric_title, plural
from fednlp.reports.read import read_run, trivial_baseline
from fednlp.reports.render import fitting, to_rich, to_text
from fednlp.reports.round_line import round_score, round_text, round_warnings
from fednlp.reports.table import Table as ComparisonTable
from fednlp.runtime.launch import rank_of
from fednlp.simulation.run_dir import RunDir, resume_command

_BLOCKS = "▁▂▃▄▅▆▇█"


def curve(values: list[float], height: int = 6) -> list[str]:
    """Draw values as a text chart, the highest at the top; one column a value. Equal values make one line.

    >>> print("\\n".join(curve([0, 1, 2], height=1)))
    2.000 ┤▁▅█
    >>> print("\\n".join(curve([0.3375, 0.3375])))
    0.338 ┤▄▄
    """
    top, bottom = max(values), min(values)
    span = top - bottom
    if not span:
        return [f"{top:5.3f} ┤{'▄' * len(values)}"]
    levels = [round((value - bottom) / span * (height * 8 - 1)) for value in values]
    lines = []
    for row in range(height - 1, -1, -1):
        cells = "".join(_BLOCKS[min(level - row * 8, 7)] if level >= row * 8 else " " for level in levels)
        label = top - span * (height - 1 - row) / max(1, height - 1) if height > 1 else top
        lines.append(f"{label:5.3f} ┤{cells}")
    return lines


class Console:
    """A callback that writes to the terminal, or to the output of a notebook's cell.

    As a context it handles Ctrl-C: what is done is saved, and the last line tells how to continue.

    Args:
        again: The command that continues; by default the one that resumes the run directory.
        output: The stream to write to; standard output if left out.
        verbose: Whether each of several runs has a title and a line a round; else one line when it is finished.
    """

    def __init__(
        self, again: str | None = None, output: RichConsole | None = None, *, verbose: bool = False
    ) -> None:
        self._again, self.verbose = again, verbose
        self._folder: Path | None = None
        self._resume = ""
        self.output = output or plain_console()
        self._progress = Progress(
            TextColumn("{task.description}", style="dim", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", style="dim", markup=False),
            console=self.output,
            transient=True,
            disable=not (self.output.is_terminal or self.output.is_jupyter),
        )
        self._task: TaskID | None = None
        self._rounds = 0
        self._metric = "accuracy"
        self._at_sites = False
        self._curve: list[tuple[int, float]] = []
        self._parts: dict[str, float] = {}
        self._whole = 0

    def log(self, text: str) -> None:
        """Print a sentence."""
        self.output.print(clean(text), style="dim", markup=False, soft_wrap=True)

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Print the title of the run."""
        self._rounds, self._folder = rounds, run.folder
        self._resume = f"go on with: {resume_command(run.folder, experiment)}"
        self._curve, self._metric = [], metric_of(run)
        self._at_sites = experiment.data.at_sites
        self.print_title(title(run, experiment, rounds, done))
        ranks = rank_of()[1]
        if ranks > 1:
            self.log(
                f"{ranks} ranks: when one is lost, mpirun ends them all; then {self._again or self._resume}"
            )
        self.begin()

    def of_run(self, name: str) -> "RunLines":
        """Return the callback of one of several runs, which share the bar.

        Args:
            name: What its lines begin with.
        """
        return RunLines(self, name)

    def show_part(self, name: str, part: float, text: str, folder: Path | None = None) -> None:
        """Move the bar of several runs by a part of one of them.

        Args:
            part: How much of it is done, 0 to 1.
            folder: The run directory, when it begins.
        """
        self._folder = folder or self._folder
        if self._task is None:
            self.begin()
        if self._task is not None:
            self._parts[name] = part
            self._progress.update(
                self._task, completed=self._whole + sum(self._parts.values()), description=clean(text)
            )

    def end_part(self, name: str) -> None:
        """Leave a finished run to the count of whole ones, which :meth:`on_progress` gets."""
        self._parts.pop(name, None)

    def print_title(self, text: str) -> None:
        """Print the title of a run."""
        self.output.print(clean(text), style="bold", markup=False, soft_wrap=True)

    def print_round(self, text: str | None, line: dict[str, Any], name: str = "") -> None:
        """Print what went wrong in a round, after its line.

        Args:
            text: The line; None for none.
            line: Of ``rounds.jsonl``.
            name: Of the run, where the line does not name it.
        """
        if text is not None:
            self._progress.console.print(text, markup=False, soft_wrap=True)
        where = (
            "  warning: " if text is not None or not name else f"  {name}, round {line['round']}, warning: "
        )
        for warning in round_warnings(line):
            self._progress.console.print(clean(where + warning), style="yellow", markup=False)

    def begin(self) -> None:
        """Show a bar, which :meth:`on_progress` moves."""
        self.close()
        self._progress.start()
        self._task = self._progress.add_task("", total=None, count="")

    def on_progress(self, done: int, of: int | None, what: str) -> None:
        """Move the bar of what is in progress; ``of`` is None where its end is not known."""
        if self._task is not None:
            count = f"{done:,}" if of is None else f"{done}/{of}"
            self._whole = done
            completed = done + sum(self._parts.values())
            self._progress.update(
                self._task, completed=completed, total=of, description=clean(what), count=count
            )

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Print the round's line."""
        score = round_score(line, self._metric)
        if score is not None:
            self._curve.append((line["round"], score))
        self.print_round(round_text(line, self._rounds, self._metric, left, self._at_sites), line)

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Print the closing table, the curve and where everything is."""
        self.close()
        if len(self._curve) > 1:
            self.output.print(f"\ntest {clean(metric_title(self._metric))} by round")
            stretch = max(1, 60 // len(self._curve))
            for text in curve([value for _, value in self._curve for _ in range(stretch)]):
                self.output.print("  " + text, markup=False)
            first, last = str(self._curve[0][0]), str(self._curve[-1][0])
            width = stretch * len(self._curve)
            self.output.print(" " * 8 + first + last.rjust(max(1, width - len(first) + 1)))
        table = clients_table(read_run(run.folder).clients, self._metric, self._at_sites)
        if table is not None:
            show(self.output, table)
            self.output.print()
        show(self.output, closing_table(summary))
        for check in summary.get("checks", ()):
            text = f"check: {check['sentence']}; {check['advice']}"
            self.output.print(clean(text), style="yellow", markup=False, soft_wrap=True)
        self.output.print(f"run directory: {run.folder}", markup=False, soft_wrap=True)
        self.output.print(f"next: fednlp report {shlex.quote(str(run.folder))}", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self._progress.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            again = self._again or self._resume
            if self._folder is not None:
                what = f"stopped; the rounds that are done are saved; {again}"
            elif again:
                what = f"stopped before anything new was begun; what was done before is kept; {again}"
            else:
                what = "stopped; nothing was begun"
            print(f"\n{what}", file=sys.stderr)
            raise SystemExit(130)


class CellOutput:
    """The output of a notebook's cell as a stream: one display, which is updated, of the lines so far.

    Of many lines the first and the last are shown, so that a long run does not slow a notebook down.
    """

    def __init__(self) -> None:
        self._lines = [""]
        self._status = ""
        self._display: Any = None
        self._shown = -math.inf

    def write(self, text: str) -> int:
        """Add text, which :meth:`flush` shows."""
        first, *rest = text.split("\n")
        self._lines[-1] += first
        self._lines += rest
        return len(text)

    def flush(self) -> None:
        """Show all that was written."""
        lines = self._lines
        if len(lines) > 2 * _CELL_LINES:
            lines = [*lines[:_CELL_LINES], "...", *lines[-_CELL_LINES:]]
        page = {"text/plain": "\n".join([*lines[:-1], lines[-1] + self._status]).rstrip("\n")}
        if self._display is None:
            from IPython.display import display

            self._display = display(page, raw=True, display_id=True)
        else:
            self._display.update(page, raw=True)
        self._shown = time.monotonic()

    def show_status(self, text: str) -> None:
        """Show a last line that the next one replaces, a few times a second at most."""
        if text and time.monotonic() - self._shown < _CELL_SECONDS:
            return
        changed = text != self._status
        self._status = text
        if changed:
            self.flush()


_CELL_LINES = 100
_CELL_SECONDS = 0.25


class CellConsole(Console):
    """The console of a notebook's cell: what a terminal shows, in one display."""

    def __init__(self) -> None:
        self._cell = CellOutput()
        cell: Any = self._cell
        plain = plain_console(file=cell, width=100, force_jupyter=False, force_terminal=False)
        super().__init__(output=plain)
        # A bar of tqdm, such as a download's, is text where there are no widgets; it need not say so in each notebook.
        warnings.filterwarnings("ignore", "IProgress not found")

    def on_progress(self, done: int, of: int | None, what: str) -> None:
        """Say what is in progress, in the last line."""
        self._cell.show_status(f"{what} {done:,}" if of is None else f"{what} {done}/{of}")

    def show_part(self, name: str, part: float, text: str, folder: Path | None = None) -> None:
        """Say which of several runs is in progress, in the last line."""
        super().show_part(name, part, text, folder)
        self._cell.show_status(text)

    def print_round(self, text: str | None, line: dict[str, Any], name: str = "") -> None:
        """Print a round's line in place of what was in progress."""
        self._cell.show_status("")
        super().print_round(text, line, name)

    def close(self) -> None:
        """Remove the line of what is in progress."""
        self._cell.show_status("")
        super().close()


class RunLines:
    """The callback of one of several runs: it moves their bar, and prints a line when the run is finished.

    Args:
        console: Where it prints; if that is verbose, a title and a line for each round too.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, clean(name)
        self.log = console.log
        self._rounds, self._metric = 0, ""

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Begin with the bar."""
        self._rounds, self._metric = rounds, metric_of(run)
        if self._console.verbose:
            self._console.print_title(f"{self._name}: {title(run, experiment, rounds, done)}")
        self._show(done, run.folder)

    def on_progress(self, done: int, of: int | None, what: str) -> None:
        """Leave the bar to all runs."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Move the bar, and print what went wrong in the round."""
        text = round_text(line, self._rounds, self._metric, left)
        self._console.print_round(
            f"{self._name}: {text}" if self._console.verbose else None, line, self._name
        )
        self._show(line["round"])

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Print the score, and how long it took."""
        self._console.end_part(self._name)
        scores = (summary["evaluation"].get(part, {}) for part in ("global", "federated", "personal"))
        score = next((one[self._metric] for one in scores if one.get(self._metric) is not None), None)
        text = "" if score is None else f"{metric_title(self._metric)} {four_digits(score)}, "
        self._console.log(f"{self._name}: finished, {text}{human_seconds(summary['seconds'])}")
        for check in summary.get("checks", ()):
            self._console.log(f"{self._name}: check: {check['sentence']}")

    def _show(self, done: int, folder: Path | None = None) -> None:
        text = f"{self._name}: round {done}/{self._rounds}"
        self._console.show_part(self._name, done / (self._rounds or 1), text, folder)


def title(run: RunDir, experiment: Experiment, rounds: int, done: int) -> str:
    """Return the title of a run."""
    data, path = run.read_json("environment.json")["data"], experiment.data.path
    known = experiment.data.name or (path if isinstance(path, str) else data["name"])
    before = f", {done} done" if done else ""
    return (
        f"{experiment.name}: {experiment.algorithm.name} on {known}, {experiment.model.name_or_path}, "
        f"{plural(rounds, 'round')}{before} -> {run.folder}"
    )


def metric_of(run: RunDir) -> str:
    """Return the metric of a run's task."""
    metric: str = run.read_json("environment.json")["data"].get("metric", "accuracy")
    return metric


def show_table(table: ComparisonTable, where: str = "the table's files") -> None:
    """Print a comparison: framed on a terminal, plain text into a pipe, where nothing may cut a line.

    Args:
        where: Names what has the columns for which the terminal is too narrow.
    """
    output = plain_console()
    if not output.is_terminal:
        print(to_text(table))
        return
    shown, hidden = fitting(table, output.width)
    output.print(to_rich(shown))
    if hidden:
        print(f"for which this window is too narrow: {', '.join(hidden)} (in {where})")


def closing_table(summary: dict[str, Any]) -> Table:
    """Return the table that ends a run."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    scores = summary["evaluation"]
    add_scores(table, scores.get("global", {}), summary.get("interval"))
    summed = scores.get("federated", {})
    if summed.get(summary["metric"]) is not None:
        own = f"{summed['examples']:,} examples of {plural(summed['clients'], 'client')}"
        table.add_row("clients' tests, summed", f"{four_digits(summed[summary['metric']])} ({own})")
    baseline = trivial_baseline(summary)
    if baseline:
        table.add_row("baseline", f"{four_digits(baseline[summary['metric']])} ({baseline['name']})")
    metric = summary["metric"]
    for part, heading in (("personal", "clients' own tests"), ("finetuned", "after own steps")):
        own = scores.get(part, {})
        if own.get(metric) is not None:
            table.add_row(heading, decile_text(own, metric))
    best = summary["best"]
    if best:
        heading = "best round, own tests" if summary.get("personalised") else "best round"
        table.add_row(heading, f"{best['round']} ({best[metric]:.4f})")
    table.add_row(
        "sent up / down", f"{human_bytes(summary['bytes_up'])} / {human_bytes(summary['bytes_down'])}"
    )
    if "simulated_seconds" in summary:
        joules = summary.get("energy_joules")
        energy = "energy not known" if joules is None else human_joules(joules)
        table.add_row("simulated time", f"{human_seconds(summary['simulated_seconds'])}, {energy}")
    if "client_memory_bytes" in summary:
        table.add_row("memory a client", f"{human_bytes(summary['client_memory_bytes'])} (predicted)")
    if "secure" in summary:
        table.add_row(*_secure_row(summary))
    here = " on this machine" if "simulated_seconds" in summary else ""
    table.add_row("rounds, time", f"{summary['rounds']}, {human_seconds(summary['seconds'])}{here}")
    if "privacy" in summary:
        table.add_row("privacy of clients", _privacy_text(summary["privacy"]))
    if "staleness" in summary:
        late = summary["staleness"]
        table.add_row("staleness", f"{late['mean']:.2f} flushes on average, {late['largest']} at most")
    if summary["dropped"]:
        table.add_row("dropped clients", str(summary["dropped"]))
    if summary["note"]:
        table.add_row("note", summary["note"])
    return table


def _privacy_text(promise: dict[str, Any]) -> str:
    """Return the guarantee of differential privacy, and against whom it holds."""

    def bound(name: str) -> str:
        return "infinite" if promise[name] is None else f"{promise[name]:.3g}"

    found = bound("epsilon")
    if "epsilon_server" in promise:
        server, models = bound("epsilon_server"), bound("epsilon_models")
        found = f"{server} against the server, {models} against whoever sees the models,"
    return f"epsilon {found} at delta {promise['delta']:.3g}"


def _secure_row(summary: dict[str, Any]) -> tuple[str, str]:
    """Return the total costs of secure aggregation."""
    added, seconds = summary["secure"], summary["seconds"]
    share = 100 * added["seconds"] / seconds if seconds else 0.0
    text = f"{human_bytes(added['bytes'])} and {added['seconds']:.1f} s added ({share:.0f} % of the time)"
    if added["aborted"]:
        text += f", {plural(added['aborted'], 'round')} without a sum"
    return added["protocol"], text
