"""fednlp data list, fednlp data info, fednlp data export."""

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fednlp.data.profiling import DataProfile
    from fednlp.data.profiling.profile import TableProfile
from fednlp.cli.data_options import (
    TYPED,
    Columns,
    Delimiter,
    Json,
    Label,
    OnInvalidRow,
    PublishedFiles,
    Set,
    Sources,
    Task,
    TestFraction,
    TestPath,
    Text,
    as_typed,
    data_section,
    given,
    is_path,
    naming_options,
)
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


@app.command("info")
def informed(
    sources: Sources,
    as_json: Json = False,
    path: PublishedFiles = None,
    text: Text = "text",
    label: Label = "label",
    columns: Columns = None,
    test_path: TestPath = None,
    test_fraction: TestFraction = 0.2,
    delimiter: Delimiter = None,
    on_invalid_row: OnInvalidRow = "refuse",
    task: Task = None,
    set_: Set = None,
) -> None:
    """Say what is known of a data set, how it is read, what is in it, and what is odd about it."""
    from fednlp.data import CATALOGUE, info

    known = info(sources[0]) if _is_known(sources, CATALOGUE) else {}
    found = None
    if not known or path is not None or known["cached"]:
        section = data_section(
            sources, path, text, label, columns, test_path, test_fraction, delimiter, on_invalid_row
        )
        with naming_options(TYPED):
            found = _profile({"data": section, "task": given({"name": task})}, set_ or ())
    if as_json:
        print(json.dumps(known | (found.values() if found else {}), indent=1, ensure_ascii=False))
        return
    if known:
        width = max(map(len, known))
        for key, value in known.items():
            lines = "" if value is None else str(value).replace("\n", "\n" + " " * (width + 2))
            print(f"{key:<{width}}  {lines}")
    if found:
        print(("\n" if known else "") + clean_lines(found.page()))


def _is_known(sources: Sequence[str], known: Collection[str]) -> bool:
    """Return whether the source is a name of the catalogue, or can be nothing else and is to be refused as one."""
    source = sources[0]
    return len(sources) == 1 and (source in known or not ("/" in source or is_path(source, {})))


def _profile(document: dict[str, Any], overrides: Sequence[str]) -> "DataProfile | TableProfile":
    """Return the profile of the data; where no task fits the user's files, that of the table with the advice."""
    from fednlp import config
    from fednlp.data.columns import TaskUnknown
    from fednlp.data.profiling import profile
    from fednlp.data.profiling.profile import table_profile
    from fednlp.simulation.components import open_data

    settings = config.parse(document, "fednlp data info", overrides)
    try:
        return profile(open_data(settings))
    except TaskUnknown as error:
        if error.rows is None:
            raise
        return table_profile(error.rows, as_typed(str(error), TYPED))


@app.command("export")
def exported(
    sources: Sources,
    out: Annotated[Path, typer.Argument(help="The file to write, e.g. mine_data.h5.")],
    path: PublishedFiles = None,
    text: Text = "text",
    label: Label = "label",
    columns: Columns = None,
    test_path: TestPath = None,
    test_fraction: TestFraction = 0.2,
    delimiter: Delimiter = None,
    on_invalid_row: OnInvalidRow = "refuse",
    task: Task = None,
) -> None:
    """Write a data set as a data file of the original FedNLP (HDF5)."""
    from fednlp import config
    from fednlp.data.fednlp_h5 import export_data
    from fednlp.formatting.units import plural
    from fednlp.simulation.components import open_data

    section = data_section(
        sources, path, text, label, columns, test_path, test_fraction, delimiter, on_invalid_row
    )
    with naming_options(TYPED):
        settings = config.parse({"data": section, "task": given({"name": task})}, "fednlp data export")
        data = open_data(settings)
    for note in data.notes:
        print(clean(note), file=sys.stderr)
    print(f"written {out}: {plural(export_data(data, out), 'example')}")
