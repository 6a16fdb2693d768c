"""fednlp serve, join, rehearse, doctor, sites: a federation between machines."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednlp.cli.data_options import own_columns
from fednlp.cli.experiment_options import Changes, ExperimentName
from fednlp.errors import ConfigError
from fednlp.formatting.safe_text import clean

if TYPE_CHECKING:
    from fednlp.deployment.identity.admission.organisation import Files

sites = typer.Typer(
    help="Sites of a federation: who takes part, invite one, remove one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_RUN = Annotated[Path, typer.Argument(help="The server's run directory.")]
_NAME = Annotated[str, typer.Argument(help="The site's name.")]
_PAGE = Annotated[
    str | None,
    typer.Option(help="host:port of a page that shows the run in a browser, such as 127.0.0.1:8080."),
]
_CA = Annotated[Path | None, typer.Option(help="Certificates of your organisation's authorities, PEM.")]
_CERT = Annotated[Path | None, typer.Option(help="This machine's certificate of your organisation, PEM.")]
_PROXY = Annotated[
    bool,
    typer.Option("--behind-proxy", help="A load balancer before the server ends TLS: read the docs first."),
]
_KEY = Annotated[Path | None, typer.Option(help="Its private key, PEM, without a password.")]
_Target = Annotated[
    str,
    typer.Argument(
        help="The file of the token that the server wrote, - to read it from standard input, a name that an earlier "
        "join printed, or with --ca, --cert and --key host:port of the server."
    ),
]
_Data = Annotated[str | None, typer.Option(help="Your training examples: a file or a folder.")]
_Text = Annotated[str | None, typer.Option(help="The column of the texts.")]
_Label = Annotated[str | None, typer.Option(help="The column of the labels.")]
_Column = Annotated[
    list[str] | None, typer.Option("--column", help="Your name of a column, name=own; may be repeated.")
]
_TestData = Annotated[str | None, typer.Option(help="Your own test examples, if you have any.")]
_TestFraction = Annotated[
    float | None, typer.Option(help="Share of the examples held out for your own tests; 0 for none.")
]
_OnInvalidRow = Annotated[
    str | None,
    typer.Option(help='What to do with a row that is no example: "refuse" the file, or "drop" the row.'),
]
_Policy = Annotated[Path | None, typer.Option(help="The site's file: what it allows (see --init).")]
_Init = Annotated[bool, typer.Option("--init", help="Write the site's file with comments, and end.")]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be fetched, trained and sent, and end.")
]


def serve(
    experiment: ExperimentName,
    out: Annotated[
        Path, typer.Option(help="The run directory; the one of a federation that was stopped goes on.")
    ],
    sites: Annotated[
        str, typer.Option(help="Names of the sites to invite, with commas between, or how many.")
    ] = "",
    listen: Annotated[
        str | None,
        typer.Option(
            help="host:port to listen at, such as 127.0.0.1:8443; if left out, all interfaces, and the port of "
            "--address or 8443."
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="host:port as the sites reach this server, if it is another.")
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(help="mqtts://host:port of an MQTT broker, by which the sites reach this server."),
    ] = None,
    ca: _CA = None,
    cert: _CERT = None,
    key: _KEY = None,
    behind_proxy: _PROXY = False,
    page: _PAGE = None,
    page_hosts: Annotated[
        list[str] | None,
        typer.Option("--page-host", help="Name under which a proxy serves the page; may be repeated."),
    ] = None,
    changes: Changes = None,
) -> None:
    """Serve a federation: print a line for each site to type, wait for the sites, and run the rounds."""
    from fednlp import config
    from fednlp.cli.console import Console
    from fednlp.deployment.operate.serve import Listening
    from fednlp.deployment.operate.serve import serve as serve_federation

    settings = config.load(experiment, changes or [])
    listen = listen or _listened_at(address, behind_proxy)
    hosts = tuple({one.rpartition(":")[0] for one in (listen, address) if one} - {"0.0.0.0", "[::]", ""})
    with Console(again=f"go on with: {_same_command()}") as console:
        where = Listening(listen, address, hosts, _files(ca, cert, key), behind_proxy, broker)
        serve_federation(
            settings, out, _names(sites), where, console, _show_token, page=page, page_hosts=page_hosts or ()
        )


def join(
    target: _Target,
    data: _Data = None,
    text: _Text = None,
    label: _Label = None,
    columns: _Column = None,
    test_data: _TestData = None,
    test_fraction: _TestFraction = None,
    on_invalid_row: _OnInvalidRow = None,
    policy: _Policy = None,
    init: _Init = False,
    dry_run: _DryRun = False,
    ca: _CA = None,
    cert: _CERT = None,
    key: _KEY = None,
    behind_proxy: _PROXY = False,
) -> None:
    """Join a federation with your own data, which never leave this machine."""
    from fednlp.runtime.allocator import share_freed_memory

    share_freed_memory()
    from fednlp.deployment.identity.admission.balancer import Balancer
    from fednlp.deployment.operate.homes import models_here
    from fednlp.deployment.operate.join import enrolled_folder, examine, site_file
    from fednlp.deployment.operate.join import join as join_federation
    from fednlp.deployment.site.policy import load_policy
    from fednlp.deployment.site.template import write_template

    os.umask(0o077)  # keys, policy and updates are the user's alone
    given = {
        "path": data,
        "text": text,
        "label": label,
        "columns": own_columns(columns) if columns else None,
        "test_path": test_data,
        "test_fraction": test_fraction,
        "on_invalid_row": on_invalid_row,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if init:
        path = policy or Path("site.toml")
        write_template(path, options)
        print(f"written {path}: read it, and join with: fednlp join TOKENFILE --policy {path}")
        return
    if policy is not None and options:
        raise ConfigError(
            "--policy names the data already: leave --data and its options out, or change that file"
        )
    if policy is not None:
        load_policy(policy)  # a mistake in it is said before this site enrols
    balancer = Balancer(ca) if behind_proxy else None
    files = None if behind_proxy and cert is None and key is None else _files(ca, cert, key)
    folder = enrolled_folder(target, _log, files=files, balancer=balancer)
    path = site_file(folder, policy, options)
    found = load_policy(path)
    _log(f"what this site allows: {path}")
    if dry_run:
        for line in examine(folder, found, _log):
            print(clean(line))
        return
    if (folder / "resolved.toml").is_file():
        _log(f"a model of this federation is here already; {models_here(folder)[-1]}")
    try:
        print(clean(f"the federation has ended: {join_federation(folder, found, _log)}"))
        for line in models_here(folder):
            print(clean(line))
    except KeyboardInterrupt:
        print(f"\nstopped; go on with: fednlp join {folder.name}", file=sys.stderr)
        raise


def rehearse(
    experiment: ExperimentName,
    out: Annotated[Path, typer.Option(help="The run directory; the sites' folders are made beside it.")],
    page: _PAGE = None,
    changes: Changes = None,
) -> None:
    """Try a federation on this machine: a process for each client, each with its own examples alone, over TLS."""
    from fednlp import config
    from fednlp.cli.console import Console
    from fednlp.deployment.operate.rehearse import rehearse as rehearse_federation

    settings = config.load(experiment, changes or [])
    with Console(again=f"go on with: {_same_command()}") as console:
        rehearse_federation(settings, out, console, page)


def _listened_at(address: str | None, behind_proxy: bool) -> str:
    """Return where a server listens that is reached at an address.

    A load balancer has a port of its own.

    >>> _listened_at("fl.example.org:18443", False), _listened_at(None, False), _listened_at("fl.example.org:443", True)
    ('0.0.0.0:18443', '0.0.0.0:8443', '0.0.0.0:8443')
    """
    from fednlp.deployment.identity.names import server_address

    if address is None or behind_proxy:
        return "0.0.0.0:8443"
    return f"0.0.0.0:{server_address(address).rpartition(':')[2]}"


def _log(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)


def _show_token(name: str, typed: str) -> None:
    print(f"{clean(name)}:  fednlp join {typed} --data FILE", flush=True)


def _files(ca: Path | None, cert: Path | None, key: Path | None) -> "Files | None":
    """Return the files of an organisation, if they are given."""
    from fednlp.deployment.identity.admission.organisation import Files

    given = {"--ca": ca, "--cert": cert, "--key": key}
    missing = [name for name, path in given.items() if path is None]
    if len(missing) == len(given):
        return None
    if ca is None or cert is None or key is None:
        raise ConfigError(f"--ca, --cert and --key go together: {' and '.join(missing)} is missing")
    return Files(ca, cert, key)


def _same_command() -> str:
    return shlex.join(["fednlp", *sys.argv[1:]])


def _names(text: str) -> list[str]:
    """Return names of sites: those given, or so many numbered ones.

    >>> _names("nord, west"), _names("2")
    (['nord', 'west'], ['site-1', 'site-2'])
    """
    if text.strip().isdecimal():
        return [f"site-{number}" for number in range(1, int(text) + 1)]
    return [name.strip() for name in text.split(",") if name.strip()]


def doctor(
    target: Annotated[
        str,
        typer.Argument(
            help="The file of a join token (it is not used up), - to read it from standard input, host:port, or the "
            "name of a federation that was joined."
        ),
    ],
) -> None:
    """Check whether this machine can take part: name, port, proxy, TLS, clock, versions, device, disk."""
    from fednlp.deployment.operate.doctor import examine, target_of
    from fednlp.deployment.operate.findings import GOOD, WRONG

    found = []
    for one in examine(target_of(target)):
        remedy = f": {one.remedy}" if one.remedy else ""
        mark = "ok" if one.state == GOOD else one.state
        print(f"{mark:8} {one.check:9} {clean(one.text)}{remedy}", flush=True)
        found.append(one)
    if any(one.state == WRONG for one in found):
        raise typer.Exit(1)


@sites.command("list")
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
    found = Register(federation_folder(run)).sites()
    for site in found:
        dates = (site.since, site.invitation_expires, site.certificate_expires)
        shown = [DASH if date is None else date_text(date) for date in dates]
        table.add_row(Text(site.name), str(site.client), site.state, *shown)
    if found:
        show(plain_console(), table)
    else:
        print(f"no site yet: fednlp sites invite {run} NAME", file=sys.stderr)


@sites.command("invite")
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


@sites.command("remove")
def removed(run: _RUN, name: _NAME) -> None:
    """Remove a site: it is refused from now on, and no other site is touched."""
    from fednlp.deployment.identity.enrolment import federation_folder
    from fednlp.deployment.identity.site_registry import Register

    site = Register(federation_folder(run)).remove(name)
    print(f"{site.name} (client {site.client}) is removed; fednlp sites invite lets it come back")
