"""fednlp data list, fednlp data info, fednlp partition."""

import glob
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fednlp.data.profiling import DataProfile
from fednlp.errors import ConfigError
from fednlp.formatting.safe_text import clean, clean_lines

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


_SOURCES = typer.Argument(
    metavar="SOURCE...",
    help="A known data set, a hub name, a file or a folder; several files or folders are a client each.",
)
_PATH = typer.Option(help="A known data set's own files.")
_TEXT = typer.Option(help="Column of the text.")
_LABEL = typer.Option(help="Column of the label.")
_COLUMN = typer.Option(
    "--column", help="The file's own name of a column, e.g. --column source=dialogue; may be repeated."
)
_TEST_PATH = typer.Option(help="The file of the test set.")
_TEST_FRACTION = typer.Option(help="Held out where there is no test set.")
_DELIMITER = typer.Option(
    help="What separates the cells of CSV files, such as ';' or tab; found out if left out."
)
_ON_INVALID_ROW = typer.Option(help="Rows that cannot be examples: refuse or drop.")
_TASK = typer.Option(help="The task, where the columns fit several.")
_SET = typer.Option(
    "--set", help="A setting of an experiment, e.g. data.on_invalid_row=drop; may be repeated."
)


@app.command("info")
def informed(
    sources: Annotated[list[str], _SOURCES],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    path: Annotated[str | None, _PATH] = None,
    text: Annotated[str, _TEXT] = "text",
    label: Annotated[str, _LABEL] = "label",
    columns: Annotated[list[str] | None, _COLUMN] = None,
    test_path: Annotated[str | None, _TEST_PATH] = None,
    test_fraction: Annotated[float, _TEST_FRACTION] = 0.2,
    delimiter: Annotated[str | None, _DELIMITER] = None,
    on_invalid_row: Annotated[str, _ON_INVALID_ROW] = "refuse",
    task: Annotated[str | None, _TASK] = None,
    set_: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Say what is known of a data set, how it is read, what is in it, and what is odd about it."""
    from fednlp.data import CATALOGUE, info

    known = info(sources[0]) if _is_known(sources, CATALOGUE) else {}
    found = None
    if not known or path is not None or known["cached"]:
        section = _data(
            sources, path, text, label, columns, test_path, test_fraction, delimiter, on_invalid_row
        )
        found = _profile({"data": section, "task": _given({"name": task})}, set_ or ())
    if as_json:
        print(json.dumps(known | (found.values() if found else {}), indent=1, ensure_ascii=False))
        return
    if known:
        width = max(map(len, known))
        for key, value in known.items():
            print(f"{key:<{width}}  {'' if value is None else value}")
    if found:
        print(("\n" if known else "") + clean_lines(found.page()))


def _is_known(sources: Sequence[str], known: Collection[str]) -> bool:
    """Return whether the source is a name of the catalogue, or can be nothing else and is to be refused as one."""
    source = sources[0]
    return len(sources) == 1 and (source in known or not ("/" in source or _is_path(source, {})))


def _profile(document: dict[str, Any], overrides: Sequence[str]) -> "DataProfile":
    from fednlp import config
    from fednlp.data.profiling import profile
    from fednlp.simulation.components import open_data

    return profile(open_data(config.parse(document, "fednlp data info", overrides)))


@app.command("export")
def exported(
    sources: Annotated[list[str], _SOURCES],
    out: Annotated[Path, typer.Argument(help="The file to write, e.g. mine_data.h5.")],
    path: Annotated[str | None, _PATH] = None,
    text: Annotated[str, _TEXT] = "text",
    label: Annotated[str, _LABEL] = "label",
    columns: Annotated[list[str] | None, _COLUMN] = None,
    test_path: Annotated[str | None, _TEST_PATH] = None,
    test_fraction: Annotated[float, _TEST_FRACTION] = 0.2,
    delimiter: Annotated[str | None, _DELIMITER] = None,
    on_invalid_row: Annotated[str, _ON_INVALID_ROW] = "refuse",
    task: Annotated[str | None, _TASK] = None,
) -> None:
    """Write a data set as a data file of the original FedNLP (HDF5)."""
    from fednlp import config
    from fednlp.data.fednlp_h5 import export_data
    from fednlp.formatting.units import plural
    from fednlp.simulation.components import open_data

    section = _data(sources, path, text, label, columns, test_path, test_fraction, delimiter, on_invalid_row)
    settings = config.parse({"data": section, "task": _given({"name": task})}, "fednlp data export")
    data = open_data(settings)
    for note in data.notes:
        print(clean(note), file=sys.stderr)
    print(f"written {out}: {plural(export_data(data, out), 'example')}")


def partition(
    sources: Annotated[list[str], _SOURCES],
    method: Annotated[
        str,
        typer.Option(
            help="uniform, label, quantity, label+quantity, cluster, natural, silos, proportions or file; auto is "
            "silos where the files are a client each, else uniform."
        ),
    ] = "auto",
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Label shift: small is skewed, large is IID.")] = None,
    beta: Annotated[
        float | None, typer.Option(help="Quantity shift: small is skewed, large is equal.")
    ] = None,
    entity: Annotated[
        str | None, typer.Option(help="Label shift of tagged texts: majority or rarest entity type.")
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
    split_out: Annotated[
        Path | None,
        typer.Option(help="New folder for a folder of files of each client, as its site would hold them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    path: Annotated[str | None, _PATH] = None,
    text: Annotated[str, _TEXT] = "text",
    label: Annotated[str, _LABEL] = "label",
    columns: Annotated[list[str] | None, _COLUMN] = None,
    test_path: Annotated[str | None, _TEST_PATH] = None,
    test_fraction: Annotated[float, _TEST_FRACTION] = 0.2,
    delimiter: Annotated[str | None, _DELIMITER] = None,
    on_invalid_row: Annotated[str, _ON_INVALID_ROW] = "refuse",
    task: Annotated[str | None, _TASK] = None,
    set_: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Partition the examples of a data set over clients, and show how unlike the clients are."""
    from fednlp import config
    from fednlp.simulation.partitioning import describe, partition_source

    options = {
        "method": method,
        "clients": clients,
        "alpha": alpha,
        "beta": beta,
        "entity": entity,
        "field": field,
        "proportions": proportions,
        "clusters": clusters,
        "encoder": encoder,
        "file": file,
        "part": part,
        "seed": seed,
    }
    document: dict[str, Any] = {
        "seed": seed,
        "data": _data(
            sources, path, text, label, columns, test_path, test_fraction, delimiter, on_invalid_row
        ),
        "task": _given({"name": task}),
        "partition": _given(options),
    }
    settings = config.parse(document, "fednlp partition", set_ or ())

    def log(line: str) -> None:
        print(clean(line), file=sys.stderr)

    report = partition_source(settings, out, plots, log)
    if split_out is not None:
        from fednlp.deployment.shards import FEDERATION
        from fednlp.deployment.shards import split_out as split
        from fednlp.formatting.units import plural

        shards = split(settings.resolved(), split_out, log)
        log(
            f"written {plural(len(shards.names), 'folder')} to {split_out}, and {FEDERATION} for fednlp serve"
        )
    print(json.dumps(report, indent=1) if as_json else clean_lines(describe(report)))


def _data(
    sources: list[str],
    path: str | None,
    text: str,
    label: str,
    columns: list[str] | None,
    test_path: str | None,
    test_fraction: float,
    delimiter: str | None,
    on_invalid_row: str,
) -> dict[str, Any]:
    """Return the settings of ``[data]``."""
    own = {}
    for column in columns or []:
        name, equals, value = column.partition("=")
        if not equals:
            raise ConfigError(f"--column {column}: write name=own, for example --column source=dialogue")
        own[name.strip()] = value.strip()
    return _given(
        {
            **_origin(sources, path, own),
            "text": text,
            "label": label,
            "columns": own,
            "test_path": test_path,
            "test_fraction": test_fraction,
            "delimiter": delimiter,
            "on_invalid_row": on_invalid_row,
        }
    )


def _origin(sources: list[str], path: str | None, columns: dict[str, str]) -> dict[str, Any]:
    """Return the settings of ``[data]`` about the source of the examples."""
    if len(sources) > 1 and path is not None:
        raise ConfigError("--path goes with one known data set: leave it out, or name one")
    if len(sources) > 1:
        return {"path": sources}
    return (
        {"path": sources[0]}
        if path is None and _is_path(sources[0], columns)
        else {"name": sources[0], "path": path}
    )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that were left out."""
    return {key: value for key, value in options.items() if value is not None}


def _is_path(source: str, columns: dict[str, str]) -> bool:
    from fednlp.data.files import SUFFIXES, parallel_files, suffix_of
    from fednlp.data.silos.paths import languages_of

    path, languages = Path(source), languages_of(columns)
    return (
        path.exists()
        or source.startswith((".", "/", "~"))
        or glob.has_magic(source)
        or suffix_of(path) in SUFFIXES
        or (len(languages) == 2 and parallel_files(path, languages) is not None)
    )
