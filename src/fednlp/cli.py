"""The command line: fednlp run, compare, partition, report, data."""

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from fednlp.errors import ConfigError, FednlpError

app = typer.Typer(
    name="fednlp",
    help="Federated learning of language models: simulate it, compare methods, and run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_EXPERIMENT = typer.Argument(help="An experiment file, or the name of one that comes with fednlp.")
_SET = typer.Option("--set", help="Change a setting, e.g. --set client.learning_rate=3e-4; may be repeated.")


@app.command()
def run(
    context: typer.Context,
    experiment: Annotated[str, _EXPERIMENT] = "experiments/quickstart.toml",
    changes: Annotated[list[str] | None, _SET] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run directory.")] = None,
    model: Annotated[
        str | None, typer.Option(help="bert-tiny, minilm, a model folder or a hub name.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The experiment's seed.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; changes the speed, never the result.")
    ] = None,
) -> None:
    """Run an experiment, or go on with one that was stopped."""
    from fednlp import config
    from fednlp import experiment as runs
    from fednlp.live import Terminal

    short = {"model.name_or_path": model, "seed": seed, "runtime.workers": workers}
    overrides = [*(changes or []), *(f"{key}={json.dumps(v)}" for key, v in short.items() if v is not None)]
    if resume is None:
        with Terminal() as terminal:
            runs.run(experiment, out, overrides=tuple(overrides), listener=terminal)
        return
    if out is not None:
        raise ConfigError("--out and --resume do not go together: a resumed run stays in its folder")
    settings = [change for change in overrides if not change.replace(" ", "").startswith("runtime.workers=")]
    if workers is None and len(settings) < len(overrides):
        workers = _number("runtime.workers", [change for change in overrides if change not in settings][-1])
    typed = context.get_parameter_source("experiment")
    expected = None
    if typed is not None and typed.name == "COMMANDLINE":
        expected = config.load(experiment, settings)
    elif settings:
        raise ConfigError(f"a resumed run keeps its settings: leave out {', '.join(settings)}, or start anew")
    with Terminal() as terminal:
        runs.resume(resume, expected=expected, workers=workers, listener=terminal)


def _number(key: str, change: str) -> int:
    text = change.partition("=")[2].strip()
    if not text.isdecimal():
        raise ConfigError(f"{key} = {text}: give a whole number, 0 for one a core")
    return int(text)


@app.command()
def compare(
    experiment: Annotated[str, _EXPERIMENT] = "experiments/quickstart.toml",
    algorithms: Annotated[str, typer.Option(help="Names, with commas between.")] = "fedavg,fedprox,fedopt",
    references: Annotated[str, typer.Option(help="centralised, local, or both with a comma.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds, from the experiment's own upwards.")] = 1,
    changes: Annotated[list[str] | None, _SET] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison.")] = None,
    model: Annotated[
        str | None, typer.Option(help="bert-tiny, minilm, a model folder or a hub name.")
    ] = None,
) -> None:
    """Compare algorithms and references over seeds; what is done already is not run again."""
    from rich.console import Console

    from fednlp import config
    from fednlp.comparison import compare as compare_runs
    from fednlp.live import Terminal
    from fednlp.reports import compare_table, read_run, write_report
    from fednlp.reports.groups import algorithm_title
    from fednlp.reports.render import to_rich, to_text

    overrides = [*(changes or []), *([f"model.name_or_path={json.dumps(model)}"] if model else [])]
    settings = config.load(experiment, overrides)
    folder = out or Path("runs") / f"compare-{settings.name}"
    with Terminal(again="run the same command again") as terminal:
        runs = compare_runs(settings, _names(algorithms), _names(references), seeds, out, terminal)
    groups: dict[str, list[Any]] = {}
    for planned in runs:
        groups.setdefault(algorithm_title(planned.method), []).append(read_run(planned.folder))
    table, console = compare_table(groups), Console()
    if console.is_terminal:
        console.print(to_rich(table))
    else:
        print(to_text(table))
    for path in write_report([planned.folder for planned in runs], folder / "report"):
        if path.suffix != ".png":
            print(path)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def partition(
    source: Annotated[str, typer.Argument(help="A known data set, a file, a folder, or a hub name.")],
    method: Annotated[
        str, typer.Option(help="uniform, label, quantity, label+quantity, cluster, natural or proportions.")
    ] = "uniform",
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Label shift: small is skewed, large is IID.")] = None,
    beta: Annotated[
        float | None, typer.Option(help="Quantity shift: small is skewed, large is equal.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="Natural: the column that names the client.")] = None,
    proportions: Annotated[str | None, typer.Option(help="A CSV or JSON table of label shares.")] = None,
    clusters: Annotated[int | None, typer.Option(help="Cluster shift: how many clusters.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Cluster shift: minilm, a folder or hub name.")] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where to write part.npz.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the four plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    path: Annotated[str | None, typer.Option(help="A known data set's own files.")] = None,
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    test_path: Annotated[str | None, typer.Option(help="The file of the test set.")] = None,
    test_fraction: Annotated[float, typer.Option(help="Held out where there is no test set.")] = 0.2,
) -> None:
    """Share the examples of a data set out over clients, and show how unlike they are."""
    from fednlp import config
    from fednlp.partitioning import partition_source

    origin = {"path": source} if path is None and _is_path(source) else {"name": source, "path": path}
    options = {
        "method": method,
        "clients": clients,
        "alpha": alpha,
        "beta": beta,
        "field": field,
        "proportions": proportions,
        "clusters": clusters,
        "encoder": encoder,
        "seed": seed,
    }
    data = origin | {"text": text, "label": label, "test_path": test_path, "test_fraction": test_fraction}
    document: dict[str, Any] = {
        "seed": seed,
        "clients_per_round": 1,
        "data": {key: value for key, value in data.items() if value is not None},
        "partition": {key: value for key, value in options.items() if value is not None},
    }
    settings = config.parse(document, "fednlp partition")
    report = partition_source(settings, out, plots, lambda said: print(said, file=sys.stderr))
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        from fednlp.partitioning import describe

        print(describe(report))


def _is_path(source: str) -> bool:
    return (
        Path(source).exists()
        or source.startswith((".", "/", "~"))
        or source.endswith((".csv", ".tsv", ".jsonl"))
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; the first run's by default.")
    ] = None,
) -> None:
    """Write one self-contained HTML page, and Markdown, about one or several runs."""
    from fednlp.reports import write_report

    for path in write_report(runs, out or runs[0] / "report"):
        print(path)


@app.command()
def data() -> None:
    """List the data sets that fednlp knows by name."""
    from rich.console import Console
    from rich.table import Table

    from fednlp.data import describe

    table = Table("name", "what", "licence", "how it is got", box=None, pad_edge=False)
    for entry in describe():
        table.add_row(entry.name, entry.title, entry.licence, entry.how)
    Console().print(table)


def main() -> None:
    """Run the command line; errors are one message, never a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except FednlpError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
