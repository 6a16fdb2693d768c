"""A run directory in a notebook: tables as pandas frames, a picture of the learning curve, a short page."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp.errors import MissingDependency, RunError
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import metric_title
from fednlp.reports.read import Run, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def rounds_frame(folder: Path) -> "DataFrame":
    """Return rounds.jsonl, a row a round; nested values have dotted names, ``evaluation.global.accuracy``.

    The number of the round is its column ``round``, and the row's name.

    Raises:
        MissingDependency: pandas is not installed.
        RunError: The folder is no run directory.
    """
    frame: DataFrame = _pandas().json_normalize(list(read_run(folder).rounds))
    return frame.set_index("round", drop=False).rename_axis(None)


def clients_frame(folder: Path) -> "DataFrame":
    """Return clients.csv, a row a client: its name, its examples, its last score on its own test examples.

    Raises:
        MissingDependency: pandas is not installed.
        RunError: The run has scored no client yet.
    """
    pandas = _pandas()
    path = folder / "clients.csv"
    if not path.is_file():
        raise RunError(f"{folder} has no clients.csv: its clients' own tests have not been scored")
    frame: DataFrame = pandas.read_csv(path, index_col="client", dtype={"name": str}, keep_default_na=False)
    for column in frame.columns.drop("name"):
        frame[column] = pandas.to_numeric(frame[column], errors="coerce")
    return frame


def summary_frame(folder: Path) -> "DataFrame":
    """Return summary.json as one row; nested values have dotted names.

    Raises:
        MissingDependency: pandas is not installed.
        RunError: The run is not at its end.
    """
    summary = read_run(folder).summary
    if not summary:
        raise RunError(f"{folder} has no summary yet: go on with fednlp.resume({str(folder)!r})")
    return _pandas().json_normalize(summary)


def curve_figure(folder: Path) -> "Figure":
    """Return the learning curve of the task's metric as a matplotlib figure.

    Raises:
        RunError: No round was evaluated.
    """
    from fednlp.reports.charts import draw
    from fednlp.reports.groups import group_runs
    from fednlp.reports.plots import learning_curves

    run = read_run(folder)
    for part in ("global", "personal"):
        chart = learning_curves(group_runs([run]), f"{part}.{run.metric}")
        if chart is not None:
            return draw(chart)
    raise RunError(f"{folder} has no evaluated round to plot")


def run_page(folder: Path) -> str:
    """Return what a notebook shows of a run: its method, its scores and where it lies, as HTML."""
    run = read_run(folder)
    rows = [*_facts(run), ("folder", str(folder))]
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(clean(run.name))}</caption>{cells}</table>"


def _facts(run: Run) -> list[tuple[str, str]]:
    total = run.setting("num_rounds", "?")
    facts = [("algorithm", clean(run.algorithm)), ("rounds", f"{len(run.rounds)} of {total}")]
    evaluation = run.summary.get("evaluation") if run.summary else None
    scores = evaluation.get("global") if isinstance(evaluation, dict) else None
    for name, value in (scores if isinstance(scores, dict) else {}).items():
        if isinstance(value, float | int):
            facts.append((f"test {metric_title(str(name))}", f"{value:.4f}"))
    return facts


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise MissingDependency("tables need pandas: pip install pandas") from None
    return pandas
