"""fednlp run, report."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fednlp.cli.experiment_options import Changes, ExperimentName, Full, Model, TaskToTrust
from fednlp.clock import IMPORTS, Clock, process_began, running
from fednlp.errors import ConfigError


def run(
    context: typer.Context,
    experiment: ExperimentName = "experiments/quickstart.toml",
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run of this directory.")] = None,
    model: Model = None,
    task: TaskToTrust = None,
    full: Full = False,
    seed: Annotated[int | None, typer.Option(help="The experiment's seed.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; changes the speed, never the result.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time went.")] = False,
) -> None:
    """Run an experiment, or resume an interrupted run."""
    from fednlp import config

    short = {"model.name_or_path": model, "seed": seed, "runtime.workers": workers}
    overrides = [*(changes or []), *(f"{key}={json.dumps(v)}" for key, v in short.items() if v is not None)]
    named = [] if task is None else [f"task.name={json.dumps(task)}"]
    if resume is None:
        _start(config.load(experiment, [*overrides, *named], full), out, profile)
        return
    if out is not None:
        raise ConfigError("--out and --resume do not go together: a resumed run stays in its folder")
    settings = [change for change in overrides if not change.replace(" ", "").startswith("runtime.workers=")]
    if workers is None and len(settings) < len(overrides):
        workers = _number("runtime.workers", [change for change in overrides if change not in settings][-1])
    typed = context.get_parameter_source("experiment")
    expected = None
    if typed is not None and typed.name == "COMMANDLINE":
        expected = config.load(experiment, [*settings, *named], full)
        settings = []
    from fednlp.cli.console import Console
    from fednlp.simulation import run as runs

    with Console() as console, running(Clock(IMPORTS, process_began())):
        done = runs.resume(
            resume, expected=expected, task=task, overrides=settings, workers=workers, callback=console
        )
    _show_profile(done.folder, profile)


def _start(experiment: Any, out: Path | None, profile: bool) -> None:
    resolved = experiment.resolved()  # its mistakes are reported before torch is loaded, which takes seconds
    from fednlp.simulation.engines import early_workers

    with early_workers(resolved):
        from fednlp.cli.console import Console
        from fednlp.simulation import run as runs

        with Console() as console, running(Clock(IMPORTS, process_began())):
            done = runs.run(experiment, out, callback=console)
    _show_profile(done.folder, profile)


def _show_profile(folder: Path, wanted: bool) -> None:
    """Print where the time of a run went, if that was asked for."""
    if wanted:
        from fednlp.cli.tables import show_profile

        show_profile(folder)


def _number(key: str, change: str) -> int:
    text = change.partition("=")[2].strip()
    if not text.isdecimal():
        raise ConfigError(f"{key} = {text}: give a whole number, 0 for one a core")
    return int(text)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or the folder of a comparison.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; the first run's by default.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="A value of the metric: the report says what it cost to reach it.")
    ] = None,
    figures: Annotated[
        str, typer.Option(help="Forms of the figures beside PNG: pdf, svg, with a comma between.")
    ] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="Name every file that is written.")] = False,
) -> None:
    """Write one self-contained HTML page, and Markdown, about one or several runs."""
    from fednlp.cli.tables import show_written
    from fednlp.reports import write_report
    from fednlp.reports.comparison import lacks_trials

    forms = [form.strip() for form in figures.split(",") if form.strip()]
    if not {*forms} <= {"png", "pdf", "svg"}:
        raise ConfigError(f"--figures {figures}: choose from pdf, svg")
    show_written(write_report(runs, out or runs[0] / "report", target, figures=forms), verbose)
    for folder in filter(lacks_trials, runs):
        print(
            f"the trials in {folder / 'tuning'} are not shown: their table comes with the report that fednlp compare "
            "writes at its end",
            file=sys.stderr,
        )
