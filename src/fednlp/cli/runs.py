"""fednlp run, compare, report."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fednlp.clock import IMPORTS, Clock, process_began, running
from fednlp.errors import ConfigError

_EXPERIMENT = typer.Argument(help="An experiment file, or the name of one that comes with fednlp.")
_MODEL = typer.Option(help="bert-tiny, minilm, smollm2, a model folder or a hub name.")
_FULL = typer.Option("--full", help="The experiment's full size, for a GPU, in place of its laptop size.")
TASK = typer.Option(
    help="The task. A run directory that names a class, module:Class, needs it named here too: its code is run."
)
_SET = typer.Option("--set", help="Change a setting, e.g. --set client.learning_rate=3e-4; may be repeated.")


def run(
    context: typer.Context,
    experiment: Annotated[str, _EXPERIMENT] = "experiments/quickstart.toml",
    changes: Annotated[list[str] | None, _SET] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run of this directory.")] = None,
    model: Annotated[str | None, _MODEL] = None,
    task: Annotated[str | None, TASK] = None,
    full: Annotated[bool, _FULL] = False,
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
    elif settings:
        raise ConfigError(
            f"a resumed run keeps its settings: leave out {', '.join(settings)}, or start again"
        )
    from fednlp.cli.console import Console
    from fednlp.simulation import run as runs

    with Console() as console, running(Clock(IMPORTS, process_began())):
        done = runs.resume(resume, expected=expected, task=task, workers=workers, callback=console)
    _show_profile(done.folder, profile)


def _start(experiment: Any, out: Path | None, profile: bool) -> None:
    experiment.resolved()  # its mistakes are reported before torch is loaded, which takes seconds
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


def compare(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Experiment files, or names of some that come with fednlp; quickstart if left out."
        ),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Names, or variants of the file, with commas between; all variants, or "
            "fedavg,fedprox,fedopt, if left out."
        ),
    ] = None,
    baselines: Annotated[str, typer.Option(help="Of centralised, chained, local, with commas between.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, from the experiment's own upwards.")] = 1,
    changes: Annotated[list[str] | None, _SET] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison.")] = None,
    model: Annotated[str | None, _MODEL] = None,
    full: Annotated[bool, _FULL] = False,
) -> None:
    """Compare algorithms and baselines over seeds; finished runs are not repeated.

    Several experiments, of one task or of several, give a table each and one of all.
    """
    from fednlp import config
    from fednlp.cli.console import Console, show_table
    from fednlp.reports import across_table, compare_table, read_run, write_report, write_table
    from fednlp.reports.groups import algorithm_title
    from fednlp.reports.sections.clients import clients_table
    from fednlp.simulation.compare import compare as compare_runs
    from fednlp.simulation.compare import plan

    overrides = [*(changes or []), *([f"model.name_or_path={json.dumps(model)}"] if model else [])]
    loaded = [config.load(one, overrides, full) for one in experiments or ["experiments/quickstart.toml"]]
    _require_different([one.name for one in loaded])
    folders = [_comparison_folder(one.name, out, len(loaded)) for one in loaded]
    how = [(_methods(one, algorithms), _names(baselines), seeds) for one in loaded]
    for settings, folder, which in zip(loaded, folders, how, strict=True):
        plan(settings, *which, folder if out else None)  # all mistakes before the first run
    found: dict[str, dict[str, list[Any]]] = {}
    pages: list[Path] = []
    for settings, folder, which in zip(loaded, folders, how, strict=True):
        with Console(again="run the same command again") as console:
            runs = compare_runs(settings, *which, folder if out else None, console)
        groups: dict[str, list[Any]] = {}
        for planned in runs:
            groups.setdefault(algorithm_title(planned.method), []).append(read_run(planned.folder))
        found[settings.name] = groups
        show_table(compare_table(groups))
        pages += write_report([planned.folder for planned in runs], folder / "report")
        by_client = clients_table(groups)
        if by_client is not None:
            show_table(by_client)
            pages += write_table(by_client, folder / "report", "clients")
    if len(found) > 1:
        for part in ("global", "personal", "finetuned"):
            table = across_table(found, part)
            if any(cell for row in table.rows for cell in row.cells.values()):
                show_table(table)
                pages += write_table(table, out or Path("runs"), f"across-{part}")
    for path in pages:
        if path.suffix != ".png":
            print(path)


def _methods(experiment: Any, algorithms: str | None) -> list[str]:
    """Return the methods to compare: those given, or the file's variants, or the algorithms of FedNLP's Table 2."""
    if algorithms is not None:
        return _names(algorithms)
    return list(experiment.variants) or ["fedavg", "fedprox", "fedopt"]


def _require_different(names: list[str]) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise ConfigError(f"two experiments are named {twice}: give one another name in its file")


def _comparison_folder(name: str, out: Path | None, of: int) -> Path:
    if out is None:
        return Path("runs") / f"compare-{name}"
    return out if of == 1 else out / name


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; the first run's by default.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="A value of the metric: the report says what it cost to reach it.")
    ] = None,
) -> None:
    """Write one self-contained HTML page, and Markdown, about one or several runs."""
    from fednlp.reports import write_report

    for path in write_report(runs, out or runs[0] / "report", target):
        print(path)
