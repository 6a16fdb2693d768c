"""fednlp export."""

from pathlib import Path
from typing import Annotated

import typer

from fednlp.cli.experiment_options import TaskToTrust
from fednlp.cli.predict import OwnModel
from fednlp.errors import ConfigError


def export(
    run: Annotated[
        Path,
        typer.Argument(help="A run directory, or a federation that this machine took part in, by its name."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to make; with --all, the folder of the folders.")],
    client: Annotated[
        str | None, typer.Option(help="Whose model, by name or number; the shared model if left out.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The models of all clients, a folder each.")] = False,
    limit: Annotated[int, typer.Option(help="With --all: refuse a run of more clients.")] = 100,
    task: TaskToTrust = None,
    own_model: OwnModel = False,
) -> None:
    """Write a model of a run as a Hugging Face folder: the shared one, or clients' own."""
    from fednlp.cli.console import Console
    from fednlp.inference import export as exporting

    if every and (client is not None or own_model):
        raise ConfigError(f"--{'own' if own_model else 'client'} and --all do not go together: leave one out")
    from fednlp.deployment.operate.homes import used_folder

    run = used_folder(run)
    with Console(again="type the command again") as console:
        made = (
            exporting.export_clients(run, out, limit, console.log, task)
            if every
            else [exporting.export(run, out, client, task, own_model)]
        )
        for folder in made:
            console.log(f"written {folder}")
