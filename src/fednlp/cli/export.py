"""fednlp export."""

from pathlib import Path
from typing import Annotated

import typer

from fednlp.cli.experiment_options import TaskToTrust
from fednlp.errors import ConfigError


def export(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    out: Annotated[Path, typer.Option(help="The folder to make; with --all, the folder of the folders.")],
    client: Annotated[
        str | None, typer.Option(help="Whose model, by name or number; the shared model if left out.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The models of all clients, a folder each.")] = False,
    limit: Annotated[int, typer.Option(help="With --all: refuse a run of more clients.")] = 100,
    task: TaskToTrust = None,
) -> None:
    """Write a model of a run as a Hugging Face folder: the shared one, or clients' own."""
    from fednlp.cli.console import Console
    from fednlp.inference import export as exporting

    if every and client is not None:
        raise ConfigError("--client and --all do not go together: leave one out")
    with Console(again="type the command again") as console:
        made = (
            exporting.export_clients(run, out, limit, console.log, task)
            if every
            else [exporting.export(run, out, client, task)]
        )
        for folder in made:
            console.log(f"written {folder}")
