"""The command line: ``fednlp run`` and its other commands."""

import signal
import sys
from types import FrameType

import typer

from fednlp.cli import data, device, export, inspect, plan, prompts, runs
from fednlp.errors import FednlpError

app = typer.Typer(
    name="fednlp",
    help="Federated learning of language models: simulate it, compare methods, and run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (runs.run, runs.compare, runs.report, runs.evaluate, runs.predict):
    app.command()(command)
app.command()(export.export)
app.command()(inspect.inspect)
app.command()(plan.plan)
app.command()(data.partition)
app.add_typer(data.app, name="data")
app.add_typer(prompts.app, name="prompts")
app.add_typer(device.app, name="device")


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
