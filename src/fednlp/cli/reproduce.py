"""fednlp reproduce."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednlp.cli.experiment_options import Jobs
from fednlp.disk import expanded
from fednlp.errors import ConfigError

if TYPE_CHECKING:
    from fednlp.reproduction import Entry, Paper


def reproduce(
    papers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER]...",
            help="Papers by number or name, such as 000 or fednlp; all; or a manifest of your own (.toml).",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Time to spend, such as 90m, 2h or 3600s; 0s writes the pages alone.")
    ] = "1h",
    out: Annotated[
        Path, typer.Option(help="Folder of the runs and the pages; a second call goes on there.")
    ] = Path("runs/reproduce"),
    only: Annotated[
        str, typer.Option(help="Of tables, figures, partitions, or ids such as table2, with commas between.")
    ] = "",
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="NAME=DIR: folder of a data set that is not fetched; may be repeated."),
    ] = None,
    join: Annotated[
        list[Path] | None,
        typer.Option(
            "--join",
            help="DIR: another reproduction, or its pages, whose figures are joined; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="At most so many seeds.")] = 100,
    workers: Annotated[
        int | None, typer.Option(help="Processes; changes the speed, never the result.")
    ] = None,
    jobs: Jobs = 1,
    listed: Annotated[
        bool,
        typer.Option("--list", help="Show every table and figure with its minutes and data; run nothing."),
    ] = False,
) -> None:
    """Make tables and figures of papers at laptop size, as many as fit into a budget, beside the published figures."""
    from fednlp.reproduction import Request, find_papers, parse_budget
    from fednlp.reproduction.reproduce import check

    wanted = [name.strip() for name in only.split(",") if name.strip()]
    if not papers and not listed:
        raise ConfigError("which paper? say fednlp reproduce 000, or all; --list shows what there is")
    request = Request(
        papers or ["all"],
        wanted,
        dict(_folder(text) for text in data or []),
        [] if workers is None else [f"runtime.workers={workers}"],
        seeds,
        [expanded(place) for place in join or []],
        jobs,
    )
    seconds = parse_budget(budget)
    found = list(find_papers(request.papers).values())
    check(found, request)
    if listed:
        _show(found, wanted)
        return
    from fednlp.cli.console import Console
    from fednlp.reproduction import reproduce as make

    with Console(again=f"go on with: {shlex.join(['fednlp', *sys.argv[1:]])}") as console:
        pages = make(request, seconds, out, console)
    for path in pages:
        print(path)


def _folder(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    if not equals or not name.strip() or not place.strip():
        raise ConfigError(f"--data {text}: write NAME=DIR, for example --data mrpc=~/glue/MRPC")
    return name.strip(), Path(place.strip()).expanduser()


def _show(papers: "list[Paper]", only: list[str]) -> None:
    """Print the tables and figures of each paper."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fednlp.formatting.safe_text import clean
    from fednlp.reproduction.reproduce import is_asked

    console = Console()
    for paper in papers:
        table = Table(
            "id",
            "minutes",
            "what it shows",
            box=None,
            pad_edge=False,
            title=Text(clean(f"{paper.number or paper.name}  {paper.title}")),
            title_justify="left",
        )
        table.columns[0].no_wrap = True
        table.columns[1].justify = "right"
        asked = [entry for entry in paper.entries if is_asked(entry, only)]
        for entry in asked:
            minutes, needs = _facts(paper, entry)
            table.add_row(entry.id, minutes, Text.assemble(clean(entry.shows), "\n", (clean(needs), "dim")))
        if asked:
            table.add_row("together", *_together(paper, asked))
            console.print(table, "")


def _together(paper: "Paper", entries: "list[Entry]") -> tuple[str, str]:
    """Return the minutes of all seeds of entries together, and how many of them the first seeds take."""
    from fednlp.reproduction.needs import expected_minutes

    (first, _), (every, measured) = (expected_minutes(paper, entries, seeds) for seeds in (1, 100))
    return _minutes(every, measured), f"the first seeds take {first:.0f}; shared runs count once"


def _facts(paper: "Paper", entry: "Entry") -> tuple[str, str]:
    """Return the minutes of an entry, and what makes it from which data."""
    from fednlp.reproduction.needs import expected_minutes, needed_data

    if entry.impossible:
        return "–", f"not made: {entry.impossible}"
    if entry.benchmark:
        return "–", f"measured by {entry.benchmark}"
    minutes, measured = expected_minutes(paper, [entry])
    made_by = dict.fromkeys(paper.runs[key].experiment for key in paper.runs_of(entry))
    data = [f"--data {name}=DIR" for name in needed_data(paper, entry)]
    return _minutes(minutes, measured), "; ".join([", ".join(made_by) or "partitions", *data])


def _minutes(minutes: float, measured: bool) -> str:
    """Return minutes as text, with a question mark where they are an estimate."""
    return ("<1" if minutes < 1 else f"{minutes:.0f}") + ("" if measured else "?")
