"""fednlp status."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.table import Table

    from fednlp.deployment.operate.feed import Overview
    from fednlp.deployment.server.status import Status

_LAST_ROUNDS, _MOST_SITES, _MOST_NAMES = 5, 25, 6
"""That one screen shows."""
_ORDER = ("awaited", "working", "connected", "invited", "enrolled", "removed")
_EVERY = 1.0


def status(
    run: Annotated[Path, typer.Argument(help="The run directory of a server, or of a simulation.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show it again each second.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show how a federation stands: who is there, who is awaited, the last rounds, bytes and privacy."""
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from fednlp.cli.tables import plain_console, show
    from fednlp.deployment.operate.feed import Overview

    found = Overview(run)
    if as_json:
        print(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
        return
    output = plain_console()
    if not follow or not output.is_terminal:
        for part in _screen(found):
            if isinstance(part, Table):
                show(output, part)
            else:
                output.print(part, soft_wrap=True)
        return
    with Live(Group(*_screen(found)), console=output, auto_refresh=False) as live:
        while not found.ended:
            time.sleep(_EVERY)
            found = Overview(run)
            live.update(Group(*_screen(found)), refresh=True)


def _screen(found: "Overview") -> "Iterator[RenderableType]":
    """Yield what is shown, from the top to the bottom."""
    from rich.text import Text

    from fednlp.formatting.safe_text import clean
    from fednlp.formatting.units import human_bytes, plural

    yield Text(clean(f"{found.run.name}: {found.phase}"), style="bold")
    yield Text(clean(found.server), style="dim")
    stands = found.status
    if stands is not None:
        for line in _awaited(stands) if found.alive else ():
            yield Text(line, style="yellow")
        yield ""
        yield _sites(stands, found.now)
        if len(stands.sites) > _MOST_SITES:
            yield f"and {plural(len(stands.sites) - _MOST_SITES, 'more site')}: --json has all"
        up, down = (sum(getattr(site, key) for site in stands.sites) for key in ("bytes_in", "bytes_out"))
        yield f"\nsent up {human_bytes(up)}, down {human_bytes(down)}"
        if stands.privacy is not None:
            yield _spent(stands)
    if found.points:
        yield ""
        yield _rounds(found)
    elif stands is None:
        yield "no round is done yet"


def _awaited(stands: "Status") -> "Iterator[str]":
    """Yield who is awaited, a line for each thing that would let the run go on."""
    from fednlp.formatting.safe_text import clean
    from fednlp.formatting.units import human_seconds

    for release in dict.fromkeys(one.release for one in stands.awaited):
        them = sorted((one for one in stands.awaited if one.release == release), key=lambda one: -one.seconds)
        named = [f"{one.name} ({human_seconds(round(one.seconds))})" for one in them[:_MOST_NAMES]]
        more = f" and {len(them) - _MOST_NAMES} more" if len(them) > _MOST_NAMES else ""
        yield clean(f"waiting for {', '.join(named)}{more}, until {release}")


def _table(*columns: str, numbers: int = 0) -> "Table":
    """Return an empty table whose last columns are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, name in enumerate(columns):
        number = place >= len(columns) - numbers
        table.add_column(name, justify="right" if number else "left", no_wrap=number)
    return table


def _sites(stands: "Status", now: float) -> "Table":
    from rich.text import Text

    from fednlp.deployment.identity.tokens import date_text
    from fednlp.formatting.safe_text import clean
    from fednlp.formatting.units import DASH, human_bytes, human_seconds

    table = _table("site", "state", "doing", "certificate until", "since", "heard", "up", "down", numbers=4)
    first = sorted(stands.sites, key=lambda site: (_ORDER.index(site.state), site.client))
    for site in first[:_MOST_SITES]:
        times = [
            DASH if at is None else human_seconds(max(0, round(now - at))) for at in (site.since, site.heard)
        ]
        sizes = (human_bytes(size) for size in (site.bytes_in, site.bytes_out))
        until = DASH if site.certificate is None else date_text(site.certificate)
        table.add_row(Text(clean(site.name)), site.state, Text(clean(site.doing)), until, *times, *sizes)
    return table


def _rounds(found: "Overview") -> "Table":
    from fednlp.formatting.units import human_bytes, human_number, human_seconds, metric_title

    metric = found.run.metric
    title = f"test {metric_title(metric)}"
    table = _table("round", "loss", title, "clients", "dropped", "up", "down", "time", numbers=7)
    for one in found.points[-_LAST_ROUNDS:]:
        parts = (one["scores"].get(part) for part in ("global", "federated", "personal"))
        scores: dict[str, Any] = next(filter(None, parts), {})
        seconds = one["seconds"]
        table.add_row(
            f"{one['round']}{', no sum' if one['aborted'] else ''}",
            human_number(one["loss"]),
            human_number(scores.get(metric)),
            str(one["clients"]),
            str(one["dropped"]),
            human_bytes(one["bytes_up"]),
            human_bytes(one["bytes_down"]),
            human_seconds(seconds if seconds is not None else float("nan")),
        )
    return table


def _spent(stands: "Status") -> str:
    from fednlp.formatting.units import plural

    spent = stands.privacy
    assert spent is not None
    epsilon = "infinite" if spent.epsilon is None else f"{spent.epsilon:.3g}"
    whom = "the server" if spent.where == "clients" else "whoever sees the models"
    return (
        f"epsilon {epsilon} so far at delta {spent.delta:.3g} against {whom}, "
        f"for a site that took part in {plural(spent.rounds, 'round')}"
    )
