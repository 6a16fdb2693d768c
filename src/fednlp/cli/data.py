"""fednlp data list, fednlp data info, fednlp partition."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fednlp.data.look import Look
from fednlp.plaintext import clean, clean_lines

app = typer.Typer(
    help="The data sets that fednlp knows by name.", invoke_without_command=True, rich_markup_mode=None
)


@app.callback()
def data(context: typer.Context) -> None:
    """The data sets that fednlp knows by name."""
    if context.invoked_subcommand is None:
        listed()


@app.command("list")
def listed() -> None:
    """List them: task, licence, natural field, and how they are got."""
    from rich.console import Console
    from rich.table import Table

    from fednlp.data import describe

    table = Table(
        "name", "what", "task", "licence", "natural field", "how it is got", box=None, pad_edge=False
    )
    for entry in describe():
        table.add_row(entry.name, entry.title, entry.task, entry.licence, entry.natural or "", entry.how)
    Console().print(table)


@app.command("info")
def informed(
    source: Annotated[str, typer.Argument(help="A known data set, a file, a folder, or a hub name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    path: Annotated[str | None, typer.Option(help="A known data set's own files.")] = None,
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    label: Annotated[str, typer.Option(help="Column of the label.")] = "label",
    columns: Annotated[
        list[str] | None, typer.Option(help="Another column, e.g. source=dialogue; may be repeated.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="The task, where the columns fit more than one.")] = None,
    test_path: Annotated[
        str | None, typer.Option("--test-path", "--test", help="The file of the test set.")
    ] = None,
    test_fraction: Annotated[float, typer.Option(help="Held out where there is no test set.")] = 0.2,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of an experiment, e.g. data.invalid=drop.")
    ] = None,
) -> None:
    """Say what is known of a data set, how it is read, what is in it, and what is odd about it."""
    from fednlp.data import CATALOGUE, info

    known = info(source) if _is_known(source, CATALOGUE) else {}
    found = None
    if not known or path is not None or known["cached"]:
        options = {"text": text, "label": label, "test_path": test_path, "test_fraction": test_fraction}
        named = [f"data.columns.{one}" for one in columns or ()]
        document = {"data": _given(_origin(source, path) | options), "task": _given({"name": task})}
        found = _look(document, [*named, *(set_ or ())])
    if as_json:
        print(json.dumps(known | (found.values() if found else {}), indent=1, ensure_ascii=False))
        return
    if known:
        width = max(map(len, known))
        for key, value in known.items():
            print(f"{key:<{width}}  {'' if value is None else value}")
    if found:
        print(("\n" if known else "") + found.page())


def _is_known(source: str, known: Collection[str]) -> bool:
    """Say whether a source is a name of the catalogue, or can be nothing else and is to be refused as one."""
    return source in known or not ("/" in source or _is_path(source))


def _look(document: dict[str, Any], overrides: Sequence[str]) -> "Look":
    from fednlp import config
    from fednlp.assembly import open_data
    from fednlp.data.look import look

    return look(open_data(config.parse(document, "fednlp data info", overrides)))


@app.command("export")
def exported(
    source: Annotated[str, typer.Argument(help="A known data set, a file, a folder, or a hub name.")],
    out: Annotated[Path, typer.Argument(help="The file to write, e.g. mine_data.h5.")],
    path: Annotated[str | None, typer.Option(help="A known data set's own files.")] = None,
) -> None:
    """Write a data set as the original FedNLP's exchange file."""
    from fednlp.data import export_data, load_data
    from fednlp.reports.units import plural

    count = export_data(load_data(**_origin(source, path)), out)
    print(f"written {out}: {plural(count, 'example')}")


def partition(
    source: Annotated[str, typer.Argument(help="A known data set, a file, a folder, or a hub name.")],
    method: Annotated[
        str,
        typer.Option(help="uniform, label, quantity, label+quantity, cluster, natural, proportions or file."),
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
    file: Annotated[
        str | None, typer.Option(help="File: a partition.npz, or a FedNLP _partition.h5.")
    ] = None,
    part: Annotated[str | None, typer.Option(help="File: the partition's name in it.")] = None,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where to write part.npz, or part.h5 as FedNLP has it.")
    ] = None,
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
    from fednlp.partitioning import describe, partition_source

    options = {
        "method": method,
        "clients": clients,
        "alpha": alpha,
        "beta": beta,
        "field": field,
        "proportions": proportions,
        "clusters": clusters,
        "encoder": encoder,
        "file": file,
        "part": part,
        "seed": seed,
    }
    columns = {"text": text, "label": label, "test_path": test_path, "test_fraction": test_fraction}
    document: dict[str, Any] = {
        "seed": seed,
        "clients_per_round": 1,
        "data": _given(_origin(source, path) | columns),
        "partition": _given(options),
    }
    settings = config.parse(document, "fednlp partition")
    report = partition_source(settings, out, plots, lambda said: print(clean(said), file=sys.stderr))
    print(json.dumps(report, indent=1) if as_json else clean_lines(describe(report)))


def _origin(source: str, path: str | None) -> dict[str, Any]:
    """Return the settings of ``[data]`` that say where the examples come from."""
    return {"path": source} if path is None and _is_path(source) else {"name": source, "path": path}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that were left out."""
    return {key: value for key, value in options.items() if value is not None}


def _is_path(source: str) -> bool:
    return (
        Path(source).exists()
        or source.startswith((".", "/", "~"))
        or source.endswith((".csv", ".tsv", ".jsonl"))
    )
