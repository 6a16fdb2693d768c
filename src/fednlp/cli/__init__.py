"""The command line: ``fednlp run`` and its other commands."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Annotated, Any

import typer

from fednlp import __version__
from fednlp.cli import (
    compare,
    data,
    deployment,
    device,
    inspect,
    partition,
    plan,
    predict,
    prompts,
    reproduce,
    runs,
    status,
)
from fednlp.errors import NEXT_RELEASE, FednlpError
from fednlp.formatting.safe_text import clean_lines
from fednlp.plugins import place_of
from fednlp.runtime.launch import rank_of
from fednlp.startup.quick_import import quick_imports

_FAULT = 70
"""The exit code of a fault of fednlp itself, as ``EX_SOFTWARE`` of sysexits."""

app = typer.Typer(
    name="fednlp",
    help="Federated learning of language models: simulate it, compare methods, and run it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (runs.run, compare.compare, runs.report, predict.evaluate, predict.predict):
    app.command()(command)
app.command()(reproduce.reproduce)
app.command()(predict.export)
app.command()(inspect.inspect)
app.command()(plan.plan)
app.command()(partition.partition)
app.command()(deployment.serve)
app.command()(deployment.join)
app.command()(deployment.rehearse)
app.command()(status.status)
app.command()(deployment.doctor)
app.command()(device.tune_machine)
app.add_typer(data.app, name="data")
app.add_typer(prompts.app, name="prompts")
app.add_typer(device.app, name="device")
app.add_typer(deployment.sites, name="sites")


def _show_version(requested: bool) -> None:
    if requested:
        print(f"fednlp {__version__}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_show_version, is_eager=True, help="Print the version of fednlp and end."
)


@app.callback()
def options(version: Annotated[bool, _VERSION] = False) -> None:
    """Take what goes before a command."""


def main() -> None:
    """Run the command line; errors are one message, never a traceback unless ``FEDNLP_TRACEBACK=1`` asks for it."""
    rank, ranks = rank_of()
    if rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 says when to end
        from fednlp.runtime.mpi import follow

        with quick_imports():
            follow()
        return
    signal.signal(signal.SIGTERM, _interrupt)
    warnings.showwarning = partial(_warned, warnings.showwarning)
    with (
        quick_imports(),
        _ending(),
        _leading() if ranks > 1 else nullcontext(),
        _ending(),
    ):  # said before other ranks are stopped
        app()


def _warned(show: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Say in a line what a next release will refuse; show other warnings as they are."""
    if category is FutureWarning and str(message).endswith(NEXT_RELEASE):
        print(f"warning: {message}", file=sys.stderr)
    else:
        show(message, category, *place)


@contextmanager
def _ending() -> Iterator[None]:
    """End the process with a message in place of an error of the block."""
    try:
        yield
    except FednlpError as error:
        sys.exit(_failed(str(error)))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(_failed(f"{where}{error.strerror or error}"))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # an error that fednlp does not foresee
        if os.environ.get("FEDNLP_TRACEBACK"):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        place = place_of(error)
        if place is not None:
            how = "set FEDNLP_TRACEBACK=1 to see how it came to it"
            sys.exit(_failed(f"{what:.300}: raised by your own code ({place}); {how}"))
        hint = "this is a fault of fednlp, please report it; set FEDNLP_TRACEBACK=1 to see where it happened"
        sys.exit(_failed(f"{what:.300}: {hint}", _FAULT))


def _leading() -> AbstractContextManager[None]:
    from fednlp.runtime.mpi import leading

    return leading()


def _failed(message: str, code: int = 1) -> int:
    """Print an error, harmless for a terminal whatever data it quotes, and return the exit code."""
    print(f"error: {clean_lines(message)}", file=sys.stderr)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
