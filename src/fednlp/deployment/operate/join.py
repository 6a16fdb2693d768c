"""``fednlp join``: a site enrols, and then answers what the server asks until the federation ends."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fednlp.deployment.identity.access import (
    IDENTITY,
    Access,
    access_of,
    has_joined,
)
from fednlp.deployment.identity.admission.balancer import Balancer, store_balancer, stored_balancer
from fednlp.deployment.identity.admission.organisation import Files, store_organisation
from fednlp.deployment.identity.certificates import REMEDY, SERVER_NAME
from fednlp.deployment.identity.names import broker_scheme, server_address
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.deployment.identity.tokens import JoinToken, invitation_name, token_text
from fednlp.deployment.links.grpc.client import connect
from fednlp.deployment.operate.dial import Explainer
from fednlp.deployment.operate.enrolling import asking, credentials, patiently
from fednlp.deployment.operate.homes import joined_folder
from fednlp.deployment.site.participate import Participant
from fednlp.deployment.site.policy import SitePolicy, load_policy
from fednlp.deployment.site.site import Site
from fednlp.deployment.site.template import write_template
from fednlp.disk import home, locked, private_folder
from fednlp.errors import ConfigError, FednlpError, RunError
from fednlp.simulation.components import Log

_LEFT = "this site has left"
_GOODBYE = 2.0
"""Seconds to say so."""
_TOKEN = re.compile(r"\s*fednlp[0-9]{1,4}:")
_LONGEST_NAME = 128
"""Characters of a federation's folder at most: what is longer was meant to be a token."""


def enrolled_folder(
    target: str,
    log: Log,
    root: Path | None = None,
    files: Files | None = None,
    balancer: Balancer | None = None,
) -> Path:
    """Return the folder of a federation; with a token, this site enrols in it first.

    Args:
        target: A join token, its file, ``-`` for standard input, the name that an earlier join has printed, or with
            ``files`` the server's address.
        log: Called with what happens.
        root: Of all federations; :func:`fednlp.disk.home` if left out.
        files: Certificates of an organisation, in place of a token.
        balancer: The load balancer that ends TLS, for a token; None without one.

    Raises:
        FednlpError: The token is not valid, the server is not there or refuses, or there is no such federation.
    """
    root, target = home() if root is None else root, token_text(target)
    if not target.strip():
        raise ConfigError("no join token arrived: type the whole line that the server printed")
    if files is not None and balancer is not None:
        raise ConfigError("--behind-proxy takes a token, and of --ca, --cert and --key none but --ca")
    if files is not None:
        return _organisation_folder(target, files, root, log)
    if _TOKEN.match(target) or len(target) > _LONGEST_NAME:
        return _redeemed_folder(JoinToken.parse(target), root, log, balancer)
    if ":" in target:
        raise ConfigError(
            f"{target} is neither a join token, which begins with fednlp1:, nor the name of a federation that was "
            "joined; a server's address takes --ca, --cert and --key too"
        )
    return joined_folder(target, root)


def _redeemed_folder(token: JoinToken, root: Path, log: Log, balancer: Balancer | None) -> Path:
    """Enrol with a token, unless this site has done so with the same one before."""
    folder = _own(root / f"{token.federation[:8]}-{token.site}")
    identity = SiteIdentity(folder / IDENTITY)
    member = identity.membership
    known = stored_balancer(folder)
    store_balancer(folder, balancer)
    if member is not None and member.invitation == invitation_name(token.secret):
        return folder
    material = identity.enrolment_material(token)
    name = SERVER_NAME if balancer is None else None
    ask = asking(Access(token.site, token.address, name, lambda: material, identity, balancer))
    if member is None:  # else the site can go on with the certificate that it has
        ask = patiently(ask, log)
    try:
        identity.enrol(token, ask)
    except FednlpError as error:
        if member is None:
            raise
        store_balancer(folder, known)
        log(f"{error}; this site goes on with the certificate that it has")
    else:
        log(f"joined as {token.site}; from now on: fednlp join {folder.name}")
    return folder


def _own(folder: Path) -> Path:
    """Return the folder of a federation, made if missing, which its owner alone can enter, whatever the umask."""
    private_folder(folder, REMEDY)
    folder.chmod(0o700)
    return folder


def _organisation_folder(target: str, files: Files, root: Path, log: Log) -> Path:
    """Store how this site reaches a server with an organisation's certificates."""
    address = server_address(target)
    if broker_scheme(address):
        raise ConfigError(
            "by way of a broker, join with a token: --ca, --cert and --key are for a server's address"
        )
    files.require_current(time.time())
    folder = root / f"{re.sub('[^0-9A-Za-z.]+', '-', address).strip('-')}-{files.site()}"
    if not has_joined(folder):
        log(f"this site is {files.site()}, by its certificate; from now on: fednlp join {folder.name}")
    _own(folder)
    store_organisation(folder, address, files)
    return folder


def site_file(folder: Path, policy: Path | None, data: Mapping[str, Any]) -> Path:
    """Return the site's file of a federation.

    Args:
        folder: From :func:`enrolled_folder`.
        policy: A file that the user names; it is the one from now on.
        data: What the user says of the data: written into a new file, unless the file that is there limits what an
            experiment may do, which would be lost.

    Raises:
        ConfigError: A file of the user's, or the one before, is not valid.
        RunError: Nothing is said of the data, now or before, or limits would be lost.
    """
    own = folder / "site.toml"
    if policy is not None:
        load_policy(policy)
        _replace(own, lambda new: new.symlink_to(policy.absolute()))
    elif data:
        _require_no_limits(own)
        paths = {key: str(Path(data[key]).absolute()) for key in ("path", "test_path") if key in data}
        _replace(own, lambda new: write_template(new, {**data, **paths}))
    elif not own.exists():
        raise RunError(
            f"which data? say fednlp join {folder.name} --data FILE, or --policy with a site's file"
        )
    return own.resolve()


def _require_no_limits(own: Path) -> None:
    """Check that a site's file may be replaced by one that allows all.

    Raises:
        ConfigError: It cannot be read.
        RunError: It says more than where the data lie.
    """
    if not own.exists() and not own.is_symlink():
        return
    before = load_policy(own.resolve())
    if before != SitePolicy(data=before.data):
        raise RunError(
            f"{own.resolve()} says what this site allows, and --data would replace it by a file that allows all: "
            "change [data] there and leave --data out, or name another file with --policy"
        )


def _replace(path: Path, make: Callable[[Path], None]) -> None:
    """Make a file in place of another one, which stays until the new one is there."""
    new = path.with_name(f".{path.name}")
    new.unlink(missing_ok=True)
    make(new)
    new.replace(path)


def join(folder: Path, policy: SitePolicy, log: Log) -> str:
    """Answer the calls of a federation until it ends; return why it ended.

    Args:
        folder: From :func:`enrolled_folder`.
        log: Called with what happens.

    Raises:
        FednlpError: The server refuses this site.
    """
    with _connected(folder, policy, log) as (participant, _):
        return participant.work()


def examine(folder: Path, policy: SitePolicy, log: Log) -> list[str]:
    """Return the lines that tell what a federation would fetch, train and send here; the server is told nothing.

    Args:
        folder: From :func:`enrolled_folder`.
        log: Called with what happens.

    Raises:
        FednlpError: The server refuses this site, or its experiment cannot be read.
    """
    with _connected(folder, policy, log) as (participant, address):
        return participant.examine(address)


@contextmanager
def _connected(folder: Path, policy: SitePolicy, log: Log) -> Iterator[tuple[Participant, str]]:
    """Keep a connection and a certificate for the time of a block, and say why where the server ends it.

    Raises:
        RunError: The server refuses this site.
    """
    access = access_of(folder, log)
    assert access is not None
    with locked(
        folder / "lock", "stop it first", f"another fednlp join is at work in {folder}: stop it first"
    ):
        over = threading.Event()
        if access.identity is not None:
            ask = asking(access)
            access.identity.renew_if_due(ask, log)
            renewing = access.identity.keep_renewed
            threading.Thread(target=renewing, args=(ask, over.wait, log), daemon=True).start()
        access.material()  # an expired one is said at once
        site = Site(folder, access.site, policy, log)
        member = None if access.identity is None else access.identity.membership
        participant = Participant(folder, site, None if member is None else member.invitation, log)
        session, failure = participant.session, list[FednlpError]()
        link = threading.Thread(target=_link, args=(access, participant, failure, log), daemon=True)
        link.start()
        try:
            yield participant, access.address
        finally:
            over.set()
            session.leave(_LEFT)
            link.join(_GOODBYE)
        if failure:
            raise failure[0]
        if session.refused:
            raise RunError(f"the server refuses this site: {session.reason}")
        if session.leaves:
            raise RunError(session.reason or "")


def _link(access: Access, site: Participant, failure: list[FednlpError], log: Log) -> None:
    """Keep the connection: the work of a thread."""
    try:
        if broker_scheme(access.address):
            from fednlp.deployment.links.mqtt import client

            connecting = client.connect(
                access.address, access.material, site.session.begin, on_state=log, server_name=SERVER_NAME
            )
        else:
            connecting = connect(
                access.address,
                lambda: credentials(access),
                site.session.begin,
                on_state=log,
                on_failed=Explainer(access, log).failed,
                server_name=access.server_name,
                prove=access.prove,
            )
        asyncio.run(connecting)
    except FednlpError as error:
        failure.append(error)
        site.session.leave(str(error))
