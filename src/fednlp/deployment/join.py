"""``fednlp join``: a site enrols, and then answers what the server asks until the federation ends."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fednlp.deployment.ca import SERVER_NAME
from fednlp.deployment.certificates import Material
from fednlp.deployment.credentials import channel_credentials
from fednlp.deployment.homes import home, joined_folder
from fednlp.deployment.identity import Membership, SiteIdentity
from fednlp.deployment.links.grpc import connect, enrol
from fednlp.deployment.participate import Participant
from fednlp.deployment.policy import SitePolicy, load_policy
from fednlp.deployment.setup import is_setup, read_setup
from fednlp.deployment.site import Site
from fednlp.deployment.site_template import write_template
from fednlp.deployment.tokens import JoinToken
from fednlp.disk import locked
from fednlp.errors import FednlpError, RunError
from fednlp.simulation.components import Log

_LEFT = "this site has left"
_GOODBYE = 2.0
"""Seconds to say so."""


def enrolled_folder(target: str, log: Log, root: Path | None = None) -> Path:
    """Return the folder of a federation; with a token, this site enrols in it first.

    Args:
        target: A join token, or the name that an earlier join has printed.
        log: Called with what happens.
        root: Of all federations; :func:`fednlp.deployment.homes.home` if left out.

    Raises:
        FednlpError: The token is not valid, the server is not there or refuses, or there is no such federation.
    """
    root = home() if root is None else root
    if not target.startswith("fednlp1:") and ":" not in target:
        return joined_folder(target, root)
    token = JoinToken.parse(target)
    folder = root / f"{token.federation[:8]}-{token.site}"
    folder.mkdir(parents=True, exist_ok=True)
    identity = SiteIdentity(folder / "identity")
    present = identity.membership
    if present is None or present.federation != token.federation:
        material = identity.enrolment_material(token)
        identity.enrol(token, _asking(token.address, material))
        log(f"joined as {token.site}; from now on: fednlp join {folder.name}")
    return folder


def site_file(folder: Path, policy: Path | None, data: Mapping[str, Any]) -> Path:
    """Return the site's file of a federation.

    Args:
        folder: From :func:`enrolled_folder`.
        policy: A file that the user names; it is the one from now on.
        data: What the user says of the data: written into a new file.

    Raises:
        RunError: Nothing is said of the data, now or before.
    """
    own = folder / "site.toml"
    if policy is not None:
        load_policy(policy)
        _replace(own, lambda new: new.symlink_to(policy.absolute()))
    elif data:
        paths = {key: str(Path(data[key]).absolute()) for key in ("path", "test_path") if key in data}
        _replace(own, lambda new: write_template(new, {**data, **paths}))
    elif not own.exists():
        raise RunError(
            f"which data? say fednlp join {folder.name} --data FILE, or --policy with a site's file"
        )
    return own.resolve()


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
        policy: What the site decides.
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
        policy: What the site decides.
        log: Called with what happens.

    Raises:
        FednlpError: The server refuses this site, or its experiment cannot be read.
    """
    with _connected(folder, policy, log) as (participant, address):
        call = participant.next_call()
        if call is None:
            return []
        if not is_setup(call.id):
            raise RunError(f"this site takes part already: stop it, and look at {folder / 'site.toml'}")
        return participant.site.examine(read_setup(call.request), call.objects, address)


@contextmanager
def _connected(folder: Path, policy: SitePolicy, log: Log) -> Iterator[tuple[Participant, str]]:
    """Keep a connection for the time of a block, and say why where the server ends it.

    Raises:
        RunError: The server refuses this site.
    """
    identity = SiteIdentity(folder / "identity")
    member = identity.membership
    assert member is not None
    with locked(
        folder / "lock", "stop it first", f"another fednlp join is at work in {folder}: stop it first"
    ):
        _renew(identity, member, log)
        site = Site(folder, member.site, policy, log)
        participant = Participant(folder, site, None, log)
        session, failure = participant.session, list[FednlpError]()
        link = threading.Thread(target=_link, args=(identity, member, participant, failure, log), daemon=True)
        link.start()
        try:
            yield participant, member.address
        finally:
            session.leave(_LEFT)
            link.join(_GOODBYE)
        if failure:
            raise failure[0]
        if session.refused:
            raise RunError(f"the server refuses this site: {session.reason}")


def _link(
    identity: SiteIdentity, member: Membership, site: Participant, failure: list[FednlpError], log: Log
) -> None:
    """Keep the connection: the work of a thread."""
    try:
        connect(
            member.address,
            channel_credentials(identity.material()),
            site.session.begin,
            on_state=log,
            server_name=SERVER_NAME,
        )
    except FednlpError as error:
        failure.append(error)
        site.session.leave(str(error))


def _renew(identity: SiteIdentity, member: Membership, log: Log) -> None:
    """Renew this site's certificate if it is time; a server that is not there is asked the next time."""
    if not identity.renewal_due(time.time()):
        return
    try:
        identity.renew(_asking(member.address, identity.material()))
    except RunError as error:
        identity.require_current()
        log(f"the certificate could not be renewed yet: {error}")


def _asking(address: str, material: Material) -> Callable[[bytes], bytes]:
    credentials = channel_credentials(material)
    return lambda message: enrol(address, credentials, message, server_name=SERVER_NAME)
