"""fednlp sites list, fednlp sites invite, fednlp sites remove."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Sites of a federation: who takes part, invite one, remove one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_RUN = Annotated[Path, typer.Argument(help="The server's run directory.")]
_NAME = Annotated[str, typer.Argument(help="The site's name.")]


@app.command("list")
def listed(run: _RUN) -> None:
    """List the sites: their numbers, what they may do, and until when."""
    from rich.table import Table
    from rich.text import Text

    from fednlp.cli.tables import plain_console, show
    from fednlp.deployment.identity.enrolment import federation_folder
    from fednlp.deployment.identity.site_registry import Register
    from fednlp.deployment.identity.tokens import date_text
    from fednlp.formatting.units import DASH

    table = Table(
        "site", "client", "state", "since", "token until", "certificate until", box=None, pad_edge=False
    )
    sites = Register(federation_folder(run)).sites()
    for site in sites:
        dates = (site.since, site.invitation_expires, site.certificate_expires)
        shown = [DASH if date is None else date_text(date) for date in dates]
        table.add_row(Text(site.name), str(site.client), site.state, *shown)
    if sites:
        show(plain_console(), table)
    else:
        print(f"no site yet: fednlp sites invite {run} NAME", file=sys.stderr)


@app.command("invite")
def invited(
    run: _RUN,
    name: _NAME,
    days: Annotated[float, typer.Option(help="How long the token is good.")] = 7,
) -> None:
    """Invite a site: write its token to a file, and print the command; an earlier token of this site is void."""
    from fednlp.deployment.identity.enrolment import federation_folder, kind_of, typed_by

    folder = federation_folder(run)
    typed = typed_by(folder, name, days)
    if kind_of(folder) != "organisation":
        print(
            f"good for {days:g} days; the file is a secret, send it to {name} in a way that you trust:",
            file=sys.stderr,
        )
    print(f"fednlp join {typed}")


@app.command("remove")
def removed(run: _RUN, name: _NAME) -> None:
    """Remove a site: it is refused from now on, and no other site is touched."""
    from fednlp.deployment.identity.enrolment import federation_folder
    from fednlp.deployment.identity.site_registry import Register

    site = Register(federation_folder(run)).remove(name)
    print(f"{site.name} (client {site.client}) is removed; fednlp sites invite lets it come back")
