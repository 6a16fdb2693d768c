"""The options that say which experiment a command reads, and what is changed in it."""

from typing import Annotated

import typer

ExperimentName = Annotated[
    str, typer.Argument(help="An experiment file, or the name of one that comes with fednlp.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, e.g. --set client.learning_rate=3e-4; may be repeated."),
]
Model = Annotated[str | None, typer.Option(help="bert-tiny, minilm, smollm2, a model folder or a hub name.")]
Full = Annotated[
    bool, typer.Option("--full", help="The experiment's full size, for a GPU, in place of its laptop size.")
]
Jobs = Annotated[
    int,
    typer.Option(help="Runs at once, each with its share of the cores and GPUs; changes the speed alone."),
]
TaskToTrust = Annotated[
    str | None,
    typer.Option(
        help="The task. A run directory that names a class, module:Class, needs it named here too: its code is run."
    ),
]
