"""The options that say which data a command reads, and how; the settings that they make."""

import glob
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fednlp.errors import ConfigError, FednlpError

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE",
        help="A known data set, a hub name, a file or a folder; several files or folders are a client each.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
PublishedFiles = Annotated[str | None, typer.Option(help="A known data set's own files.")]
Text = Annotated[str, typer.Option(help="Column of the text.")]
Label = Annotated[str, typer.Option(help="Column of the label.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="The file's own name of a column, e.g. --column source=dialogue; may be repeated."
    ),
]
TestPath = Annotated[str | None, typer.Option(help="The file of the test set.")]
TestFraction = Annotated[float, typer.Option(help="Held out where there is no test set.")]
Delimiter = Annotated[
    str | None,
    typer.Option(help="What separates the cells of CSV files, such as ';' or tab; found out if left out."),
]
OnInvalidRow = Annotated[str, typer.Option(help="Rows that cannot be examples: refuse or drop.")]
Task = Annotated[str | None, typer.Option(help="The task, where the columns fit several.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of an experiment, e.g. data.on_invalid_row=drop; may be repeated."),
]

TYPED = {
    "data.path": "SOURCE",
    "data.columns": "--column",
    **{
        f"data.{key}": f"--{key.replace('_', '-')}"
        for key in ("text", "label", "test_path", "test_fraction", "delimiter", "on_invalid_row")
    },
    "task.name": "--task",
}
"""What stands on a command line for keys of an experiment."""


@contextmanager
def naming_options(typed: Mapping[str, str]) -> Iterator[None]:
    """Have the errors of a block name what is typed on the command line in place of keys of an experiment.

    Args:
        typed: What stands for each key, such as :data:`TYPED`.
    """
    try:
        yield
    except FednlpError as error:
        error.args = (as_typed(str(error), typed),)
        raise


def as_typed(message: str, typed: Mapping[str, str]) -> str:
    """Return a message with keys of an experiment as they are typed on the command line.

    Args:
        typed: What stands for each key.

    >>> as_typed("say, for example, partition.clients = 100", {"partition.clients": "--clients"})
    'say, for example, --clients 100'
    """
    keys = "|".join(map(re.escape, typed))
    value = r"""( = ("[^"]*"|[^][\s,;:)]+))?"""
    return re.sub(
        rf"(?<![\w./-])(?<!--set )({keys})(?![\w.]|:\d){value}",
        lambda found: typed[found[1]] + (f" {found[3]}" if found[3] else ""),
        message,
    )


def data_section(
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
    own = own_columns(columns or [])
    return given(
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


def own_columns(columns: list[str]) -> dict[str, str]:
    """Return the user's own names of columns, by the canonical ones, from what ``--column`` was given.

    Raises:
        ConfigError: One of them has no equals sign.

    >>> own_columns(["source=dialogue", "target = summary", "label= team"])
    {'source': 'dialogue', 'target': 'summary', 'label': ' team'}
    """
    own = {}
    for column in columns:
        name, equals, value = column.partition("=")
        if not equals:
            raise ConfigError(f"--column {column}: write name=own, for example --column source=dialogue")
        own[name.strip()] = value.strip() if name.endswith(" ") else value  # a name may begin with a blank
    return own


def _origin(sources: list[str], path: str | None, columns: dict[str, str]) -> dict[str, Any]:
    """Return the settings of ``[data]`` about the source of the examples."""
    if len(sources) > 1 and path is not None:
        raise ConfigError("--path goes with one known data set: leave it out, or name one")
    if len(sources) > 1:
        return {"path": sources}
    return (
        {"path": sources[0]}
        if path is None and is_path(sources[0], columns)
        else {"name": sources[0], "path": path}
    )


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that were left out."""
    return {key: value for key, value in options.items() if value is not None}


def is_path(source: str, columns: dict[str, str]) -> bool:
    """Return whether a source is the user's own file or folder, and not a name of a data set."""
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
