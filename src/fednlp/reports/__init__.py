"""Tables, pictures and pages of run directories; they read these and nothing else."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from fednlp.errors import RunError
from fednlp.reports.comparison import kept_trials, run_directories
from fednlp.reports.groups import group_runs
from fednlp.reports.markdown import REMEDY
from fednlp.reports.modelcard import model_card
from fednlp.reports.read import Run, curve, read_run
from fednlp.reports.render import write_table
from fednlp.reports.sections.clients import clients_table
from fednlp.reports.sections.cross_client import cross_client_tables
from fednlp.reports.table import Table, across_table, compare_table
from fednlp.reports.trackers import open_trackers, round_numbers

__all__ = [
    "Run",
    "Table",
    "across_table",
    "compare_table",
    "cross_client_tables",
    "curve",
    "group_runs",
    "model_card",
    "open_trackers",
    "read_run",
    "round_numbers",
    "write_report",
    "write_table",
]


def write_report(
    run_folders: str | PathLike[str] | Sequence[str | PathLike[str]],
    out: str | Path,
    target: float | None = None,
    tuning: Table | None = None,
    figures: Sequence[str] = (),
) -> list[Path]:
    """Write the report of one or several runs: ``report.html``, ``report.md``, figures and the tables.

    Args:
        run_folders: Run directories, and folders of comparisons, which stand for the run directories in them; or a
            single one. Runs that differ only in their seeds are shown as one.
        out: The folder to write into (made where it is missing).
        target: A value of the task's metric, 0.84 for 84 %: the report says what each algorithm spent to
            reach it. By default shares of the best final figure are taken.
        tuning: The trials by which the runs' settings were chosen, if they were; by default those that the report in
            the folder of a comparison shows.
        figures: Forms of the figures beside PNG: ``"pdf"``, ``"svg"``.

    Returns:
        The files written, the HTML page first.

    Raises:
        RunError: A folder is neither a run directory nor that of a comparison, or is damaged; ``out`` cannot be
            written, or its report shows trials that the new one would not; or the metric cannot be ``target``.
    """
    from fednlp.disk import own_folder, write
    from fednlp.reports.content import build
    from fednlp.reports.html import to_html
    from fednlp.reports.markdown import save_figures, to_markdown

    given = [run_folders] if isinstance(run_folders, str | PathLike) else run_folders
    folders = [Path(one) for one in given]
    if not folders:
        raise RunError(
            "a report needs at least one run directory; give the folder that fednlp run --out made, or that of fednlp "
            "compare --out"
        )
    tuning = tuning or kept_trials(folders, out)
    runs = [read_run(folder) for folder in run_directories(folders)]
    document = build(runs, target, tuning)
    groups = group_runs(runs)
    tables = {"table": compare_table(groups), **cross_client_tables(groups)}
    further = {"tuning": tuning, "clients": clients_table(groups)}
    tables |= {stem: table for stem, table in further.items() if table is not None}
    out = Path(out)
    page, text = out / "report.html", out / "report.md"
    html, markdown = to_html(document, out), to_markdown(document)
    own_folder(out, REMEDY)
    write(page, html.encode(), REMEDY)
    write(text, markdown.encode(), REMEDY)
    written = [path for stem, table in tables.items() for path in write_table(table, out, stem)]
    return [page, text, *save_figures(document, out / "figures", ("png", *figures)), *written]
