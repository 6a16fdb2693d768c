"""The command line: fednlp run, compare, report, evaluate, predict, inspect, partition, data, prompts, device, plan."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from fednlp import __version__
from fednlp.cli import data, device, inspect, plan, predict, prompts, runs
from fednlp.errors import FednlpError

app = typer.Typer(
    name="fednlp",
    help="Federated learning of language models: simulate it, compare methods, and run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (runs.run, runs.compare, runs.report, predict.evaluate, predict.predict):
    app.command()(command)
app.command()(inspect.inspect)
app.command()(plan.plan)
app.command()(data.partition)
app.add_typer(data.app, name="data")
app.add_typer(prompts.app, name="prompts")
app.add_typer(device.app, name="device")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fednlp {__version__}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_show_version, is_eager=True, help="Print the version of fednlp and end."
)


@app.callback()
def options(version: Annotated[bool, _VERSION] = False) -> None:
    """Take what goes before a command."""


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
